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

from colibri_deploy.board import SSH_PORT, Board
from colibri_deploy.errors import ChangedHostKeyError, FileMissingError, UnknownHostKeyError


@dataclass(frozen=True)
class Entry:
    """One line that speaks of a certain host."""

    line: int  # from 1
    marker: str  # "", "@revoked" or "@cert-authority"
    key_type: str
    blob: bytes  # the public key


@dataclass(frozen=True)
class KnownHosts:
    """A known_hosts file, and the one new key that the user has accepted for this run."""

    path: Path
    accept: str | None = None  # a fingerprint, "SHA256:..."

    def key_types(self, board: Board) -> list[str]:
        """The types of the keys known for a board, which it should be asked for first."""
        return [entry.key_type for entry in self._entries(board) if not entry.marker]

    def check(self, board: Board, key: paramiko.PKey) -> None:
        """Returns if `key` is the board's known one, or the accepted one, which is then recorded.

        Raises UnknownHostKeyError, ChangedHostKeyError, and FileMissingError where the file cannot
        be read or written.
        """
        entries = self._entries(board)
        shown = _fingerprint(key.asbytes())
        kind = key.get_name()
        for entry in entries:
            if entry.marker == "@revoked" and entry.blob == key.asbytes():
                raise ChangedHostKeyError(
                    f"the host key of {board.name}, {kind} {shown}, is revoked "
                    f"in line {entry.line} of {self.path}: do not trust what answers there"
                )
        keys = [entry for entry in entries if not entry.marker]
        if any(entry.blob == key.asbytes() for entry in keys):
            return
        if keys:
            entry = next((one for one in keys if one.key_type == kind), keys[0])
            raise ChangedHostKeyError(
                f"the host key of {board.name} has changed: it shows {kind} {shown}, line "
                f"{entry.line} of {self.path} has {entry.key_type} {_fingerprint(entry.blob)}; if "
                "the board was installed anew, remove that line, otherwise somebody else answers"
            )
        if self.accept == shown:
            self._record(board, key)
            return
        raise UnknownHostKeyError(self._unknown(board, f"{kind} {shown}", entries), shown)

    def _unknown(self, board: Board, shown: str, entries: list[Entry]) -> str:
        message = f"the host key of {board.name}, {shown}, is not in {self.path}"
        if self.accept:
            message += f" and is not {self.accept}, the one to accept"
        if any(entry.marker == "@cert-authority" for entry in entries):
            message += ", whose @cert-authority lines are not used here"
        return message

    def _entries(self, board: Board) -> list[Entry]:
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):  # a device may never end
                raise FileMissingError(
                    f"{self.path} cannot hold host keys: it is no regular file; "
                    "name another with --known-hosts"
                )
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FileMissingError(f"{self.path} cannot be read: {error.strerror}") from error
        found = []
        for number, line in enumerate(lines, 1):
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#") or not _matches(words[0], board):
                continue
            try:
                blob = base64.b64decode(words[2], validate=True)
            except (ValueError, binascii.Error):
                continue
            found.append(Entry(number, marker, words[1], blob))
        return found

    def _record(self, board: Board, key: paramiko.PKey) -> None:
        line = f"{_known_as(board)} {key.get_name()} {key.get_base64()}\n"
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "r+b") as file:
                content = file.read()
                file.write((b"" if content[-1:] in (b"", b"\n") else b"\n") + line.encode())
        except OSError as error:
            raise FileMissingError(
                f"the host key of {board.name} cannot be recorded: "
                f"{error.filename or self.path}: {error.strerror}"
            ) from error


def _known_as(board: Board) -> str:
    host = board.host.lower()
    return host if board.port in (None, SSH_PORT) else f"[{host}]:{board.port}"


def _fingerprint(blob: bytes) -> str:
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
    return "SHA256:" + digest.rstrip("=")


def _matches(patterns: str, board: Board) -> bool:
    """Whether the first field of a line speaks of the board."""
    name = _known_as(board)
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
