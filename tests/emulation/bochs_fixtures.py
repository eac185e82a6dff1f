# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""x86-64 programs on Bochs' CPUs."""

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bochs_run import build_shim

from colibri_deploy.process import Completed, run

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def bochs(
    require: Callable[[bool, str], None], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Completed]:
    """`bochs(cpu, program, *args)` runs a program on Bochs' model of a CPU, any exit status."""
    reason = "bochscpu-python is not installed: pip install 'colibri-deploy[emulation]'"
    require(importlib.util.find_spec("bochscpu") is not None, reason)
    shim = build_shim(tmp_path_factory.mktemp("bochs"))
    environment = os.environ | {"LD_PRELOAD": str(shim)}

    def run_it(cpu: str, *command: str | Path) -> Completed:
        runner = HERE / "bochs_run.py"
        command = (sys.executable, runner, "--cpu", cpu, *command)
        return run(list(command), env=environment, check=False)

    return run_it
