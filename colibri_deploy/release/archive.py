# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Archives of a release: written the same byte for byte everywhere, read by an allow-list.

An archive is POSIX ustar with regular files and directories in the order of their names, owned by
root, and nothing else: no links, devices, extended headers or set-user-ID bits. What is read has
to be what would be written, so that no two programs can see different files in it.

Python's tarfile has changed the bytes that it writes from one version to the next, and the system's
zlib differs between machines. So headers are made here, and the compressors are those of two PyPI
wheels, each of exactly one version.
"""

from __future__ import annotations

import importlib.metadata
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from colibri_deploy.errors import ArchiveError, FileMissingError, ToolchainError

COMPRESSORS = {"deflate": "0.9.0", "zstandard": "0.25.0"}  # as in pyproject.toml
MAX_BYTES = 1 << 30  # of an archive, uncompressed

_BLOCK = 512
_END = bytes(2 * _BLOCK)
_DEFLATE_LEVEL = 12  # of 12
_ZSTD_LEVEL = 19  # of 22; above it, unpacking takes more memory than boards have to spare
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_MAGIC = b"\x1f\x8b"
_DIGITS = re.compile(rb"[0-7]+")
_FILE, _DIRECTORY = b"0", b"5"
_REFUSED = {
    b"1": "is a hard link",
    b"2": "is a symbolic link",
    b"3": "is a character device",
    b"4": "is a block device",
    b"6": "is a FIFO",
}


class Member(NamedTuple):
    """A file or directory in an archive."""

    name: str  # relative, with "/" between its parts; a directory's ends with one
    mode: int  # permissions: 0o755 or fewer
    content: bytes | Path = b""  # nothing, of a directory


def write_tar(path: Path, members: Iterable[tuple[str, int, bytes | Path]], mtime: int) -> None:
    """Writes an archive, compressed as its name says: .tar, .tar.gz or .tar.zst.

    `mtime` is the time of all members, in seconds since 1970. Raises ArchiveError for what
    `read_tar` refuses, FileMissingError, and ToolchainError without the right compressor.
    """
    path.write_bytes(compress(tar_bytes(members, mtime), path.suffix))


def tar_bytes(members: Iterable[tuple[str, int, bytes | Path]], mtime: int) -> bytes:
    """An archive that is not compressed. Raises ArchiveError and FileMissingError."""
    parts = []
    names: set[str] = set()
    for name, mode, source in sorted(members, key=lambda member: member[0].encode()):
        content = _read(source)
        check_member(name, mode, len(content), names)
        parts += [_header(name, mode, len(content), mtime), content, _padding(len(content))]
    return b"".join((*parts, _END))


def compress(data: bytes, suffix: str) -> bytes:
    """`data` as a file that ends with `.gz`, `.zst` or `.tar` has it, or one in a `.zip`.

    No header has a time.
    Raises ToolchainError where the compressor is not installed, or not in the right version.
    """
    if suffix == ".gz":
        _require("deflate")
        import deflate

        return bytes(deflate.gzip_compress(data, _DEFLATE_LEVEL))
    if suffix == ".zip":
        _require("deflate")
        import deflate

        return bytes(deflate.deflate_compress(data, _DEFLATE_LEVEL))
    if suffix == ".zst":
        _require("zstandard")
        import zstandard

        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(data)
    assert suffix == ".tar", suffix
    return data


def decompress(data: bytes, max_bytes: int = MAX_BYTES) -> bytes:
    """What was compressed as gzip or as zstd; other data as it is. Raises ArchiveError.

    No more than `max_bytes` are ever unpacked.
    """
    if data.startswith(_GZIP_MAGIC):
        plain = _gunzip(data, max_bytes)
    elif data.startswith(_ZSTD_MAGIC):
        plain = _unzstd(data, max_bytes)
    else:
        plain = data
    if len(plain) > max_bytes:
        raise _too_large(max_bytes)
    return plain


def read_tar(archive: str, data: bytes, max_bytes: int = MAX_BYTES) -> list[Member]:
    """The members of the archive of that name, which may be compressed, in their order.

    Raises ArchiveError, which names archive and member, for all that `write_tar` does not write,
    and for more than `max_bytes`, uncompressed.
    """
    try:
        return parse_tar(decompress(data, max_bytes))
    except ArchiveError as error:
        raise ArchiveError(f"{archive}: {error.message}") from error


def parse_tar(data: bytes) -> list[Member]:
    """The members of an archive that is not compressed. Raises ArchiveError, as `read_tar`."""
    members: list[Member] = []
    names: set[str] = set()
    at = 0
    while data[at : at + 1] not in (b"", b"\0"):
        header = data[at : at + _BLOCK]
        name, mode, size = _parse(header, names)
        start, end = at + _BLOCK, at + _BLOCK + size
        at = end + len(_padding(size))
        if at > len(data):
            raise ArchiveError(f"it ends within {name!r}: it was cut")
        if any(data[end:at]):
            raise ArchiveError(f"{name!r} is followed by data that belongs to no file")
        if members and name.encode() < members[-1].name.encode():
            raise ArchiveError(f"{name!r} is not in the order of names")
        members.append(Member(name, mode, data[start:end]))
    if not members:
        raise ArchiveError("it is not a tar archive, or an empty one")
    if len(data) - at < len(_END):
        raise ArchiveError("it has no end: it was cut")
    if data[at:] != _END:
        raise ArchiveError("data follows after its end")
    return members


def _read(source: bytes | Path) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        return source.read_bytes()
    except OSError as error:
        raise FileMissingError(f"{source} cannot be read: {error.strerror}") from error


def _gunzip(data: bytes, max_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)  # gzip, with its checksum
    try:
        plain = unpacker.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise ArchiveError(f"it is damaged: {error}") from error
    if len(plain) <= max_bytes and not unpacker.eof:
        raise ArchiveError("its compressed data was cut")
    if unpacker.unused_data:
        raise ArchiveError("data follows after its compressed data")
    return plain


def _unzstd(data: bytes, max_bytes: int) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise ToolchainError(_install("zstandard")) from error
    try:
        size = zstandard.frame_content_size(data)
        if size < 0:
            raise ArchiveError("it does not say to how many bytes it unpacks")
        if size > max_bytes:
            raise _too_large(max_bytes)
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ArchiveError(f"it is damaged: {error}") from error


def _too_large(max_bytes: int) -> ArchiveError:
    return ArchiveError(f"it unpacks to more than {max_bytes:,} bytes")


def _parse(header: bytes, names: set[str]) -> tuple[str, int, int]:
    """Name, mode and size of a member, which may be one of a release."""
    if len(header) < _BLOCK or header[257:265] != b"ustar\x0000":
        raise ArchiveError("it is not a POSIX tar archive, or it was cut")
    short, prefix, kind = header[:100], header[345:500], header[156:157]
    raw = b"/".join(part.rstrip(b"\0") for part in (prefix, short) if part.rstrip(b"\0"))
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise ArchiveError(f"the name {raw!r} is not UTF-8") from error
    if kind in _REFUSED:
        raise ArchiveError(f"{name!r} {_REFUSED[kind]}, and a release holds none")
    if kind != (_DIRECTORY if name.endswith("/") else _FILE):
        raise ArchiveError(f"{name!r} is of type {kind!r}, neither a file nor a directory")
    mode, size, mtime = (_octal(header[slice(*at)]) for at in ((100, 108), (124, 136), (136, 148)))
    check_member(name, mode, size, names)
    if header != _header(name, mode, size, mtime):
        raise ArchiveError(f"the header of {name!r} is damaged, or says more than it may")
    return name, mode, size


def _octal(field: bytes) -> int:
    digits = field.rstrip(b"\0 ")
    return int(digits, 8) if _DIGITS.fullmatch(digits) else 0  # which is not what it said


def check_member(name: str, mode: int, size: int, names: set[str]) -> None:
    """Raises ArchiveError unless a release may have the member; adds its name to `names`."""
    parts = name.removesuffix("/").split("/")
    if name.startswith("/"):
        raise ArchiveError(f"{name!r} is an absolute path")
    if ".." in parts:
        raise ArchiveError(f"{name!r} leads out of the archive's directory")
    if "" in parts or "." in parts or not name.isprintable():
        raise ArchiveError(f"{name!r} is not a plain name")
    if name.removesuffix("/") in names:
        raise ArchiveError(f"{name!r} is there twice")
    for bit, what in ((0o4000, "set-user-ID"), (0o2000, "set-group-ID"), (0o1000, "sticky")):
        if mode & bit:
            raise ArchiveError(f"{name!r} has the {what} bit")
    if mode & ~0o755 or mode < 0:
        raise ArchiveError(f"{name!r} has mode {mode:o}: others may not write what is released")
    if name.endswith("/") and size:
        raise ArchiveError(f"{name!r} is a directory with content")
    names.add(name.removesuffix("/"))


def _header(name: str, mode: int, size: int, mtime: int) -> bytes:
    """A header as POSIX describes it: https://pubs.opengroup.org/onlinepubs/9699919799/, pax."""
    prefix, short = _split(name.encode())
    fields = (
        short.ljust(100, b"\0"),
        b"%07o\0" % mode,
        b"0000000\0" * 2,  # user and group
        b"%011o\0" % size,
        b"%011o\0" % mtime,
        b" " * 8,  # for the checksum
        (_DIRECTORY if name.endswith("/") else _FILE).ljust(101, b"\0"),  # and no link's target
        b"ustar\x0000",
        b"root".ljust(32, b"\0") * 2,
        b"0000000\0" * 2,  # device
        prefix.ljust(155, b"\0"),
    )
    header = b"".join(fields).ljust(_BLOCK, b"\0")
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def _split(name: bytes) -> tuple[bytes, bytes]:
    """A name as prefix and name of a header: at most 155 and 100 bytes, the first "/" that fits."""
    if len(name) <= 100:
        return b"", name
    at = name.find(b"/", len(name) - 101)
    if not 0 < at <= 155 or at == len(name) - 1:
        raise ArchiveError(f"the name {name.decode()!r} is too long for a tar archive")
    return name[:at], name[at + 1 :]


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


def _require(package: str) -> None:
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainError(_install(package)) from None
    if version != COMPRESSORS[package]:
        raise ToolchainError(
            f"{package} is installed as {version}, but other versions may compress to other bytes: "
            f"pip install {package}=={COMPRESSORS[package]}"
        )


def _install(package: str) -> str:
    return f"{package} is not installed: pip install {package}=={COMPRESSORS[package]}"
