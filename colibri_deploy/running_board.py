# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Emulated boards that run in processes of their own, and what they have only while they run.

Each has a directory, with its process and its port in state.json, the key of its client, and its
known_hosts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from colibri_deploy.board import Board
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.vm_image import USER

ADDRESS = "127.0.0.1"
_STATE = "state.json"


@dataclass(frozen=True)
class RunningBoard:
    """A board that runs; the content of its state file."""

    name: str
    pid: int
    port: int  # of ADDRESS, where SSH answers
    uuid: str  # which the process was started with
    kept: bool  # until it is stopped; otherwise its last user stops it
    started: float  # seconds since 1970
    seconds_to_ssh: float
    directory: Path

    @property
    def board(self) -> Board:
        """How to connect to it."""
        return Board(
            name=self.name,
            host=ADDRESS,
            user=USER,
            port=self.port,
            target=self.name.partition(":")[2].partition(",")[0],
            key=self.directory / "client",
            ssh_config=False,
        )

    @property
    def known_hosts(self) -> KnownHosts:
        """The key that it shows."""
        return KnownHosts(self.directory / "known_hosts")

    def is_alive(self) -> bool:
        """Whether the process is there; another one may have its number by now."""
        try:
            words = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return self.uuid.encode() in words

    def write(self) -> None:
        """Writes the state file."""
        record = {**asdict(self), "directory": str(self.directory)}
        path = self.directory / _STATE
        new = path.with_suffix(".new")
        new.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        new.replace(path)

    def await_end(self, seconds: float) -> None:
        """Returns when it has ended by itself; kills it if it takes longer."""
        deadline = time.monotonic() + seconds
        while self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.kill()

    def kill(self) -> None:
        """Cuts the power, and waits until it is off."""
        while self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.05)
        _forget(self.directory)


def state_directory(kind: str) -> Path:
    """Where the directories of the boards of a kind lie."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "colibri" / kind


def running_board(directory: Path) -> RunningBoard | None:
    """The board of a directory, if it runs; otherwise what was left of its state is removed."""
    path = directory / _STATE
    if not path.exists():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    board = RunningBoard(**{**record, "directory": directory})
    if board.is_alive():
        return board
    _forget(directory)
    return None


def running_boards(root: Path) -> list[RunningBoard]:
    """The boards that run whose directories lie in `root`, by name."""
    found = [running_board(path.parent) for path in sorted(root.glob(f"*/{_STATE}"))]
    return [board for board in found if board is not None]


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Nobody else starts or stops the board of a directory meanwhile; it is made when missing."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _forget(directory: Path) -> None:
    """Removes what a board has only while it runs."""
    for name in (_STATE, "client", "host", "known_hosts", "pid"):
        (directory / name).unlink(missing_ok=True)
