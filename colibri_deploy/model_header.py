# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Header and section table of `model.bin`, field by field, and the rules they keep
(docs/FORMAT.md)."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from colibri_deploy.errors import FileMissingError
from colibri_deploy.sections import (
    ENTRY_BYTES,
    HEADER_BYTES,
    ROWS_ALIGN,
    SECTION_ALIGN,
    TILES_ALIGN,
    Section,
)
from colibri_deploy.tiles import DType, Layout, item_size

MAGIC = b"COLIBRIv1".ljust(16, b"\0")
VERSION = 1
BYTE_ORDER = 0x01020304
MAX_SECTIONS = 256
MAX_ITEMS = 1 << 22

Values: TypeAlias = Mapping[str, int | bytes]
Problem: TypeAlias = tuple[str, str]  # a field's name, and what is wrong with it


@dataclass(frozen=True)
class FieldSpec:
    """A field of the header or of a section's entry."""

    name: str
    code: str  # of the module struct
    meaning: str

    @property
    def size(self) -> int:
        """Bytes."""
        return struct.calcsize("<" + self.code)


HEADER_FIELDS = (
    FieldSpec("magic", "16s", "COLIBRIv1, then zero bytes"),
    FieldSpec("version", "I", "of the format"),
    FieldSpec("byte_order", "I", "01020304: little-endian"),
    FieldSpec("n_sections", "I", "entries of the section table"),
    FieldSpec("n_items", "I", "entries of the CRC table"),
    FieldSpec("file_size", "Q", "bytes"),
    FieldSpec("sections_offset", "Q", "where the section table starts"),
    FieldSpec("crcs_offset", "Q", "where the CRC table starts"),
    FieldSpec("sections_crc", "I", "CRC32 of the section table"),
    FieldSpec("crcs_crc", "I", "CRC32 of the CRC table"),
    FieldSpec("reserved", "60s", "zero bytes"),
    FieldSpec("header_crc", "I", "CRC32 of bytes 0 to 123"),
)
ENTRY_FIELDS = (
    FieldSpec("name", "32s", "of the section"),
    FieldSpec("dtype", "I", "type of the values"),
    FieldSpec("layout", "I", "order of the values"),
    FieldSpec("n_layers", "I", "of the section"),
    FieldSpec("n_experts", "I", "of each layer"),
    FieldSpec("rows", "I", "of the matrix, without padding"),
    FieldSpec("cols", "I", "of the matrix, without padding"),
    FieldSpec("offset", "Q", "where the first item starts"),
    FieldSpec("layer_stride", "Q", "bytes from one layer to the next"),
    FieldSpec("expert_stride", "Q", "bytes from one expert to the next"),
    FieldSpec("item_size", "Q", "bytes of an item"),
    FieldSpec("first_crc", "I", "entry of the first item in the CRC table"),
    FieldSpec("reserved", "36s", "zero bytes"),
)

HEADER = struct.Struct("<" + "".join(field.code for field in HEADER_FIELDS))
ENTRY = struct.Struct("<" + "".join(field.code for field in ENTRY_FIELDS))
assert HEADER.size == HEADER_BYTES
assert ENTRY.size == ENTRY_BYTES


@dataclass(frozen=True)
class Field:
    """A field as a file has it."""

    offset: int  # in the file
    size: int  # bytes
    name: str
    value: int | str
    meaning: str
    problem: str | None


@dataclass(frozen=True)
class HeaderDump:
    """What a file says of itself, as far as it can be read."""

    file_size: int  # the real one
    header: tuple[Field, ...]
    sections: tuple[tuple[Field, ...], ...]

    @property
    def problems(self) -> int:
        """Number of fields that are wrong."""
        fields = [*self.header, *(field for entry in self.sections for field in entry)]
        return sum(field.problem is not None for field in fields)


def unpack_header(header: bytes) -> dict[str, int | bytes]:
    """The 128 bytes of a header by the names of its fields."""
    names = [field.name for field in HEADER_FIELDS]
    return dict(zip(names, HEADER.unpack(header), strict=True))


def header_problems(header: bytes, file_size: int) -> Iterator[Problem]:
    """What is wrong in 128 bytes of a header, in the order in which a reader should look."""
    magic, version, order, n_sections, n_items, size, sections_at, crcs_at, *rest = HEADER.unpack(
        header
    )
    if magic != MAGIC:
        yield "magic", f"it starts with {magic!r}"
    if version > VERSION:
        yield "version", f"it is {version}, this version reads up to {VERSION}"
    crc = zlib.crc32(header[:-4])
    if crc != rest[-1]:
        yield "header_crc", f"the header has the CRC32 {crc:08x}"
    if size != file_size:
        yield "file_size", f"the file has {file_size} bytes, its header says {size}"
    if version < VERSION:
        yield "version", f"version is {version}"
    if order != BYTE_ORDER:
        yield "byte_order", f"byte_order is {order:#010x} instead of {BYTE_ORDER:#010x}"
    if not 1 <= n_sections <= MAX_SECTIONS:
        yield "n_sections", f"n_sections is {n_sections}, not 1 to {MAX_SECTIONS}"
    if sections_at != HEADER_BYTES:
        yield "sections_offset", f"sections_offset is {sections_at} instead of {HEADER_BYTES}"
    expected = HEADER_BYTES + ENTRY_BYTES * n_sections
    if crcs_at != expected:
        yield "crcs_offset", f"crcs_offset is {crcs_at} instead of {expected}"
    if any(rest[2]):
        yield "reserved", "reserved bytes are not zero"
    if size < crcs_at + 4 * n_items:
        yield "n_items", f"{n_items} items do not fit a file_size of {size}"
    if n_items > MAX_ITEMS:
        yield "n_items", f"n_items is {n_items}, more than {MAX_ITEMS}"


def entry_problems(entry: bytes) -> Iterator[Problem]:
    """What is wrong in the 128 bytes of a section's entry, seen without the others."""
    raw_name, dtype, layout, *shape, offset, layer_stride, expert_stride, size, _, reserved = (
        ENTRY.unpack(entry)
    )
    name, _, padding = raw_name.partition(b"\0")
    printable = all(0x21 <= byte <= 0x7E for byte in name)
    if not name or any(padding) or len(name) == len(raw_name) or not printable:
        yield "name", "its name is not ASCII, padded with zero bytes"
    if any(reserved):
        yield "reserved", "reserved bytes are not zero"
    known = {"dtype": dtype in list(DType), "layout": layout in list(Layout)}
    for field, is_known in known.items():
        if not is_known:
            yield field, f"dtype {dtype}, layout {layout} is unknown to this version"
    n_layers, n_experts, rows, cols = shape
    for field, count in zip(("n_layers", "n_experts", "rows", "cols"), shape, strict=True):
        if count < 1:
            yield field, f"{n_layers} layers x {n_experts} experts of {rows} x {cols}"
    if all(known.values()) and min(shape) > 0:
        try:
            implied = item_size(DType(dtype), Layout(layout), rows, cols)
        except ValueError as error:
            yield "layout", str(error)
        else:
            if size != implied:
                yield "item_size", f"item_size is {size}, but its type and shape imply {implied}"
    for field, count, stride in (
        ("layer_stride", n_layers, layer_stride),
        ("expert_stride", n_experts, expert_stride),
    ):
        if count == 1 and stride:
            yield field, "a stride without a second item is not 0"
    align = TILES_ALIGN if layout == Layout.tiles else ROWS_ALIGN
    places = {"offset": offset, "layer_stride": layer_stride, "expert_stride": expert_stride}
    for field, number in places.items():
        if number % align:
            yield field, f"an offset or a stride is not a multiple of {align}"


def unpack_entry(entry: bytes) -> Section:
    """The section of an entry that has no problem."""
    name, dtype, layout, *rest, _ = ENTRY.unpack(entry)
    text = name.rstrip(b"\0").decode("ascii")
    return Section(text, DType(dtype), Layout(layout), *rest)


def table_problems(
    sections: Sequence[Section], n_items: int, file_size: int
) -> Iterator[tuple[int | None, str, str]]:
    """What is wrong with sections together: the section's index, or None for the header; the name
    of a field; what it is. Each section is good by itself, and the CRC table within the file.
    """
    names: set[str] = set()
    first_crc = 0
    good = True
    for index, section in enumerate(sections):
        found: list[Problem] = []
        if section.name in names:
            found.append(("name", f"two sections are called {section.name}"))
        names.add(section.name)
        if section.first_crc != first_crc:
            text = f"first_crc is {section.first_crc} instead of {first_crc}"
            found.append(("first_crc", f"section {section.name}: {text}"))
        first_crc += section.n_items
        end = section.item_offset(section.n_layers - 1, section.n_experts - 1) + section.item_size
        if end > file_size:
            text = f"ends at {end}, after the end of the file at {file_size}"
            found.append(("offset", f"section {section.name} {text}"))
        for field, text in found:
            good = False
            yield index, field, text
    if first_crc != n_items:
        yield None, "n_items", f"the sections have {first_crc} items, the header says {n_items}"
    elif good:
        yield from _place_problems(sections, n_items)


def _place_problems(sections: Sequence[Section], n_items: int) -> Iterator[tuple[int, str, str]]:
    """Overlaps, and starts of sections. Each of the items has an entry in the file: their number is
    bounded by its size."""
    owners = np.repeat(np.arange(len(sections)), [section.n_items for section in sections])
    starts = np.concatenate([_item_offsets(section) for section in sections])
    order = np.argsort(starts, kind="stable")
    sizes = np.array([section.item_size for section in sections], dtype=np.uint64)
    starts, owners = starts[order], owners[order]
    ends = starts + sizes[owners]
    if starts[0] < HEADER_BYTES + ENTRY_BYTES * len(sections) + 4 * n_items:
        index = int(owners[0])
        yield index, "offset", f"section {sections[index].name} overlaps the tables"
    clash = np.flatnonzero(starts[1:] < ends[:-1])
    if clash.size:
        one, other = int(owners[clash[0]]), int(owners[clash[0] + 1])
        text = f"sections {sections[one].name} and {sections[other].name}"
        yield other, "offset", f"items overlap: {text}"
    extent = 0  # the end of the one that a section may lie in
    for index in sorted(range(len(sections)), key=lambda index: sections[index].offset):
        section = sections[index]
        if section.offset % SECTION_ALIGN == 0:
            last = section.item_offset(section.n_layers - 1, section.n_experts - 1)
            stride = section.expert_stride or section.layer_stride or section.item_size
            extent = max(extent, last + stride)
        elif section.offset >= extent:
            where = f"{section.offset}, not at a multiple of {SECTION_ALIGN}"
            yield index, "offset", f"section {section.name} starts at {where}"


def _item_offsets(section: Section) -> npt.NDArray[np.uint64]:
    """Offsets of all items, in the order of the CRC table."""
    layers = np.arange(section.n_layers, dtype=np.uint64) * np.uint64(section.layer_stride)
    experts = np.arange(section.n_experts, dtype=np.uint64) * np.uint64(section.expert_stride)
    grid: npt.NDArray[np.uint64] = layers[:, None] + experts[None, :]
    return np.uint64(section.offset) + grid.reshape(-1)


def dump_header(path: Path) -> HeaderDump:
    """Every field of header and section table, of a damaged file as far as it makes sense: no
    section where the magic or the number of sections is wrong. Raises FileMissingError.
    """
    try:
        with path.open("rb") as file:
            return _dump(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from error


def _dump(file: BinaryIO, file_size: int) -> HeaderDump:
    header = file.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return HeaderDump(file_size, _fields(HEADER_FIELDS, header, 0, {}), ())
    problems = dict(reversed(list(header_problems(header, file_size))))
    values = HEADER.unpack(header)
    entries: list[bytes] = []
    whole = False
    if not problems.keys() & {"magic", "n_sections"}:
        n_sections, n_items = values[3], values[4]
        table = file.read(ENTRY_BYTES * n_sections)
        entries = [table[at : at + ENTRY_BYTES] for at in range(0, len(table), ENTRY_BYTES)]
        whole = HEADER_BYTES + ENTRY_BYTES * n_sections + 4 * n_items <= file_size
        crcs = file.read(4 * n_items) if whole else b""
        for name, data, crc in (("sections_crc", table, values[8]), ("crcs_crc", crcs, values[9])):
            if whole and zlib.crc32(data) != crc:
                what = "section" if name == "sections_crc" else "CRC"
                problems[name] = f"the {what} table has the CRC32 {zlib.crc32(data):08x}"
    found = [
        dict(reversed(list(entry_problems(entry)))) if len(entry) == ENTRY_BYTES else {}
        for entry in entries
    ]
    if whole and not any(found):
        sections = [unpack_entry(entry) for entry in entries]
        for index, name, text in table_problems(sections, values[4], file_size):
            (problems if index is None else found[index]).setdefault(name, text)
    return HeaderDump(
        file_size,
        _fields(HEADER_FIELDS, header, 0, problems),
        tuple(
            _fields(ENTRY_FIELDS, entry, HEADER_BYTES + index * ENTRY_BYTES, found[index])
            for index, entry in enumerate(entries)
        ),
    )


def _fields(
    specs: Sequence[FieldSpec], data: bytes, start: int, problems: Mapping[str, str]
) -> tuple[Field, ...]:
    """The fields that `data`, at `start` of the file, holds; the one that it ends in is marked."""
    fields = []
    at = 0
    for spec in specs:
        raw = data[at : at + spec.size]
        if len(raw) < spec.size:
            text = f"the file ends after {start + len(data)} bytes"
            fields.append(Field(start + at, spec.size, spec.name, "", spec.meaning, text))
            break
        value = _value(spec, raw)
        meaning = _named(spec, value) or spec.meaning
        fields.append(
            Field(start + at, spec.size, spec.name, value, meaning, problems.get(spec.name))
        )
        at += spec.size
    return tuple(fields)


def _value(spec: FieldSpec, raw: bytes) -> int | str:
    """A number, or a text without its zero bytes."""
    if not spec.code.endswith("s"):
        return int.from_bytes(raw, "little")
    if spec.name == "reserved":
        return "not zero" if any(raw) else "0"
    return raw.rstrip(b"\0").decode("ascii", errors="backslashreplace")


def _named(spec: FieldSpec, value: int | str) -> str | None:
    """What the number of a type or a layout stands for."""
    kinds = {"dtype": DType, "layout": Layout}
    kind = kinds.get(spec.name)
    return kind(value).name if kind is not None and value in list(kind) else None
