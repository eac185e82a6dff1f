# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The engine against the reference implementation's goldens: tokens, tokenisation, logits, NLL."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.targets import machine_arch


@pytest.mark.parametrize(
    ("arch", "part", "passed"),
    [
        # twelve prompts of each checkpoint (of those without BOS, one has no token and none is
        # generated) and one likelihood
        ("x86_64", "all", 156),
        ("aarch64", "three", 39),
        ("aarch64", "sample", 8),
        ("riscv64", "sample", 8),
    ],
)
def test_checkpoints_compute_what_the_reference_computes(
    arch: str,
    part: str,
    passed: int,
    root: Path,
    shared: Path,
    engine: Callable[[str], Path],
    require_program: Callable[[str], Path],
) -> None:
    runner = [] if arch == machine_arch() else [require_program(f"qemu-{arch}-static")]
    script = root / "tests/golden/check_fixtures.py"
    result = subprocess.run(
        [sys.executable, script, shared, part, *runner, engine(arch)],
        cwd=root,
        text=True,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == f"{passed} passed, 0 failed"
