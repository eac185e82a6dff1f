# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while the SSH library works: the command on the board ends, and so do we."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from board_fixtures import Place

from colibri_deploy.process import run


def test_ctrl_c_ends_a_connection_wherever_it_comes(
    sshd: Callable[..., Place], tmp_path: Path
) -> None:
    """Where paramiko has taken a lock, an exception would never be got out of there."""
    sshd("desk")
    program = Path(__file__).with_name("interrupted_client.py")
    files = (tmp_path / "boards.yaml", tmp_path / "known_hosts")
    done = run([sys.executable, program, *files], timeout_s=600)
    ends = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, status in ends if status == "130"} >= {"read_ready", "read", "close"}
    assert {status for _, status in ends} <= {"130", "0"}, ends
