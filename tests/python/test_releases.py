# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The lock on a board, what is kept there, `rollback` and `undeploy`, over real SSH.

The servers are the emulated board's and OpenSSH's; each client is a process of its own.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from board_fixtures import Place, report_of
from loopback import wait_until

from colibri_deploy.board_lock import STALE_SECONDS
from colibri_deploy.process import Completed, run

Deploy = Callable[..., Completed]


@pytest.fixture
def push_version(deploy: Deploy, build_dir: Path) -> Callable[..., dict[str, Any]]:
    """`push_version(place, number, *args)` pushes an engine that differs in its last byte."""
    path = build_dir / "host" / "colibri"
    original = path.read_bytes()
    path.unlink()

    def write(number: int) -> None:
        path.write_bytes(original + bytes([number]))
        path.chmod(0o755)

    def push(place: Place, number: int, *args: str | Path) -> dict[str, Any]:
        write(number)
        done = deploy("push", *place.arguments, *args, "--json")
        assert done.status == 0, done.stderr
        return report_of(done, "push")

    write(0)
    return push


def version(place: Place) -> int:
    """The number of the version that is current, which has to run."""
    engine = place.current / "colibri"
    assert run([engine, "--version"]).stdout.startswith("colibri ")
    return engine.read_bytes()[-1]


def names(place: Place) -> set[str]:
    """The files in the store, without the lists of their chunks."""
    return {path.name for path in place.root.glob("store/*") if path.suffix != ".chunks"}


def engine_sha256(number: int, build_dir: Path) -> str:
    data = (build_dir / "host" / "colibri").read_bytes()[:-1] + bytes([number])
    return hashlib.sha256(data).hexdigest()


def test_two_versions_before_the_current_one_are_kept_and_nothing_else(
    sim: Callable[..., Place], push_version: Callable[..., dict[str, Any]], build_dir: Path
) -> None:
    place = sim()
    ids = [push_version(place, number)["release"] for number in range(3)]
    (place.root / "store" / f".{'0' * 64}.partial").write_bytes(b"of an upload that was given up")
    (place.root / "releases" / ".0123456789abcdef.partial").mkdir()
    record = push_version(place, 3)
    size = (build_dir / "host" / "colibri").stat().st_size
    list_size = len("65536\n") + 33 * -(-size // 65536)
    assert record["pruned"] == {
        "releases": [ids[0], ".0123456789abcdef.partial"],
        "bytes": size + list_size + len("of an upload that was given up"),
    }
    lists = {path.name for path in place.root.glob("store/*.chunks")}
    assert lists == {f"{name}.chunks" for name in names(place)}
    assert {path.name for path in place.root.glob("releases/*")} == {
        *ids[1:],
        record["release"],
    }
    assert names(place) == {engine_sha256(number, build_dir) for number in (1, 2, 3)}
    assert version(place) == 3


def test_a_version_that_is_pushed_again_is_no_other_one(
    sim: Callable[..., Place], push_version: Callable[..., dict[str, Any]]
) -> None:
    place = sim()
    for number in (0, 1, 2, 2, 1, 0):
        record = push_version(place, number)
        assert version(place) == number
    assert (record["bytes_sent"], record["pruned"]) == (0, {"releases": [], "bytes": 0})
    assert len(list(place.root.glob("releases/*"))) == 3


def test_files_that_a_kept_release_shares_stay(
    sim: Callable[..., Place], push_version: Callable[..., dict[str, Any]], small_model: Path
) -> None:
    place = sim()
    push_version(place, 0, "--model", small_model)
    for number in (1, 2, 3):
        assert push_version(place, number)["bytes_sent"] < 300_000
    assert (place.current / "model.bin").read_bytes() == (small_model / "model.bin").read_bytes()
    assert len(names(place)) == 3 + 2


def test_rollback_returns_to_the_version_before_and_back(
    sim: Callable[..., Place], push_version: Callable[..., dict[str, Any]], deploy: Deploy
) -> None:
    place = sim()
    ids = [push_version(place, number)["release"] for number in range(3)]
    done = deploy("rollback", *place.arguments)
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.endswith(f"release {ids[1]} is current (before: {ids[2]})\n")
    assert version(place) == 1
    assert deploy("rollback", *place.arguments).status == 0
    assert version(place) == 2
    done = deploy("rollback", *place.arguments, "--to", ids[0], "--json")
    assert json.loads(done.stdout)["kept"] == [ids[1], ids[0]]
    assert version(place) == 0
    done = deploy("rollback", *place.arguments, "--to", ids[0])
    assert done.stdout.endswith(f"release {ids[0]} is current already\n")
    assert len(list(place.root.glob("releases/*"))) == 3


def test_a_dry_rollback_verifies_and_writes_nothing(
    sim: Callable[..., Place], push_version: Callable[..., dict[str, Any]], deploy: Deploy
) -> None:
    place = sim()
    ids = [push_version(place, number)["release"] for number in range(2)]
    before = tree(place.root)
    done = deploy("rollback", *place.arguments, "--dry-run")
    assert f"dry run: release {ids[0]} is whole and would replace {ids[1]}; kept: " in done.stdout
    assert tree(place.root) == before


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Everything below a directory."""
    found = {}
    for path in root.rglob("*"):
        stat = path.lstat()
        found[str(path.relative_to(root))] = (stat.st_mtime_ns, stat.st_size)
    return found


@pytest.mark.parametrize("name", ["colibri", "config.json", "manifest"])
def test_a_damaged_release_is_not_gone_back_to(
    name: str,
    sim: Callable[..., Place],
    push_version: Callable[..., dict[str, Any]],
    deploy: Deploy,
    make_checkpoint: Callable[..., Path],
    small_model: Path,
    tmp_path: Path,
) -> None:
    place = sim()
    first = push_version(place, 0, "--model", small_model)["release"]
    damaged = (place.current / name).resolve()
    if name == "config.json":  # another one, so that the damage is not the current release's too
        model = tmp_path / "other"
        model.mkdir()
        (model / "model.bin").symlink_to(small_model / "model.bin")
        (model / name).write_text((small_model / name).read_text() + "\n")
        push_version(place, 1, "--model", model)
    else:
        push_version(place, 1)
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for words in ((), ("--to", first), ("--dry-run",)):
        done = deploy("rollback", *place.arguments, *words)
        assert done.status == 42
        assert done.stderr.startswith(f"error: {name} of release {first} is damaged on colibri@")
    assert version(place) == 1


def test_a_release_that_is_not_there_is_told(
    sim: Callable[..., Place], push_version: Callable[..., dict[str, Any]], deploy: Deploy
) -> None:
    place = sim()
    done = deploy("rollback", *place.arguments)
    assert done.status == 42
    assert done.stderr.endswith(" has no release before the first: push\n")
    assert not place.root.exists()
    ids = [push_version(place, number)["release"] for number in range(2)]
    for odd in ("../../store", "$(reboot)", "0123456789abcdef", ""):
        done = deploy("rollback", *place.arguments, "--to", odd)
        assert done.status == 42
        assert f" has no release {odd}; before the current one: {ids[0]}\n" in done.stderr


def test_undeploy_leaves_nothing(
    sshd: Callable[..., Place],
    push_version: Callable[..., dict[str, Any]],
    deploy: Deploy,
    small_model: Path,
) -> None:
    place = sshd("desk", workdir="it's a `board`")
    ids = [push_version(place, number, "--model", small_model)["release"] for number in range(4)]
    (place.root / "store" / f".{'a' * 64}.partial").write_bytes(b"cut")
    (place.root / "current.4711").symlink_to("releases/x")
    before = tree(place.root)
    done = deploy("undeploy", *place.arguments, "--dry-run", "--json")
    record = json.loads(done.stdout)
    assert record["releases"] == ids[:0:-1]
    assert record["bytes"] >= sum(path.stat().st_size for path in place.root.glob("store/*"))
    assert not record["directory_removed"]
    assert tree(place.root) == before
    done = deploy("undeploy", *place.arguments)
    assert (done.status, done.stderr) == (0, "")
    assert re.search(r": removed [\d,]+ bytes, 3 releases\n$", done.stdout)
    assert not os.path.lexists(place.root)
    assert place.root.parent.is_dir()
    done = deploy("undeploy", *place.arguments)
    assert (done.status, done.stdout.endswith(": nothing is there\n")) == (0, True)
    assert push_version(place, 5)["bytes_sent"] > 0
    assert version(place) == 5


def a_file(root: Path) -> str:
    (root / "notes.txt").touch()
    return "notes.txt"


def an_empty_directory(root: Path) -> str:
    (root / "photos").mkdir()
    return "photos"


def a_hidden_file(root: Path) -> str:
    (root / ".bashrc").touch()
    return ".bashrc"


def a_file_in_the_store(root: Path) -> str:
    (root / "store" / "model.bin").touch()
    return "store/model.bin"


def a_link_in_the_store(root: Path) -> str:
    (root / "store" / ("a" * 64)).symlink_to("/")
    return f"store/{'a' * 64}"


def a_directory_in_a_release(root: Path) -> str:
    (root / "current" / "logs").mkdir()
    return f"releases/{(root / 'current').resolve().name}/logs"


def a_directory_in_place_of_the_link(root: Path) -> str:
    (root / "current").unlink()
    (root / "current").mkdir()
    return "current"


FOREIGN = (
    a_file,
    an_empty_directory,
    a_hidden_file,
    a_file_in_the_store,
    a_link_in_the_store,
    a_directory_in_a_release,
    a_directory_in_place_of_the_link,
)


@pytest.mark.parametrize("add", FOREIGN, ids=lambda add: str(add.__name__))
def test_undeploy_removes_nothing_where_something_is_not_ours(
    add: Callable[[Path], str],
    sim: Callable[..., Place],
    push_version: Callable[..., dict[str, Any]],
    deploy: Deploy,
) -> None:
    place = sim()
    push_version(place, 0)
    path = add(place.root)
    before = tree(place.root)
    done = deploy("undeploy", *place.arguments)
    assert done.status == 43
    assert f" holds what no deploy has put there: {path}; nothing was removed" in done.stderr
    assert tree(place.root) == before


def test_undeploy_leaves_a_mount_point(
    sim: Callable[..., Place],
    push_version: Callable[..., dict[str, Any]],
    deploy: Deploy,
    require: Callable[[bool, str], None],
) -> None:
    place = sim()
    place.root.mkdir(parents=True)
    done = run(["mount", "-t", "tmpfs", "tmpfs", place.root], check=False)
    require(done.status == 0, f"no file system can be mounted: {done.stderr.strip()}")
    try:
        push_version(place, 0)
        done = deploy("undeploy", *place.arguments)
        assert done.stdout.endswith("; the empty directory cannot be removed\n")
        assert list(place.root.iterdir()) == []
    finally:
        run(["umount", place.root])


@contextmanager
def client(
    place: Place, build_dir: Path, verb: str, *words: str
) -> Iterator[subprocess.Popen[str]]:
    """A colibri-deploy that runs beside the test; killed if it has not ended."""
    command = [sys.executable, "-m", "colibri_deploy", verb, "--build-dir", str(build_dir)]
    child = subprocess.Popen(
        [*command, *place.arguments, *words],
        cwd=build_dir.parent,
        env={**os.environ, "HOME": str(build_dir.parent), "SSH_AUTH_SOCK": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            yield child
        finally:
            with suppress(ProcessLookupError):
                child.kill()


@dataclass
class Gate:
    """A board that verifies nothing as long as the gate is shut."""

    place: Place
    flag: Path

    def shut(self) -> None:
        self.flag.touch()

    def open(self) -> None:
        self.flag.unlink()

    def beats(self) -> bool:
        """Whether a deploy has the lock, and has given a sign of life."""
        return any(not path.name.endswith(".0") for path in self.place.root.glob("lock/*"))

    @property
    def is_locked(self) -> bool:
        return (self.place.root / "lock").exists()


@pytest.fixture
def gate(
    sshd: Callable[..., Place], require_program: Callable[[str], Path], tmp_path: Path
) -> Gate:
    tools, flag = tmp_path / "tools", tmp_path / "shut"
    tools.mkdir()
    program = require_program("sha256sum")
    tool = tools / "sha256sum"
    tool.write_text(f"#!/bin/sh\nwhile [ -e {flag} ]; do sleep 0.1; done\nexec {program}\n")
    tool.chmod(0o755)
    return Gate(sshd("desk", f"""PATH={tools}:$PATH; eval "$SSH_ORIGINAL_COMMAND" """), flag)


def test_a_deploy_that_lives_is_named_to_the_next_one(
    gate: Gate,
    push_version: Callable[..., dict[str, Any]],
    deploy: Deploy,
    build_dir: Path,
) -> None:
    place = gate.place
    push_version(place, 0)
    gate.shut()
    with client(place, build_dir, "push") as first:
        wait_until(gate.beats, "no sign of life")
        owner = f"{getpass.getuser()}@{socket.gethostname()}, process {first.pid}"
        for verb in ("push", "undeploy"):
            done = deploy(verb, *place.arguments)
            assert done.status == 47
            text = rf"error: {re.escape(owner)} deploys to desk, since \d+ s: wait for the end; "
            assert re.match(text + f"to break the lock, remove {place.root}/lock ", done.stderr)
        assert deploy("push", *place.arguments, "--dry-run").status == 0
        gate.open()
        assert first.wait(100) == 0
    wait_until(lambda: not gate.is_locked, "the lock stays")
    assert push_version(place, 1)["bytes_sent"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_deploy_that_is_ended_leaves_no_lock(
    number: signal.Signals,
    gate: Gate,
    push_version: Callable[..., dict[str, Any]],
    build_dir: Path,
) -> None:
    gate.shut()
    with client(gate.place, build_dir, "push") as first:
        wait_until(gate.beats, "no sign of life")
        first.send_signal(number)
        first.wait(100)
    wait_until(lambda: not gate.is_locked, "the lock stays")
    gate.open()
    push_version(gate.place, 1)
    assert version(gate.place) == 1


def test_a_deploy_that_stands_still_is_taken_over_and_writes_no_more(
    gate: Gate,
    push_version: Callable[..., dict[str, Any]],
    build_dir: Path,
) -> None:
    gate.shut()
    with client(gate.place, build_dir, "push") as first:
        wait_until(gate.beats, "no sign of life")
        first.send_signal(signal.SIGSTOP)
        gate.open()
        started = time.monotonic()
        push_version(gate.place, 1)
        assert time.monotonic() - started > STALE_SECONDS
        first.send_signal(signal.SIGCONT)
        _, stderr = first.communicate(timeout=100)
    assert first.returncode == 34
    assert "another deploy took the lock, because this one gave no sign of life" in stderr
    assert version(gate.place) == 1
    wait_until(lambda: not gate.is_locked, "the lock stays")


@pytest.mark.parametrize("left", [(), ("0123456789abcdef.3",)], ids=["nothing", "owner"])
def test_a_lock_that_a_dead_board_left_is_taken_over(
    left: tuple[str, ...], sim: Callable[..., Place], push_version: Callable[..., dict[str, Any]]
) -> None:
    place = sim()
    lock = place.root / "lock"
    lock.mkdir(parents=True)
    for name in left:
        (lock / name).write_text("4102444800 anna@desk, process 1\n")  # in 2100
    started = time.monotonic()
    push_version(place, 0)
    assert time.monotonic() - started > STALE_SECONDS
    assert version(place) == 0
    wait_until(lambda: not lock.exists(), "the lock stays")


def test_a_lock_that_is_broken_by_hand_ends_the_deploy_that_had_it(
    gate: Gate,
    push_version: Callable[..., dict[str, Any]],
    build_dir: Path,
) -> None:
    gate.shut()
    with client(gate.place, build_dir, "push") as first:
        wait_until(gate.beats, "no sign of life")
        shutil.rmtree(gate.place.root / "lock")
        gate.open()
        _, stderr = first.communicate(timeout=100)
    assert first.returncode == 34
    assert len(stderr.splitlines()) == 1
    push_version(gate.place, 1)
    assert version(gate.place) == 1
