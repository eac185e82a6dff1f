# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Archives of a release: the same bytes everywhere, read by tar, and hostile ones refused."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from colibri_deploy.errors import ArchiveError, FileMissingError
from colibri_deploy.process import run
from colibri_deploy.release.archive import (
    COMPRESSORS,
    Member,
    parse_tar,
    read_tar,
    tar_bytes,
    write_tar,
)

LONG = "a" * 90 + "/" + "b" * 90
MEMBERS = [
    Member("top/é", 0o644, "ü\n".encode() * 400),
    Member("top/bin/", 0o755),
    Member("top/bin/run", 0o755, b"#!/bin/sh\n"),
    Member("top/empty", 0o644, b""),
    Member(LONG, 0o600, b"x" * 512),
]
MTIME = 1_700_000_000

Change = Callable[[tarfile.TarInfo], None]


def header(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.uname = info.gname = "root"
    info.mode, info.mtime = 0o644, MTIME
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def foreign(*infos: tarfile.TarInfo, content: bytes = b"x") -> bytes:
    """An archive of Python's tarfile."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for info in infos:
            info.size = len(content) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def test_bytes_are_the_same_everywhere(tmp_path: Path) -> None:
    found = {}
    for suffix in (".tar", ".tar.gz", ".tar.zst"):
        path = tmp_path / f"a{suffix}"
        write_tar(path, MEMBERS, MTIME)
        found[suffix] = hashlib.sha256(path.read_bytes()).hexdigest()
    # Taken on an x86-64 with AVX-512; those of another CPU have to be the same.
    assert found == {
        ".tar": "7503a8d3f60d6161ba61e337b6712e6a6d9fdf03e0efb7a66588de955c88053a",
        ".tar.gz": "a0e6009edb714b03f58077d04b90c3c560888012d4a6dfbdd1aae8f6fb8f6712",
        ".tar.zst": "90c8f928019b889b649a702098f2a3680cebc441ca6acb803f0757ee5a9e1ed6",
    }


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tar.zst"])
def test_what_is_written_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write_tar(path, reversed(MEMBERS), MTIME)
    assert read_tar(path.name, path.read_bytes()) == sorted(
        MEMBERS, key=lambda member: member.name.encode()
    )


@pytest.mark.parametrize("program", ["tar", "busybox"])
def test_tar_unpacks_it(
    tmp_path: Path, program: str, require_program: Callable[[str], Path]
) -> None:
    write_tar(tmp_path / "a.tar.gz", MEMBERS, MTIME)
    (tmp_path / "out").mkdir()
    words = [require_program(program)] + (["tar"] if program == "busybox" else [])
    done = run([*words, "-xzf", "../a.tar.gz"], cwd=tmp_path / "out")
    assert done.stderr == ""
    for name, mode, content in MEMBERS:
        path = tmp_path / "out" / name
        assert path.stat().st_mode & 0o777 == mode
        assert path.is_dir() if name.endswith("/") else path.read_bytes() == content


def test_it_is_what_gnu_tar_writes(tmp_path: Path, require_program: Callable[[str], Path]) -> None:
    write_tar(tmp_path / "a.tar", MEMBERS, MTIME)
    (tmp_path / "out").mkdir()
    run([require_program("tar"), "-xf", "../a.tar"], cwd=tmp_path / "out")
    words = f"--format=ustar --owner=root:0 --group=root:0 --mtime=@{MTIME} --no-recursion -b 1"
    names = sorted((member.name for member in MEMBERS), key=str.encode)
    run(["tar", *words.split(), "-cf", "b.tar", "-C", "out", *names], cwd=tmp_path)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_file_on_disk_is_read_when_written(tmp_path: Path) -> None:
    (tmp_path / "content").write_bytes(b"abc")
    write_tar(tmp_path / "a.tar", [("x", 0o644, tmp_path / "content")], MTIME)
    assert read_tar("a.tar", (tmp_path / "a.tar").read_bytes()) == [("x", 0o644, b"abc")]
    with pytest.raises(FileMissingError, match="none cannot be read: No such file"):
        write_tar(tmp_path / "a.tar", [("x", 0o644, tmp_path / "none")], MTIME)


REFUSED: dict[str, tuple[tarfile.TarInfo, str]] = {
    "absolute": (header("/etc/x"), "'/etc/x' is an absolute path"),
    "out": (header("a/../../x"), "'a/../../x' leads out of the archive's directory"),
    "dot": (header("./x"), "'./x' is not a plain name"),
    "double slash": (header("a//x"), "'a//x' is not a plain name"),
    "newline": (header("a\nx"), r"'a\nx' is not a plain name"),
    "symlink out": (
        header("x", tarfile.SYMTYPE, linkname="../../etc"),
        "'x' is a symbolic link, and a release holds none",
    ),
    "hard link": (
        header("x", tarfile.LNKTYPE, linkname="/etc/passwd"),
        "'x' is a hard link, and a release holds none",
    ),
    "device": (
        header("x", tarfile.CHRTYPE, devmajor=1, devminor=5),
        "'x' is a character device, and a release holds none",
    ),
    "disk": (header("x", tarfile.BLKTYPE), "'x' is a block device, and a release holds none"),
    "fifo": (header("x", tarfile.FIFOTYPE), "'x' is a FIFO, and a release holds none"),
    "setuid": (header("x", mode=0o4755), "'x' has the set-user-ID bit"),
    "setgid": (header("x", mode=0o2755), "'x' has the set-group-ID bit"),
    "sticky": (header("x", mode=0o1755), "'x' has the sticky bit"),
    "writable": (header("x", mode=0o666), "'x' has mode 666: others may not write"),
    "sparse": (header("x", tarfile.GNUTYPE_SPARSE), "'x' is of type b'S'"),
    "extended": (header("x", tarfile.XHDTYPE), "'x' is of type b'x'"),
    "user": (header("x", uid=1000), "the header of 'x' is damaged, or says more than it may"),
    "owner": (header("x", uname="me"), "the header of 'x' is damaged, or says more than it may"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_member_that_none_may_have_is_refused(tmp_path: Path, case: str) -> None:
    info, message = REFUSED[case]
    path = tmp_path / "a.tar"
    path.write_bytes(foreign(info))
    with pytest.raises(ArchiveError) as caught:
        read_tar(path.name, path.read_bytes())
    assert caught.value.message.startswith(f"a.tar: {message}")


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (("../x", 0o644, b""), "'../x' leads out"),
        (("x", 0o4755, b""), "'x' has the set-user-ID bit"),
        (("x/", 0o755, b"a"), "'x/' is a directory with content"),
        (("a" * 101, 0o644, b""), f"the name '{'a' * 101}' is too long"),
        (("y", 0o644, b""), "'y' is there twice"),
    ],
)
def test_writer_refuses_it_too(member: tuple[str, int, bytes], message: str) -> None:
    with pytest.raises(ArchiveError) as caught:
        tar_bytes([member, ("y", 0o644, b"")], MTIME)
    assert caught.value.message.startswith(message)


def altered(at: int, new: bytes) -> bytes:
    """A good archive with one field of its first header changed, and the checksum made good."""
    data = bytearray(tar_bytes([("x", 0o644, b"abc")], MTIME))
    data[at : at + len(new)] = new
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


GOOD = tar_bytes([("x", 0o644, b"abc"), ("y", 0o644, b"d")], MTIME)
DAMAGED: dict[str, tuple[bytes, str]] = {
    "same name": (GOOD[:1024] + GOOD, "'x' is there twice"),
    "order": (GOOD[1024:2048] + GOOD, "'x' is not in the order of names"),
    "name not UTF-8": (altered(0, b"\xff"), "the name b'\\xff' is not UTF-8"),
    "negative size": (altered(124, b"-0000000001"), "the header of 'x' is damaged"),
    "size not octal": (altered(124, b"0o000000003"), "the header of 'x' is damaged"),
    "GNU": (altered(257, b"ustar  \0"), "it is not a POSIX tar archive"),
    "checksum": (GOOD[:148] + b"000000" + GOOD[154:], "the header of 'x' is damaged"),
    "padding": (GOOD[:520] + b"!" + GOOD[521:], "'x' is followed by data that belongs to no file"),
    "cut in a header": (GOOD[:1100], "it is not a POSIX tar archive, or it was cut"),
    "cut in a file": (GOOD[:513], "it ends within 'x': it was cut"),
    "cut at the end": (GOOD[:-512], "it has no end: it was cut"),
    "no end": (GOOD[:-1024], "it has no end: it was cut"),
    "more after its end": (GOOD + bytes(512), "data follows after its end"),
    "a second archive": (GOOD + GOOD, "data follows after its end"),
    "not tar": (b"hello", "it is not a POSIX tar archive"),
    "empty": (b"", "it is not a tar archive, or an empty one"),
    "gzip cut": (gzip.compress(GOOD)[:-9], "its compressed data was cut"),
    "gzip checksum": (gzip.compress(GOOD)[:-8] + bytes(8), "it is damaged: Error -3"),
    "gzip twice": (gzip.compress(GOOD) * 2, "data follows after its compressed data"),
    "gzip bomb": (gzip.compress(bytes(1 << 20)), "it unpacks to more than 100,000 bytes"),
    "zstd cut": (zstandard.compress(GOOD)[:-3], "it is damaged: "),
    "zstd twice": (zstandard.compress(GOOD) * 2, "it is damaged: "),
    "zstd bomb": (zstandard.compress(bytes(1 << 20)), "it unpacks to more than 100,000 bytes"),
    "zstd of unknown size": (
        zstandard.ZstdCompressor(write_content_size=False).compress(GOOD),
        "it does not say to how many bytes it unpacks",
    ),
    "too large": (bytes(100_001), "it unpacks to more than 100,000 bytes"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_archive_that_is_not_whole_is_refused(tmp_path: Path, case: str) -> None:
    data, message = DAMAGED[case]
    path = tmp_path / "a.tar.gz"
    path.write_bytes(data)
    with pytest.raises(ArchiveError) as caught:
        read_tar(path.name, path.read_bytes(), max_bytes=100_000)
    assert caught.value.message.startswith(f"a.tar.gz: {message}")


def test_any_flipped_bit_of_an_archive_is_refused_or_shows() -> None:
    good = parse_tar(GOOD)
    for at in range(len(GOOD)):
        with contextlib.suppress(ArchiveError):
            assert parse_tar(GOOD[:at] + bytes([GOOD[at] ^ 1]) + GOOD[at + 1 :]) != good


def test_compressors_are_those_that_the_project_asks_for(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = project["optional-dependencies"]["release"]
    assert {f"{name}=={version}" for name, version in COMPRESSORS.items()} <= set(extra)
