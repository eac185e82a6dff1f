# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The engine against the reference implementation's goldens: tokens, tokenisation, logits, NLL."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.targets import machine_arch


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_three_checkpoints_compute_what_the_reference_computes(
    arch: str,
    root: Path,
    shared: Path,
    engine: Callable[[str], Path],
    require_program: Callable[[str], Path],
) -> None:
    runner = [] if arch == machine_arch() else [require_program(f"qemu-{arch}-static")]
    script = root / "tests/golden/check_fixtures.py"
    result = subprocess.run(
        [sys.executable, script, shared, *runner, engine(arch)],
        cwd=root,
        text=True,
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    # 12 prompts and one likelihood of each of three checkpoints
    assert result.stdout.splitlines()[-1] == "39 passed, 0 failed"
