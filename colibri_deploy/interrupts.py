# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C where an exception must not come at any moment."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def held_back(hurry: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Keeps Ctrl-C out of a block: KeyboardInterrupt is raised at its end.

    `hurry` is called at once, as a signal handler: it makes a long block end, and takes no lock.
    In other threads than the main one, and where the program handles SIGINT itself, nothing is
    changed.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        hurry()

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if pressed:
            raise KeyboardInterrupt
