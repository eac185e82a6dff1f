# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the archive from which Linux fills its first file system; needs no root and no cpio.

The format is "newc", as in Linux, Documentation/driver-api/early-userspace/buffer-format.rst.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass


@dataclass(frozen=True)
class _Entry:
    mode: int
    data: bytes = b""
    owner: int = 0  # user and group
    device: tuple[int, int] = (0, 0)  # major, minor


class Initramfs:
    """The entries of an archive, by path without a leading slash; parents come first."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def directory(self, path: str, mode: int = 0o755, owner: int = 0) -> None:
        """Adds a directory, and those above it that are missing."""
        above = path.rpartition("/")[0]
        if above and above not in self._entries:
            self.directory(above)
        self._entries[path] = _Entry(stat.S_IFDIR | mode, owner=owner)

    def file(self, path: str, data: bytes, mode: int = 0o644, owner: int = 0) -> None:
        """Adds a file."""
        self._add(path, _Entry(stat.S_IFREG | mode, data, owner))

    def link(self, path: str, target: str) -> None:
        """Adds a symbolic link."""
        self._add(path, _Entry(stat.S_IFLNK | 0o777, target.encode()))

    def device(self, path: str, major: int, minor: int) -> None:
        """Adds a character device."""
        self._add(path, _Entry(stat.S_IFCHR | 0o600, device=(major, minor)))

    def pack(self) -> bytes:
        """The archive. The same entries always give the same bytes."""
        records = [
            _record(path, entry, number)
            for number, (path, entry) in enumerate(self._entries.items(), 1)
        ]
        return b"".join((*records, _record("TRAILER!!!", _Entry(0), 0)))

    def _add(self, path: str, entry: _Entry) -> None:
        above = path.rpartition("/")[0]
        if above and above not in self._entries:
            self.directory(above)
        self._entries[path] = entry


def _record(path: str, entry: _Entry, inode: int) -> bytes:
    name = path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    owner, device = (entry.owner, entry.owner), (0, 0, *entry.device)
    fields = (inode, entry.mode, *owner, links, 0, len(entry.data), *device, len(name), 0)
    head = "070701" + "".join(f"{field:08X}" for field in fields)
    return _padded(head.encode() + name) + _padded(entry.data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
