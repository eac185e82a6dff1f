# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Logs in to an SSH server as ssh does: the agent's keys, key files, then a password."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
from paramiko.agent import AgentKey, AgentSSH
from paramiko.pkey import PublicBlob

from colibri_deploy.errors import AuthenticationError, ColibriDeployError, FileMissingError
from colibri_deploy.ssh_config import Endpoint

_PASSWORD_METHODS = frozenset({"password", "keyboard-interactive"})
_ASK_ME = "answer the prompt in a terminal, or use --password-fd"


class Secrets:
    """Passwords and passphrases, each asked for once; a process that is started gets the answers.

    `ask` is given what is wanted ("password of nvidia on desk-orin"), and returns None where nobody
    can tell.
    """

    def __init__(self, ask: Callable[[str], str | None] = lambda wanted: None) -> None:
        self._ask = ask
        self._answers: dict[str, str | None] = {}
        self._lock = threading.Lock()

    def get(self, wanted: str) -> str | None:
        """The answer, if there is one."""
        with self._lock:
            if wanted not in self._answers:
                self._answers[wanted] = self._ask(wanted)
            return self._answers[wanted]

    def __reduce__(self) -> tuple[Callable[[dict[str, str | None]], Secrets], tuple[object]]:
        return _answered, (self._answers,)


def _answered(answers: dict[str, str | None]) -> Secrets:
    return Secrets(answers.get)


def log_in(transport: paramiko.Transport, server: Endpoint, secrets: Secrets) -> None:
    """Returns when `server` has let its user in. Raises AuthenticationError, FileMissingError."""
    _Login(transport, server, secrets).run()


class _Login:
    """One login."""

    def __init__(self, transport: paramiko.Transport, server: Endpoint, secrets: Secrets) -> None:
        self._transport = transport
        self._server = server
        self._secrets = secrets
        self._tried: list[str] = []  # what was refused
        self._unusable: list[ColibriDeployError] = []  # keys that are locked or damaged
        self._passphrases: set[str] = set()  # never sent as passwords

    def run(self) -> None:
        methods = self._methods()
        if "publickey" in methods:
            methods = self._try_keys(methods)
        if methods & _PASSWORD_METHODS and self._may_go_on():
            self._try_password()
        if not self._transport.is_authenticated():
            self._fail(methods)

    def _may_go_on(self) -> bool:
        return self._transport.is_active() and not self._transport.is_authenticated()

    def _methods(self) -> frozenset[str]:
        """How the server lets users in; none of these where it has done so already."""
        try:
            self._transport.auth_none(self._server.user)
        except paramiko.BadAuthenticationType as error:
            return frozenset(error.allowed_types)
        return frozenset()

    def _try_keys(self, methods: frozenset[str]) -> frozenset[str]:
        """Returns what the server asks for next: the same, or more than a key."""
        with _agent(self._server.agent) as agent:
            for name, place in self._keys(agent.get_keys()):
                try:
                    key = self._read_key(place) if isinstance(place, Path) else place
                except (AuthenticationError, FileMissingError) as error:
                    self._unusable.append(error)
                    continue
                try:
                    return frozenset(self._transport.auth_publickey(self._server.user, key))
                except (paramiko.SSHException, EOFError):  # refused, or hung up after too many
                    self._tried.append(name)
                if not self._transport.is_active():
                    break
        if self._server.keys_only and self._unusable and not self._tried:
            raise self._unusable[0]  # the user has chosen it: nothing else is tried
        return methods

    def _keys(self, held: tuple[AgentKey, ...]) -> Iterator[tuple[str, AgentKey | Path]]:
        """The keys to try, each with the name that an error calls it by.

        The agent's come first, and of those the ones whose files are named.
        """
        by_blob = {key.asbytes(): (at, key) for at, key in enumerate(held, 1)}
        blobs = {path: _public_key(path) for path in self._server.keys}
        ours = [blob for blob in blobs.values() if blob is not None and blob in by_blob]
        others = [] if self._server.keys_only else [blob for blob in by_blob if blob not in ours]
        for blob in (*ours, *others):
            at, key = by_blob[blob]
            yield f"the agent's key {key.comment or at}", key
        for path, public in blobs.items():
            if public not in by_blob:
                yield str(path), path

    def _read_key(self, path: Path) -> paramiko.PKey:
        try:
            return paramiko.PKey.from_path(path)
        except OSError as error:
            raise FileMissingError(f"the key {path} cannot be read: {error.strerror}") from error
        except TypeError:  # what paramiko makes of a missing passphrase
            return self._unlock(path)
        except (ValueError, paramiko.SSHException, paramiko.pkey.UnknownKeyType) as error:
            raise AuthenticationError(f"the key {path} cannot be used: {error}") from error

    def _unlock(self, path: Path) -> paramiko.PKey:
        passphrase = self._secrets.get(f"passphrase of {path}")
        if passphrase is None:
            raise AuthenticationError(
                f"a passphrase protects the key {path}: load it into the agent with ssh-add, "
                f"{_ASK_ME}"
            )
        try:
            key = paramiko.PKey.from_path(path, passphrase.encode())  # type: ignore[arg-type]
        except (TypeError, ValueError, paramiko.SSHException) as error:
            raise AuthenticationError(f"this is not the passphrase of {path}") from error
        self._passphrases.add(passphrase)
        return key

    def _try_password(self) -> None:
        server = self._server
        password = self._secrets.get(f"password of {server.user} on {server.name}")
        if password is None or password in self._passphrases:
            return
        try:
            self._transport.auth_password(server.user, password)
        except (paramiko.SSHException, EOFError) as error:
            raise AuthenticationError(
                f"{server.name} does not take this password of {server.user!r}"
            ) from error

    def _fail(self, methods: frozenset[str]) -> None:
        name, user = self._server.name, self._server.user
        advice = f", {_ASK_ME}" if methods & _PASSWORD_METHODS else ""
        if self._tried:
            raise AuthenticationError(
                f"{name} does not let {user!r} in with {', '.join(self._tried)}: "
                f"install your key there with ssh-copy-id, or name another with --key{advice}"
            )
        if "publickey" not in methods:
            raise AuthenticationError(
                f"{name} takes no keys, only {', '.join(sorted(methods))}: install your key there "
                f"with ssh-copy-id, and allow PubkeyAuthentication{advice}"
            )
        if self._unusable:
            raise self._unusable[0]
        raise AuthenticationError(
            f"no key to log in to {name}: name one with --key, load one into the agent with "
            f"ssh-add, or make ~/.ssh/id_ed25519 with ssh-keygen{advice}"
        )


class _Agent(AgentSSH):
    """The agent behind a socket; without one it holds no keys."""

    def __init__(self, path: str | None) -> None:
        super().__init__()
        if path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect(path)
                self._connect(sock)  # type: ignore[attr-defined] # for subclasses
            except (OSError, paramiko.SSHException):  # it is gone, or it is none
                sock.close()

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def _agent(path: str | None) -> contextlib.closing[_Agent]:
    return contextlib.closing(_Agent(path))


def _public_key(path: Path) -> bytes | None:
    """What stands in the file beside a private key, which may be locked."""
    try:
        blob: bytes = PublicBlob.from_file(f"{path}.pub").key_blob
    except (OSError, ValueError):
        return None
    return blob
