# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A cable to a server, which can be cut while connections go through it."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

_READ_BYTES = 1 << 14


class Cable:
    """Passes connections on to a port of this machine; a context manager."""

    def __init__(self, port: int) -> None:
        self.admits: int | None = None  # further connections than so many are refused
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._clients: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()

    def cut(self, number: int) -> None:
        """Cuts the connection that was the first, 0, or a later one."""
        _shut(self._clients[number])

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self.admits is not None and len(self._clients) >= self.admits:
                client.close()
                continue
            self._clients.append(client)
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server_port)) as server:
            back = threading.Thread(target=_carry, args=(server, client), daemon=True)
            back.start()
            _carry(client, server)
            back.join()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    """Passes bytes on until there are no more; then ends both."""
    with contextlib.suppress(OSError):
        while data := source.recv(_READ_BYTES):
            sink.sendall(data)
    _shut(source)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
