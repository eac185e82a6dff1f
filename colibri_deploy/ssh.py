# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""An SSH connection to a board: the host key is checked, commands run, bytes flow both ways."""

from __future__ import annotations

import contextlib
import getpass
import logging
import select
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import paramiko

from colibri_deploy.board import SSH_PORT, Board
from colibri_deploy.errors import AuthenticationError, BoardConnectionError, FileMissingError
from colibri_deploy.known_hosts import KnownHosts

CONNECT_SECONDS = 10.0  # for each of: TCP, key exchange, authentication, a new channel
STALL_SECONDS = 60.0  # how long a board may refuse to take more bytes
_KEEPALIVE_SECONDS = 15
_READ_BYTES = 1 << 16
_DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")

# What paramiko has to say reaches the user as an error; its log would go to stderr otherwise.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True)
class Answer:
    """A command that ended on a board."""

    status: int  # -1: a signal ended it
    stdout: bytes
    stderr: bytes


class Connection:
    """One connection; a context manager."""

    def __init__(self, board: Board, transport: paramiko.Transport) -> None:
        self.board = board
        self._transport = transport

    @classmethod
    def open(cls, board: Board, known_hosts: KnownHosts) -> Self:
        """Connects, checks the host key, and logs in.

        Raises BoardConnectionError, UnknownHostKeyError, ChangedHostKeyError, AuthenticationError.
        """
        sock = _dial(board)
        try:
            transport = paramiko.Transport(sock)
            transport.daemon = True
            options = transport.get_security_options()
            options.ciphers = _first(options.ciphers, ("aes128-gcm@openssh.com",))
            options.key_types = _first(options.key_types, _algorithms(known_hosts.key_types(board)))
            transport.banner_timeout = CONNECT_SECONDS
            transport.auth_timeout = CONNECT_SECONDS
            transport.channel_timeout = CONNECT_SECONDS
        except BaseException:
            sock.close()
            raise
        try:
            with _typed(board, "no SSH connection to"):
                transport.start_client(timeout=CONNECT_SECONDS)
                if not transport.initial_kex_done:  # paramiko returns then, too
                    raise TimeoutError(f"nothing speaks SSH there within {CONNECT_SECONDS:g} s")
                known_hosts.check(board, transport.get_remote_server_key())
                _log_in(transport, board)
                transport.set_keepalive(_KEEPALIVE_SECONDS)
        except BaseException:
            transport.close()
            raise
        return cls(board, transport)

    def run(
        self,
        command: str,
        stdin: Iterable[bytes] = (),
        *,
        timeout_s: float,
    ) -> Answer:
        """Runs a command to its end, feeding it `stdin`.

        `timeout_s` bounds the time after the last byte is sent. A command that ends before it has
        read everything is no error here. Raises BoardConnectionError.
        """
        with _typed(self.board, "lost the connection to"):
            channel = self._transport.open_session(timeout=CONNECT_SECONDS)
            with contextlib.closing(channel):
                channel.settimeout(STALL_SECONDS)
                channel.exec_command(command)
                try:
                    for chunk in stdin:
                        channel.sendall(chunk)
                    channel.shutdown_write()
                except OSError:
                    if not (channel.closed and self._transport.is_active()):
                        raise
                answer = self._gather(channel, timeout_s)
        if answer.status == -1 and not self._transport.is_active():
            raise BoardConnectionError(f"lost the connection to {self.board.name}")
        return answer

    def _gather(self, channel: paramiko.Channel, timeout_s: float) -> Answer:
        """Reads both outputs until the command has ended."""
        deadline = time.monotonic() + timeout_s
        late = BoardConnectionError(
            f"{self.board.name} does not answer: a command takes longer than {timeout_s:g} s"
        )
        stdout, stderr = bytearray(), bytearray()
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise late
            select.select([channel], [], [], min(left, 1.0))
            if channel.recv_ready():
                stdout += channel.recv(_READ_BYTES)
            elif channel.recv_stderr_ready():
                stderr += channel.recv_stderr(_READ_BYTES)
            elif channel.eof_received or channel.closed:
                break
        if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
            raise late
        return Answer(channel.recv_exit_status(), bytes(stdout), bytes(stderr))

    def close(self) -> None:
        """Ends the connection."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _dial(board: Board) -> socket.socket:
    port = board.port or SSH_PORT
    try:
        sock = socket.create_connection((board.host, port), CONNECT_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    except TimeoutError as error:
        raise BoardConnectionError(
            f"{board.name} does not answer within {CONNECT_SECONDS:g} s: "
            "is it on, and in this network?"
        ) from error
    except socket.gaierror as error:
        raise BoardConnectionError(
            f"{board.name}: no address is known for {board.host}: {error.strerror}"
        ) from error
    except OSError as error:
        raise BoardConnectionError(
            f"{board.name} cannot be reached at port {port}: {error.strerror or error}"
        ) from error


@contextlib.contextmanager
def _typed(board: Board, what: str) -> Iterator[None]:
    """Turns the many errors of sockets and paramiko into one."""
    try:
        yield
    except paramiko.AuthenticationException as error:
        raise AuthenticationError(f"{board.name} ended the login: {error}") from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise BoardConnectionError(f"{what} {board.name}: {reason}") from error


def _first(known: Iterable[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """`known`, with those that are wanted at the front."""
    names = tuple(known)
    return tuple(dict.fromkeys((*(name for name in wanted if name in names), *names)))


def _algorithms(key_types: Iterable[str]) -> list[str]:
    """The signature algorithms of key types; an RSA key signs with several."""
    rsa = ("rsa-sha2-512", "rsa-sha2-256")
    return [name for kind in key_types for name in (rsa if kind == "ssh-rsa" else (kind,))]


def _log_in(transport: paramiko.Transport, board: Board) -> None:
    tried = []
    with contextlib.closing(paramiko.Agent()) as agent:
        for name, key in _keys(board, agent):
            try:
                transport.auth_publickey(board.user or getpass.getuser(), key)
            except paramiko.BadAuthenticationType as error:
                raise AuthenticationError(
                    f"{board.name} takes no keys, only {', '.join(error.allowed_types)}: "
                    "install your key there with ssh-copy-id, and allow PubkeyAuthentication"
                ) from error
            except (paramiko.SSHException, EOFError):  # refused, or hung up after too many
                tried.append(name)
            if transport.is_authenticated():
                return
            if not transport.is_active():
                break
    if not tried:
        raise AuthenticationError(
            f"no key to log in to {board.name}: name one with --key, load one into the agent with "
            f"ssh-add, or make ~/.ssh/{_DEFAULT_KEYS[0]} with ssh-keygen"
        )
    raise AuthenticationError(
        f"{board.name} does not let {board.user!r} in with {', '.join(tried)}: "
        "install your key there with ssh-copy-id, or name another with --key"
    )


def _keys(board: Board, agent: paramiko.Agent) -> Iterator[tuple[str, paramiko.PKey]]:
    """The keys to try, each with the name that an error calls it by."""
    if board.key is not None:
        yield str(board.key), _read_key(board.key)
        return
    for number, held in enumerate(agent.get_keys(), 1):
        yield f"the agent's key {held.comment or number}", held
    for name in _DEFAULT_KEYS:
        path = Path.home() / ".ssh" / name
        if path.is_file():
            with contextlib.suppress(AuthenticationError, FileMissingError):
                yield str(path), _read_key(path)


def _read_key(path: Path) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(path)
    except OSError as error:
        raise FileMissingError(f"the key {path} cannot be read: {error.strerror}") from error
    except (TypeError, ValueError, paramiko.SSHException) as error:
        raise AuthenticationError(
            f"the key {path} cannot be used: {error}; "
            "if a passphrase protects it, load it into the agent with ssh-add"
        ) from error
