# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A client in which Ctrl-C is pressed at the worst moments: when paramiko has just taken a lock.

It reads what a board says without end. A first conversation finds the lines of paramiko that follow
the taking of a lock in the main thread. In each further one, a process of its own, SIGINT comes at
one of them. For each a line is printed: the function, and the status of the process, 130 after
KeyboardInterrupt, 1 where none came of it, -9 where it did not end. Which lines are reached is not
the same each time, so it is 0, too, where this one was not.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import paramiko

from colibri_deploy.board import Board, load_boards
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.ssh import Connection, Sinks

Place = tuple[str, str, int]  # function, file, line

_LIBRARY = str(Path(paramiko.__file__).parent)
_COMMAND = "yes & job=$!; cat >/dev/null; kill $job"  # ends with its standard input
_ENOUGH_BYTES = 1 << 20  # by then the client has told the board several times to go on
_MOST_SECONDS = 60.0


class EnoughError(Exception):
    """The board has talked for long enough."""


def at_each_place(reached: Callable[[Place], None]) -> None:
    """From now on `reached` is called in this thread where paramiko has just taken a lock."""
    before: dict[FrameType, int] = {}

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            file, line = frame.f_code.co_filename, frame.f_lineno
            if ".acquire()" in linecache.getline(file, before.get(frame, 0)):
                reached((frame.f_code.co_name, file, line))
            before[frame] = line
        elif event == "return":
            before.pop(frame, None)
        return on_line

    def on_call(frame: FrameType, event: str, _: Any) -> Any:
        return on_line if frame.f_code.co_filename.startswith(_LIBRARY) else None

    sys.settrace(on_call)


def converse(board: Board, known_hosts: KnownHosts, reached: Callable[[Place], None]) -> None:
    """Listens for a while; from the first word on `reached` is called, see `at_each_place`."""
    n_bytes = 0

    def listen(data: bytes) -> None:
        nonlocal n_bytes
        if n_bytes == 0:
            at_each_place(reached)
        n_bytes += len(data)
        if n_bytes >= _ENOUGH_BYTES:
            raise EnoughError

    with (
        contextlib.suppress(EnoughError),
        Connection.open(board, known_hosts) as connection,
    ):
        connection.stream(_COMMAND, b"", Sinks(listen, listen), timeout_s=_MOST_SECONDS)
    sys.settrace(None)


def interrupted(board: Board, known_hosts: KnownHosts, place: Place) -> int:
    """The status of a conversation in which SIGINT comes at the place; 0 if that is not reached."""
    pressed = False

    def press(reached: Place) -> None:
        nonlocal pressed
        if reached == place:
            pressed = True
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)

    try:
        converse(board, known_hosts, press)
    except KeyboardInterrupt:
        return 130
    return int(pressed)


def status_of(child: int) -> int:
    """How a process ends; it is killed if it does not."""
    deadline = time.monotonic() + _MOST_SECONDS
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)


def main() -> None:
    """Does it all with the board `desk` of a boards.yaml."""
    boards_file, known = map(Path, sys.argv[1:])
    board, known_hosts = load_boards([boards_file])["desk"], KnownHosts(known)
    places: dict[Place, None] = {}
    converse(board, known_hosts, lambda place: places.setdefault(place))
    for place in places:
        child = os.fork()
        if child == 0:
            status = 70
            try:
                status = interrupted(board, known_hosts, place)
            finally:
                os._exit(status)
        print(place[0], status_of(child), flush=True)


if __name__ == "__main__":
    main()
