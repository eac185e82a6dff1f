# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A `sim:` board in a process of its own, which stays between commands until it is stopped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from colibri_deploy.errors import ColibriDeployError, EmulationError
from colibri_deploy.knobs import parse_knobs
from colibri_deploy.running_board import RunningBoard, locked, running_board, state_directory
from colibri_deploy.sim import PREFIX, Faults, SimBoard
from colibri_deploy.targets import load_targets, select

_LOG = "log"  # in the state's directory
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0


class SimProcess:
    """The process, as whoever starts and stops it sees it."""

    def __init__(self, name: str, directory: Path, root: Path, state: Path | None = None) -> None:
        """`name` begins with PREFIX; `directory` is the board's own, `root` the engine's.

        `state` holds the directories of such boards while they run.
        """
        self.name = name
        self._home = directory
        self._root = root
        self.directory = (state or state_directory("sim")) / name.removeprefix(PREFIX)

    def command(self, identity: str) -> list[str]:
        """What runs it until it is told to end."""
        places = map(str, (self._home.resolve(), self._root, self.directory))
        return [sys.executable, "-P", "-m", __name__, self.name, *places, identity]

    def start(self) -> RunningBoard:
        """Starts it, or finds it running. Raises EmulationError."""
        with locked(self.directory):
            return running_board(self.directory) or self._start()

    def stop(self, *, erase: bool = False) -> bool:
        """Stops it, whoever uses it, and removes its files if told to; False: it did not run."""
        with locked(self.directory):
            board = running_board(self.directory)
            if board is not None:
                os.kill(board.pid, signal.SIGTERM)
                board.await_end(_STOP_SECONDS)
            if erase:
                shutil.rmtree(self._home, ignore_errors=True)
                shutil.rmtree(self.directory)
            return board is not None

    def _start(self) -> RunningBoard:
        log = self.directory / _LOG
        with log.open("wb") as output:
            child = subprocess.Popen(
                self.command(str(uuid.uuid4())),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while child.poll() is None and time.monotonic() < deadline:
            board = running_board(self.directory)
            if board is not None:
                return board
            time.sleep(0.02)
        child.kill()
        raise EmulationError(
            f"{self.name} does not start", details=log.read_text(errors="replace").strip()
        )


def main() -> None:
    """The process itself: it serves until SIGTERM, or writes to its log why it cannot."""
    name, home, root, directory, identity = sys.argv[1:]
    try:
        _serve(name, Path(home), Path(root), Path(directory), identity)
    except ColibriDeployError as error:
        (Path(directory) / _LOG).write_text(error.message, encoding="utf-8")


def _serve(name: str, home: Path, root: Path, directory: Path, identity: str) -> None:
    started, clock = time.time(), time.monotonic()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())
    kind, *words = name.removeprefix(PREFIX).split(",")
    faults = parse_knobs(words, Faults, PREFIX + kind)
    target = select(load_targets(root), kind)
    with SimBoard(target, home, faults, directory) as served:
        board = RunningBoard(
            name=name,
            pid=os.getpid(),
            port=served.port,
            uuid=identity,
            kept=True,
            started=started,
            seconds_to_ssh=time.monotonic() - clock,
            directory=directory,
        )
        board.write()
        ended.wait()


if __name__ == "__main__":
    main()
