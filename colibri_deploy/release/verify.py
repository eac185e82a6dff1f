# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Checks a release: signature, checksums, what is in the archives, and that all of it agrees.

Nothing is fetched and nothing is written. What a release says of itself is looked at only after its
signature is found good.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colibri_deploy.errors import (
    ArchiveError,
    DowngradeError,
    FileMissingError,
    ReleaseFilesError,
    SignatureError,
)
from colibri_deploy.file_hash import file_sha256
from colibri_deploy.release.archive import check_member, decompress, parse_tar
from colibri_deploy.release.provenance import PREDICATE_TYPE, STATEMENT_TYPE
from colibri_deploy.release.semver import is_older, is_version
from colibri_deploy.release.signature import TrustedKey
from colibri_deploy.release.signature import verify as verify_signature
from colibri_deploy.release.sums import (
    MINISIGN_SUFFIX,
    RECORD_NAME,
    SSH_SUFFIX,
    SUMS_NAME,
    engine_in,
    engines_name,
    parse_sums,
    provenance_name,
    read_file,
    read_sums,
    sbom_name,
    tarball_of,
)

_SBOM = sbom_name("").removeprefix("colibri-")  # how its name ends
_BLOBS = "blobs/"  # of an OCI image; some are archives themselves
_GZIP = b"\x1f\x8b"
_STEP = re.compile("[a-z]+")  # of a release: its name
_COMMIT = re.compile("[0-9a-f]{40}")
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER = 60  # bytes: name 16, time 12, ids 12, mode 8, size 10, end 2


@dataclass(frozen=True)
class Check:
    """One thing that was checked and is good."""

    name: str
    detail: str


@dataclass(frozen=True)
class Verified:
    """A release that was found good: what is used of it later is held against this."""

    key: TrustedKey | None  # that signed it; None: nobody knows who made it
    content: bytes  # of SHA256SUMS, as it was read once
    sums: Mapping[str, str]  # the same, name to SHA-256
    commit: str | None  # None: one file was checked, and not the whole release


OnCheck = Callable[[Check], None]


def verify_release(
    place: Path,
    keys: Sequence[TrustedKey],
    on_check: OnCheck,
    *,
    allow_unsigned: bool = False,
    not_before: str | None = None,
) -> Verified:
    """Checks a release's directory, or one file in it.

    `on_check` is told of each check that was passed. Without keys nothing is known of who made the
    release: that is refused, unless `allow_unsigned`. `not_before` is the oldest version that
    will do. Raises SignatureError, DowngradeError, ReleaseFilesError, ArchiveError and
    FileMissingError.
    """
    directory = place if place.is_dir() else place.parent
    if not place.exists():
        raise FileMissingError(f"{place} does not exist")
    if not (directory / SUMS_NAME).is_file():
        raise FileMissingError(
            f"there is no {SUMS_NAME} in {directory}: a release is checked where all of it lies, "
            "or a file of it beside its SHA256SUMS and the signature"
        )
    content = read_file(directory / SUMS_NAME)
    key = _check_signature(directory, content, keys, on_check, allow_unsigned)
    sums = parse_sums(SUMS_NAME, content)
    if not_before is not None:
        _check_age(version_in(sums), not_before)
    commit = None
    if place.is_dir():
        commit = _check_directory(directory, sums, keys, on_check)
    else:
        _check_file(place, sums, on_check)
    return Verified(key, content, sums, commit)


def _check_signature(
    directory: Path,
    content: bytes,
    keys: Sequence[TrustedKey],
    on_check: OnCheck,
    allow_unsigned: bool,
) -> TrustedKey | None:
    if keys:
        key = verify_signature(directory / SUMS_NAME, content, keys)
        on_check(Check("signature", f"{SUMS_NAME} is signed by {key.fingerprint}"))
        return key
    if not allow_unsigned:
        raise SignatureError(
            "which key is to be trusted? Give --key FILE or set COLIBRI_RELEASE_KEY; "
            "--allow-unsigned checks the files alone, and not who made them"
        )
    on_check(Check("signature", "not checked: nobody knows who made these files"))
    return None


def _check_age(version: str, not_before: str) -> None:
    for text in (version, not_before):
        if not is_version(text):
            raise ReleaseFilesError(f"{text!r} is no version such as 1.2.3")
    if is_older(version, not_before):
        raise DowngradeError(f"the release has version {version}, older than {not_before}")


def _check_file(path: Path, sums: dict[str, str], on_check: OnCheck) -> None:
    if path.name not in sums:
        raise ReleaseFilesError(f"{path.name}: not in {SUMS_NAME}")
    if file_sha256(path) != sums[path.name]:
        raise ReleaseFilesError(f"{path.name}: changed")
    on_check(Check("files", f"{path.name} is what {SUMS_NAME} says"))
    on_check(Check("archives", f"{_check_archive(path):,} members, all of kinds that may be"))


def _check_directory(
    directory: Path, sums: dict[str, str], keys: Sequence[TrustedKey], on_check: OnCheck
) -> str:
    """Checks all of a release; the commit that it names."""
    version = version_in(sums)
    on_check(_check_files(directory, sums, version))
    counts = [_check_archive(directory / name) for name in sums]
    n_archives = sum(count > 0 for count in counts)
    detail = f"{n_archives} with {sum(counts):,} members, all of kinds that may be"
    on_check(Check("archives", detail))
    on_check(_check_versions(directory, sums, version))
    try:
        commit = _check_record(directory, sums, version, on_check)
        on_check(_check_sbom(directory, sums, version, commit))
        on_check(_check_provenance(directory, sums, keys, version, commit))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ReleaseFilesError(
            f"{RECORD_NAME}, SBOM or provenance is not of the form that releases have: {error!r}"
        ) from error
    return commit


def version_in(sums: Mapping[str, str]) -> str:
    """The version of a release, by the name of its list of parts."""
    versions = [name.removeprefix("colibri-").removesuffix(_SBOM) for name in sums if _SBOM in name]
    if len(versions) != 1:
        raise ReleaseFilesError(
            f"{SUMS_NAME} names {len(versions)} lists of parts, {sbom_name('VERSION')}"
        )
    return versions[0]


def _check_files(directory: Path, sums: dict[str, str], version: str) -> Check:
    """Raises ReleaseFilesError with every file that is missing, changed or one too many."""
    there = {path.name: path for path in directory.iterdir()}
    wanted = (*sums, RECORD_NAME, engines_name(version), provenance_name(version))
    may_be = {
        name + suffix
        for name in (SUMS_NAME, provenance_name(version))
        for suffix in ("", SSH_SUFFIX, MINISIGN_SUFFIX)
    }
    wrong = {name: f"not in {SUMS_NAME}" for name in there if name not in {*sums, *may_be}}
    wrong |= {name: "missing" for name in wanted if name not in there}
    wrong |= {
        name: "changed"
        for name, sha256 in sums.items()
        if name in there and (there[name].is_symlink() or file_sha256(there[name]) != sha256)
    }
    if wrong:
        raise ReleaseFilesError(
            "; ".join(f"{name}: {what}" for name, what in sorted(wrong.items()))
        )
    n_bytes = sum(there[name].stat().st_size for name in sums)
    return Check("files", f"{len(sums)} files, {n_bytes:,} bytes, are what {SUMS_NAME} says")


def _check_archive(path: Path) -> int:
    """How many members an archive has; 0: it is none. Raises ArchiveError."""
    try:
        if path.suffix == ".whl":
            return _check_zip(path)
        if path.suffix == ".deb":
            inner = [content for name, content in ar_members(path.read_bytes()) if ".tar" in name]
            return sum(len(parse_tar(decompress(content))) for content in inner)
        if ".tar" not in path.suffixes:
            return 0
        members = parse_tar(decompress(path.read_bytes()))
        blobs = [bytes(member.content) for member in members if member.name.startswith(_BLOBS)]
        layers = [parse_tar(decompress(blob)) for blob in blobs if blob.startswith(_GZIP)]
        return len(members) + sum(map(len, layers))
    except ArchiveError as error:
        raise ArchiveError(f"{path.name}: {error.message}") from error


def _check_zip(path: Path) -> int:
    names: set[str] = set()
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                mode = info.external_attr >> 16
                if not (stat.S_ISREG(mode) or mode == 0):
                    raise ArchiveError(f"{info.filename!r} is no regular file")
                check_member(info.filename, stat.S_IMODE(mode), info.file_size, names)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError) as error:
        raise ArchiveError(f"it is damaged: {error}") from error
    return len(names)


def ar_members(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of what is in a Debian package: https://manpages.debian.org/deb.5

    Raises ArchiveError.
    """
    if not data.startswith(_AR_MAGIC):
        raise ArchiveError("it is no Debian package")
    at = len(_AR_MAGIC)
    while at < len(data):
        header = data[at : at + _AR_HEADER].decode("ascii", "replace")
        size = header[48:58].strip()
        if len(header) < _AR_HEADER or header[58:] != "`\n" or not size.isdecimal():
            raise ArchiveError("its list of members is damaged")
        at += _AR_HEADER
        if at + int(size) > len(data):
            raise ArchiveError("it was cut")
        yield header[:16].strip().rstrip("/"), data[at : at + int(size)]
        at += int(size) + int(size) % 2


def _check_versions(directory: Path, sums: dict[str, str], version: str) -> Check:
    """The tarballs are of the version, and their engines are in the list of engines."""
    listed = read_sums(directory / engines_name(version))
    found = {}
    for name in sums:
        tarball = tarball_of(name)
        if tarball is not None:
            _same(name, "version", tarball[0], version)
            engine = engine_in(name, read_file(directory / name))
            sha256 = hashlib.sha256(engine.content).hexdigest()
            _same(f"{name}/{engine.name}", "SHA-256", sha256, listed.get(engine.name))
            found[engine.name] = tarball[1]
    _same(engines_name(version), "list", sorted(listed), sorted(found))
    return Check("engines", f"{', '.join(sorted(found.values()))}, all of version {version}")


def _check_record(directory: Path, sums: dict[str, str], version: str, on_check: OnCheck) -> str:
    """Checks release.json; the commit that it names."""
    record = _parse_json(RECORD_NAME, read_file(directory / RECORD_NAME))
    _same(RECORD_NAME, "version", record["version"], version)
    _agree(RECORD_NAME, record["artifacts"], sums)
    listed = {one["name"] for one in record["artifacts"]}
    strange = sorted(sums.keys() - listed - {RECORD_NAME})
    if strange:
        raise ReleaseFilesError(f"{', '.join(strange)}: in {SUMS_NAME}, and not in {RECORD_NAME}")
    commit = str(record["commit"])
    if not _COMMIT.fullmatch(commit):
        raise ReleaseFilesError(f"{RECORD_NAME}: {commit!r} is no commit")
    on_check(Check("record", f"version {version}, commit {commit}, the same files"))
    return commit


def _check_sbom(directory: Path, sums: dict[str, str], version: str, commit: str) -> Check:
    name = sbom_name(version)
    sbom = _parse_json(name, read_file(directory / name))
    component = sbom["metadata"]["component"]
    _same(name, "version", component["version"], version)
    _same(name, "commit", component["properties"][0]["value"], commit)
    files = [part for part in sbom["components"] if part["type"] == "file"]
    listed = [{"name": part["name"], "sha256": part["hashes"][0]["content"]} for part in files]
    _agree(name, listed, sums)
    n_parts = len(sbom["components"]) - len(files)
    return Check(
        "SBOM", f"{sbom['bomFormat']} {sbom['specVersion']}, {n_parts} parts, the same files"
    )


def _check_provenance(
    directory: Path, sums: dict[str, str], keys: Sequence[TrustedKey], version: str, commit: str
) -> Check:
    path = directory / provenance_name(version)
    content = read_file(path)
    key = verify_signature(path, content, keys) if keys else None
    signed = f"signed by {key.fingerprint}" if key else "not signed"
    statement = _parse_json(path.name, content)
    kind = (statement["_type"], statement["predicateType"])
    _same(path.name, "type", kind, (STATEMENT_TYPE, PREDICATE_TYPE))
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    _same(path.name, "list of files", subjects, sums)
    definition = statement["predicate"]["buildDefinition"]
    source = definition["resolvedDependencies"][0]
    _same(path.name, "commit", source["digest"]["gitCommit"], commit)
    left_out = definition["externalParameters"]["skip"]
    if not all(_STEP.fullmatch(name) for name in left_out):
        raise ReleaseFilesError(f"{path.name}: {left_out!r} are no steps")
    gaps = f"; left out: {', '.join(left_out)}" if left_out else ""
    return Check("provenance", f"{signed}, of the same commit and files{gaps}")


def _agree(name: str, listed: Sequence[dict[str, str]], sums: dict[str, str]) -> None:
    """Raises ReleaseFilesError unless a list of files says what SHA256SUMS says."""
    for one in listed:
        if sums.get(one["name"]) != one["sha256"]:
            raise ReleaseFilesError(f"{name} and {SUMS_NAME} do not agree about {one['name']}")


def _same(name: str, what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise ReleaseFilesError(f"{name}: its {what} is {found}, and {wanted} is wanted")


def _parse_json(name: str, content: bytes) -> Any:
    """What is in a JSON file. Raises ReleaseFilesError."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ReleaseFilesError(f"{name} is no JSON: {error}") from error
