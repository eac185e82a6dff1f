# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Emulated boards: an SSH server on loopback whose commands run in a private home directory.

Where the target is of another architecture than this machine, `uname -m` says that one, and
COLIBRI_RUNNER names qemu-user with the target's CPU model; the engine is started through it. The
shell and its tools are this machine's, unless the faults say otherwise. The home directory
persists, so that a second push finds what the first one sent; host key and client key are made for
one run and pinned.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Self

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from paramiko import common
from pydantic import Field

from colibri_deploy.board import Board
from colibri_deploy.errors import EmulationError
from colibri_deploy.knobs import format_knobs
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.process import run
from colibri_deploy.running_board import ADDRESS
from colibri_deploy.slow_line import SlowLine
from colibri_deploy.targets import Target, machine_arch
from colibri_deploy.vm_image import USER

PREFIX = "sim:"  # of a board's name on the command line
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SFTP_SERVERS = (  # Debian, Fedora, Arch
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
)
_READ_BYTES = 1 << 15
_GRACE_SECONDS = 1.0  # for commands when the board ends
_LINE_IS_CUT = (OSError, EOFError, paramiko.SSHException)  # what paramiko raises then


# $1: size of the home directory $2 in KiB; $3: what /bin/sh shall be. Either may be empty.
_HOLDER = """
[ -z "$1" ] || mount -t tmpfs -o "size=$1k,mode=700" colibri "$2" || exit
[ -z "$3" ] || mount --bind "$3" "$(readlink -f /bin/sh)" || exit
echo ready
exec cat
"""


@dataclass(frozen=True)
class Faults:
    """What an emulated board and its network lack, and what goes wrong there."""

    latency_ms: Annotated[float, Field(gt=0)] | None = None  # of a round trip
    mb_per_s: Annotated[float, Field(gt=0)] | None = None  # 1e6 bytes, in each direction
    cut_after: Annotated[int, Field(ge=0)] | None = None  # bytes of stdin over all commands
    file_blocks: Annotated[int, Field(ge=0)] | None = None  # of 512 bytes: no file grows larger
    disk_kib: Annotated[int, Field(gt=0)] | None = None  # home is empty, this large, and not kept
    no_sftp: bool = False
    no_sha256sum: bool = False
    busybox: bool = False  # /bin/sh and all tools are BusyBox's


class SimBoard:
    """An emulated board; a context manager, on the network while entered."""

    def __init__(
        self,
        target: Target,
        directory: Path,
        faults: Faults | None = None,
        keys: Path | None = None,
    ) -> None:
        """`directory` is the board's own, made when missing. Raises EmulationError.

        Its keys and known_hosts are written to the directory `keys`; None: to a temporary one.
        """
        self._keys = keys
        self._target = target
        self._directory = directory.resolve()
        self._faults = faults or Faults()
        self._runner = _runner(target)
        self._line: SlowLine | None = None
        if self._faults.latency_ms or self._faults.mb_per_s:
            rate = self._faults.mb_per_s
            self._line = SlowLine(
                (self._faults.latency_ms or 0) / 1e3, rate * 1e6 if rate else None
            )
        self._inside: tuple[str, ...] = ()  # what a command begins with that runs on the board
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
            keys = self._keys or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="colibri-sim-"))
            )
            self._furnish()
            self._inside = stack.enter_context(self._mounted())
            self._host_key = _new_key(keys / "host")
            self._client_key = _new_key(keys / "client")
            self._listener = stack.enter_context(socket.create_server((ADDRESS, 0)))
            self.port = port = int(self._listener.getsockname()[1])
            known = keys / "known_hosts"
            name, blob = self._host_key.get_name(), self._host_key.get_base64()
            known.write_text(f"[{ADDRESS}]:{port} {name} {blob}\n", encoding="utf-8")
            self.known_hosts = KnownHosts(known)
            self.board = Board(
                name=PREFIX + self._target.name + format_knobs(self._faults),
                host=ADDRESS,
                user=USER,
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
        programs, tools = self._directory / "bin", self._directory / "tools"
        for directory in (self.home, programs, tools):
            directory.mkdir(parents=True, exist_ok=True)
        for program in (*programs.iterdir(), *tools.iterdir()):
            program.unlink()
        for name, path in self._tools().items():
            (tools / name).symlink_to(path)
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

    def _tools(self) -> dict[str, Path]:
        """The programs that the board has, by name, where those are not simply this machine's."""
        tools: dict[str, Path] = {}
        if self._faults.busybox:
            busybox = _busybox()
            tools = dict.fromkeys(run((busybox, "--list")).stdout.split(), busybox)
        elif self._faults.no_sha256sum:
            for directory in reversed(_PATH.split(":")):  # the first one in PATH counts
                if Path(directory).is_dir():
                    tools |= {path.name: path for path in Path(directory).iterdir()}
        if self._faults.no_sha256sum:
            tools.pop("sha256sum", None)
        return tools

    @contextlib.contextmanager
    def _mounted(self) -> Iterator[tuple[str, ...]]:
        """A mount namespace with the small disk and BusyBox's shell; how to enter it.

        A program holds it, which ends with its standard input, and so with this process at last.
        """
        disk, busybox = self._faults.disk_kib, self._faults.busybox
        if disk is None and not busybox:
            yield ()
            return
        user = () if os.geteuid() == 0 else ("--map-root-user",)
        words = (str(disk or ""), str(self.home), str(_busybox()) if busybox else "")
        holder = subprocess.Popen(
            ("unshare", "--mount", *user, "/bin/sh", "-c", _HOLDER, "sh", *words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us to handle
        )
        with holder:
            assert holder.stdin is not None  # asked for above, as are the others
            assert holder.stdout is not None
            assert holder.stderr is not None
            if holder.stdout.readline() != b"ready\n":
                raise EmulationError(
                    f"{PREFIX}{self._target.name} needs a mount namespace of its own: "
                    + holder.stderr.read().decode(errors="replace").strip()
                )
            enter = ("--user", "--preserve-credentials") if user else ()
            yield ("nsenter", "--target", str(holder.pid), "--mount", *enter)
            holder.stdin.close()

    def _environment(self) -> dict[str, str]:
        tools = self._directory / "tools"
        path = str(tools) if self._faults.busybox or self._faults.no_sha256sum else _PATH
        runner = [Path(word).name if at == 0 else word for at, word in enumerate(self._runner)]
        return {
            "COLIBRI_RUNNER": " ".join(runner),
            "HOME": str(self.home),
            "PATH": f"{self._directory / 'bin'}:{path}",
            "USER": USER,
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
            if self._line is not None:
                sock = self._line.attach(sock)
            with self._lock:
                if self._closing:
                    sock.close()
                    return
                transport = _Transport(sock)
                self._transports.append(transport)
            transport.daemon = True
            transport.add_server_key(self._host_key)
            transport.start_server(threading.Event(), _Door(self))  # returns at once

    def execute(self, channel: paramiko.Channel, command: bytes) -> None:
        """Runs a command for a client, in threads of its own."""
        transport = channel.get_transport()
        assert isinstance(transport, _Transport)
        transport.answered = threading.Event()
        self._start(self._execute, channel, command, transport.answered)

    def start_sftp(self, channel: paramiko.Channel) -> bool:
        """Starts the SFTP server for a client; False: the board has none."""
        server = next(filter(os.path.exists, _SFTP_SERVERS), None)
        if server is None or self._faults.no_sftp:
            return False
        self.execute(channel, f"exec {server}".encode())
        return True

    def lets_in(self, user: str, key: paramiko.PKey) -> bool:
        """Whether a client may log in."""
        return user == USER and key.asbytes() == self._client_key.asbytes()

    def _execute(
        self, channel: paramiko.Channel, command: bytes, answered: threading.Event
    ) -> None:
        transport = channel.get_transport()
        while not answered.wait(_GRACE_SECONDS) and transport.is_active():
            pass  # what ends at once closes the channel
        limits = ""
        if self._faults.file_blocks is not None:
            limits = f"trap '' XFSZ; ulimit -f {self._faults.file_blocks}; "
        with self._lock:
            if self._closing:
                return
            child = subprocess.Popen(
                [
                    *self._inside,
                    *("/bin/sh", "-c", limits + 'cd && exec /bin/sh -c "$1"', "sh"),
                    os.fsdecode(command),
                ],
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
        deadline = time.monotonic() + _GRACE_SECONDS  # to write what has arrived
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, 9)
        for thread in self._threads:
            thread.join()
        for child in self._children:
            child.wait()


class _Transport(paramiko.Transport):
    """Says when the client knows whether it may run a command."""

    answered = threading.Event()

    def _send_user_message(self, data: paramiko.Message) -> None:
        super()._send_user_message(data)  # type: ignore[misc] # missing in the stubs
        if threading.current_thread() is self:
            self.answered.set()


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

    def check_channel_subsystem_request(self, channel: paramiko.Channel, name: str) -> bool:
        return name == "sftp" and self._sim.start_sftp(channel)


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


def _busybox() -> Path:
    program = shutil.which("busybox")
    if program is None:
        raise EmulationError(
            f"{PREFIX}... with BusyBox needs busybox: install the package busybox-static "
            "(Debian, Ubuntu)"
        )
    return Path(program).resolve()


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
