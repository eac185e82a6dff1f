# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A push over a line that breaks, and over several connections: real servers, real processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cable import Cable
from loopback import commands_end, wait_until
from ssh_servers import KINDS, NewKey, Server

from colibri_deploy import push as push_module
from colibri_deploy import store, upload
from colibri_deploy.board import Board, Limits
from colibri_deploy.board_shell import BoardShell
from colibri_deploy.cli.push import print_push
from colibri_deploy.errors import ConnectionLostError
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.process import run
from colibri_deploy.push import Pushed, plan_push, push
from colibri_deploy.sender import Sender
from colibri_deploy.ssh import Connection
from colibri_deploy.store import BLOCK_BYTES, Item, Store, Stored
from colibri_deploy.targets import Target, load_targets, select

BLOCK = BLOCK_BYTES


@dataclass
class Step:
    """A step that the user is shown."""

    what: str
    total: int
    counted: int = 0


@dataclass
class Shown:
    """What the user is shown, and what happens meanwhile."""

    steps: list[Step] = field(default_factory=list)
    happens: Callable[[Step], None] = lambda step: None

    def start(self, what: str, total: int) -> None:
        self.steps.append(Step(what, total))

    def advance(self, n_bytes: int) -> None:
        self.steps[-1].counted += n_bytes
        self.happens(self.steps[-1])

    def wait_for(self, owner: str) -> None:
        self.start(f"waiting for {owner}", 0)

    def sending(self, name: str) -> list[Step]:
        return [step for step in self.steps if step.what == f"sending {name}"]


@dataclass
class Desk:
    """A board behind a cable, and what is pushed there."""

    server: Server
    key: Path
    known_hosts: Path
    target: Target
    engine: Path
    model: Path
    root: Path
    stack: ExitStack

    def __post_init__(self) -> None:
        self.cable = self.stack.enter_context(Cable(self.server.port))
        line = self.server.known_hosts_line
        line = line.replace(f"]:{self.server.port} ", f"]:{self.cable.port} ")
        self.known_hosts.write_text(line)
        self.board = replace(self.server.with_key(self.key), port=self.cable.port)

    def push(self, shown: Shown | None = None) -> Pushed:
        with Connection.open(self.board, KnownHosts(self.known_hosts)) as connection:
            shown = shown or Shown()
            plan = plan_push(connection, self.target, self.engine, self.model, shown)
            done = push(connection, plan, shown)
            print_push(connection, plan, done)
            return done

    @property
    def size(self) -> int:
        """Of the model's large file, in bytes."""
        return (self.model / "model.bin").stat().st_size

    def cut_when(self, n_bytes: int, connection: int = 0, *, at_last: bool = False) -> Shown:
        """Cuts a connection when so much of the model is sent, and some has arrived.

        With `at_last` nobody gets through after that.
        """
        left = [connection]

        def happens(step: Step) -> None:
            if left and step.what == "sending model.bin" and step.counted >= n_bytes:
                wait_until(self.has_begun, "nothing arrives")
                if at_last:
                    self.cable.admits = 0
                self.cable.cut(left.pop())

        return Shown(happens=happens)

    def has_begun(self) -> bool:
        """Whether some of a file has arrived."""
        return any(path.stat().st_size for path in self.root.glob("store/.*.partial"))

    def check(self) -> None:
        """What was pushed is there, and nothing else."""
        current = self.root / "current"
        run(["sha256sum", "--check", "--strict", "manifest"], cwd=current)
        model = (self.model / "model.bin").read_bytes()
        assert (current / "model.bin").read_bytes() == model
        assert run([current / "colibri", "--version"]).stdout.startswith("colibri ")
        assert [*self.root.glob("store/.*")] == []
        # The board may not have seen yet that the client has gone.
        wait_until(lambda: not (self.root / "lock").exists(), "the lock is still there")


@pytest.fixture
def desk(
    ssh_server: Callable[..., Server],
    new_key: NewKey,
    client_home: Path,
    engine: Callable[[str], Path],
    small_model: Path,
    root: Path,
    tmp_path: Path,
) -> Iterator[Callable[..., Desk]]:
    """`desk(kind, *options)` starts a server of KINDS."""
    with ExitStack() as stack:

        def start(kind: str = "openssh", *options: str) -> Desk:
            server = ssh_server(kind, *options)
            key = new_key("id")
            server.lets_in(key)
            workdir = server.home / server.board.workdir
            target = select(load_targets(root), "host")
            known = tmp_path / "known_hosts"
            return Desk(server, key, known, target, engine("host"), small_model, workdir, stack)

        yield start


@pytest.fixture
def three_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of 1 MB is sent over three connections; the further two come first."""
    begin = threading.Barrier(2)
    lanes: list[upload._Lane] = []

    class EagerLane(upload._Lane):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            lanes.append(self)
            if len(lanes) == 2:
                wait_until(lambda: all(lane.has_sent for lane in lanes), "they do not send")

    class PairedSender(Sender):
        def wait(self) -> None:
            super().wait()
            with suppress(threading.BrokenBarrierError):
                begin.wait(100)
            begin.abort()  # after the first two nobody waits

    monkeypatch.setattr(push_module, "n_connections", lambda size, *_: 3 if size > BLOCK else 1)
    monkeypatch.setattr(upload, "SEGMENT_BYTES", BLOCK)
    monkeypatch.setattr(upload, "_Lane", EagerLane)
    monkeypatch.setattr(upload, "Sender", PairedSender)


def test_a_line_that_breaks_is_connected_again_and_the_push_goes_on(
    desk: Callable[..., Desk], capsys: pytest.CaptureFixture[str]
) -> None:
    one = desk()
    shown = one.cut_when(1)
    done = one.push(shown)
    one.check()
    assert (done.breaks, done.connections, done.previous) == (1, 1, None)
    assert "the line broke; connecting again" in [step.what for step in shown.steps]
    first, second = shown.sending("model.bin")
    assert first.total == one.size > second.total == second.counted
    assert [file.resumed_at for file in done.files] == [0, 0, 0]
    assert done.bytes_sent >= sum(file.bytes or 0 for file in done.files)
    assert "; the line broke once, and the push went on; release " in capsys.readouterr().out


@pytest.mark.usefixtures("three_connections")
def test_several_connections_go_on_too(desk: Callable[..., Desk]) -> None:
    one = desk()
    shown = one.cut_when(one.size // 2)
    done = one.push(shown)
    one.check()
    assert (done.breaks, done.connections) == (1, 3)
    first, second = shown.sending("model.bin")
    assert first.total == one.size > second.total == second.counted


@pytest.mark.parametrize("n_connections", [1, 3])
def test_a_line_that_stays_away_ends_the_push_and_the_next_one_goes_on(
    n_connections: int,
    desk: Callable[..., Desk],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if n_connections == 3:
        request.getfixturevalue("three_connections")
    monkeypatch.setattr(push_module, "PATIENCE_SECONDS", 0.5)
    one = desk()
    with pytest.raises(ConnectionLostError) as caught:
        one.push(one.cut_when(one.size // 2, at_last=True))
    assert caught.value.message.startswith("lost the connection to openssh")
    assert ", and it cannot be had again: no SSH connection to openssh: " in caught.value.message
    assert not (one.root / "current").exists()
    left = there(one)
    one.cable.admits = None
    done = one.push()
    one.check()
    assert {file.name: file.resumed_at for file in done.files}["model.bin"] == left
    assert done.bytes_sent == one.size - left + (one.model / "config.json").stat().st_size


def there(desk: Desk) -> int:
    """How many bytes of the model are on the board, once the commands there have ended."""
    commands_end(desk.server.home)
    item = Item.read("model.bin", desk.model / "model.bin")
    known = KnownHosts(desk.known_hosts)
    board = replace(desk.board, port=desk.server.port)
    desk.known_hosts.write_text(desk.known_hosts.read_text() + desk.server.known_hosts_line)
    with Connection.open(board, known) as connection:
        stored = Store(BoardShell(connection)).look([item])[1][item.sha256]
    n_bytes = item.bytes - stored.left(item.bytes)
    assert 0 < n_bytes < item.bytes
    return n_bytes


@pytest.mark.usefixtures("three_connections")
@pytest.mark.parametrize("kind", KINDS)
def test_three_connections_send_one_file(
    kind: str, desk: Callable[..., Desk], capsys: pytest.CaptureFixture[str]
) -> None:
    one = desk(kind)
    shown = Shown()
    done = one.push(shown)
    one.check()
    assert (done.breaks, done.connections) == (0, 3)
    (step,) = shown.sending("model.bin")
    assert step.counted == step.total == one.size
    assert done.bytes_sent == sum(file.bytes or 0 for file in done.files)
    assert " over 3 connections; release " in capsys.readouterr().out


def test_further_connections_that_are_refused_are_done_without(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_module, "n_connections", lambda *_: 3)
    monkeypatch.setattr(upload, "SEGMENT_BYTES", BLOCK)
    one = desk()
    one.cable.admits = 1
    done = one.push()
    one.check()
    assert (done.breaks, done.connections) == (0, 1)
    assert done.bytes_sent == sum(file.bytes or 0 for file in done.files)


@pytest.mark.usefixtures("three_connections")
def test_a_server_that_lets_one_log_in_at_a_time_is_asked_again(desk: Callable[..., Desk]) -> None:
    one = desk("openssh", "MaxStartups 1")
    done = one.push()
    one.check()
    assert (done.breaks, done.connections) == (0, 3)


@pytest.mark.usefixtures("three_connections")
def test_the_first_connection_sends_what_one_that_is_cut_did_not(
    desk: Callable[..., Desk],
) -> None:
    one = desk()
    shown = one.cut_when(2 * BLOCK, connection=1)
    done = one.push(shown)
    one.check()
    assert (done.breaks, done.connections) == (0, 3)
    assert all(step.counted >= step.total for step in shown.sending("model.bin"))


@pytest.mark.usefixtures("three_connections")
def test_a_range_that_is_damaged_on_the_board_costs_one_more_try(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = desk()
    seal = Store.seal
    flipped: list[bytes] = []

    def flip_then_seal(self: Store, item: Item, *others: Any) -> bool:
        partial = one.root / "store" / f".{item.sha256}.partial"
        if item.name == "model.bin" and not flipped:
            with partial.open("r+b") as file:
                file.seek(5 * BLOCK)
                flipped.append(file.read(1))
                file.seek(5 * BLOCK)
                file.write(bytes([flipped[0][0] ^ 4]))
        return seal(self, item, *others)

    monkeypatch.setattr(Store, "seal", flip_then_seal)
    done = one.push()
    one.check()
    assert {file.name: file.sent for file in done.files}["model.bin"] == 2 * one.size


@pytest.mark.parametrize(
    ("ranges", "partial", "missing"),
    [
        (None, 0, [(0, 250)]),
        (None, 70, [(70, 250)]),
        (None, 250, []),
        (None, 251, [(0, 250)]),  # what a damaged disk may say
        ([(0, 0)], 0, [(0, 250)]),
        ([(0, 100)], 100, [(100, 250)]),
        ([(100, 200)], 200, [(0, 100), (200, 250)]),
        ([(200, 200), (0, 100)], 230, [(100, 250)]),
        ([(100, 200), (0, 100)], 250, []),  # its end is no whole block
        ([(0, 100), (50, 150)], 200, [(150, 250)]),
    ],
)
def test_what_is_missing_is_what_no_range_covers(
    ranges: list[tuple[int, int]] | None,
    partial: int,
    missing: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "BLOCK_BYTES", 100)
    stored = Stored(None, partial, tuple(ranges) if ranges is not None else None)
    assert list(stored.missing(250)) == missing


def test_a_small_file_a_small_board_and_one_with_a_limit_have_one_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {*range(8)})
    large = upload.LARGE_BYTES
    board = Board(name="desk", host="192.0.2.10")
    limited = replace(board, limits=Limits(push_mb_per_s=5))
    assert upload.n_connections(large, board, 8) == upload.MOST_CONNECTIONS
    assert upload.n_connections(large, board, 4) == 3
    assert upload.n_connections(large, board, 2) == 1
    assert upload.n_connections(large - 1, board, 8) == 1
    assert upload.n_connections(large, board, 1) == 1
    assert upload.n_connections(large, limited, 8) == 1
