# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""An emulated board is one: over SSH it looks like what its target says, and like nothing else."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from board_fixtures import report_of
from loopback import wait_until

from colibri_deploy.errors import AuthenticationError, BoardConnectionError
from colibri_deploy.process import Completed, run
from colibri_deploy.sim import Faults, SimBoard
from colibri_deploy.ssh import Answer, Connection
from colibri_deploy.targets import load_targets, machine_arch, select

Board = Callable[..., SimBoard]
Deploy = Callable[..., Completed]


@pytest.fixture
def board(root: Path, tmp_path: Path) -> Iterator[Board]:
    """`board(target, **faults)` starts an emulated board of a target."""
    with ExitStack() as stack:

        def start(target: str, **faults: Any) -> SimBoard:
            kind = select(load_targets(root), target)
            return stack.enter_context(SimBoard(kind, tmp_path / target, Faults(**faults)))

        yield start


def ask(board: SimBoard, command: str, stdin: tuple[bytes, ...] = ()) -> Answer:
    """Runs a command on a board."""
    with connected(board) as connection:
        return connection.run(command, stdin, timeout_s=100)


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
            assert connection.run(f"exit {number}", timeout_s=100).status == number


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
        pid = host.home / "pid"
        wait_until(lambda: pid.exists() and pid.read_text(), "the command does not begin")
        child = int(pid.read_text())
        os.kill(child, 0)
        keys = Path(str(host.known_hosts.path)).parent
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not keys.exists()


@pytest.fixture
def pushed(deploy: Deploy, small_model: Path) -> Callable[..., dict[str, Any]]:
    """`pushed(board)` pushes the engine and the small model, and smokes them; the push's record."""

    def push(board: str) -> dict[str, Any]:
        done = deploy("push", "--board", board, "--model", small_model, "--json")
        assert done.status == 0, done.stderr
        record = report_of(done, "push")
        smoke = deploy("smoke", "--board", board, "--json")
        assert (smoke.status, report_of(smoke, "smoke")["ok"]) == (0, True), smoke.stderr
        return record

    return push


def test_a_push_over_a_line_with_a_latency_and_a_bandwidth(
    board: Board, pushed: Callable[..., dict[str, Any]]
) -> None:
    with connected(board("host", latency_ms=200)) as connection:
        started = time.monotonic()
        assert connection.run("cat", (b"x",), timeout_s=100).stdout == b"x"
        assert time.monotonic() - started > 0.4  # a channel is opened, a command runs
    record = pushed("sim:host,latency_ms=40,mb_per_s=0.5")
    assert record["board"] == "sim:host,latency_ms=40,mb_per_s=0.5"
    assert record["bytes_sent"] > 1_000_000
    assert record["seconds"] > record["bytes_sent"] / 0.5e6


def test_a_push_by_a_user_without_an_account(
    build_dir: Path, require_program: Callable[[str], Path], tmp_path: Path
) -> None:
    as_nobody = (require_program("unshare"), "--user", "--map-user", "54321")
    verb = ("push", "--build-dir", build_dir, "--board", "sim:host", "--json")
    nameless = dict.fromkeys(("LOGNAME", "USER", "LNAME", "USERNAME"), "")
    done = run(
        [*as_nobody, sys.executable, "-m", "colibri_deploy", *verb],
        cwd=tmp_path,
        env={**os.environ, **nameless, "HOME": str(tmp_path)},
        check=False,
    )
    assert done.status == 0, done.stderr
    assert report_of(done, "push")["bytes_sent"] > 100_000


def test_what_a_slow_line_carries_arrives_whole(board: Board) -> None:
    data = bytes(i * i % 251 for i in range(300_000))
    assert ask(board("host", latency_ms=1, mb_per_s=5), "cat", (data,)).stdout == data


def test_a_push_that_is_cut_goes_on(
    deploy: Deploy, small_model: Path, pushed: Callable[..., dict[str, Any]]
) -> None:
    """The cut is in the model, which is the most of what is sent."""
    board = "sim:host,cut_after=900000"
    done = deploy("push", "--board", board, "--model", small_model)
    assert done.status == 29
    assert f"lost the connection to {board}" in done.stderr
    files = {file["name"]: file for file in pushed("sim:host")["files"]}
    assert 0 < files["model.bin"]["resumed_at"] < 900_000


def test_sftp_is_there_or_not_and_a_push_needs_none(
    board: Board,
    require_program: Callable[[str], Path],
    pushed: Callable[..., dict[str, Any]],
) -> None:
    program = require_program("sftp")

    def list_home(sim: SimBoard) -> Completed:
        ask(sim, "echo 1 >mine")
        known = f"UserKnownHostsFile={sim.known_hosts.path}"
        options = ("-F", "none", "-i", str(sim.board.key), "-o", known, "-P", str(sim.board.port))
        command = f"echo ls -1 | {program} -b - {' '.join(options)} colibri@127.0.0.1"
        return run(["sh", "-c", command], check=False, timeout_s=100)

    with_it = list_home(board("host"))
    assert (with_it.status, with_it.stdout.splitlines()[-1]) == (0, "mine"), with_it.stderr
    without = list_home(board("host", no_sftp=True))
    assert without.status != 0
    assert "subsystem request failed" in without.stderr
    assert pushed("sim:host,no_sftp")["bytes_sent"] > 1_000_000


def test_a_push_to_a_board_without_sha256sum(
    board: Board, pushed: Callable[..., dict[str, Any]]
) -> None:
    there = ask(board("host"), "echo abc | sha256sum")
    assert (there.status, there.stdout[:8]) == (0, b"edeaaff3")
    bare = board("host", no_sha256sum=True)
    assert ask(bare, "sha256sum </dev/null").status == 127
    assert ask(bare, "echo abc | cksum").status == 0
    assert pushed("sim:host,no_sha256sum")["bytes_sent"] > 1_000_000


def test_a_push_to_a_board_where_all_is_busybox(
    board: Board,
    require_program: Callable[[str], Path],
    pushed: Callable[..., dict[str, Any]],
) -> None:
    busybox = str(require_program("busybox").resolve())
    small = board("host", busybox=True)
    assert ask(small, "dd --help").stderr.startswith(b"BusyBox v")
    assert ask(small, "readlink -f $(which sed)").stdout.decode().strip() == busybox
    assert ask(small, "/bin/sh --help").stderr.startswith(b"BusyBox v")
    assert pushed("sim:host,busybox")["bytes_sent"] > 1_000_000
    assert pushed("sim:host,busybox,no_sha256sum")["bytes_sent"] == 0


def test_a_push_to_a_board_whose_disk_is_full(
    board: Board, deploy: Deploy, small_model: Path
) -> None:
    small = board("host", disk_kib=400)
    free = ask(small, "df -Pk . | tail -n 1").stdout.split()
    assert free[1:4] == [b"400", b"0", b"400"]
    written = ask(small, "head -c 500000 /dev/zero >file")
    assert written.status != 0
    assert b"No space left on device" in written.stderr
    words = ("--board", "sim:host,disk_kib=400", "--model", small_model)
    done = deploy("push", *words)
    assert done.status == 35
    assert "409,600 are free under " in done.stderr
    done = deploy("push", "--board", "sim:host,file_blocks=100")
    assert (done.status, "File too large" in done.stderr) == (35, True)


def test_a_board_that_stays_on_until_it_is_stopped(
    deploy: Deploy, small_model: Path, tmp_path: Path
) -> None:
    place = {"XDG_STATE_HOME": str(tmp_path / "state")}

    def emulate(*words: str) -> Any:
        command = [sys.executable, "-m", "colibri_deploy", "emulate", *words, "--json"]
        return json.loads(run(command, cwd=tmp_path, env={**os.environ, **place}).stdout)

    board = "sim:host,disk_kib=4000"
    started = emulate("start", board)
    try:
        assert emulate("start", board) == started
        words = ("--board", board, "--model", small_model, "--json")
        push = report_of(deploy("push", *words, **place), "push")
        assert push["bytes_sent"] > 1_000_000
        assert push["address"] == f"colibri@127.0.0.1:{started['port']}"
        again = report_of(deploy("push", *words, **place), "push")
        assert again["bytes_sent"] == 0  # its disk, which would go with it, is there
    finally:
        stopped = emulate("stop", "--all")
    assert stopped == [{"board": board, "was_running": True, "erased": False}]
    assert emulate("list") == []
    left = [path.name for path in Path(started["directory"]).iterdir()]
    assert sorted(left) == ["lock", "log"]


def test_a_board_that_cannot_stay_says_why(tmp_path: Path) -> None:
    """Without qemu-user a foreign board cannot run."""
    foreign = "visionfive2" if machine_arch() != "riscv64" else "rpi5"
    command = [sys.executable, "-m", "colibri_deploy", "emulate", "start", f"sim:{foreign}"]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PATH": "/nowhere"}
    done = run(command, cwd=tmp_path, env=env, check=False)
    assert done.status == 38
    error, reason = done.stderr.splitlines()
    assert error == f"error: sim:{foreign} does not start"
    assert reason.startswith(f"sim:{foreign} needs qemu-")
