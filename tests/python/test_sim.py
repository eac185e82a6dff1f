# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""An emulated board is one: over SSH it looks like what its target says, and like nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from colibri_deploy.errors import AuthenticationError, BoardConnectionError
from colibri_deploy.sim import SimBoard
from colibri_deploy.ssh import Answer, Connection
from colibri_deploy.targets import load_targets, machine_arch, select

Board = Callable[[str], SimBoard]


@pytest.fixture
def board(root: Path, tmp_path: Path) -> Iterator[Board]:
    """Starts an emulated board of a target."""
    with ExitStack() as stack:

        def start(target: str) -> SimBoard:
            kind = select(load_targets(root), target)
            return stack.enter_context(SimBoard(kind, tmp_path / target))

        yield start


def ask(board: SimBoard, command: str, stdin: tuple[bytes, ...] = ()) -> Answer:
    """Runs a command on a board."""
    with connected(board) as connection:
        return connection.run(command, stdin, timeout_s=20)


@contextmanager
def connected(board: SimBoard) -> Iterator[Connection]:
    """A connection to a board."""
    with Connection.open(board.board, board.known_hosts) as connection:
        yield connection


def test_outputs_input_and_status_come_through(board: Board) -> None:
    host = board("host")
    assert ask(host, "cat; echo no >&2; exit 7", (b"a\0\xff", b"b")) == Answer(
        7, b"a\0\xffb", b"no\n"
    )
    assert ask(host, "kill -ILL $$").status == 132
    assert ask(host, "exit 3", (b"x" * 10_000_000,)).status == 3
    big = ask(host, "head -c 5000000 /dev/zero; head -c 5000000 /dev/zero >&2")
    assert (len(big.stdout), len(big.stderr)) == (5_000_000, 5_000_000)


def test_commands_run_side_by_side_on_one_connection(board: Board) -> None:
    with connected(board("host")) as connection:
        for number in range(20):
            assert connection.run(f"exit {number}", timeout_s=20).status == number


def test_the_environment_is_the_boards_own(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_RUNNER", "false")
    monkeypatch.setenv("MINE", "secret")
    host = board("host")
    lines = dict(line.split("=", 1) for line in ask(host, "env").stdout.decode().splitlines())
    assert lines["HOME"] == str(host.home)
    assert lines["COLIBRI_RUNNER"] == ""
    assert set(lines) <= {"COLIBRI_RUNNER", "HOME", "PATH", "PWD", "USER", "OLDPWD", "SHLVL", "_"}
    assert ask(host, "uname -m").stdout.decode().strip() == os.uname().machine


def test_a_foreign_board_says_its_architecture_and_has_a_runner(
    board: Board, require_program: Callable[[str], Path]
) -> None:
    target, arch, cpu = "rpi-cm4", "aarch64", "cortex-a72"
    if machine_arch() == arch:
        target, arch, cpu = "visionfive2", "riscv64", "rv64"
    require_program(f"qemu-{arch}-static")
    pi = board(target)
    assert ask(pi, "uname -m").stdout.decode() == f"{arch}\n"
    assert ask(pi, "uname -s").stdout.decode() == "Linux\n"
    assert ask(pi, "echo $COLIBRI_RUNNER").stdout.decode() == f"qemu-{arch}-static -cpu {cpu}\n"
    assert b"qemu-" in ask(pi, "$COLIBRI_RUNNER --version").stdout


def test_files_stay_and_keys_do_not(board: Board) -> None:
    first = board("host")
    ask(first, "echo 1 >file")
    second = board("host")
    assert ask(second, "cat file").stdout == b"1\n"
    assert first.board.port != second.board.port
    known = [Path(str(one.known_hosts.path)) for one in (first, second)]
    keys = [path.read_text().split()[2] for path in known]
    assert keys[0] != keys[1]
    stranger = replace(second.board, key=first.board.key)
    with pytest.raises(AuthenticationError):
        Connection.open(stranger, second.known_hosts)


def test_nothing_is_left_running(root: Path, tmp_path: Path) -> None:
    kind = select(load_targets(root), "host")
    with SimBoard(kind, tmp_path / "host") as host, connected(host) as connection:
        with pytest.raises(BoardConnectionError, match=r"a command takes longer than 0\.5 s"):
            connection.run("echo $$ >pid; exec sleep 1000", timeout_s=0.5)
        child = int((host.home / "pid").read_text())
        os.kill(child, 0)
        keys = Path(str(host.known_hosts.path)).parent
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not keys.exists()
