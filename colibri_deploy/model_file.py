# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`model.bin`: writing it item by item, reading and checking it (docs/FORMAT.md)."""

from __future__ import annotations

import dataclasses
import os
import struct
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
from colibri_deploy.sections import (
    ENTRY_BYTES,
    HEADER_BYTES,
    ROWS_ALIGN,
    SECTION_ALIGN,
    TILES_ALIGN,
    FilePlan,
    Section,
)
from colibri_deploy.tiles import (
    ByteArray,
    DType,
    FloatArray,
    Layout,
    item_size,
    unpack_rows,
    unpack_tiles,
)

MAGIC = b"COLIBRIv1"
VERSION = 1
BYTE_ORDER = 0x01020304
MAX_SECTIONS = 256

_HEADER = struct.Struct("<16sIIIIQQQII60xI")
_ENTRY = struct.Struct("<32sIIIIIIQQQQI36x")
assert _HEADER.size == HEADER_BYTES
assert _ENTRY.size == ENTRY_BYTES

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
                n_sections, n_items = _check_header(path, header, actual)
                entries = file.read(ENTRY_BYTES * n_sections)
                crcs = file.read(4 * n_items)
        except FileNotFoundError:
            raise FileMissingError(
                f"{path} does not exist; give the directory that `convert` wrote"
            ) from None
        except OSError as error:
            raise FileMissingError(f"{path} cannot be read: {error.strerror}") from error
        fields = _HEADER.unpack(header)
        for what, data, crc in (("section", entries, fields[8]), ("CRC", crcs, fields[9])):
            if zlib.crc32(data) != crc:
                raise ModelCorruptError(
                    f"{path}: the {what} table is damaged (its CRC32 does not match); "
                    "copy the file again or convert the checkpoint again"
                )
        sections = tuple(
            _unpack_entry(path, index, entries[index * ENTRY_BYTES : (index + 1) * ENTRY_BYTES])
            for index in range(n_sections)
        )
        _check_sections(path, sections, n_items, actual)
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
    )
    crc = zlib.crc32(_HEADER.pack(*fields, 0)[:-4])
    return _HEADER.pack(*fields, crc)


def _check_header(path: Path, header: bytes, actual: int) -> tuple[int, int]:
    """Numbers of sections and items, after checking everything that the header says."""
    if len(header) < HEADER_BYTES:
        raise ModelTruncatedError(
            f"{path} has {len(header)} bytes, less than a header of {HEADER_BYTES}; copy it again"
        )
    magic, version, order, n_sections, n_items, size, sections_at, crcs_at, *_ = _HEADER.unpack(
        header
    )
    if magic != MAGIC.ljust(16, b"\0"):
        raise ModelFormatError(
            f"{path} is not a Colibri model: it starts with {magic!r}; make one with `convert`"
        )
    if version > VERSION:
        raise ModelFormatError(
            f"{path} has format version {version}, this version reads up to {VERSION}; "
            "update colibri-deploy"
        )
    if zlib.crc32(header[:-4]) != _HEADER.unpack(header)[-1]:
        raise ModelCorruptError(
            f"{path}: the header is damaged (its CRC32 does not match); copy the file again"
        )
    if size != actual:
        what = "truncated" if actual < size else "too long"
        raise ModelTruncatedError(
            f"{path} is {what}: {actual} bytes, its header says {size}; copy it again"
        )
    problem = None
    if version != VERSION:
        problem = f"version is {version}"
    elif order != BYTE_ORDER:
        problem = f"byte_order is {order:#010x} instead of {BYTE_ORDER:#010x}"
    elif not 1 <= n_sections <= MAX_SECTIONS:
        problem = f"n_sections is {n_sections}, not 1 to {MAX_SECTIONS}"
    elif sections_at != HEADER_BYTES:
        problem = f"sections_offset is {sections_at} instead of {HEADER_BYTES}"
    elif crcs_at != HEADER_BYTES + ENTRY_BYTES * n_sections:
        problem = f"crcs_offset is {crcs_at} instead of {HEADER_BYTES + ENTRY_BYTES * n_sections}"
    elif any(header[64:124]):
        problem = "reserved bytes are not zero"
    elif size < crcs_at + 4 * n_items:
        problem = f"{n_items} items do not fit a file_size of {size}"
    if problem is not None:
        raise ModelFormatError(f"{path}: the header is not valid: {problem}")
    return n_sections, n_items


def _pack_entry(section: Section) -> bytes:
    name = section.name.encode("ascii")
    if not 0 < len(name) < 32:
        raise ValueError(f"the section name {section.name!r} has not 1 to 31 characters")
    return _ENTRY.pack(
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
    )


def _unpack_entry(path: Path, index: int, entry: bytes) -> Section:
    """One section, after checking everything that can be checked without the others."""
    raw_name, dtype, layout, n_layers, n_experts, rows, cols, *rest = _ENTRY.unpack(entry)
    offset, layer_stride, expert_stride, size, first_crc = rest

    def refuse(problem: str) -> ModelFormatError:
        return ModelFormatError(f"{path}: section {index} ({raw_name!r}) is not valid: {problem}")

    name, _, padding = raw_name.partition(b"\0")
    if not name or any(padding) or len(name) == len(raw_name) or not name.isascii():
        raise refuse("its name is not ASCII, padded with zero bytes")
    raw_name = name.decode("ascii")
    if any(entry[92:]):
        raise refuse("reserved bytes are not zero")
    if dtype not in list(DType) or layout not in list(Layout):
        raise refuse(f"dtype {dtype}, layout {layout} is unknown to this version")
    if min(n_layers, n_experts, rows, cols) < 1:
        raise refuse(f"{n_layers} layers x {n_experts} experts of {rows} x {cols}")
    try:
        implied = item_size(DType(dtype), Layout(layout), rows, cols)
    except ValueError as error:
        raise refuse(str(error)) from None
    if size != implied:
        raise refuse(f"item_size is {size}, but its type and shape imply {implied}")
    if (n_layers == 1 and layer_stride) or (n_experts == 1 and expert_stride):
        raise refuse("a stride without a second item is not 0")
    align = TILES_ALIGN if layout == Layout.tiles else ROWS_ALIGN
    if any(number % align for number in (offset, layer_stride, expert_stride)):
        raise refuse(f"an offset or a stride is not a multiple of {align}")
    return Section(
        name=raw_name,
        dtype=DType(dtype),
        layout=Layout(layout),
        n_layers=n_layers,
        n_experts=n_experts,
        rows=rows,
        cols=cols,
        offset=offset,
        layer_stride=layer_stride,
        expert_stride=expert_stride,
        item_size=size,
        first_crc=first_crc,
    )


def _check_sections(
    path: Path, sections: tuple[Section, ...], n_items: int, file_size: int
) -> None:
    """Names, runs of the CRC table, bounds and overlaps of all sections together."""
    names: set[str] = set()
    first_crc = 0
    for section in sections:
        if section.name in names:
            raise ModelFormatError(f"{path}: two sections are called {section.name}")
        names.add(section.name)
        if section.first_crc != first_crc:
            raise ModelFormatError(
                f"{path}: section {section.name}: first_crc is {section.first_crc} "
                f"instead of {first_crc}"
            )
        first_crc += section.n_items
        end = section.item_offset(section.n_layers - 1, section.n_experts - 1) + section.item_size
        if end > file_size:
            raise ModelFormatError(
                f"{path}: section {section.name} ends at {end}, after the end of the file "
                f"at {file_size}"
            )
    if first_crc != n_items:
        raise ModelFormatError(
            f"{path}: the sections have {first_crc} items, the header says {n_items}"
        )
    # From here on the number of items is bounded by the file: each has an entry in it.
    owners = np.repeat(np.arange(len(sections)), [section.n_items for section in sections])
    starts = np.concatenate([_item_offsets(section) for section in sections])
    order = np.argsort(starts, kind="stable")
    sizes = np.array([section.item_size for section in sections], dtype=np.uint64)
    starts, owners = starts[order], owners[order]
    ends = starts + sizes[owners]
    tables_end = HEADER_BYTES + ENTRY_BYTES * len(sections) + 4 * n_items
    if starts[0] < tables_end:
        raise ModelFormatError(f"{path}: section {sections[owners[0]].name} overlaps the tables")
    clash = np.flatnonzero(starts[1:] < ends[:-1])
    if clash.size:
        one, other = owners[clash[0]], owners[clash[0] + 1]
        raise ModelFormatError(
            f"{path}: items overlap: sections {sections[one].name} and {sections[other].name}"
        )
    _check_section_offsets(path, sections)


def _check_section_offsets(path: Path, sections: tuple[Section, ...]) -> None:
    """Sections start at 64 KB, but for those that lie within the extent of one that does."""
    extent = 0
    for section in sorted(sections, key=lambda section: section.offset):
        if section.offset % SECTION_ALIGN == 0:
            extent = max(
                extent,
                section.item_offset(section.n_layers - 1, section.n_experts - 1)
                + (section.expert_stride or section.layer_stride or section.item_size),
            )
        elif section.offset >= extent:
            raise ModelFormatError(
                f"{path}: section {section.name} starts at {section.offset}, "
                f"not at a multiple of {SECTION_ALIGN}"
            )


def _item_offsets(section: Section) -> npt.NDArray[np.uint64]:
    """Offsets of all items, in the order of the CRC table."""
    layers = np.arange(section.n_layers, dtype=np.uint64) * np.uint64(section.layer_stride)
    experts = np.arange(section.n_experts, dtype=np.uint64) * np.uint64(section.expert_stride)
    grid: npt.NDArray[np.uint64] = layers[:, None] + experts[None, :]
    return np.uint64(section.offset) + grid.reshape(-1)
