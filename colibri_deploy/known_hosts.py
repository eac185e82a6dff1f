# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""known_hosts: the keys by which boards are recognised (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT")."""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import paramiko

from colibri_deploy.errors import ChangedHostKeyError, FileMissingError, UnknownHostKeyError
from colibri_deploy.ssh_config import Endpoint


@dataclass(frozen=True)
class Entry:
    """One line that speaks of a certain host."""

    path: Path
    line: int  # from 1
    marker: str  # "", "@revoked" or "@cert-authority"
    key_type: str
    blob: bytes  # the public key


@dataclass(frozen=True)
class KnownHosts:
    """Where the known keys are, and the one new key that the user has accepted for this run."""

    path: Path | None  # None: in the files that ~/.ssh/config says
    accept: str | None = None  # a fingerprint, "SHA256:..."

    def key_types(self, server: Endpoint) -> list[str]:
        """The types of the keys known for a server, which it should be asked for first."""
        return [entry.key_type for entry in self._entries(server) if not entry.marker]

    def check(self, server: Endpoint, key: paramiko.PKey) -> None:
        """Returns if `key` is the server's known one, or the accepted one, which is then recorded.

        Raises UnknownHostKeyError, ChangedHostKeyError, and FileMissingError where the file cannot
        be read or written.
        """
        entries = self._entries(server)
        shown = _fingerprint(key.asbytes())
        kind = key.get_name()
        for entry in entries:
            if entry.marker == "@revoked" and entry.blob == key.asbytes():
                raise ChangedHostKeyError(
                    f"the host key of {server.name}, {kind} {shown}, is revoked "
                    f"in line {entry.line} of {entry.path}: do not trust what answers there"
                )
        keys = [entry for entry in entries if not entry.marker]
        if any(entry.blob == key.asbytes() for entry in keys):
            return
        if keys:
            entry = next((one for one in keys if one.key_type == kind), keys[0])
            raise ChangedHostKeyError(
                f"the host key of {server.name} has changed: it shows {kind} {shown}, line "
                f"{entry.line} of {entry.path} has {entry.key_type} {_fingerprint(entry.blob)}; if "
                "the board was installed anew, remove that line, otherwise somebody else answers"
            )
        if self.accept == shown:
            self._record(server, key)
            return
        raise UnknownHostKeyError(self._unknown(server, f"{kind} {shown}", entries), shown)

    def _unknown(self, server: Endpoint, shown: str, entries: list[Entry]) -> str:
        message = f"the host key of {server.name}, {shown}, is not in {self._files(server)[0]}"
        if self.accept:
            message += f" and is not {self.accept}, the one to accept"
        if any(entry.marker == "@cert-authority" for entry in entries):
            message += ", whose @cert-authority lines are not used here"
        return message

    def _files(self, server: Endpoint) -> tuple[Path, ...]:
        """What is read; a new key goes to the first."""
        files = server.known_hosts if self.path is None else (self.path,)
        if not files:
            raise FileMissingError(
                f"the ssh configuration names no file for the host keys of {server.name}; "
                "name one with --known-hosts"
            )
        return files

    def _entries(self, server: Endpoint) -> list[Entry]:
        return [entry for path in self._files(server) for entry in _read(path, server.known_as)]

    def _record(self, server: Endpoint, key: paramiko.PKey) -> None:
        path = self._files(server)[0]
        line = f"{server.known_as} {key.get_name()} {key.get_base64()}\n"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "r+b") as file:
                content = file.read()
                file.write((b"" if content[-1:] in (b"", b"\n") else b"\n") + line.encode())
        except OSError as error:
            raise FileMissingError(
                f"the host key of {server.name} cannot be recorded: "
                f"{error.filename or path}: {error.strerror}"
            ) from error


def _read(path: Path, name: str) -> list[Entry]:
    """The lines of a file that speak of the host of that name."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a device may never end
            raise FileMissingError(
                f"{path} cannot hold host keys: it is no regular file; "
                "name another with --known-hosts"
            )
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from error
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or not _matches(words[0], name):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (ValueError, binascii.Error):
            continue
        found.append(Entry(path, number, marker, words[1], blob))
    return found


def _fingerprint(blob: bytes) -> str:
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
    return "SHA256:" + digest.rstrip("=")


def _matches(patterns: str, name: str) -> bool:
    """Whether the first field of a line speaks of the host."""
    if patterns.startswith("|1|"):
        try:
            salt, wanted = (base64.b64decode(part) for part in patterns[3:].split("|"))
        except (ValueError, binascii.Error):
            return False
        return hmac.digest(salt, name.encode(), "sha1") == wanted
    matched = False
    for pattern in patterns.lower().split(","):
        # Here brackets hold an address with a port; to fnmatch they would be sets.
        escaped = pattern.removeprefix("!").replace("[", "[[]")
        if fnmatch.fnmatchcase(name, escaped):
            if pattern.startswith("!"):
                return False
            matched = True
    return matched
