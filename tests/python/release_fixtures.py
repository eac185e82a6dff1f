# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Small releases of real engines, made by what makes the large ones, and keys to sign them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from colibri_deploy.errors import (
    ArchiveError,
    ColibriDeployError,
    FileMissingError,
    ReleaseFilesError,
    SignatureError,
)
from colibri_deploy.process import run
from colibri_deploy.release.archive import write_tar
from colibri_deploy.release.provenance import write_provenance
from colibri_deploy.release.sbom import write_sbom
from colibri_deploy.release.signature import sign
from colibri_deploy.release.sums import SUMS_NAME, is_covered, write_engines, write_sums
from colibri_deploy.toolchain import find_toolchain

VERSION = "0.1.0"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
EPOCH = 1_700_000_000
ARCHITECTURES = ("aarch64", "x86_64")


@dataclass(frozen=True)
class Signer:
    """A key to sign with."""

    private: Path

    @property
    def public(self) -> Path:
        """What is trusted."""
        return Path(f"{self.private}.pub")

    def sign_file(self, path: Path) -> Path:
        """Signs a file; the signature."""
        is_minisign = self.private.name.startswith("minisign")
        (signature,) = sign(
            [path],
            ssh_key=None if is_minisign else self.private,
            minisign_key=self.private if is_minisign else None,
        )
        return signature

    def sign(self, directory: Path) -> None:
        """Signs the release in a directory."""
        for path in (directory / SUMS_NAME, *directory.glob("*.intoto.json")):
            self.sign_file(path)


@dataclass(frozen=True)
class Damage:
    """What is wrong with a release, and what is to be said of it."""

    do: Callable[[Path, Signer], None]
    error: type[ColibriDeployError]
    message: str  # the beginning


def _flip(name: str) -> Callable[[Path, Signer], None]:
    def do(directory: Path, signer: Signer) -> None:
        path = directory / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return do


def _remove(name: str) -> Callable[[Path, Signer], None]:
    return lambda directory, signer: (directory / name).unlink()


def _plant(info: tarfile.TarInfo) -> Callable[[Path, Signer], None]:
    """What only somebody with the key could do: the sums are made again, and signed."""

    def do(directory: Path, signer: Signer) -> None:
        path = directory / TARBALL
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            tar.addfile(info, io.BytesIO())
        path.write_bytes(gzip.compress(file.getvalue() + gzip.decompress(path.read_bytes())))
        write_sums(directory)
        signer.sign(directory)

    return do


def _member(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname = kind, mode, "/etc" if kind == tarfile.SYMTYPE else ""
    return info


def _add(directory: Path, signer: Signer) -> None:
    (directory / "more.txt").write_text("more\n")


TARBALL = f"colibri-{VERSION}-linux-x86_64.tar.gz"
_SBOM = f"colibri-{VERSION}.cdx.json"
_PROVENANCE = f"colibri-{VERSION}.intoto.json"
_ENGINES = f"colibri-{VERSION}-engines.sha256"
DAMAGES: dict[str, Damage] = {
    **{
        f"flipped byte in {name}": Damage(_flip(name), ReleaseFilesError, f"{name}: changed")
        for name in (TARBALL, _SBOM, _ENGINES, "release.json")
    },
    "flipped byte in SHA256SUMS": Damage(
        _flip(SUMS_NAME), SignatureError, "SHA256SUMS is not signed by SHA256:"
    ),
    "flipped byte in provenance": Damage(
        _flip(_PROVENANCE), SignatureError, f"{_PROVENANCE} is not signed by SHA256:"
    ),
    "missing release.json": Damage(
        _remove("release.json"), ReleaseFilesError, "release.json: missing"
    ),
    "missing provenance": Damage(
        _remove(_PROVENANCE), ReleaseFilesError, f"{_PROVENANCE}: missing"
    ),
    "missing sums": Damage(_remove(SUMS_NAME), FileMissingError, "there is no SHA256SUMS in "),
    "missing signature": Damage(
        _remove("SHA256SUMS.sig"),
        SignatureError,
        "SHA256SUMS is not signed: there is no SHA256SUMS.sig",
    ),
    "extra file": Damage(_add, ReleaseFilesError, "more.txt: not in SHA256SUMS"),
    "planted ../x": Damage(
        _plant(_member("../x")),
        ArchiveError,
        f"{TARBALL}: '../x' leads out of the archive",
    ),
    "planted symlink": Damage(
        _plant(_member("x", tarfile.SYMTYPE)), ArchiveError, f"{TARBALL}: 'x' is a symbolic link"
    ),
    "planted device": Damage(
        _plant(_member("x", tarfile.CHRTYPE)), ArchiveError, f"{TARBALL}: 'x' is a character device"
    ),
    "planted setuid": Damage(
        _plant(_member("x", mode=0o4755)), ArchiveError, f"{TARBALL}: 'x' has the set-user-ID bit"
    ),
}

NewSigner = Callable[[str], Signer]


@pytest.fixture(scope="session")
def new_signer(
    require_program: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> NewSigner:
    """`new_signer(kind)` makes a key of minisign, or of that kind of OpenSSH."""

    def make(kind: str) -> Signer:
        path = tmp_path_factory.mktemp("signer") / f"{kind}-key"
        if kind == "minisign":
            run([require_program("minisign"), "-G", "-W", "-p", f"{path}.pub", "-s", path])
        else:
            run([require_program("ssh-keygen"), "-q", "-t", kind, "-N", "", "-f", path])
        return Signer(path)

    return make


@pytest.fixture(scope="session")
def signer(new_signer: NewSigner) -> Signer:
    """The key that releases are signed with."""
    return new_signer("ed25519")


def write_release(
    directory: Path, engines: dict[str, Path], root: Path, version: str = VERSION
) -> None:
    """Makes a release, not signed, of the engines by architecture."""
    directory.mkdir(parents=True)
    for arch, engine in engines.items():
        top = f"colibri-{version}-linux-{arch}"
        members = [
            (f"{top}/bin/colibri", 0o755, engine),
            (f"{top}/LICENSE", 0o644, root / "LICENSE"),
        ]
        write_tar(directory / f"{top}.tar.gz", members, EPOCH)
    seal_release(directory, root, version)


def seal_release(
    directory: Path, root: Path, version: str = VERSION, skip: tuple[str, ...] = ()
) -> None:
    """Writes all that tells of the other files of a release."""
    write_engines(directory, version)
    write_sbom(
        directory,
        version=version,
        commit=COMMIT,
        epoch=EPOCH,
        root=root,
        toolchain=find_toolchain(),
    )
    write_record(directory, version)
    write_sums(directory)
    write_provenance(
        directory,
        version=version,
        commit=COMMIT,
        parameters={"skip": skip, "tag": "untagged"},
        packages={"deflate": "0.9.0"},
    )


def write_record(directory: Path, version: str = VERSION) -> None:
    """Writes release.json about the files that are there."""
    record = {
        "version": version,
        "commit": COMMIT,
        "artifacts": [
            {"name": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in directory.iterdir()
            if is_covered(path.name) and path.name != "release.json"
        ],
    }
    (directory / "release.json").write_text(json.dumps(record) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def signed_release(
    engine: Callable[[str], Path],
    root: Path,
    signer: Signer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The directory of a signed release of two architectures; tests change copies only."""
    directory = tmp_path_factory.mktemp("release") / VERSION
    write_release(directory, {arch: engine(arch) for arch in ARCHITECTURES}, root)
    signer.sign(directory)
    return directory


@pytest.fixture
def release_copy(signed_release: Path, tmp_path: Path) -> Path:
    """A copy of the signed release, to change."""
    return Path(shutil.copytree(signed_release, tmp_path / "release"))
