# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Small releases of real engines, made by what makes the large ones, and keys to sign them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from colibri_deploy.process import run
from colibri_deploy.release.archive import write_tar
from colibri_deploy.release.provenance import write_provenance
from colibri_deploy.release.sbom import write_sbom
from colibri_deploy.release.signature import sign
from colibri_deploy.release.sums import SUMS_NAME, write_engines, write_sums
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


def seal_release(directory: Path, root: Path, version: str = VERSION) -> None:
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
    record = {"version": version, "commit": COMMIT}
    (directory / "release.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    write_sums(directory)
    write_provenance(
        directory, version=version, commit=COMMIT, parameters={}, packages={"deflate": "0.9.0"}
    )


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
