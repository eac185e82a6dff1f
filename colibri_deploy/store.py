# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The store on a board: files named by their SHA-256, and releases made of them."""

from __future__ import annotations

import functools
import hashlib
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from colibri_deploy.board_shell import VERB_SECONDS, BoardShell
from colibri_deploy.chunks import CHUNK_BYTES, ChunkList, Run, Span, runs_of, spans_to_send
from colibri_deploy.errors import BoardError, FileMissingError, SignatureError
from colibri_deploy.release.released import Proof

ENGINE_NAME = "colibri"
CHECK_SECONDS = 3600.0  # for what reads or removes all files of a release
BLOCK_BYTES = 1 << 16  # of a file that is sent in ranges; these begin at its multiples
_READ_BYTES = 1 << 18
_SLOW_BYTES_PER_S = 2e6  # a slow board reads, hashes and writes no slower than this


@dataclass(frozen=True)
class Item:
    """A file of a release."""

    name: str
    sha256: str
    path: Path | None = None  # here; None: it is on the board only
    bytes: int = 0
    chunk_bytes: int = CHUNK_BYTES
    spans: tuple[Span, ...] | None = None  # it is these parts of `path`; None: all of that

    @classmethod
    def read(
        cls,
        name: str,
        path: Path,
        on_bytes: Callable[[int], None] = lambda n_bytes: None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        spans: tuple[Span, ...] | None = None,
    ) -> Item:
        """Hashes a file, or parts of it. Raises FileMissingError."""
        digest = hashlib.sha256()
        size = 0
        for block in _content(path, spans, 0, sys.maxsize):
            digest.update(block)
            size += len(block)
            on_bytes(len(block))
        return cls(name, digest.hexdigest(), path, size, chunk_bytes, spans)

    @functools.cached_property
    def chunks(self) -> ChunkList:
        """The hashes of the chunks of the file here. Raises FileMissingError."""
        assert self.path is not None  # asked for what is here only
        return ChunkList.read(self.path, self.chunk_bytes)


@dataclass(frozen=True)
class Assembly:
    """How a board puts a file together from an older version that it has."""

    old: str  # SHA-256 of the older version
    runs: tuple[Run, ...]
    sent: Item  # the chunks that the older version lacks

    @classmethod
    def of(cls, item: Item, old: str, old_chunks: ChunkList) -> Assembly | None:
        """None if the older version has no chunk of the file."""
        runs = runs_of(item.chunks, old_chunks)
        if not any(run.is_old for run in runs):
            return None
        assert item.path is not None  # it has chunks
        spans = tuple(spans_to_send(runs, item.chunk_bytes, item.bytes))
        return cls(old, runs, Item.read(item.name, item.path, spans=spans))


@dataclass(frozen=True)
class BoardState:
    """What a board is and has."""

    machine: str  # `uname -m`
    root: str  # absolute
    free_bytes: int | None  # None: the board does not say
    current: str | None  # id of the release
    files: dict[str, str] = field(default_factory=dict)  # of that release: name to SHA-256
    previous: tuple[str, ...] = ()  # ids of the releases that can be gone back to, the last first
    chunked: frozenset[str] = frozenset()  # SHA-256 of files whose list of chunks is there
    cpus: int = 1  # where the board does not say: as if it had one

    @property
    def is_consistent(self) -> bool:
        """Whether `files` are those of the release; otherwise its manifest is damaged."""
        items = [Item(name, sha256) for name, sha256 in self.files.items()]
        return self.current is None or release_id(items) == self.current


@dataclass(frozen=True)
class Stored:
    """How much of a file a board has."""

    whole: int | None = None  # bytes in the store, not verified by this
    partial: int = 0  # size of the file of an upload that was cut
    ranges: tuple[Span, ...] | None = None  # what is there of that; None: all of its bytes

    def missing(self, n_bytes: int) -> tuple[Span, ...]:
        """What is to be sent of a file of `n_bytes`, in order."""
        if self.ranges is None:
            at = self.partial if self.partial <= n_bytes else 0
            return ((at, n_bytes),) if at < n_bytes else ()
        at = 0
        gaps = []
        for start, end in sorted(span for span in self.ranges if span[0] < span[1]):
            if at < start:
                gaps.append((at, start))
            at = max(at, end)
        # The last block may be shorter, so it is not noted; but nothing else reaches the end.
        has_end = self.partial == n_bytes and n_bytes - at < BLOCK_BYTES
        return (*gaps, *([] if has_end else [(at, n_bytes)]))

    def left(self, n_bytes: int) -> int:
        """How many bytes are to be sent."""
        return sum(end - start for start, end in self.missing(n_bytes))


@dataclass(frozen=True)
class Contents:
    """What is in the directory on a board."""

    bytes: int | None  # on the disk; None: there is no directory
    foreign: tuple[str, ...]  # paths in it of what no deploy has put there


@dataclass(frozen=True)
class Pruned:
    """What was removed because no release that is kept needs it."""

    releases: tuple[str, ...]  # ids
    bytes: int  # of files in the store


class Store:
    """The store on one board. All methods raise BoardConnectionError, BoardError, BoardFullError.

    An engine has to be sealed before other files: it is what verifies them. Who writes has to own
    the board's lock, and gives its nonce.
    """

    def __init__(self, shell: BoardShell, nonce: str = "") -> None:
        self.connection = shell.connection
        self.nonce = nonce
        self._shell = shell

    def probe(self) -> BoardState:
        """What the board is and has; writes nothing."""
        return self.look(())[0]

    def look(self, items: Sequence[Item]) -> tuple[BoardState, dict[str, Stored]]:
        """The same, and how much the board has of each file, by SHA-256; writes nothing."""
        values: dict[str, str] = {}
        files = {}
        previous = []
        chunked = []
        ranges: dict[str, list[Span]] = {}
        sizes: dict[str, dict[str, int]] = {item.sha256: {} for item in items}
        for key, *words in self._shell.call("look", *sizes):
            match key:
                case "file":
                    files[" ".join(words[2:])] = words[0]  # "<sha256>  <name>"
                case "previous":
                    previous += words
                case "chunked":
                    chunked += words
                case "whole" | "partial":
                    sizes[words[0]][key] = int(words[1])
                case "range":
                    first, count = (int(word) * BLOCK_BYTES for word in words[1:])
                    ranges.setdefault(words[0], []).append((first, first + count))
                case _:
                    values[key] = " ".join(words)
        free, cpus = values.get("free_kib", ""), values.get("cpus", "")
        state = BoardState(
            machine=values.get("machine", ""),
            root=values.get("root", ""),
            free_bytes=int(free) * 1024 if free.isdecimal() else None,
            current=values.get("current"),
            files=files,
            previous=tuple(previous),
            chunked=frozenset(chunked),
            cpus=max(1, int(cpus)) if cpus.isdecimal() else 1,
        )
        stored = {}
        for sha256, found in sizes.items():
            there = tuple(ranges[sha256]) if sha256 in ranges else None
            stored[sha256] = Stored(found.get("whole"), found.get("partial", 0), there)
        return state, stored

    def chunks(self, sha256: str) -> ChunkList:
        """The hashes of the chunks of a file on the board; writes nothing."""
        return ChunkList.parse([words[0] for words in self._shell.call("chunks", sha256)])

    def send(self, item: Item, offset: int, on_bytes: Callable[[int], None]) -> int:
        """Sends the file from `offset` on, up to where the board has all of it; the bytes sent."""
        return self._send("receive", (str(offset),), item, (offset, sys.maxsize), on_bytes)

    def spread(self, item: Item) -> None:
        """From now on the file is sent in ranges, in any order and over any connections."""
        self._shell.call("spread", self.nonce, item.sha256, str(BLOCK_BYTES))

    def send_range(self, item: Item, span: Span, on_bytes: Callable[[int], None]) -> int:
        """Sends a part of the file, which begins at a multiple of BLOCK_BYTES; the bytes sent."""
        words = (str(span[0] // BLOCK_BYTES), str(BLOCK_BYTES))
        return self._send("receive_range", words, item, span, on_bytes)

    def _send(
        self,
        verb: str,
        words: tuple[str, ...],
        item: Item,
        span: Span,
        on_bytes: Callable[[int], None],
    ) -> int:
        assert item.path is not None  # planned so by the caller
        sent = 0

        def content(path: Path) -> Iterator[bytes]:
            nonlocal sent
            for block in _content(path, item.spans, *span):
                yield block
                sent += len(block)
                on_bytes(len(block))

        self._shell.call(
            verb,
            self.nonce,
            item.sha256,
            *words,
            stdin=content(item.path),
            timeout_s=_seconds_for(item),
        )
        return sent

    def assemble(self, item: Item, assembly: Assembly) -> None:
        """Puts a file together from an older version and what was sent for it."""
        names = {True: assembly.old, False: assembly.sent.sha256}
        lines = "".join(f"{names[run.is_old]} {run.first} {run.count}\n" for run in assembly.runs)
        self._shell.call(
            "assemble",
            self.nonce,
            item.sha256,
            assembly.sent.sha256,
            str(item.chunk_bytes),
            stdin=[lines.encode()],
            timeout_s=_seconds_for(item),
        )

    def seal(self, item: Item, engine: Item, chunks: ChunkList | None = None) -> bool:
        """Verifies a file on the board and stores it; False: it was damaged and is removed.

        `chunks` are stored with it, for the next version.
        """
        proof = [engine.sha256]
        if item == engine:
            assert item.path is not None  # an engine is always sent from here
            proof = ["", cksum(item.path.read_bytes())]
        ((verdict, *_),) = self._shell.call(
            "seal",
            self.nonce,
            item.sha256,
            *proof,
            stdin=[chunks.text.encode()] if chunks else [],
            timeout_s=_seconds_for(item),
        )
        if verdict not in ("sound", "damaged"):
            raise BoardError(f"the board answers {verdict!r} when asked to verify {item.name}")
        return verdict == "sound"

    def trusted_key(self) -> str | None:
        """The key whose releases the board takes; None: any. Writes nothing."""
        keys = [" ".join(words) for _, *words in self._shell.call("trusts")]
        return keys[0] if keys else None

    def prove(self, engine: Item, proof: Proof) -> bool:
        """Whether the board itself found the engine signed; False: it has no means to tell.

        The key is the one that it trusts from now on. Raises SignatureError if the board refuses.
        """
        ((verdict, *words),) = self._shell.call(
            "prove",
            self.nonce,
            engine.sha256,
            proof.key.text,
            proof.sums,
            proof.signature,
            proof.list_name,
            proof.engines,
        )
        if verdict not in ("board", "host"):
            name = self.connection.board.name
            raise SignatureError(f"{name} refuses the release: {' '.join(words)}")
        return verdict == "board"

    def release(self, release: str, items: Sequence[Item], engine: Item) -> tuple[str, ...]:
        """Makes a release of stored files the current one.

        Returns the names in it that were there, but damaged, and were mended.
        """
        links = (word for item in items for word in (item.name, item.sha256))
        answers = self._shell.call("release", self.nonce, release, engine.sha256, *links)
        return tuple(" ".join(words) for key, *words in answers if key == "mended")

    def prune(self, keep: Iterable[str] = ()) -> Pruned:
        """Removes releases other than the current one and those before it, and unused files.

        `keep` is the SHA-256 of files that stay.
        """
        releases = []
        n_bytes = 0
        for _, kind, name, *size in self._shell.call("prune", self.nonce, *keep):
            if kind == "release":
                releases.append(name)
            else:
                n_bytes += int(size[0])
        return Pruned(tuple(releases), n_bytes)

    def damaged(self, release: str) -> tuple[str, ...]:
        """The files of a release that are not what was pushed; writes nothing."""
        answers = self._shell.call("check", release, timeout_s=CHECK_SECONDS)
        items = [Item(" ".join(name), sha256) for _, sha256, *name in answers]
        if release_id(items) != release:
            return ("manifest",)
        return tuple(" ".join(name) for verdict, _, *name in answers if verdict != "sound")

    def roll_back(self, release: str) -> None:
        """Makes a release that is on the board the current one."""
        self._shell.call("rollback", self.nonce, release)

    def drop(self, release: str) -> None:
        """Makes sure that a release, not the current one, is never gone back to."""
        self._shell.call("drop", self.nonce, release)

    def contents(self) -> Contents:
        """What is in the directory; writes nothing."""
        answers = self._shell.call("contents")
        foreign = tuple(" ".join(words) for key, *words in answers if key == "foreign")
        kib = [int(words[0]) for key, *words in answers if key == "kib"]
        return Contents(kib[0] * 1024 if kib else None, foreign)

    def undeploy(self) -> bool:
        """Removes everything; whether the directory itself is gone, too."""
        return not self._shell.call("undeploy", self.nonce, timeout_s=CHECK_SECONDS)


def release_id(items: Sequence[Item]) -> str:
    """The name of the release that consists of `items`."""
    manifest = "".join(f"{item.sha256}  {item.name}\n" for item in items)
    return hashlib.sha256(manifest.encode()).hexdigest()[:16]


def cksum(data: bytes) -> str:
    """What POSIX `cksum` prints for `data` on its standard input.

    It is the CRC-32 of zlib with the bits of each byte reversed, without the initial complement,
    over the data and its length in as many bytes as that needs, low byte first.
    """
    size = len(data)
    framed = data + size.to_bytes((size.bit_length() + 7) // 8, "little")
    reversed_crc = zlib.crc32(framed.translate(_REVERSED), 0xFFFFFFFF)
    return f"{int(f'{reversed_crc:032b}'[::-1], 2)} {size}"


_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _content(path: Path, spans: tuple[Span, ...] | None, start: int, end: int) -> Iterator[bytes]:
    """The parts of a file one after the other, and of that the bytes from `start` to `end`."""
    at = 0  # where a part begins
    try:
        with path.open("rb") as file:
            for first, last in ((0, sys.maxsize),) if spans is None else spans:
                skipped = min(max(0, start - at), last - first)
                left = min(last - first, end - at) - skipped
                file.seek(first + skipped)
                while left > 0 and (block := file.read(min(left, _READ_BYTES))):
                    left -= len(block)
                    yield block
                at += last - first
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from error


def _seconds_for(item: Item) -> float:
    return VERB_SECONDS + item.bytes / _SLOW_BYTES_PER_S
