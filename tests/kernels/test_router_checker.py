# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The selection of experts and their slots are right on every architecture. The code is the same
at all levels, so one CPU without special instructions does for each."""

from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.process import Completed, run
from colibri_deploy.targets import machine_arch

COMPARISONS = {"every shape": 88_792, "every order": 288_388, "not finite": 17_016, "slots": 2_000}
WHERE = [
    ("", machine_arch()),
    ("Nehalem", "x86_64"),
    ("cortex-a72", "aarch64"),
    ("rv64", "riscv64"),
]
TABLE = "routing: where it ran, comparisons with a plain selection, all right"


@pytest.mark.parametrize(("cpu", "arch"), WHERE)
def test_the_router_chooses_as_a_plain_one_does(
    cpu: str,
    arch: str,
    meson: Callable[..., Completed],
    meson_build: Callable[[str], Path],
    require_program: Callable[[str], Path],
    report_row: Callable[..., None],
) -> None:
    build = meson_build(arch)
    meson("compile", "-C", build, "router_checker")
    emulator: list[str | Path] = (
        [require_program(f"qemu-{arch}-static"), "-cpu", cpu] if cpu else []
    )
    report = run([*emulator, build / "tests/router_checker"]).stdout
    lines = [f"{what:<12} {n} comparisons, 0 wrong" for what, n in COMPARISONS.items()]
    assert report.splitlines() == lines
    cells = [f"{what}: {n:,}" for what, n in COMPARISONS.items()]
    report_row(TABLE, arch, f"qemu {cpu}" if cpu else "this machine", *cells)
