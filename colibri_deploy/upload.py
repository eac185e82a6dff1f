# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Sends what a board lacks of a file: a large one over several connections at once.

The file is cut into segments, and each connection takes the next one when it is done. A further
connection that is refused, as by a server that has too many, or that is cut is done without: the
first one sends what is left, which the board knows.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from colibri_deploy.board import Board
from colibri_deploy.chunks import Span
from colibri_deploy.sender import Sender
from colibri_deploy.store import Item, Store, Stored

MOST_CONNECTIONS = 4
LARGE_BYTES = 1 << 27  # less is sent sooner than further connections are there
SEGMENT_BYTES = 1 << 26  # a multiple of BLOCK_BYTES


def n_connections(n_bytes: int, board: Board, board_cpus: int) -> int:
    """How many connections are worth while to send so much.

    Each keeps a CPU busy at either end, and one is left there for what else there is to do: with
    two CPUs further connections cost more than they bring (bench/push.py).
    """
    if n_bytes < LARGE_BYTES or board.limits.push_mb_per_s is not None:
        return 1
    return max(1, min(MOST_CONNECTIONS, board_cpus - 1, len(os.sched_getaffinity(0)) - 1))


def upload(
    store: Store,
    item: Item,
    stored: Stored,
    most: int,
    on_start: Callable[[int], None],
    on_bytes: Callable[[int], None],
) -> int:
    """Sends what is missing over up to `most` connections; how many of them sent something.

    `on_start` is told how many bytes are to be sent before that begins, and again where a
    connection was lost on the way. Raises the errors of `Store`, of the first connection only.
    """
    missing = stored.missing(item.bytes)
    if most == 1 and stored.ranges is None:
        ((offset, end),) = missing
        on_start(end - offset)
        store.send(item, offset, on_bytes)
        return 1
    store.spread(item)
    used = 1
    for count in (most, 1):
        missing = store.look([item])[1][item.sha256].missing(item.bytes)
        if missing:
            on_start(sum(end - start for start, end in missing))
            used = max(used, _send(store, item, deque(_segments(missing)), count, on_bytes))
    return used


def _segments(spans: Sequence[Span]) -> Iterator[Span]:
    for start, end in spans:
        for at in range(start, end, SEGMENT_BYTES):
            yield at, min(at + SEGMENT_BYTES, end)


def _send(
    store: Store, item: Item, waiting: deque[Span], count: int, on_bytes: Callable[[int], None]
) -> int:
    """Sends the segments; how many connections sent something."""
    lanes: list[_Lane] = []
    try:
        for _ in range(min(count, len(waiting)) - 1):
            with contextlib.suppress(OSError):  # no more processes here
                lanes.append(_Lane(store, item, waiting, on_bytes))
        while waiting:
            with contextlib.suppress(IndexError):  # another one was faster
                store.send_range(item, waiting.popleft(), on_bytes)
        for lane in lanes:
            lane.finish()
    finally:
        for lane in lanes:
            lane.end()
    return 1 + sum(lane.has_sent for lane in lanes)


class _Lane:
    """A further connection and what it does."""

    def __init__(
        self, store: Store, item: Item, waiting: deque[Span], on_bytes: Callable[[int], None]
    ) -> None:
        self.has_sent = False
        self._is_connected = False
        self._waiting = waiting
        self._on_bytes = on_bytes
        self._sender = Sender(store, item)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # without it, then
            self._sender.wait()
            self._is_connected = True
            while self._waiting:
                with contextlib.suppress(IndexError):
                    self._sender.send(self._waiting.popleft(), self._count)

    def _count(self, n_bytes: int) -> None:
        self.has_sent = True
        self._on_bytes(n_bytes)

    def finish(self) -> None:
        """Returns when it has sent what it has taken; nothing else is waiting."""
        if self._is_connected:
            self._thread.join()

    def end(self) -> None:
        """Ends it at once."""
        self._sender.end()
        self._thread.join()
