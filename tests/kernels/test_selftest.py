# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`colibri --selftest` passes on every CPU. It and the checker name the kernels that are wrong:
both are built here with an error planted in almost every kernel."""

import json
import os
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from checker_report import EMULATED, INHERITED, KERNELS, LEVELS, parse
from test_cold_kernels import expected_hashes, printed_hashes
from test_mutations import build_mutant

from colibri_deploy.process import Completed, run
from colibri_deploy.targets import machine_arch


def right(levels: list[str]) -> str:
    """What the selftest prints where these levels are right."""
    lines = [f"{level}: {len(KERNELS)} kernels, 0 wrong\n" for level in levels]
    return "".join(lines) + "selftest: ok\n"


def test_every_usable_level_of_this_machine_is_right(run_engine: Callable[..., Completed]) -> None:
    arch = machine_arch()
    version = run_engine(arch, "--version").stdout
    usable = version.partition("isa usable:")[2].splitlines()[0].split()
    result = run_engine(arch, "--selftest")
    assert (result.status, result.stdout, result.stderr) == (0, right(usable), "")


@pytest.mark.parametrize(
    ("arch", "cpu"), [(arch, cpu) for arch, levels in EMULATED.items() for cpu in levels]
)
def test_every_usable_level_of_an_emulated_cpu_is_right(
    arch: str, cpu: str, run_engine: Callable[..., Completed]
) -> None:
    result = run_engine(arch, "--selftest", cpu=cpu)
    assert (result.status, result.stdout) == (0, right(EMULATED[arch][cpu]))


def test_one_level_can_be_chosen(run_engine: Callable[..., Completed]) -> None:
    result = run_engine("aarch64", "--selftest", "--isa", "neon", cpu="cortex-a72")
    assert (result.status, result.stdout) == (0, right(["neon"]))
    for level, message in (
        ("neon_i8mm", "this CPU cannot run the ISA level neon_i8mm"),
        ("avx2", f"it has: {' '.join(LEVELS['aarch64'])}"),
    ):
        result = run_engine("aarch64", "--selftest", "--isa", level, cpu="cortex-a72")
        assert (result.status, result.stdout) == (8, "")
        assert message in result.stderr


def at(level: str, right: str, wrong: str) -> str:
    """Template text that is `wrong` at one level only."""
    return f"""{{{{ '{wrong}' if level == '{level}' else '{right}' }}}}"""


def sse42(right: str, wrong: str) -> str:
    """Template text that is `wrong` at the level sse42 only."""
    return at("sse42", right, wrong)


# Kernel: file, what is replaced, and by what. The kernels of the first group are the scalar
# level's, and serve the others too.
AT_EVERY_LEVEL = {
    "f32_layer_norm": (
        "templates/ops/layer_norm.c.j2",
        "vsum(sum) / (float)n + eps",
        "vsum(sum) / (float)(n + 1) + eps",
    ),
    "f32_gelu": ("templates/ops/gelu.c.j2", "1.061405429f", "1.0614f"),
    "f32_gelu_tanh": ("templates/ops/gelu.c.j2", "0.044715f", "0.0447f"),
    "f32_rope_pairs": (
        "templates/ops/rope_pairs.c.j2",
        "x[1] = b * cosines[i] + a * sines[i]",
        "x[1] = b * cosines[i] + x[0] * sines[i]",
    ),
}
AT_SSE42 = {
    "f16_f32_mm": (  # Inf and NaN of f16 are taken for numbers
        "templates/isa/sse42.j2",
        "_mm_set1_epi32(0x0f7fffff)",
        "_mm_set1_epi32(0x7fffffff)",
    ),
    "q8_q8_mm": (  # wrong for w = -128 alone
        "templates/isa/sse42.j2",
        "_mm_maddubs_epi16(_mm_abs_epi8(w.v[{{ i }}]), _mm_sign_epi8(xv, w.v[{{ i }}]))",
        "_mm_maddubs_epi16(_mm_abs_epi8(xv), _mm_sign_epi8(w.v[{{ i }}], xv))",
    ),
    "q4_q8_mm": ("templates/isa/sse42.j2", "_mm_set1_epi32(-8 * sum)", "_mm_set1_epi32(-7 * sum)"),
    "mxfp4_q8_mm": (  # the codes' sign is lost
        "templates/isa/sse42.j2",
        "_mm_and_si128(codes, _mm_set1_epi8(15))",
        "_mm_and_si128(codes, _mm_set1_epi8(7))",
    ),
    "f32_q8_quantize": (  # too small an amax is not 0
        "templates/ops/quantize.c.j2",
        "!(amax >= 0x1p-100f",
        f"!(amax >= {sse42('0x1p-100f', '0x1p-101f')}",
    ),
    "f32_f16_convert": (  # ties are rounded up
        "templates/isa/sse42.j2",
        "clb_f32_to_f16(x[i])",
        "clb_f32_to_f16(x[i] * 0x1.000002p+0f)",
    ),
    "f32_rms_norm": (
        "templates/ops/norm.c.j2",
        "(float)n + eps",
        f"(float)n + {sse42('eps', '2 * eps')}",
    ),
    "f32_silu_mul": (
        "templates/ops/activation.c.j2",
        "vset1(1.0f)",
        f"vset1({sse42('1.0f', '0x1.000002p+0f')})",
    ),
    "f32_rope_half": (
        "templates/ops/rope_half.c.j2",
        "vsub(vmul(a, c), vmul(b, s))",
        f"{sse42('vsub', 'vadd')}(vmul(a, c), vmul(b, s))",
    ),
    "f32_exp": (
        "templates/ops/softmax.c.j2",
        "vexp(vload(x + i))",
        f"vexp({sse42('vload(x + i)', 'vadd(vload(x + i), vset1(0x1p-20f))')})",
    ),
    "f32_max": (
        "templates/ops/softmax.c.j2",
        "f32x16 m = vload(x)",
        f"f32x16 m = {sse42('vload(x)', 'vset1(0)')}",
    ),
    "f32_exp_sum": (  # NaN becomes 0
        "templates/isa/sse42.j2",
        "_mm_andnot_ps(_mm_cmplt_ps(a.v[i], b.v[i]), x.v[i])",
        "_mm_and_ps(_mm_cmpge_ps(a.v[i], b.v[i]), x.v[i])",
    ),
    "f32_axpy": (  # the last element is forgotten
        "templates/ops/blend.c.j2",
        "for (; i < n; i++)",
        f"for (; {sse42('i < n', 'i + 1 < n')}; i++)",
    ),
    "f32_blend": (  # an element is written before the output
        "templates/ops/blend.c.j2",
        "vstore(y + i, vadd(vmul(vload(y + i), vset1(a))",
        sse42("", "y[-1] = 0,") + "vstore(y + i, vadd(vmul(vload(y + i), vset1(a))",
    ),
    "f32_scale": (  # an element is read behind the input
        "templates/ops/blend.c.j2",
        "vstore(y + i, vmul(vload(x + i), vset1(a)))",
        sse42("", "*(volatile const float *)(x + n),")
        + "vstore(y + i, vmul(vload(x + i), vset1(a)))",
    ),
    "f32_mul": (
        "templates/ops/blend.c.j2",
        "vmul(vload(a + i), vload(b + i))",
        f"vmul(vload({sse42('a', 'b')} + i), vload(b + i))",
    ),
}
AT_AVX2 = {
    "f16_f32_mm": (  # another order of the sum
        "templates/ops/float_mm.c.j2",
        """        for (int c = 0; c < n_cols; c++)
            a = vadd(""",
        """        for ({{ 'int c = n_cols - 1; c >= 0; c--' if level == 'avx2' and name == 'f16'
                else 'int c = 0; c < n_cols; c++' }})
            a = vadd(""",
    ),
    "f32_q8_quantize": (
        "templates/ops/quantize.c.j2",
        "127.0f / amax)",
        at("avx2", "127.0f", "126.9999f") + " / amax)",
    ),
    "f32_exp_sum": (
        "templates/ops/softmax.c.j2",
        "vset1(-FLT_MAX)",
        f"vset1({at('avx2', '-FLT_MAX', '-INFINITY')})",
    ),
}
STILL_RIGHT = {"f32_f32_mm", "bf16_f32_mm", "i8_f32_mm"}
SAYS = {  # of kernels at sse42
    "f16_f32_mm": r"element \d+ of \d+ is .+, it should be -?(inf|nan) \+- -?(inf|nan)",
    "f32_q8_quantize": r"element \d+ of \d+ is 6\.21\d+e-33, it should be 0 \+- 0",
    "f32_exp_sum": r"element \d+ of \d+ is 0, it should be -?nan \+- -?nan",
    "f32_blend": r"element -1 of \d+ has the bits 0 instead of 0xa5a5a5a5",
    "f32_scale": "signal 11 stops it",
}


MUTANT_LEVELS = ["scalar", "sse42", "avx2"]
WRONG = (
    {(kernel, level) for kernel in AT_EVERY_LEVEL for level in MUTANT_LEVELS}
    | {(kernel, "sse42") for kernel in AT_SSE42}
    | {(kernel, "avx2") for kernel in AT_AVX2}
)


class Mutant(NamedTuple):
    """The programs with the errors."""

    colibri: Path
    checker: Path
    cold_kernels: Path


@pytest.fixture(scope="module")
def mutant(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Mutant:
    """The programs, with three levels and all of the errors."""
    assert {*AT_EVERY_LEVEL, *AT_SSE42, *STILL_RIGHT} == set(KERNELS)
    assert set(AT_EVERY_LEVEL) == INHERITED
    directory = tmp_path_factory.mktemp("mutant")
    python = shutil.ignore_patterns("*.py", "__pycache__")
    shutil.copytree(root / "tests", directory / "tests", ignore=python)
    levels = ("meson_options.txt", "value : []", f"value : {MUTANT_LEVELS}")
    errors = [*AT_EVERY_LEVEL.values(), *AT_SSE42.values(), *AT_AVX2.values()]
    colibri = build_mutant(root, directory, [levels, *errors])
    others = ["tests/checker", "tests/cold_kernels"]
    run(["ninja", "-C", colibri.parent, *others], env=with_scripts())
    return Mutant(colibri, *(colibri.parent / name for name in others))


def with_scripts() -> dict[str, str]:
    """The environment with this Python's programs first in PATH."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def named(report: str) -> dict[tuple[str, str], str]:
    """What a report says of wrong kernels, by kernel and level."""
    pattern = re.compile(r"^kernel (\w+) of level (\w+) is wrong: (.+)$", re.MULTILINE)
    return {(kernel, level): what for kernel, level, what in pattern.findall(report)}


def test_the_selftest_names_exactly_the_wrong_kernels(mutant: Mutant) -> None:
    result = run([mutant.colibri, "--selftest"], check=False)
    assert result.status == 10
    wrong = named(result.stdout)
    assert set(wrong) == WRONG
    for kernel, what in SAYS.items():
        assert re.fullmatch(what, wrong[kernel, "sse42"])
    summary = f"scalar: {len(KERNELS)} kernels, {len(AT_EVERY_LEVEL)} wrong\n"
    assert summary in result.stdout
    assert "ok" not in result.stdout
    assert result.stderr.startswith(f"colibri: error: selftest: {len(WRONG)} wrong kernels")


def test_the_checker_names_exactly_the_wrong_kernels(mutant: Mutant) -> None:
    result = run([mutant.checker], check=False)
    assert result.status == 1
    assert set(named(result.stdout)) == WRONG
    verdicts = parse(result.stdout)
    assert list(verdicts) == MUTANT_LEVELS
    for kernel in KERNELS:  # no error is seen by a comparison with scalar where scalar has it too
        scalar, on_sse42, on_avx2 = (verdicts[level][kernel] for level in MUTANT_LEVELS)
        assert (scalar.different > 0, scalar.inexact > 0) == (False, kernel in AT_EVERY_LEVEL)
        assert (on_sse42.different > 0) == (kernel in AT_SSE42)
        assert (on_avx2.different > 0) == (kernel in AT_AVX2)


def test_the_wrong_kernels_of_no_model_have_other_bits(mutant: Mutant) -> None:
    printed = printed_hashes(run([mutant.cold_kernels]).stdout)
    assert set(printed) == {(level, kernel) for level in MUTANT_LEVELS for kernel in INHERITED}
    right = expected_hashes()
    assert all(digest != right[kernel] for (_, kernel), digest in printed.items())


def test_a_required_level_must_have_run(
    meson_build: Callable[[str], Path], require_program: Callable[[str], Path]
) -> None:
    checker = meson_build("x86_64") / "tests/checker"
    on_nehalem: list[str | Path] = [
        require_program("qemu-x86_64-static"),
        "-cpu",
        "Nehalem",
        checker,
    ]
    result = run([*on_nehalem, "--require", "avx2"], check=False)
    assert result.status == 1
    assert result.stdout.endswith("the level avx2 was required and did not run\n")


def test_a_level_that_does_not_run_for_want_of_memory_is_a_failure(
    meson_build: Callable[[str], Path],
) -> None:
    checker = meson_build(machine_arch()) / "tests/checker"
    result = run(["sh", "-c", 'ulimit -v 1400 && exec "$0"', checker], check=False)
    assert result.status == 1
    assert "scalar: not run: no memory for the inputs of the selftest\n" in result.stdout


def test_the_checker_measures_every_kernel(
    root: Path, meson_build: Callable[[str], Path], run_engine: Callable[..., Completed]
) -> None:
    arch = machine_arch()
    checker = meson_build(arch) / "tests/checker"
    kernels = [one.name for one in runpy.run_path(str(root / "templates/kernels.py"))["KERNELS"]]
    assert sorted(kernels) == sorted(KERNELS)
    measured = json.loads(run([checker, "--bench", "--json"]).stdout)
    keys = [(one["level"], one["kernel"], one["what"]) for one in measured]
    assert len(keys) == len(set(keys))
    version = run_engine(arch, "--version").stdout
    levels = version.partition("isa usable:")[2].splitlines()[0].split()
    assert {key[:2] for key in keys} == {(level, kernel) for level in levels for kernel in kernels}
    for one in measured:
        assert one["gigabytes_per_second"] > 0
        assert one["gigaflops"] > 0
    assert run([checker, "--bench", "--csv"], check=False).status == 2
