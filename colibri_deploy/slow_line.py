# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A network line with a latency and a bandwidth, for emulated boards."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time

_CHUNK_BYTES = 1 << 16
_QUEUE_CHUNKS = 64  # on their way in one direction of one connection, at most


class SlowLine:
    """The line of one board; its connections share the bandwidth, which each direction has."""

    def __init__(self, round_trip_s: float, bytes_per_s: float | None) -> None:
        self._delay_s = round_trip_s / 2
        self._up, self._down = _Direction(bytes_per_s), _Direction(bytes_per_s)

    def attach(self, far: socket.socket) -> socket.socket:
        """The near end of a connection whose far end is `far`; ends when either end does."""
        near, ours = socket.socketpair()
        threading.Thread(target=self.join, args=(far, ours), daemon=True).start()
        return near

    def join(self, far: socket.socket, near: socket.socket) -> None:
        """Carries between two sockets, until either ends; then closes both."""
        ways = ((far, near, self._up), (near, far, self._down))
        threads = [threading.Thread(target=self._carry, args=way, daemon=True) for way in ways]
        with far, near:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _carry(self, source: socket.socket, sink: socket.socket, way: _Direction) -> None:
        """Passes on everything from one end to the other; then ends both."""
        moving: queue.Queue[tuple[float, bytes]] = queue.Queue(_QUEUE_CHUNKS)
        writer = threading.Thread(target=_deliver, args=(moving, source, sink), daemon=True)
        writer.start()
        data = b"."
        while data:
            try:
                data = source.recv(_CHUNK_BYTES)
            except OSError:
                data = b""
            moving.put((way.passed(len(data)) + self._delay_s, data))
        writer.join()


class _Direction:
    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0  # on the monotonic clock

    def passed(self, n_bytes: int) -> float:
        """When so many more bytes have passed."""
        with self._lock:
            seconds = n_bytes / self._bytes_per_s if self._bytes_per_s else 0.0
            self._free_at = max(self._free_at, time.monotonic()) + seconds
            return self._free_at


def _deliver(
    moving: queue.Queue[tuple[float, bytes]], source: socket.socket, sink: socket.socket
) -> None:
    """Hands over what arrives, each when it is due; nothing marks the end."""
    while True:
        due, data = moving.get()
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            sink.sendall(data)
        except OSError:
            with contextlib.suppress(OSError):
                source.shutdown(socket.SHUT_RDWR)  # the reader ends, and says so
        if not data:
            break
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
