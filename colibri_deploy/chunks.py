# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The chunks of a file: which of them an older version has, so that only the others are sent.

Chunks have one size and lie at its multiples. That suits model.bin: its sections start at multiples
of 64 KiB, so a tensor that is quantised anew moves no other. A wrong match costs time, but no
more: what was put together is verified as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from colibri_deploy.errors import FileMissingError

CHUNK_BYTES = 1 << 16
_DIGITS = 32  # of the SHA-256 of a chunk, in hexadecimal; 128 bits tell any two chunks apart

Span = tuple[int, int]  # of a file: start and end in bytes


@dataclass(frozen=True)
class ChunkList:
    """The hashes of all chunks of a file, the last of which may be shorter."""

    chunk_bytes: int
    hashes: tuple[str, ...]

    @classmethod
    def read(cls, path: Path, chunk_bytes: int) -> Self:
        """Hashes the chunks of a file. Raises FileMissingError."""
        hashes = []
        try:
            with path.open("rb") as file:
                while chunk := file.read(chunk_bytes):
                    hashes.append(hashlib.sha256(chunk).hexdigest()[:_DIGITS])
        except OSError as error:
            raise FileMissingError(f"{path} cannot be read: {error.strerror}") from error
        return cls(chunk_bytes, tuple(hashes))

    @classmethod
    def parse(cls, lines: Iterable[str]) -> Self:
        """What `text` gave; a damaged list has other hashes or fewer."""
        size, *hashes = lines or ["0"]
        return cls(int(size) if size.isdecimal() else 0, tuple(hashes))

    @property
    def text(self) -> str:
        """One line for the size and for each hash."""
        return "".join(f"{line}\n" for line in (self.chunk_bytes, *self.hashes))


@dataclass(frozen=True)
class Run:
    """Chunks that follow each other."""

    is_old: bool  # taken from the older version; otherwise from what is sent
    first: int  # index there
    count: int


def runs_of(new: ChunkList, old: ChunkList) -> tuple[Run, ...]:
    """How to put a file together from chunks of an older version and those that this one lacks.

    The latter are numbered as they are sent: one after the other.
    """
    if new.chunk_bytes != old.chunk_bytes:
        return (Run(False, 0, len(new.hashes)),)
    places = {chunk: at for at, chunk in reversed([*enumerate(old.hashes)])}
    runs: list[Run] = []
    n_sent = 0
    for at, chunk in enumerate(new.hashes):
        last = runs[-1] if runs else Run(False, 0, 0)
        end = last.first + last.count
        found = next((i for i in (end, at) if old.hashes[i : i + 1] == (chunk,)), places.get(chunk))
        is_old, first = (True, found) if found is not None else (False, n_sent)
        n_sent += not is_old
        if (is_old, first) == (last.is_old, end) and runs:
            runs[-1] = Run(is_old, last.first, last.count + 1)
        else:
            runs.append(Run(is_old, first, 1))
    return tuple(runs)


def spans_to_send(runs: Iterable[Run], chunk_bytes: int, n_bytes: int) -> Iterator[Span]:
    """The parts of a file of `n_bytes` that its older version lacks, in order."""
    at = 0
    for run in runs:
        end = at + run.count * chunk_bytes
        if not run.is_old:
            yield at, min(end, n_bytes)
        at = end
