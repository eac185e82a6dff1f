# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The engines of a release that was verified here, as they are pushed to boards."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from colibri_deploy.errors import BoardArchError, FileMissingError, ReleaseFilesError
from colibri_deploy.release.semver import is_version
from colibri_deploy.release.signature import TrustedKey
from colibri_deploy.release.sums import (
    SUMS_NAME,
    engine_in,
    engines_name,
    read_sums,
    tarball_of,
)
from colibri_deploy.release.verify import Check, verify_release


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
    """A release that was verified; a directory with all of it, or one tarball beside its sums."""

    def __init__(self, place: Path, key: TrustedKey | None, scratch: Path) -> None:
        """See `Release.open`."""
        self._place = place
        self._directory = place if place.is_dir() else place.parent
        self._scratch = scratch
        self.key = key

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
        return cls(
            place, verify_release(place, keys, on_check, allow_unsigned=allow_unsigned), scratch
        )

    def engine(self, arch: str) -> ReleasedEngine:
        """The engine for an architecture.

        Raises BoardArchError if there is none, ArchiveError, FileMissingError, ReleaseFilesError.
        """
        version, tarball = self._tarball(arch)
        engine = engine_in(tarball)
        self._check_listed(engine.content, version)
        path = self._scratch / arch / "colibri"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(engine.content)
        return ReleasedEngine(version, path, self._proof(version))

    def _tarball(self, arch: str) -> tuple[str, Path]:
        """Version and tarball of an architecture, of two that differ in compression any."""
        names = [self._place.name] if self._place.is_file() else read_sums(self._sums)
        found = {name: named for name in names if (named := tarball_of(name))}
        for name, (version, of) in found.items():
            if of == arch:
                if not is_version(version):
                    raise ReleaseFilesError(f"{name}: {version!r} is no version")
                return version, self._directory / name
        there = ", ".join(sorted({of for _, of in found.values()})) or "none"
        raise BoardArchError(f"{self._place} has no engine for {arch}, but for {there}")

    def _check_listed(self, engine: bytes, version: str) -> None:
        path = self._directory / engines_name(version)
        if not path.is_file():
            raise FileMissingError(f"{path} is missing: it lies beside the tarball in a release")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if read_sums(self._sums).get(path.name) != digest:
            raise ReleaseFilesError(f"{path.name}: changed")
        if hashlib.sha256(engine).hexdigest() not in read_sums(path).values():
            raise ReleaseFilesError(f"{path.name} does not name the engine in {self._place.name}")

    def _proof(self, version: str) -> Proof | None:
        if self.key is None:
            return None
        listed = self._directory / engines_name(version)
        signature = Path(f"{self._sums}{self.key.suffix}")
        return Proof(
            key=self.key,
            sums=self._sums.read_text(encoding="utf-8"),
            signature=signature.read_text(encoding="utf-8"),
            list_name=listed.name,
            engines=listed.read_text(encoding="utf-8"),
        )

    @property
    def _sums(self) -> Path:
        return self._directory / SUMS_NAME
