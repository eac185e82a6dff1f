# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The checksums of a release, as coreutils' sha256sum writes and checks them.

SHA256SUMS covers every file of a release that is the same when it is built again; beside it lie the
statement on the build, and the signatures. One of the files that it covers lists the engines in the
tarballs, so that a board can hold an engine against a signature without having the tarball.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from colibri_deploy.errors import ArchiveError, FileMissingError, ReleaseFilesError
from colibri_deploy.file_hash import file_sha256
from colibri_deploy.release.archive import read_tar

SUMS_NAME = "SHA256SUMS"
RECORD_NAME = "release.json"
SSH_SUFFIX = ".sig"  # of a signature beside what it signs, as ssh-keygen has it
MINISIGN_SUFFIX = ".minisig"  # as minisign has it

_PROVENANCE_SUFFIX = ".intoto.json"
_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")
_TARBALL = re.compile(r"colibri-(\d.*)-linux-(x86_64|aarch64|riscv64)\.tar\.(?:gz|zst)")
_ENGINE = "colibri"  # in whatever directory of a tarball


class Engine(NamedTuple):
    """An engine in a tarball."""

    name: str  # in the tarball
    content: bytes


def sbom_name(version: str) -> str:
    """The list of what is in a release."""
    return f"colibri-{version}.cdx.json"


def engines_name(version: str) -> str:
    """The list of the engines of a release."""
    return f"colibri-{version}-engines.sha256"


def provenance_name(version: str) -> str:
    """The statement on how a release was built."""
    return f"colibri-{version}{_PROVENANCE_SUFFIX}"


def is_covered(name: str) -> bool:
    """Whether SHA256SUMS covers a file of that name in a release."""
    signed = name.removesuffix(SSH_SUFFIX).removesuffix(MINISIGN_SUFFIX)
    return signed != SUMS_NAME and not signed.endswith(_PROVENANCE_SUFFIX)


def covered_sums(directory: Path) -> dict[str, str]:
    """The SHA-256 of the files of a release that SHA256SUMS covers, by name.

    Raises FileMissingError.
    """
    names = sorted(path.name for path in directory.iterdir())
    return {name: file_sha256(directory / name) for name in names if is_covered(name)}


def write_sums(directory: Path) -> Path:
    """Writes SHA256SUMS of the release in a directory. Raises FileMissingError."""
    path = directory / SUMS_NAME
    path.write_text(_format(covered_sums(directory)), encoding="utf-8")
    return path


def read_sums(path: Path) -> dict[str, str]:
    """A file of checksums: name to SHA-256. Raises FileMissingError and ReleaseFilesError."""
    return parse_sums(path.name, read_file(path))


def read_file(path: Path) -> bytes:
    """What is in a file. Raises FileMissingError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from error


def parse_sums(file: str, content: bytes) -> dict[str, str]:
    """What is in a file of checksums: name to SHA-256. Raises ReleaseFilesError."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise ReleaseFilesError(f"{file} is no text: {error}") from error
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None or match[2] in sums:
            raise ReleaseFilesError(f"{file}, line {number}: {line!r} is no new checksum")
        sums[match[2]] = match[1]
    return sums


def write_engines(directory: Path, version: str) -> Path:
    """Writes the list of the engines in the tarballs of a release.

    Raises FileMissingError and ArchiveError.
    """
    engines = {}
    for path in sorted(directory.iterdir()):
        if tarball_of(path.name):
            engine = engine_in(path.name, read_file(path))
            engines[engine.name] = hashlib.sha256(engine.content).hexdigest()
    path = directory / engines_name(version)
    path.write_text(_format(engines), encoding="utf-8")
    return path


def tarball_of(name: str) -> tuple[str, str] | None:
    """Version and architecture of an engine's tarball, by its name; None: it is none."""
    match = _TARBALL.fullmatch(name)
    return (match[1], match[2]) if match else None


def engine_in(tarball: str, content: bytes) -> Engine:
    """The engine in the tarball of that name. Raises ArchiveError."""
    found = [
        Engine(name, content)
        for name, mode, content in read_tar(tarball, content)
        if name.rpartition("/")[2] == _ENGINE and mode == 0o755 and isinstance(content, bytes)
    ]
    if len(found) != 1:
        raise ArchiveError(f"{tarball}: there are {len(found)} programs {_ENGINE} in it")
    return found[0]


def _format(sums: Mapping[str, str]) -> str:
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(sums.items()))
