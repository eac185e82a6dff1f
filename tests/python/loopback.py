# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Servers on this machine: their ports, what they run, and waiting for what has to come."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest


def free_port() -> int:
    """A port of loopback on which nobody listens; the kernel gives it to no connection."""
    given = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    first, last = map(int, given)
    others: list[int] = [*range(10_000, first), *range(last + 1, 65_536)]
    for port in random.SystemRandom().sample(others, len(others)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    pytest.fail("no port is free")


def wait_until(condition: Callable[[], object], what: str, seconds: float = 100) -> None:
    """Returns when the condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def listens(port: int) -> bool:
    """Whether a server does on that port of loopback."""
    with suppress(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    return False


def commands_end(home: Path) -> None:
    """Returns when the commands have ended that a board ran in a home directory."""

    def one_runs() -> bool:
        for place in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):  # it has ended, or is another user's
                if place.readlink() == home:
                    return True
        return False

    wait_until(lambda: not one_runs(), f"something runs in {home}")
