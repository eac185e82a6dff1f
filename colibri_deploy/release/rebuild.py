# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Builds a release again, elsewhere and by other means, and compares the bytes.

Directory, umask, time zone, locale and home directory, and with that all caches, are others than
those of any user. The packages are those that are installed: the gate `pins` of the release says
which of them are not what pyproject.toml asks for.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from colibri_deploy.errors import ProcessError, RebuildError
from colibri_deploy.process import run, stream
from colibri_deploy.release.archive import decompress, parse_tar
from colibri_deploy.release.sums import (
    RECORD_NAME,
    SUMS_NAME,
    engines_name,
    read_sums,
    sbom_name,
)
from colibri_deploy.release.verify import ar_members

# They find out nothing about bytes, but for `version`, which holds for the newest commit only.
_SKIPPED = ("version", "tests", "isa", "emulation")
_ELSEWHERE = {"TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}
_WITH_UMASK = ("/bin/sh", "-c", 'umask 027; exec "$@"', "sh")


def rebuild(
    directory: Path, version: str, commit: str, checkout: Path, on_line: Callable[[str], None]
) -> int:
    """Builds the commit of a release again and compares it with the one in a directory.

    `checkout` has the commit; it is cloned, and stays as it is. `on_line` is told what the build
    says. Returns how many files are the same. Raises RebuildError, which names the first file that
    is not, or says why there is nothing to compare.
    """
    with tempfile.TemporaryDirectory(prefix="colibri-rebuild-") as scratch:
        place = Path(scratch)
        _clone(checkout, commit, place / "sources")
        (place / "home").mkdir()
        env = {**os.environ, **_ELSEWHERE, "HOME": str(place / "home")}
        env |= {"PYTHONPATH": str(place / "sources"), "XDG_CACHE_HOME": str(place / "home/cache")}
        skipped = [word for step in _SKIPPED for word in ("--skip", step)]
        where = ("--build-dir", str(place / "build"), "--dist-dir", str(place / "dist"))
        words = (sys.executable, "-m", "colibri_deploy", "release", *where, *skipped)
        try:
            log = place / "log"
            stream([*_WITH_UMASK, *words], cwd=place / "sources", env=env, log=log, on_line=on_line)
        except ProcessError as error:
            raise RebuildError(
                f"commit {commit} could not be released again", details=error.details
            ) from error
        again = place / "dist" / version
        if not (again / SUMS_NAME).is_file():
            raise RebuildError(f"commit {commit} makes no version {version}")
        difference = first_difference(directory, again, version)
        if difference is not None:
            raise RebuildError(f"the release is another when it is built again: {difference}")
        return len(read_sums(again / SUMS_NAME))


def _clone(checkout: Path, commit: str, destination: Path) -> None:
    if not (checkout / ".git").exists():
        raise RebuildError(f"{checkout} is no git checkout: run this in one that has {commit}")
    try:
        run(["git", "clone", "--quiet", "--no-checkout", checkout, destination])
        run(["git", "-C", destination, "checkout", "--quiet", "--detach", commit])
    except ProcessError as error:
        raise RebuildError(
            f"{checkout} has no commit {commit}: git fetch", details=error.details
        ) from error


def first_difference(directory: Path, again: Path, version: str) -> str | None:
    """The first file that differs between two releases, and where in it; None: there is none.

    What tells of the other files comes last.
    """
    sums, sums_again = read_sums(directory / SUMS_NAME), read_sums(again / SUMS_NAME)
    telling = (engines_name(version), sbom_name(version), RECORD_NAME)
    for name in sorted({*sums, *sums_again}, key=lambda name: (name in telling, name)):
        if name not in sums_again:
            return f"{name} is not made any more"
        if name not in sums:
            return f"{name} is made besides"
        if sums[name] != sums_again[name]:
            return f"{name}{_where(directory / name, again / name)}"
    return None


def _where(path: Path, again: Path) -> str:
    """Where two files begin to differ: the member of an archive, or the line of a text."""
    parts, parts_again = _parts(path), _parts(again)
    for name in sorted({*parts, *parts_again}):
        if parts.get(name) != parts_again.get(name):
            return f", {name}"
    return ", packed in another way"


def _parts(path: Path) -> Mapping[str, object]:
    """What a file consists of, by what it is called."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    if path.suffix == ".deb":
        return {
            f"{outer}: {name}": (mode, content)
            for outer, data in ar_members(path.read_bytes())
            if ".tar" in outer
            for name, mode, content in parse_tar(decompress(data))
        }
    if ".tar" in path.suffixes:
        members = parse_tar(decompress(path.read_bytes()))
        return {name: (mode, content) for name, mode, content in members}
    lines = path.read_bytes().splitlines()
    return {f"line {number:06}": line for number, line in enumerate(lines, 1)}
