# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The engines of a release that was verified here, as they are pushed to boards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from colibri_deploy.errors import BoardArchError, ReleaseFilesError
from colibri_deploy.release.semver import is_version
from colibri_deploy.release.signature import TrustedKey
from colibri_deploy.release.sums import (
    SUMS_NAME,
    engine_in,
    engines_name,
    parse_sums,
    read_file,
    tarball_of,
)
from colibri_deploy.release.verify import Check, Verified, verify_release


@dataclass(frozen=True)
class Proof:
    """What lets a board check for itself that an engine is one of a signed release."""

    key: TrustedKey
    sums: str  # SHA256SUMS
    signature: str  # of that
    list_name: str  # of the list of engines, which SHA256SUMS names
    engines: str  # that list


@dataclass(frozen=True)
class ReleasedEngine:
    """An engine of a release."""

    version: str
    path: Path  # taken out of the tarball
    proof: Proof | None  # None: the release is not signed


class Release:
    """A release that was verified; a directory with all of it, or one tarball beside its sums.

    A file that is used is read once, and held against the sums as they were when it was verified.
    """

    def __init__(self, place: Path, verified: Verified, scratch: Path) -> None:
        """See `Release.open`."""
        self._place = place
        self._directory = place if place.is_dir() else place.parent
        self._verified = verified
        self._scratch = scratch

    @classmethod
    def open(
        cls,
        place: Path,
        keys: Sequence[TrustedKey],
        scratch: Path,
        *,
        allow_unsigned: bool = False,
        on_check: Callable[[Check], None] = lambda check: None,
    ) -> Release:
        """Verifies a release; engines are unpacked into `scratch`. Raises as `verify_release`."""
        verified = verify_release(place, keys, on_check, allow_unsigned=allow_unsigned)
        return cls(place, verified, scratch)

    def engine(self, arch: str) -> ReleasedEngine:
        """The engine for an architecture.

        Raises BoardArchError if there is none, ArchiveError, FileMissingError, ReleaseFilesError.
        """
        version, tarball = self._tarball(arch)
        engine = engine_in(tarball, self._read(tarball))
        list_name = engines_name(version)
        listed = self._read(list_name)
        sha256 = hashlib.sha256(engine.content).hexdigest()
        if sha256 not in parse_sums(list_name, listed).values():
            raise ReleaseFilesError(f"{list_name} does not name the engine in {tarball}")
        path = self._scratch / arch / "colibri"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(engine.content)
        return ReleasedEngine(version, path, self._proof(list_name, listed))

    def _tarball(self, arch: str) -> tuple[str, str]:
        """Version and tarball of an architecture, of two that differ in compression any."""
        names = [self._place.name] if self._place.is_file() else self._verified.sums
        found = {name: named for name in names if (named := tarball_of(name))}
        for name, (version, of) in found.items():
            if of == arch:
                if not is_version(version):
                    raise ReleaseFilesError(f"{name}: {version!r} is no version")
                return version, name
        there = ", ".join(sorted({of for _, of in found.values()})) or "none"
        raise BoardArchError(f"{self._place} has no engine for {arch}, but for {there}")

    def _read(self, name: str) -> bytes:
        """What is in a file of the release. Raises FileMissingError and ReleaseFilesError."""
        content = read_file(self._directory / name)
        if self._verified.sums.get(name) != hashlib.sha256(content).hexdigest():
            raise ReleaseFilesError(f"{name}: not what {SUMS_NAME} said when it was verified")
        return content

    def _proof(self, list_name: str, listed: bytes) -> Proof | None:
        key = self._verified.key
        if key is None:
            return None
        signature = read_file(self._directory / f"{SUMS_NAME}{key.suffix}")
        return Proof(
            key=key,
            sums=self._verified.content.decode(),
            signature=signature.decode(errors="replace"),  # the board judges
            list_name=list_name,
            engines=listed.decode(),
        )
