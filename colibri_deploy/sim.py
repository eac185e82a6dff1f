# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Emulated boards: an SSH server on loopback whose commands run in a private home directory.

Where the target is of another architecture than this machine, `uname -m` says that one, and
COLIBRI_RUNNER names qemu-user with the target's CPU model; the engine is started through it. The
shell and its tools are this machine's. The home directory persists, so that a second push finds
what the first one sent; host key and client key are made for one run and pinned.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from paramiko import common

from colibri_deploy.board import Board
from colibri_deploy.errors import EmulationError
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.targets import Target, machine_arch

PREFIX = "sim:"  # of a board's name on the command line
_USER = "colibri"
_ADDRESS = "127.0.0.1"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READ_BYTES = 1 << 15
_LINE_IS_CUT = (OSError, EOFError, paramiko.SSHException)  # what paramiko raises then


@dataclass(frozen=True)
class Faults:
    """What goes wrong on an emulated board, for tests."""

    cut_after: int | None = None  # bytes of standard input over all commands; then the line is cut
    file_blocks: int | None = None  # of 512 bytes: no file grows larger


class SimBoard:
    """An emulated board; a context manager, on the network while entered."""

    def __init__(self, target: Target, directory: Path, faults: Faults | None = None) -> None:
        """`directory` is the board's own, made when missing. Raises EmulationError."""
        self._target = target
        self._directory = directory.resolve()
        self._faults = faults or Faults()
        self._runner = _runner(target)
        self._received = 0  # bytes of standard input
        self._lock = threading.Lock()  # of the four below
        self._transports: list[paramiko.Transport] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._stack = contextlib.ExitStack()

    @property
    def home(self) -> Path:
        """The board's home directory."""
        return self._directory / "home"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            keys = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="colibri-sim-")))
            self._furnish()
            self._host_key = _new_key(keys / "host")
            self._client_key = _new_key(keys / "client")
            self._listener = stack.enter_context(socket.create_server((_ADDRESS, 0)))
            port = self._listener.getsockname()[1]
            known = keys / "known_hosts"
            name, blob = self._host_key.get_name(), self._host_key.get_base64()
            known.write_text(f"[{_ADDRESS}]:{port} {name} {blob}\n", encoding="utf-8")
            self.known_hosts = KnownHosts(known)
            self.board = Board(
                name=PREFIX + self._target.name,
                host=_ADDRESS,
                user=_USER,
                port=port,
                target=self._target.name,
                key=keys / "client",
                ssh_config=False,
            )
            stack.callback(self._hang_up)
            self._start(self._accept)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _furnish(self) -> None:
        """Makes the home directory and the programs that differ from this machine's."""
        programs = self._directory / "bin"
        for directory in (self.home, programs):
            directory.mkdir(parents=True, exist_ok=True)
        for program in programs.iterdir():
            program.unlink()
        if self._runner:
            (programs / Path(self._runner[0]).name).symlink_to(self._runner[0])
            uname = programs / "uname"
            uname.write_text(
                "#!/bin/sh\n"
                f'[ "$*" != -m ] || {{ echo {self._target.arch}; exit; }}\n'
                f"PATH={_PATH}\n"
                'exec uname "$@"\n',
                encoding="utf-8",
            )
            uname.chmod(0o755)

    def _environment(self) -> dict[str, str]:
        runner = [Path(word).name if at == 0 else word for at, word in enumerate(self._runner)]
        return {
            "COLIBRI_RUNNER": " ".join(runner),
            "HOME": str(self.home),
            "PATH": f"{self._directory / 'bin'}:{_PATH}",
            "USER": _USER,
        }

    def _start(self, run: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        thread.start()
        with self._lock:
            self._threads.append(thread)
        return thread

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # closed
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._closing:
                    sock.close()
                    return
                transport = paramiko.Transport(sock)
                self._transports.append(transport)
            transport.daemon = True
            transport.add_server_key(self._host_key)
            transport.start_server(threading.Event(), _Door(self))  # returns at once

    def execute(self, channel: paramiko.Channel, command: bytes) -> None:
        """Runs a command for a client, in threads of its own."""
        self._start(self._execute, channel, command)

    def lets_in(self, user: str, key: paramiko.PKey) -> bool:
        """Whether a client may log in."""
        return user == _USER and key.asbytes() == self._client_key.asbytes()

    def _execute(self, channel: paramiko.Channel, command: bytes) -> None:
        limits = ""
        if self._faults.file_blocks is not None:
            limits = f"trap '' XFSZ; ulimit -f {self._faults.file_blocks}; "
        with self._lock:
            if self._closing:
                return
            child = subprocess.Popen(
                ["/bin/sh", "-c", limits + 'exec /bin/sh -c "$1"', "sh", os.fsdecode(command)],
                cwd=self.home,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._children.append(child)
        self._start(self._feed, channel, child.stdin)
        err = self._start(_drain, child.stderr, channel.sendall_stderr)
        assert child.stdout is not None  # asked for above
        _drain(child.stdout, channel.sendall)
        err.join()
        status = child.wait()
        with contextlib.suppress(*_LINE_IS_CUT):
            channel.send_exit_status(128 - status if status < 0 else status)
            channel.close()

    def _feed(self, channel: paramiko.Channel, stdin: IO[bytes]) -> None:
        with contextlib.suppress(OSError), stdin:
            while data := channel.recv(_READ_BYTES):
                limit = self._faults.cut_after
                with self._lock:
                    left = len(data) if limit is None else max(0, limit - self._received)
                    self._received += len(data)
                stdin.write(data[:left])
                stdin.flush()
                if left < len(data):
                    channel.get_transport().sock.shutdown(socket.SHUT_RDWR)

    def _hang_up(self) -> None:
        """Ends every connection and every command."""
        with self._lock:
            self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        for transport in self._transports:
            transport.close()
        for child in self._children:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, 9)
        for thread in self._threads:
            thread.join()
        for child in self._children:
            child.wait()


class _Door(paramiko.ServerInterface):
    """What a client may do: log in with the one key, and run commands."""

    def __init__(self, sim: SimBoard) -> None:
        self._sim = sim

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if self._sim.lets_in(username, key):
            return common.AUTH_SUCCESSFUL
        return common.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if kind == "session":
            return common.OPEN_SUCCEEDED
        return common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._sim.execute(channel, command)
        return True


def _runner(target: Target) -> tuple[str, ...]:
    """What runs the target's binaries on this machine; empty where it does so itself."""
    if target.arch == machine_arch():
        return ()
    names = (f"qemu-{target.arch}-static", f"qemu-{target.arch}")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        raise EmulationError(
            f"{PREFIX}{target.name} needs {names[0]}: install the package qemu-user-static "
            f"(Debian, Ubuntu) or qemu-user; {PREFIX}host runs without"
        )
    return (program, "-cpu", target.facts.qemu_cpu) if target.facts.qemu_cpu else (program,)


def _new_key(path: Path) -> paramiko.PKey:
    """A fresh Ed25519 key, written to `path`."""
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    path.touch(mode=0o600)
    path.write_bytes(pem)
    return paramiko.Ed25519Key.from_private_key_file(str(path))


def _drain(source: IO[bytes], sink: Callable[[bytes], None]) -> None:
    """Passes everything on; a sink that is gone does not stop the reading."""
    with source:
        gone = False
        while data := os.read(source.fileno(), _READ_BYTES):
            if not gone:
                try:
                    sink(data)
                except _LINE_IS_CUT:
                    gone = True
