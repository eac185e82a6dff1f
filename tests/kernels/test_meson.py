# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The engine builds with plain Meson and a cross file; its own tests run through exe_wrapper."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.convert import DTypeChoice
from colibri_deploy.process import Completed, run
from colibri_deploy.targets import machine_arch

LEVELS = {
    "x86_64": ["scalar", "sse42", "avx2", "avx512", "avx512_vnni"],
    "aarch64": ["scalar", "neon", "neon_dotprod", "neon_i8mm"],
    "riscv64": ["scalar", "rvv"],
}

# CPUs under qemu-user, and the levels that each can run. What is beyond them is illegal there.
EMULATED = {
    "x86_64": {"Nehalem": LEVELS["x86_64"][:2], "Haswell": LEVELS["x86_64"][:3]},
    "aarch64": {
        "cortex-a72": LEVELS["aarch64"][:2],
        "cortex-a76": LEVELS["aarch64"][:3],
        "max": LEVELS["aarch64"],
    },
    "riscv64": {"rv64": ["scalar"]}
    | {f"rv64,v=true,vext_spec=v1.0,vlen={n}": LEVELS["riscv64"] for n in (128, 256, 512)},
}
COMPARISONS = 900  # of each level with scalar
TABLE = "kernels: level, where it ran, comparisons"

# libm functions of C17. The engine's arithmetic may call only the four below.
LIBM = set(
    """acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1
    fabs fdim floor fma fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p
    log2 logb lrint lround modf nan nearbyint nextafter nexttoward pow remainder remquo rint round
    scalbln scalbn sin sinh sqrt tan tanh tgamma trunc""".split()
)
ALLOWED = {"fabs", "fabsf", "sqrt", "sqrtf"}


@pytest.mark.parametrize("arch", list(LEVELS))
def test_plain_meson_builds_and_tests_every_level(
    arch: str,
    meson: Callable[..., Completed],
    meson_build: Callable[[str], Path],
    require_program: Callable[[str], Path],
    report_row: Callable[..., None],
) -> None:
    build = meson_build(arch)
    report = r"^(\S[^,\n]*?(?:, stripped)?) +[\d,]+ of +[\d,]+$"
    sizes = re.findall(report, (build / "sizes.txt").read_text(encoding="utf-8"), re.MULTILINE)
    kernels = [f"kernels {level}" for level in sorted(LEVELS[arch])]
    assert sizes == ["engine", *kernels, "libc", "program", "tokenizer", "colibri, stripped"]

    tests = meson("test", "-C", build)
    assert re.search(r"^Fail: +0 *$", tests.stdout, re.MULTILINE)
    checker = build / "tests/checker"
    if arch == machine_arch():
        for line in run([checker, "--require", "scalar"]).stdout.splitlines():
            where, rest = "this machine", line.split(maxsplit=1)
            report_row(TABLE, arch, rest[0], where, rest[1].partition(":")[0])
    for cpu, levels in EMULATED[arch].items():
        emulator: list[str | Path] = [require_program(f"qemu-{arch}-static"), "-cpu", cpu]
        lines = run([*emulator, checker, "--require", levels[-1]]).stdout.splitlines()
        ran = [line.split() for line in lines if "not run" not in line]
        assert [(words[0], words[1], words[-2]) for words in ran] == [
            (level, str(COMPARISONS), "0") for level in levels
        ]
        for words in ran:
            report_row(TABLE, arch, words[0], f"qemu {cpu}", " ".join(words[1:]))

    undefined = subprocess.run(
        [
            *(require_program("nm"), "--undefined-only", "--format=just-symbols"),
            *(build / "src" / f"lib{name}.a" for name in ("colibri", "program", "tokenizer")),
        ],
        check=True,
        text=True,
        capture_output=True,
    ).stdout.split()
    assert "mmap" in undefined  # the list is not empty for another reason
    assert {name for name in undefined if LIBM & {name, name[:-1]}} <= ALLOWED


@pytest.mark.parametrize("optimization", ["0", "2"])
def test_debug_and_optimization_are_independent(
    optimization: str,
    tmp_path: Path,
    meson: Callable[..., Completed],
    meson_setup: Callable[..., Completed],
    models: Callable[[str, DTypeChoice], Path],
    run_engine: Callable[..., Completed],
) -> None:
    meson_setup(tmp_path, "x86_64", "-Ddebug=true", f"-Doptimization={optimization}")
    meson("compile", "-C", tmp_path, "colibri:executable")
    arguments: list[str | Path] = [
        *("--model", models("mixtral", "keep"), "--tokens", "1,2,3", "--num_tokens", "2"),
        *("--ignore_eos", "--format", "ids", "--logits_hash", "--threads", "2"),
    ]
    debug = run([tmp_path / "colibri", *arguments])
    release = run_engine("x86_64", *arguments)
    assert debug.stdout == release.stdout
    assert release.stderr == ""
    lines = debug.stderr.splitlines()
    assert lines[0].startswith("map: ")
    assert any(line.startswith("section: gate_weights bf16 2x8, 96x64, at ") for line in lines)
    expert = r"expert_\d \(\d\.\d\d\)"
    routing = [re.fullmatch(rf"routing: token (\d) -> {expert}, {expert}", x) for x in lines]
    assert [match[1] for match in routing if match] == [*"012", *"012", *"33", *"44"]  # 2 layers


def test_fewer_levels_can_be_built(
    tmp_path: Path, meson: Callable[..., Completed], meson_setup: Callable[..., Completed]
) -> None:
    meson_setup(tmp_path / "fewer", "x86_64", "-Disas=scalar")
    meson("compile", "-C", tmp_path / "fewer", "colibri:executable")
    version = run([tmp_path / "fewer/colibri", "--version"]).stdout
    assert "isa inside: scalar\n" in version
    assert "isa chosen: scalar\n" in version

    refused = meson_setup(tmp_path / "none", "x86_64", "-Disas=avx2", check=False)
    assert refused.status != 0
    assert "the level scalar must be there, others build on it" in refused.stdout + refused.stderr
