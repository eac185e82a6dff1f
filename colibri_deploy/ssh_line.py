# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What SSH runs over: a TCP connection or a ProxyCommand, and how long nothing came over it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
import threading
import time
from typing import IO, Any

import paramiko

from colibri_deploy.errors import BoardConnectionError, ConnectionLostError
from colibri_deploy.ssh_config import Endpoint

LOOK_SECONDS = 1.0  # how often it is looked whether a board is silent, at least
_STEP_SECONDS = 0.1
_PROXY_END_SECONDS = 2.0  # how long a ProxyCommand may take to end


class Line:
    """A socket, or what is like one, that remembers when it last received anything."""

    def __init__(self, sock: socket.socket | paramiko.Channel) -> None:
        self._sock = sock
        self.heard = time.monotonic()

    def recv(self, limit: int) -> bytes:
        data = self._sock.recv(limit)
        self.heard = time.monotonic()
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class Silence:
    """How long nothing has come over a line, as one that listens counts it.

    A time in which this machine or program stood still is none of the board's.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._heard = line.heard
        self._looked = time.monotonic()
        self._seconds = 0.0

    def seconds(self) -> float:
        """To be asked at least every LOOK_SECONDS."""
        now = time.monotonic()
        self._seconds += min(now - self._looked, 2 * LOOK_SECONDS)
        self._looked = now
        if self._line.heard != self._heard:
            self._heard, self._seconds = self._line.heard, 0.0
        return self._seconds


def comes(event: threading.Event, seconds: float) -> bool:
    """Whether an event comes in time, in which this machine did not stand still."""
    return any(event.wait(_STEP_SECONDS) for _ in range(round(seconds / _STEP_SECONDS)))


def dial(server: Endpoint, seconds: float) -> socket.socket:
    """A TCP connection. Raises ConnectionLostError, BoardConnectionError."""
    try:
        sock = socket.create_connection((server.host, server.port), seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    except TimeoutError as error:
        raise ConnectionLostError(
            f"{server.name} does not answer within {seconds:g} s: is it on, and in this network?"
        ) from error
    except socket.gaierror as error:
        raise BoardConnectionError(
            f"{server.name}: no address is known for {server.host}: {error.strerror}"
        ) from error
    except OSError as error:
        raise ConnectionLostError(
            f"{server.name} cannot be reached at port {server.port}: {error.strerror or error}"
        ) from error


def start_proxy(command: str, stack: contextlib.ExitStack) -> tuple[socket.socket, IO[bytes]]:
    """Runs a ProxyCommand, which ends with `stack`: the line to it, and where its stderr goes."""
    complaints = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 # the stack does
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=complaints,
            start_new_session=True,  # Ctrl-C is for us to handle
        )
    stack.callback(_end, child)
    return ours, complaints


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(_PROXY_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
