# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`model.bin`: writing it item by item, reading and checking it (docs/FORMAT.md)."""

from __future__ import annotations

import dataclasses
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from colibri_deploy.errors import (
    FileMissingError,
    ModelCorruptError,
    ModelFormatError,
    ModelTruncatedError,
)
from colibri_deploy.model_header import (
    BYTE_ORDER,
    ENTRY,
    HEADER,
    MAGIC,
    VERSION,
    entry_problems,
    header_problems,
    table_problems,
    unpack_entry,
    unpack_header,
)
from colibri_deploy.sections import ENTRY_BYTES, HEADER_BYTES, FilePlan, Section
from colibri_deploy.tiles import (
    ByteArray,
    FloatArray,
    Layout,
    unpack_rows,
    unpack_tiles,
)

_CHUNK = 8 << 20  # bytes read or checked at a time


class ModelWriter:
    """Writes `model.bin` item by item, in any order; the header comes last.

    Until `finish` the file has no magic, so that no reader takes it for a model. Use as a context
    manager; leaving it without `finish` closes the file as it is.
    """

    def __init__(self, path: Path, plan: FilePlan) -> None:
        """Create `path`, which must not exist, at its full size."""
        self._plan = plan
        self._sections = {section.name: section for section in plan.sections}
        self._crcs = np.zeros(plan.n_items, dtype="<u4")
        self._missing = {
            (section.name, *item) for section in plan.sections for item in section.items()
        }
        self._file = path.open("xb")
        self._file.truncate(plan.file_size)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def write_item(
        self, name: str, layer: int, expert: int, chunks: Iterable[ByteArray | bytes]
    ) -> None:
        """Write one item, given as consecutive chunks of bytes.

        Raises ValueError if the chunks do not add up to the item's size or it was written before.
        """
        section = self._sections[name]
        self._missing.remove((name, layer, expert))
        self._file.seek(section.item_offset(layer, expert))
        crc = size = 0
        for chunk in chunks:
            data = bytes(chunk) if isinstance(chunk, bytes) else chunk.data
            size += len(data)
            if size > section.item_size:
                break
            crc = zlib.crc32(data, crc)
            self._file.write(data)
        if size != section.item_size:
            where = section.item_name(layer, expert)
            raise ValueError(f"{where}: {size} bytes instead of {section.item_size}")
        self._crcs[section.first_crc + layer * section.n_experts + expert] = crc

    def finish(self) -> None:
        """Write tables and header and force everything to the disk."""
        if self._missing:
            raise ValueError(f"{len(self._missing)} items were not written: {min(self._missing)}")
        entries = b"".join(_pack_entry(section) for section in self._plan.sections)
        crcs = self._crcs.tobytes()
        self._file.seek(HEADER_BYTES)
        self._file.write(entries + crcs)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.seek(0)
        self._file.write(_pack_header(self._plan, entries, crcs))
        self._file.flush()
        os.fsync(self._file.fileno())
        # Small writes leave small pages in the page cache. The engine has Linux read the file in
        # pages of 2 MB, where it can (docs/DESIGN.md, "Pages of 2 MB").
        os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@dataclasses.dataclass(frozen=True)
class Damage:
    """Bytes that are not what was written."""

    section: str | None  # None: a gap between items
    layer: int | None
    expert: int | None
    offset: int  # in the file
    size: int
    text: str


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """A `model.bin` whose header and tables have been checked; its items are read on demand."""

    path: Path
    file_size: int
    sections: tuple[Section, ...]
    crcs: npt.NDArray[np.uint32]

    @classmethod
    def open(cls, path: Path) -> ModelFile:
        """Read and check header and tables.

        Raises FileMissingError, ModelFormatError, ModelTruncatedError, ModelCorruptError.
        """
        try:
            with path.open("rb") as file:
                actual = os.fstat(file.fileno()).st_size
                header = file.read(HEADER_BYTES)
                fields = _check_header(path, header, actual)
                entries = file.read(ENTRY_BYTES * fields["n_sections"])
                crcs = file.read(4 * fields["n_items"])
        except FileNotFoundError:
            raise FileMissingError(
                f"{path} does not exist; give the directory that `convert` wrote"
            ) from None
        except OSError as error:
            raise FileMissingError(f"{path} cannot be read: {error.strerror}") from error
        for what, data, name in (
            ("section", entries, "sections_crc"),
            ("CRC", crcs, "crcs_crc"),
        ):
            if zlib.crc32(data) != fields[name]:
                raise ModelCorruptError(
                    f"{path}: the {what} table is damaged (its CRC32 does not match); "
                    "copy the file again or convert the checkpoint again"
                )
        sections = tuple(
            _unpack_entry(path, index, entries[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES])
            for index in range(fields["n_sections"])
        )
        for _, _, problem in table_problems(sections, fields["n_items"], actual):
            raise ModelFormatError(f"{path}: {problem}")
        return cls(path, actual, sections, np.frombuffer(crcs, dtype="<u4").astype(np.uint32))

    def section(self, name: str) -> Section:
        """The section called `name`. Raises ModelFormatError if there is none."""
        for section in self.sections:
            if section.name == name:
                return section
        raise ModelFormatError(f"{self.path} has no section {name}")

    def has_section(self, name: str) -> bool:
        """Whether there is a section called `name`."""
        return any(section.name == name for section in self.sections)

    def crc(self, section: Section, layer: int, expert: int) -> int:
        """The CRC32 that the item should have."""
        return int(self.crcs[section.first_crc + layer * section.n_experts + expert])

    def item(self, name: str, layer: int = 0, expert: int = 0) -> ByteArray:
        """The bytes of an item, mapped, not checked against the CRC."""
        section = self.section(name)
        return np.memmap(
            self.path,
            dtype=np.uint8,
            mode="r",
            offset=section.item_offset(layer, expert),
            shape=(section.item_size,),
        )

    def matrix(self, name: str, layer: int = 0, expert: int = 0) -> FloatArray:
        """An item's values as float32 [rows, cols]."""
        section, data = self.section(name), self.item(name, layer, expert)
        unpack = unpack_tiles if section.layout is Layout.tiles else unpack_rows
        return unpack(data, section.dtype, section.rows, section.cols)

    def verify(self, progress: Callable[[int], None] = lambda n_bytes: None) -> list[Damage]:
        """Read the whole file in order; compare every item with its CRC, every gap with zero.

        `progress` is called with the number of bytes that have been read since its last call.
        """
        ranges: list[tuple[int, Section | None, int, int]] = [
            (section.item_offset(layer, expert), section, layer, expert)
            for section in self.sections
            for layer, expert in section.items()
        ]
        ranges.sort(key=lambda entry: entry[0])
        ranges.append((self.file_size, None, 0, 0))
        damages: list[Damage] = []
        with self.path.open("rb", buffering=0) as file:
            end = HEADER_BYTES + ENTRY_BYTES * len(self.sections) + 4 * len(self.crcs)
            progress(end)
            file.seek(end)
            after = "the tables"
            for offset, section, layer, expert in ranges:
                gap = _read(file, offset - end, progress)
                if sum(len(data) - data.count(0) for data in gap):
                    text = f"{offset - end} bytes after {after} are not all zero"
                    damages.append(Damage(None, None, None, end, offset - end, text))
                if section is None:
                    break
                crc = 0
                for data in _read(file, section.item_size, progress):
                    crc = zlib.crc32(data, crc)
                end = offset + section.item_size
                after = section.item_name(layer, expert)
                expected = self.crc(section, layer, expert)
                if crc != expected:
                    text = f"{after}: CRC32 {crc:08x} instead of {expected:08x}"
                    damages.append(
                        Damage(section.name, layer, expert, offset, section.item_size, text)
                    )
        return damages


def _read(file: BinaryIO, size: int, progress: Callable[[int], None]) -> Iterator[bytes]:
    """The next `size` bytes of `file` in chunks; fewer if it ends before (its CRC then differs)."""
    while size > 0:
        data = file.read(min(size, _CHUNK))
        if not data:
            return
        size -= len(data)
        progress(len(data))
        yield data


def _pack_header(plan: FilePlan, entries: bytes, crcs: bytes) -> bytes:
    fields = (
        MAGIC,
        VERSION,
        BYTE_ORDER,
        len(plan.sections),
        plan.n_items,
        plan.file_size,
        HEADER_BYTES,
        HEADER_BYTES + len(entries),
        zlib.crc32(entries),
        zlib.crc32(crcs),
        b"",
    )
    crc = zlib.crc32(HEADER.pack(*fields, 0)[:-4])
    return HEADER.pack(*fields, crc)


def _check_header(path: Path, header: bytes, actual: int) -> dict[str, int]:
    """The numbers of the header, after checking everything that it says."""
    if len(header) < HEADER_BYTES:
        raise ModelTruncatedError(
            f"{path} has {len(header)} bytes, less than a header of {HEADER_BYTES}; copy it again"
        )
    values = unpack_header(header)
    numbers = {name: value for name, value in values.items() if isinstance(value, int)}
    for field, problem in header_problems(header, actual):
        if field == "magic":
            raise ModelFormatError(
                f"{path} is not a Colibri model: {problem}; make one with `convert`"
            )
        if field == "version" and numbers["version"] > VERSION:
            raise ModelFormatError(
                f"{path} has format version {numbers['version']}, this version reads up to "
                f"{VERSION}; update colibri-deploy"
            )
        if field == "header_crc":
            raise ModelCorruptError(
                f"{path}: the header is damaged (its CRC32 does not match); copy the file again"
            )
        if field == "file_size":
            size = numbers["file_size"]
            what = "truncated" if actual < size else "too long"
            raise ModelTruncatedError(
                f"{path} is {what}: {actual} bytes, its header says {size}; copy it again"
            )
        raise ModelFormatError(f"{path}: the header is not valid: {problem}")
    return numbers


def _pack_entry(section: Section) -> bytes:
    name = section.name.encode("ascii")
    if not 0 < len(name) < 32:
        raise ValueError(f"the section name {section.name!r} has not 1 to 31 characters")
    return ENTRY.pack(
        name,
        section.dtype,
        section.layout,
        section.n_layers,
        section.n_experts,
        section.rows,
        section.cols,
        section.offset,
        section.layer_stride,
        section.expert_stride,
        section.item_size,
        section.first_crc,
        b"",
    )


def _unpack_entry(path: Path, index: int, entry: bytes) -> Section:
    """One section, after checking everything that can be checked without the others."""
    for field, problem in entry_problems(entry):
        raw: bytes = ENTRY.unpack(entry)[0]
        name = raw if field == "name" else raw.rstrip(b"\0").decode("ascii")
        raise ModelFormatError(f"{path}: section {index} ({name!r}) is not valid: {problem}")
    return unpack_entry(entry)
