# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what an ELF file says of itself: 64 bits, little endian, as all our architectures are.

The format: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from colibri_deploy.errors import PackagingError

MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}  # e_machine
SEGMENTS = {1: "LOAD", 2: "DYNAMIC", 3: "INTERP", 0x6474E551: "GNU_STACK"}
_EXECUTABLE, _WRITABLE = 1, 2  # of a segment's flags
_SYMBOL_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
_GLOBAL = 1  # STB_GLOBAL: weak ones may stay undefined
_NO_BITS = 8  # SHT_NOBITS: takes no room in the file
_ALLOCATED = 2  # SHF_ALLOC: takes room in memory
_BUILD_ID = ".note.gnu.build-id"


@dataclass(frozen=True)
class Section:
    """A section and its content, empty if it has none in the file."""

    name: str
    kind: int
    flags: int
    link: int  # index of the section with a symbol table's names
    n_bytes: int
    content: bytes

    @property
    def is_loaded(self) -> bool:
        """Whether it is in memory when the program runs."""
        return bool(self.flags & _ALLOCATED)


@dataclass(frozen=True)
class Elf:
    """A program as far as a release has to know it."""

    arch: str
    segments: tuple[tuple[str, int], ...]  # kind and flags
    sections: tuple[Section, ...]

    @property
    def build_id(self) -> str:
        """In hex; empty if there is none."""
        for section in self.sections:
            if section.name == _BUILD_ID:
                return section.content[16:].hex()  # after sizes, type and the name "GNU\0"
        return ""

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes in memory of each section that is there when the program runs."""
        return {one.name: one.n_bytes for one in self.sections if one.is_loaded}

    @property
    def undefined_symbols(self) -> list[str]:
        """Names that the program needs and does not define."""
        found = []
        for section in self.sections:
            if section.kind not in _SYMBOL_TABLES:
                continue
            names = self.sections[section.link].content
            for at in range(0, len(section.content), 24):
                name, info, _, index = struct.unpack_from("<IBBH", section.content, at)
                if index == 0 and name and info >> 4 == _GLOBAL:
                    found.append(names[name : names.index(b"\0", name)].decode())
        return found

    @property
    def faults(self) -> list[str]:
        """What a static program must not have, one line each."""
        kinds = {kind for kind, _ in self.segments}
        found = []
        if "INTERP" in kinds:
            found.append("it asks for an interpreter")
        if "DYNAMIC" in kinds:
            found.append("it needs libraries")
        if any(kind == "GNU_STACK" and flags & _EXECUTABLE for kind, flags in self.segments):
            found.append("its stack is executable")
        if "GNU_STACK" not in kinds:
            found.append("it does not say that its stack is not executable")
        both = _WRITABLE | _EXECUTABLE
        if any(kind == "LOAD" and flags & both == both for kind, flags in self.segments):
            found.append("a segment is writable and executable")
        if self.undefined_symbols:
            found.append(f"it leaves undefined: {', '.join(self.undefined_symbols)}")
        return found


def read_elf(path: Path) -> Elf:
    """Raises PackagingError if it is no ELF file of one of our architectures."""
    data = path.read_bytes()
    try:
        return _parse(data)
    except (struct.error, ValueError, KeyError, IndexError) as error:
        raise PackagingError(f"{path} is not a program for Linux that a release holds") from error


def _parse(data: bytes) -> Elf:
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError
    machine = struct.unpack_from("<H", data, 18)[0]
    segments_at, sections_at = struct.unpack_from("<QQ", data, 32)
    segment_size, n_segments, section_size, n_sections, names = struct.unpack_from("<5H", data, 54)
    segments = []
    for i in range(n_segments):
        kind, flags = struct.unpack_from("<II", data, segments_at + i * segment_size)
        segments.append((SEGMENTS.get(kind, hex(kind)), flags))
    headers = [
        struct.unpack_from("<IIQQQQI", data, sections_at + i * section_size)
        for i in range(n_sections)
    ]
    strings = headers[names][4]
    sections = []
    for name, kind, flags, _, offset, size, link in headers:
        start = strings + name
        content = b"" if kind == _NO_BITS else data[offset : offset + size]
        title = data[start : data.index(b"\0", start)].decode()
        sections.append(Section(title, kind, flags, link, size, content))
    return Elf(MACHINES[machine], tuple(segments), tuple(sections))
