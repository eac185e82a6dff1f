# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A client that pushes to a board and comes to grief at a point that it is told.

It is a process that reads jobs, a line of JSON each, and forks a push for each of them; so none
waits for imports. Its answer is a line with the exit status of that push, or -9 if it was killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from colibri_deploy import board_lock, upload
from colibri_deploy import push as push_module
from colibri_deploy.board import Board, load_boards
from colibri_deploy.errors import ColibriDeployError, ConnectionLostError
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.push import plan_push, push
from colibri_deploy.resources import engine_root
from colibri_deploy.ssh import PATIENCE_SECONDS, Answer, Connection
from colibri_deploy.store import BLOCK_BYTES
from colibri_deploy.targets import Target, load_targets, select

FILLER = "filler"  # what takes all room on the board's disk, beside the work directory

# So that a lock that is left behind costs a test two seconds; boards take what is in the module.
board_lock.BEAT_SECONDS, board_lock.STALE_SECONDS = 0.4, 2.0


@dataclass(frozen=True)
class Command:
    """A verb of board.sh that ran, and the bytes of a file that it was fed."""

    verb: str
    number: int  # of those of the same verb
    n_bytes: int


@dataclass
class Cut:
    """Where a push comes to grief, and how."""

    how: str  # "kill" the client, or its "workers", cut the "line", or "fill" the board's disk
    verb: str
    number: int
    at: int | None  # after so many bytes; None: before the command, or after it
    is_after: bool = False


@dataclass(frozen=True)
class Job:
    """A push."""

    workdir: str
    engine: str
    model: str
    chunk_bytes: int
    cut: Cut | None
    connections: int = 1  # over which a file is sent that is larger than a block
    comes_back: bool = False  # the line that is cut
    trace: str | None = None  # file to write the commands to

    @classmethod
    def parse(cls, line: str) -> Job:
        values = json.loads(line)
        return cls(**{**values, "cut": Cut(**values["cut"]) if values["cut"] else None})


class CutConnection(Connection):
    """A real connection, and the hand that cuts it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.job: Job | None = None
        self.commands: list[Command] = []
        self._seen: Counter[str] = Counter()

    def reconnect(self, patience_s: float = PATIENCE_SECONDS) -> None:
        """As a connection does it, if the line comes back."""
        if self.job is not None and not self.job.comes_back:
            raise ConnectionLostError("the line stays away")
        super().reconnect(patience_s)

    def run(self, command: str, stdin: Iterable[bytes] = (), *, timeout_s: float) -> Answer:
        """As a connection does it, up to the point of the job and on from there."""
        assert self.job is not None
        blocks = iter(stdin)
        script = next(blocks)
        verb = re.findall(rb"\nset -- (\w+)", script)[0].decode()  # as board_shell.py has it
        number = self._seen[verb]
        self._seen[verb] += 1
        cut = self.job.cut
        if cut is None or (cut.verb, cut.number) != (verb, number):
            cut = Cut("never", verb, number, None)
        n_bytes = 0

        def feed() -> Iterator[bytes]:
            nonlocal n_bytes
            yield script
            for block in blocks:
                left = cut.at - n_bytes if cut.at is not None else -1
                n_bytes += len(block)
                if 0 <= left <= len(block) and cut.how != "done":
                    yield block[:left]
                    self._come_to_grief(cut.how)
                    block = block[left:]
                    cut.how = "done"
                yield block

        if cut.at is None and not cut.is_after:
            self._come_to_grief(cut.how)
        answer = super().run(command, feed(), timeout_s=timeout_s)
        if cut.is_after:
            self._come_to_grief(cut.how)
        self.commands.append(Command(verb, number, n_bytes))
        return answer

    def _come_to_grief(self, how: str) -> None:
        assert self.job is not None
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "line":
            self._session.transport.sock.shutdown(socket.SHUT_RDWR)
        elif how == "workers":
            for lane in EagerLane.lanes:
                lane.end()
        elif how == "fill":
            with suppress(OSError), (Path(self.job.workdir).parent / FILLER).open("wb", 0) as file:
                while True:
                    file.write(bytes(4096))


class EagerLane(upload._Lane):
    """A further connection that has sent something before the first one does."""

    lanes: ClassVar[list[EagerLane]] = []

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.lanes.append(self)
        while self._thread.is_alive() and not self.has_sent:
            time.sleep(0.01)


class _Silent:
    """No progress is shown."""

    def start(self, what: str, total: int) -> None:
        pass

    def advance(self, n_bytes: int) -> None:
        pass

    def wait_for(self, owner: str) -> None:
        pass


def do(job: Job, board: Board, target: Target, known_hosts: KnownHosts) -> int:
    """Pushes; the exit status of colibri-deploy."""
    vars(push_module)["n_connections"] = lambda *_: job.connections
    vars(upload).update(SEGMENT_BYTES=BLOCK_BYTES, _Lane=EagerLane)
    try:
        with CutConnection.open(replace(board, workdir=job.workdir), known_hosts) as connection:
            connection.job = job
            paths = Path(job.engine), Path(job.model)
            plan = plan_push(connection, target, *paths, _Silent(), job.chunk_bytes)
            push(connection, plan, _Silent())
    except ColibriDeployError as error:
        return error.exit_code
    if job.trace is not None:
        Path(job.trace).write_text(json.dumps([asdict(one) for one in connection.commands]))
    return 0


def main() -> None:
    """Does the jobs on standard input on the board `desk` of a boards.yaml."""
    boards_file, known_hosts = map(Path, sys.argv[1:])
    board = load_boards([boards_file])["desk"]
    target = select(load_targets(engine_root()), "host")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 70
            try:
                status = do(Job.parse(line), board, target, KnownHosts(known_hosts))
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
