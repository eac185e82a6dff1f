# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of an emulated x86-64 process: frames of RAM under four levels of page tables."""

import ctypes
import mmap
import struct
from collections.abc import Iterator

PAGE = 4096

READ, WRITE, EXECUTE = 1, 2, 4  # as PROT_READ and so on of mmap

# Bits of a page table entry: Intel 64 and IA-32 Architectures Software Developer's Manual,
# volume 3A, section 4.5.
_PRESENT, _WRITABLE, _NO_EXECUTE = 1, 2, 1 << 63
_ADDRESS = 0x000F_FFFF_FFFF_F000


class FaultError(Exception):
    """The process does not have this address."""


class MemoryFullError(Exception):
    """The emulated RAM is used up."""


def page_range(address: int, size: int) -> range:
    """The addresses of the pages that hold [address, address + size)."""
    return range(address & -PAGE, address + size, PAGE)


class GuestMemory:
    """RAM from physical address 0 on, and one address space in it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ram = mmap.mmap(-1, size)
        self._host = ctypes.addressof(ctypes.c_char.from_buffer(self._ram))
        self._unused = PAGE  # the first frame that was never used; frame 0 stays empty
        self._freed: list[int] = []
        self._frames: dict[int, int] = {}  # frame of each page
        self.root = self._frame()  # the table of the highest level: CR3

    def host_address(self, physical: int) -> int:
        """Where the emulator finds a physical address."""
        if physical >= self._size:
            raise FaultError(f"physical address {physical:#x}")
        return self._host + physical

    def _frame(self) -> int:
        if self._freed:
            frame = self._freed.pop()
            self._ram[frame : frame + PAGE] = bytes(PAGE)
            return frame
        if self._unused == self._size:
            raise MemoryFullError(f"the program needs more than {self._size >> 20} MiB")
        self._unused += PAGE
        return self._unused - PAGE

    def _set_entry(self, page: int, entry: int) -> None:
        table = self.root
        for shift in (39, 30, 21):
            at = table + 8 * (page >> shift & 511)
            (above,) = struct.unpack_from("<Q", self._ram, at)
            if not above:
                above = self._frame() | _PRESENT | _WRITABLE
                struct.pack_into("<Q", self._ram, at, above)
            table = above & _ADDRESS
        struct.pack_into("<Q", self._ram, table + 8 * (page >> 12 & 511), entry)

    def map(self, address: int, size: int, protection: int) -> None:
        """Adds pages of zeros, where there are none, and protects all of them."""
        for page in page_range(address, size):
            if page not in self._frames:
                self._frames[page] = self._frame()
        self.protect(address, size, protection)

    def protect(self, address: int, size: int, protection: int) -> None:
        """Allows READ, WRITE, EXECUTE, or with 0 nothing. FaultError where nothing is mapped."""
        flags = _PRESENT if protection else 0
        flags |= _WRITABLE if protection & WRITE else 0
        flags |= 0 if protection & EXECUTE else _NO_EXECUTE
        for page in page_range(address, size):
            if page not in self._frames:
                raise FaultError(f"address {page:#x}")
            self._set_entry(page, self._frames[page] | flags)

    def unmap(self, address: int, size: int) -> None:
        """Removes pages. Those that are not there are none of its business."""
        for page in page_range(address, size):
            frame = self._frames.pop(page, None)
            if frame is not None:
                self._set_entry(page, 0)
                self._freed.append(frame)

    def is_mapped(self, address: int, size: int) -> bool:
        """Whether any page in the range is mapped."""
        return any(page in self._frames for page in page_range(address, size))

    def _pieces(self, address: int, size: int) -> Iterator[tuple[int, int]]:
        end = address + size
        while address < end:
            frame = self._frames.get(address & -PAGE)
            if frame is None:
                raise FaultError(f"address {address:#x}")
            length = min(end - address, PAGE - address % PAGE)
            yield frame + address % PAGE, length
            address += length

    def read(self, address: int, size: int) -> bytes:
        """Bytes of the process, whatever their protection."""
        return b"".join(self._ram[at : at + n] for at, n in self._pieces(address, size))

    def write(self, address: int, data: bytes) -> None:
        """Sets bytes of the process, whatever their protection."""
        done = 0
        for at, n in self._pieces(address, len(data)):
            self._ram[at : at + n] = data[done : done + n]
            done += n

    def text(self, address: int) -> bytes:
        """A string that ends with a zero byte, without it."""
        text = b""
        while b"\0" not in text:
            text += self.read(address + len(text), PAGE - (address + len(text)) % PAGE)
        return text.partition(b"\0")[0]
