# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The engine builds with plain Meson and a cross file; its own tests run through exe_wrapper."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from checker_report import EMULATED, LEVELS, hold_to

from colibri_deploy.convert import DTypeChoice
from colibri_deploy.process import Completed, run
from colibri_deploy.targets import machine_arch

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
        version = run([build / "colibri", "--version"]).stdout
        usable = version.partition("isa usable:")[2].splitlines()[0].split()
        report = run([checker, "--require", usable[-1]]).stdout
        hold_to(usable, report, arch, "this machine", report_row)
    for cpu, levels in EMULATED[arch].items():
        emulator: list[str | Path] = [require_program(f"qemu-{arch}-static"), "-cpu", cpu]
        report = run([*emulator, checker, "--require", levels[-1]]).stdout
        hold_to(levels, report, arch, f"qemu {cpu}", report_row)

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
