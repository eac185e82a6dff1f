# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""An SSH connection to a board: the host key is checked, commands run, bytes flow both ways."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Self

import paramiko

from colibri_deploy.board import Board
from colibri_deploy.errors import (
    AuthenticationError,
    BoardConnectionError,
    ConnectionLostError,
)
from colibri_deploy.interrupts import held_back
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.ssh_config import Endpoint, route
from colibri_deploy.ssh_line import LOOK_SECONDS, Line, Silence, comes, dial, start_proxy
from colibri_deploy.ssh_login import Secrets, log_in

CONNECT_SECONDS = 10.0  # for each of: TCP, key exchange
LOGIN_SECONDS = 30.0  # for each of: authentication, a new channel
STALL_SECONDS = 60.0  # how long a board may refuse to take more bytes
PATIENCE_SECONDS = 60.0  # how long a reconnection is tried
KEEPALIVE_SECONDS = 15.0  # how often an answer is asked for
DEAD_SECONDS = 60.0  # a board that was silent for so long while a command runs is gone
_FIRST_WAIT_SECONDS = 0.2
_LONGEST_WAIT_SECONDS = 5.0
_END_SECONDS = 2.0  # how long paramiko's thread may take to end
_READ_BYTES = 1 << 16
_PROHIBITED = 1  # RFC 4254, 5.1
_LOST = (paramiko.SSHException, EOFError, OSError)  # what paramiko raises when a line is cut

# What paramiko has to say reaches the user as an error; its log would go to stderr otherwise.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Answer:
    """A command that ended on a board."""

    status: int  # -1: a signal ended it
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class Sinks:
    """Where the output of a command goes as it comes."""

    stdout: Callable[[bytes], None]
    stderr: Callable[[bytes], None]


class Connection:
    """One connection; a context manager."""

    def __init__(self, board: Board, known_hosts: KnownHosts, secrets: Secrets) -> None:
        """Connects to nothing yet: that is `open`."""
        self.board = board
        self.known_hosts = known_hosts
        self.secrets = secrets
        self._stack = contextlib.ExitStack()  # what ends with the connection
        self._is_aborted = False

    @classmethod
    def open(
        cls,
        board: Board,
        known_hosts: KnownHosts,
        secrets: Secrets | None = None,
        *,
        patience_s: float = 0.0,
    ) -> Self:
        """Connects, hop by hop: checks the host key, and logs in.

        For `patience_s` seconds it is tried again, after longer and longer waits, if the network or
        a server refuses or cuts the connection, as one does that has too many at once. Raises
        ConnectionLostError, BoardConnectionError, UnknownHostKeyError, ChangedHostKeyError,
        AuthenticationError, SshConfigError.
        """
        connection = cls(board, known_hosts, secrets or Secrets())
        connection.reconnect(patience_s)
        return connection

    def reconnect(self, patience_s: float = PATIENCE_SECONDS) -> None:
        """Ends what is left of the connection, and opens it anew. See `open`."""
        self.close()
        deadline = time.monotonic() + patience_s
        for attempt in itertools.count(1):
            if self._is_aborted:
                break
            try:
                self._connect()
            except ConnectionLostError as error:
                longest = min(_LONGEST_WAIT_SECONDS, _FIRST_WAIT_SECONDS * 2 ** (attempt - 1))
                wait = longest * random.uniform(0.5, 1.0)  # many who wait shall not come at once
                if patience_s <= 0:
                    raise
                if attempt > 1 and time.monotonic() + wait > deadline:
                    raise ConnectionLostError(
                        f"{error.message} (tried {attempt} times in {patience_s:g} s)",
                        details=error.details,
                    ) from error
                time.sleep(wait)
            else:
                break
        if self._is_aborted:
            self.close()
            raise BoardConnectionError(f"the connection to {self.board.name} was given up")

    def _connect(self) -> None:
        with contextlib.ExitStack() as stack:
            before: _Session | None = None
            for server in route(self.board):
                before = _Session(server, before, self.known_hosts, self.secrets, stack)
            assert before is not None  # a route ends at the board
            before.keep_alive()
            self._session = before
            self._stack = stack.pop_all()

    @property
    def user(self) -> str:
        """The login name."""
        return self._session.server.user

    @property
    def server_version(self) -> str:
        """What the board's SSH server calls itself, such as "SSH-2.0-dropbear_2022.83"."""
        return self._session.transport.remote_version

    @property
    def host_key(self) -> str:
        """The key by which the board was recognised: "ssh-ed25519 SHA256:..."."""
        key = self._session.transport.get_remote_server_key()
        return f"{key.get_name()} {key.fingerprint}"

    def run(self, command: str, stdin: Iterable[bytes] = (), *, timeout_s: float) -> Answer:
        """Runs a command to its end, feeding it `stdin`.

        `timeout_s` bounds the time after the last byte is sent. A command that ends before it has
        read everything is no error here. Raises ConnectionLostError, BoardConnectionError.
        """
        return self._execute(command, stdin, timeout_s, None)

    def stream(self, command: str, stdin: bytes, sinks: Sinks, *, timeout_s: float) -> int:
        """The same, but its output is passed on as it comes; the status.

        Standard input stays open: that it ends tells the command that we have gone. So it does
        when this raises anything, be it of the sinks.
        """
        return self._execute(command, [stdin], timeout_s, sinks).status

    def _execute(
        self, command: str, stdin: Iterable[bytes], timeout_s: float, sinks: Sinks | None
    ) -> Answer:
        stdout, stderr = bytearray(), bytearray()
        with self._typed(), self._opened(command) as channel:
            self._send(channel, stdin, ends=sinks is None)
            to = sinks or Sinks(stdout.extend, stderr.extend)
            status = self._gather(channel, timeout_s, to)
        return Answer(status, bytes(stdout), bytes(stderr))

    @contextlib.contextmanager
    def converse(self, command: str, sinks: Sinks) -> Iterator[Dialogue]:
        """Runs a command that is spoken to; its standard input ends with the context.

        Raises ConnectionLostError, BoardConnectionError.
        """
        with self._opened(command) as channel:
            yield Dialogue(self, channel, sinks)

    @contextlib.contextmanager
    def _opened(self, command: str) -> Iterator[paramiko.Channel]:
        with self._typed(), self._unbroken():
            channel = self._session.transport.open_session(timeout=LOGIN_SECONDS)
            channel.settimeout(STALL_SECONDS)
            channel.exec_command(command)
        try:
            yield channel
        finally:
            with contextlib.suppress(*_LOST), self._unbroken():
                channel.close()

    def _typed(self) -> contextlib.AbstractContextManager[None]:
        return _typed(self.board.name, "lost the connection to")

    def _unbroken(self) -> contextlib.AbstractContextManager[None]:
        """Where paramiko is at work in the main thread.

        An exception there would leave locks locked that closing the connection waits for. So Ctrl-C
        cuts the line, and is raised when paramiko has come back.
        """
        return held_back(self._session.cut)

    def _send(self, channel: paramiko.Channel, chunks: Iterable[bytes], ends: bool) -> None:
        """A command that has ended takes no more; that is no error here."""
        try:
            for chunk in _paced(chunks, self.board.limits.push_mb_per_s):
                with self._unbroken():
                    channel.sendall(chunk)
            if ends:
                with self._unbroken():
                    channel.shutdown_write()
        except TimeoutError as error:
            raise ConnectionLostError(
                f"{self.board.name} has taken no more data for {STALL_SECONDS:g} s"
            ) from error
        except OSError:
            if not (channel.closed and self._session.transport.is_active()):
                raise

    def _gather(self, channel: paramiko.Channel, timeout_s: float, to: Sinks) -> int:
        """Reads both outputs until the command has ended; its status."""
        deadline = time.monotonic() + timeout_s
        self._pump(channel, timeout_s, to, lambda: False)
        with self._unbroken():
            if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
                raise self._late(timeout_s)
            status = channel.recv_exit_status()
        if status == -1 and not self._session.transport.is_active():
            raise ConnectionLostError(f"lost the connection to {self.board.name}")
        return status

    def _pump(
        self, channel: paramiko.Channel, timeout_s: float, to: Sinks, until: Callable[[], bool]
    ) -> None:
        """Reads both outputs until the command has ended, or `until` is true."""
        deadline = time.monotonic() + timeout_s
        silence = Silence(self._session.line)
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late(timeout_s)
            if silence.seconds() > DEAD_SECONDS:
                raise ConnectionLostError(
                    f"{self.board.name} has been silent for {DEAD_SECONDS:g} s: "
                    "is it still on, and in this network?"
                )
            out = err = b""
            with self._unbroken():
                select.select([channel], [], [], min(left, LOOK_SECONDS))
                if channel.recv_ready():
                    out = channel.recv(_READ_BYTES)
                elif channel.recv_stderr_ready():
                    err = channel.recv_stderr(_READ_BYTES)
                elif channel.eof_received or channel.closed:
                    break
            if out:
                to.stdout(out)
            if err:
                to.stderr(err)

    def _late(self, timeout_s: float) -> BoardConnectionError:
        return BoardConnectionError(
            f"{self.board.name} does not answer: a command takes longer than {timeout_s:g} s"
        )

    def close(self) -> None:
        """Ends the connection."""
        with held_back():
            self._stack.close()

    def abort(self) -> None:
        """Ends the connection for good, from another thread; what runs on it fails."""
        self._is_aborted = True
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Dialogue:
    """A command that runs and is spoken to (`Connection.converse`)."""

    def __init__(self, connection: Connection, channel: paramiko.Channel, sinks: Sinks) -> None:
        self._connection = connection
        self._channel = channel
        self._sinks = sinks

    def say(self, data: bytes) -> None:
        """Sends data to the command. Raises ConnectionLostError."""
        with self._connection._typed():
            self._connection._send(self._channel, [data], ends=False)

    def hear(self, until: Callable[[], bool], timeout_s: float) -> None:
        """Passes output on until `until` is true, or the command has ended.

        Raises ConnectionLostError, BoardConnectionError.
        """
        with self._connection._typed():
            self._connection._pump(self._channel, timeout_s, self._sinks, until)

    def end(self, timeout_s: float) -> int:
        """Ends the command's standard input, passes the rest on; its status. Raises as `hear`."""
        with self._connection._typed():
            self._connection._send(self._channel, [], ends=True)
            return self._connection._gather(self._channel, timeout_s, self._sinks)


class _Session:
    """A login at one server, reached through the one before; ends with `stack`."""

    def __init__(
        self,
        server: Endpoint,
        before: _Session | None,
        known_hosts: KnownHosts,
        secrets: Secrets,
        stack: contextlib.ExitStack,
    ) -> None:
        self.server = server
        self._stack = stack
        complaints: IO[bytes] | None = None
        self._wire: socket.socket  # on which all hops are
        sock: socket.socket | paramiko.Channel
        if before is not None:
            sock, self._wire = before.forward(server), before._wire
        elif server.proxy_command is not None:
            sock, complaints = start_proxy(server.proxy_command, stack)
            self._wire = sock
        else:
            sock = self._wire = dial(server, CONNECT_SECONDS)
        stack.callback(sock.close)
        self.line = Line(sock)
        with _typed(server.name, "no SSH connection to", complaints):
            self.transport = _transport(self.line, known_hosts.key_types(server))
            stack.callback(self._end)
            done = threading.Event()
            self.transport.start_client(done)
            if not comes(done, CONNECT_SECONDS):
                raise TimeoutError(f"nothing speaks SSH there within {CONNECT_SECONDS:g} s")
            if not self.transport.is_active():
                raise self.transport.get_exception() or EOFError
            known_hosts.check(server, self.transport.get_remote_server_key())
            log_in(self.transport, server, secrets)

    def cut(self) -> None:
        """Cuts the line, and takes no lock for it."""
        with contextlib.suppress(OSError):
            self._wire.shutdown(socket.SHUT_RDWR)

    def forward(self, server: Endpoint) -> paramiko.Channel:
        """A line from this server to another."""
        place = (server.host, server.port)
        with _typed(self.server.name, "lost the connection to"):
            try:
                return self.transport.open_channel(
                    "direct-tcpip", place, ("127.0.0.1", 0), timeout=LOGIN_SECONDS
                )
            except paramiko.ChannelException as error:
                raise _not_forwarded(self.server, server, error) from error

    def _end(self) -> None:
        """Ends the transport, and its thread, which may hold what the program's end waits for."""
        self.cut()
        with contextlib.suppress(*_LOST):
            self.transport.close()
        if self.transport.is_alive():
            self.transport.join(_END_SECONDS)

    def keep_alive(self) -> None:
        """Asks for an answer now and then, so that silence means something."""
        done = threading.Event()
        self._stack.callback(done.set)

        def ask() -> None:
            with contextlib.suppress(*_LOST):
                while not done.wait(KEEPALIVE_SECONDS) and self.transport.is_active():
                    self.transport.global_request("keepalive@openssh.com", wait=True)

        threading.Thread(target=ask, daemon=True).start()


def _transport(line: Line, key_types: Iterable[str]) -> paramiko.Transport:
    """SSH on a line; host keys of these types are asked for first."""
    transport = paramiko.Transport(line)  # type: ignore[arg-type] # it is like a socket
    transport.daemon = True
    options = transport.get_security_options()
    options.ciphers = _first(options.ciphers, ("aes128-gcm@openssh.com",))
    options.key_types = _first(options.key_types, _algorithms(key_types))
    ours_first = 10 * CONNECT_SECONDS
    transport.banner_timeout = transport.handshake_timeout = ours_first
    transport.auth_timeout = LOGIN_SECONDS
    return transport


def _not_forwarded(
    hop: Endpoint, server: Endpoint, error: paramiko.ChannelException
) -> BoardConnectionError:
    place = f"{server.name} at {server.host} port {server.port}"
    if error.code == _PROHIBITED:
        return BoardConnectionError(
            f"{hop.name} does not let us through to {place}: it needs AllowTcpForwarding yes "
            "(OpenSSH), or dropbear without -j"
        )
    return ConnectionLostError(f"{hop.name} cannot reach {place}: {error.text}")


@contextlib.contextmanager
def _typed(name: str, what: str, complaints: IO[bytes] | None = None) -> Iterator[None]:
    """Turns the many errors of sockets and paramiko into few; a proxy's own words go with them."""
    try:
        yield
    except paramiko.AuthenticationException as error:
        raise AuthenticationError(f"{name} ended the login: {error}") from error
    except paramiko.ssh_exception.IncompatiblePeer as error:
        raise BoardConnectionError(
            f"{what} {name}: it offers nothing that is known here ({error}); "
            "if its server is old, update it, dropbear to 2020.79 or later"
        ) from error
    except paramiko.ChannelException as error:
        raise BoardConnectionError(f"{name} runs no command: {error.text}") from error
    except _LOST as error:
        reason = str(error) or type(error).__name__
        details = ""
        if complaints is not None:
            complaints.seek(0)
            details = complaints.read().decode(errors="replace").strip()
        raise ConnectionLostError(f"{what} {name}: {reason}", details) from error


def _paced(chunks: Iterable[bytes], mb_per_s: float | None) -> Iterator[bytes]:
    """The same, no faster than that."""
    due = time.monotonic()
    for chunk in chunks:
        yield chunk
        if mb_per_s is not None:
            due += len(chunk) / (mb_per_s * 1e6)
            time.sleep(max(0.0, due - time.monotonic()))


def _first(known: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """`known`, with those that are wanted at the front."""
    names = tuple(known)
    return tuple(dict.fromkeys((*(name for name in wanted if name in names), *names)))


def _algorithms(key_types: Iterable[str]) -> list[str]:
    """The signature algorithms of key types; an RSA key signs with several."""
    rsa = ("rsa-sha2-512", "rsa-sha2-256")
    return [name for kind in key_types for name in (rsa if kind == "ssh-rsa" else (kind,))]
