# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel and the source distribution of colibri-deploy.

hatchling decides what is in them. Both are packed once more: it compresses with the system's zlib,
which differs between machines.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path

from colibri_deploy.process import run
from colibri_deploy.release.archive import compress, write_tar
from colibri_deploy.release.pipeline import Outcome, Release, Tell

_ZIP_EPOCH = 0x21 << 16  # 1980-01-01, the first day of a ZIP archive
_VERSION = 20  # of the format, with deflate
_UNIX = 3 << 8
_DEFLATED = 8


def packages(release: Release, tell: Tell) -> Outcome:
    """colibri_deploy-<version>-py3-none-any.whl and colibri_deploy-<version>.tar.gz."""
    release.dist_dir.mkdir(parents=True, exist_ok=True)
    tell("packing colibri-deploy")
    written = []
    with tempfile.TemporaryDirectory(prefix="colibri-") as scratch:
        sources, packed = Path(scratch) / "sources", Path(scratch) / "packed"
        _copy(release, sources)
        env = {**os.environ, "SOURCE_DATE_EPOCH": str(release.tree.epoch)}
        run([sys.executable, "-m", "hatchling", "build", "-d", packed], cwd=sources, env=env)
        for path in sorted(packed.iterdir()):
            written.append(release.artifact(path.name))
            if path.suffix == ".whl":
                written[-1].write_bytes(zip_bytes(_unzipped(path)))
            else:
                write_tar(written[-1], _untarred(path), release.tree.epoch)
    return Outcome({}, written)


def _copy(release: Release, destination: Path) -> None:
    """The files of the commit alone, with the modes that git knows."""
    for name, mode in release.tree.files.items():
        path = destination / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(release.tree.root / name, path)
        path.chmod(mode)


def _unzipped(path: Path) -> list[tuple[str, int, bytes]]:
    with zipfile.ZipFile(path) as archive:
        return [
            (
                info.filename,
                0o755 if info.external_attr >> 16 & 0o100 else 0o644,
                archive.read(info),
            )
            for info in archive.infolist()
        ]


def _untarred(path: Path) -> list[tuple[str, int, bytes]]:
    members = []
    with tarfile.open(path) as archive:
        for info in archive:
            file = archive.extractfile(info)
            if file is not None:
                members.append((info.name, 0o755 if info.mode & 0o100 else 0o644, file.read()))
    return members


def zip_bytes(members: list[tuple[str, int, bytes]]) -> bytes:
    """A ZIP archive of name, mode and content, in this order: what zipfile writes, but compressed
    by the pinned compressor.

    The format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.
    """
    local, central = [], []
    at = 0
    for name, mode, content in members:
        packed = compress(content, ".zip")
        raw = name.encode()
        common = struct.pack(
            *("<HHHIIIIHH", _VERSION, 0x800, _DEFLATED, _ZIP_EPOCH),  # 0x800: names are UTF-8
            *(zlib.crc32(content), len(packed), len(content), len(raw), 0),
        )
        where = struct.pack("<HHHII", 0, 0, 0, (0o100000 | mode) << 16, at)
        central.append(b"PK\1\2" + struct.pack("<H", _UNIX | _VERSION) + common + where + raw)
        local.append(b"PK\3\4" + common + raw + packed)
        at += len(local[-1])
    directory = b"".join(central)
    n = len(members)
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, n, n, len(directory), at, 0)
    return b"".join((*local, directory, end))
