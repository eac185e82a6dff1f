#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""How fast a push is next to scp and rsync, to OpenSSH's server on loopback.

All tools send the same model.bin, in turn, several rounds, directly and through processes that
delay every byte by half of a round trip. A push is more than a copy: it is measured for sending
alone, with connecting, which is what the other tools do, and as a whole, with the hashes before and
the verification and the flush to the disk after. Then one expert is changed, and pushed again.
MODEL is a converted mixture of experts, ENGINE the program for this machine; WORK is a directory
for the copies, best in memory (/dev/shm), where no disk has a say. Needs sshd, scp and rsync.

    python bench/push.py ENGINE MODEL WORK [--rounds N] [--round-trips MS,MS]
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import multiprocessing
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from colibri_deploy.board import Board
from colibri_deploy.board_lock import board_lock
from colibri_deploy.board_shell import BoardShell
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.model_file import ModelFile
from colibri_deploy.push import Pushed, plan_push, push
from colibri_deploy.resources import engine_root
from colibri_deploy.slow_line import SlowLine
from colibri_deploy.ssh import Connection
from colibri_deploy.store import Item, Store, Stored
from colibri_deploy.targets import load_targets, select
from colibri_deploy.upload import upload

_SSHD = "/usr/sbin/sshd"
_NAME = "model.bin"
_AT_ONCE = 6  # connections through the line; a process for each, so that none waits for another


@dataclass(frozen=True)
class Desk:
    """A server on loopback, and the line to it."""

    work: Path
    port: int

    @property
    def ssh_options(self) -> list[str]:
        """Options of ssh and scp."""
        known = f"UserKnownHostsFile={self.work}/known_hosts"
        return ["-i", str(self.work / "client"), "-o", known, "-o", "IdentitiesOnly=yes"]

    @property
    def board(self) -> Board:
        """The server as a board."""
        return Board(
            name="desk",
            host="127.0.0.1",
            user=getpass.getuser(),
            port=self.port,
            key=self.work / "client",
            workdir=str(self.work / "board"),
            ssh_config=False,
        )


class Silent:
    """No progress is shown."""

    def start(self, what: str, total: int) -> None:
        pass

    def advance(self, n_bytes: int) -> None:
        pass

    def wait_for(self, owner: str) -> None:
        pass


@dataclass(frozen=True)
class Run:
    """What one run took, in seconds."""

    wall: float
    cpu: float  # of the client's processes


Tool = Callable[[Desk, Path, Path], None]


@contextlib.contextmanager
def server(work: Path) -> Iterator[int]:
    """OpenSSH's server with keys of its own; its port."""
    for name in ("host", "client"):
        if not (work / name).exists():
            words: list[str | Path] = [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-f",
                work / name,
            ]
            subprocess.run(words, check=True)
    port = _free_port()
    (work / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {work}/host\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {work}/client.pub\nUsePAM no\nPermitRootLogin prohibit-password\n"
        "Subsystem sftp internal-sftp\n",
        encoding="utf-8",
    )
    child = subprocess.Popen(
        [_SSHD, "-D", "-f", work / "sshd_config", "-E", work / "sshd.log"], stdin=subprocess.DEVNULL
    )
    try:
        time.sleep(1)
        yield port
    finally:
        child.terminate()
        child.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def line(port: int, round_trip_ms: float) -> Iterator[int]:
    """A line to a port with a round trip that long; its own port."""
    if not round_trip_ms:
        yield port
        return
    listener = socket.create_server(("127.0.0.1", 0))
    context = multiprocessing.get_context("fork")
    words = (listener, port, round_trip_ms / 1e3)
    processes = [context.Process(target=_delay, args=words) for _ in range(_AT_ONCE)]
    for process in processes:
        process.start()
    yield listener.getsockname()[1]
    for process in processes:
        process.terminate()
    listener.close()


def _delay(listener: socket.socket, port: int, round_trip_s: float) -> None:
    """Carries one connection after the other."""
    while True:
        near, _ = listener.accept()
        far = socket.create_connection(("127.0.0.1", port))
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        SlowLine(round_trip_s, None).join(far, near)


def cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def scp(*options: str) -> Tool:
    """scp with options."""

    def run(desk: Desk, engine: Path, model: Path) -> None:
        there = f"{desk.board.user}@127.0.0.1:{desk.work}/copy"
        words = ["scp", "-q", *options, *desk.ssh_options, "-P", str(desk.port)]
        subprocess.run([*words, f"{model}/{_NAME}", there], check=True)

    return run


def rsync(desk: Desk, engine: Path, model: Path) -> None:
    """rsync without its comparison of blocks."""
    there = f"{desk.board.user}@127.0.0.1:{desk.work}/copy"
    shell = " ".join(["ssh", *desk.ssh_options, "-p", str(desk.port)])
    subprocess.run(["rsync", "-W", "-e", shell, f"{model}/{_NAME}", there], check=True)


def sending(n_connections: int) -> Tool:
    """What a push does to send a file, over so many connections."""

    def run(desk: Desk, engine: Path, model: Path) -> None:
        path = model / _NAME
        item = Item(_NAME, "0" * 64, path, path.stat().st_size)  # nobody verifies it
        with Connection.open(desk.board, KnownHosts(desk.work / "known_hosts")) as connection:
            shell = BoardShell(connection)
            state = Store(shell).probe()
            with board_lock(shell, state.root) as nonce:
                store = Store(shell, nonce)
                silent = Silent().advance
                upload(store, item, Stored(), n_connections, silent, silent)
                assert not store.look([item])[1][item.sha256].missing(item.bytes)

    return run


def pushed(desk: Desk, engine: Path, model: Path) -> Pushed:
    """Pushes the engine and the model."""
    target = select(load_targets(engine_root()), "host")
    with Connection.open(desk.board, KnownHosts(desk.work / "known_hosts")) as connection:
        plan = plan_push(connection, target, engine, model, Silent())
        return push(connection, plan, Silent())


def whole(desk: Desk, engine: Path, model: Path) -> None:
    """A push from its first hash to the switch, over as many connections as it chooses."""
    pushed(desk, engine, model)


TOOLS: dict[str, Tool] = {
    "scp": scp(),
    "scp, the push's cipher": scp("-c", "aes128-gcm@openssh.com"),
    "rsync -W": rsync,
    "sending, 1 connection": sending(1),
    "sending, 2 connections": sending(2),
    "sending, 4 connections": sending(4),
    "push as a whole": whole,
}


def compare(desk: Desk, engine: Path, model: Path, n_rounds: int) -> dict[str, list[Run]]:
    """Runs of all tools, in turn."""
    runs: dict[str, list[Run]] = {name: [] for name in TOOLS}
    for _ in range(n_rounds):
        for name, tool in TOOLS.items():
            shutil.rmtree(desk.work / "board", ignore_errors=True)
            (desk.work / "copy").unlink(missing_ok=True)
            started, cpu = time.monotonic(), cpu_seconds()
            tool(desk, engine, model)
            runs[name].append(Run(time.monotonic() - started, cpu_seconds() - cpu))
            print(f"    {name}: {runs[name][-1].wall:.2f} s", file=sys.stderr)
    return runs


def show(runs: dict[str, list[Run]], n_bytes: int) -> None:
    """Medians, and the median of the ratios to scp in the same round."""
    for name, these in runs.items():
        seconds = statistics.median(run.wall for run in these)
        pairs = zip(runs["scp"], these, strict=True)
        ratio = statistics.median(one.wall / run.wall for one, run in pairs)
        cpu = statistics.median(run.cpu for run in these)
        rate = n_bytes / seconds / 1e6
        print(f"  {name:22} {seconds:6.2f} s  {rate:4.0f} MB/s  {ratio:5.2f} x scp", end="")
        print(f"  {cpu:5.2f} s of CPU here")


def change_expert(model: Path) -> int:
    """Changes every byte of one expert's matrices; how many these are."""
    file = ModelFile.open(model / _NAME)
    n_bytes = 0
    with (model / _NAME).open("r+b") as out:
        for section in file.sections:
            if section.n_experts == 1:
                continue
            layer, expert = section.n_layers - 1, section.n_experts // 2
            data = file.item(section.name, layer, expert).tobytes()
            out.seek(section.item_offset(layer, expert))
            out.write(bytes(byte ^ 1 for byte in data))
            n_bytes += len(data)
    return n_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("engine", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round-trips", default="0,20", help="in ms, with commas")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    size = (options.model / _NAME).stat().st_size
    with server(work) as port:
        for round_trip in map(float, options.round_trips.split(",")):
            with line(port, round_trip) as through:
                desk = Desk(work, through)
                key = (work / "host.pub").read_text(encoding="utf-8")
                (work / "known_hosts").write_text(f"[127.0.0.1]:{through} {key}", encoding="utf-8")
                print(f"{size:,} bytes, a round trip of {round_trip:g} ms")
                show(compare(desk, options.engine, options.model, options.rounds), size)
        key = (work / "host.pub").read_text(encoding="utf-8")
        (work / "known_hosts").write_text(f"[127.0.0.1]:{port} {key}", encoding="utf-8")
        shutil.rmtree(work / "changed", ignore_errors=True)
        shutil.copytree(options.model, work / "changed")
        desk = Desk(work, port)
        pushed(desk, options.engine, work / "changed")
        n_bytes = change_expert(work / "changed")
        done = pushed(desk, options.engine, work / "changed")
        print(f"one expert of {n_bytes:,} bytes changed: {done.bytes_sent:,} bytes sent", end="")
        print(f" in {done.seconds:.1f} s")


if __name__ == "__main__":
    main()
