# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A process that sends ranges of a file to a board over a connection of its own.

A connection encrypts in one thread, and Python runs one at a time: so each further connection is a
process. It logs in and checks the host key as the first one did, with the same answers.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection as PipeEnd

from colibri_deploy.board_shell import BoardShell
from colibri_deploy.chunks import Span
from colibri_deploy.errors import ColibriDeployError
from colibri_deploy.ssh import Connection
from colibri_deploy.store import Item, Store

_PATIENCE_SECONDS = 10.0  # how long a server is asked that has too many connections at once


class Sender:
    """The process, as whoever starts it sees it. All methods but `end` raise OSError or EOFError
    when it has ended, for whatever reason: its connection was refused or cut, or `end` was called.
    """

    def __init__(self, store: Store, item: Item) -> None:
        """Starts it, to send `item` for the owner of the lock that `store` has."""
        self._pipe, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us to handle
            )
        connection = store.connection
        login = (connection.board, connection.known_hosts, connection.secrets)
        self._pipe.send((*login, store.nonce, item))

    def wait(self) -> None:
        """Returns when it is connected."""
        self._pipe.recv()

    def send(self, span: Span, on_bytes: Callable[[int], None]) -> None:
        """Sends the range from one byte to another; see `Store.send_range`."""
        self._pipe.send(span)
        while n_bytes := self._pipe.recv():
            on_bytes(n_bytes)

    def end(self) -> None:
        """Ends it; may be called from another thread, and again."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """The process itself. What goes wrong ends it, which its other side sees."""
    with (
        contextlib.suppress(ColibriDeployError, EOFError, OSError),
        PipeEnd(int(sys.argv[1])) as pipe,
    ):
        board, known_hosts, secrets, nonce, item = pipe.recv()
        with Connection.open(
            board, known_hosts, secrets, patience_s=_PATIENCE_SECONDS
        ) as connection:
            store = Store(BoardShell(connection), nonce)
            while True:
                pipe.send(0)  # connected, or done
                store.send_range(item, pipe.recv(), pipe.send)


if __name__ == "__main__":
    main()
