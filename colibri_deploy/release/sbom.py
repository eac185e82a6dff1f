# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The list of what is in a release (SBOM), as CycloneDX 1.6: https://cyclonedx.org/docs/1.6/json/

It is the same when the release is built again with the same pinned packages: its number is made of
the digests of the files, its time is the commit's, and of a package that is not pinned it has the
requirement alone. Which version of that was installed stands in the provenance.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import json
import re
import tomllib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colibri_deploy.errors import ToolchainError
from colibri_deploy.process import run
from colibri_deploy.release.sums import (
    RECORD_NAME,
    covered_sums,
    engines_name,
    read_sums,
    sbom_name,
)
from colibri_deploy.release.versions import pinned_versions
from colibri_deploy.toolchain import Toolchain

_LICENSE = "Apache-2.0"
_CLANG = re.compile(r"clang version (\S+)")
_MUSL = re.compile(r'VERSION "([^"]+)"')
_EXTRA = "release"  # of pyproject.toml: what releases are made with
_BUILD_TOOLS = ("jinja2", "meson", "ninja")  # among the Python packages


@dataclass(frozen=True)
class Part:
    """A piece of software by others."""

    name: str
    version: str  # empty: any that meets the requirement
    license: str  # an SPDX expression, or what the package says; empty: it says nothing
    purl: str
    needs: tuple[str, ...] = ()  # names of parts
    requirement: str = ""  # such as ">=1.26"


def write_sbom(
    directory: Path, *, version: str, commit: str, epoch: int, root: Path, toolchain: Toolchain
) -> Path:
    """Writes the list for the artifacts in a directory, which holds the list of engines, too.

    `epoch` is the time of the commit, `root` the checkout. Raises FileMissingError and
    ToolchainError.
    """
    path = directory / sbom_name(version)
    own = (path.name, RECORD_NAME)  # the record names the list
    files = {name: sha for name, sha in covered_sums(directory).items() if name not in own}
    engines = read_sums(directory / engines_name(version))
    tools, libraries = toolchain_parts(toolchain)
    python = python_parts(root)
    tools += [part for part in python if part.name in _BUILD_TOOLS]
    record = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{_number(files)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(epoch, datetime.UTC).isoformat(),
            "tools": {"components": [_library(part, "application") for part in tools]},
            "component": {
                "type": "application",
                "bom-ref": "colibri",
                "name": "colibri",
                "version": version,
                "licenses": _licenses(_LICENSE),
                "purl": f"pkg:generic/colibri@{version}",
                "properties": [{"name": "colibri:commit", "value": commit}],
            },
        },
        "components": [
            *(_file(name, sha, "application", version) for name, sha in engines.items()),
            *(_file(name, sha, "file", version) for name, sha in files.items()),
            *(_library(part, "library") for part in (*libraries, *python)),
        ],
        "dependencies": [
            {"ref": "colibri", "dependsOn": sorted([*engines, *files])},
            *({"ref": name, "dependsOn": [p.purl for p in libraries]} for name in engines),
            *_dependencies(python),
        ],
    }
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def toolchain_parts(toolchain: Toolchain) -> tuple[list[Part], list[Part]]:
    """What compiles the engine, and what of it is in the engine. Raises ToolchainError."""
    said = run([toolchain.python, "-m", "ziglang", "cc", "--version"], env=toolchain.env).stdout
    clang = _CLANG.search(said)
    package = importlib.util.find_spec("ziglang")
    if clang is None or package is None or package.origin is None:
        raise ToolchainError(f"ziglang does not say which clang it has: {said!r}")
    header = Path(package.origin).parent / "lib/libc/musl/src/internal/version.h"
    musl = _MUSL.search(header.read_text(encoding="utf-8"))
    if musl is None:
        raise ToolchainError(f"{header} does not say which musl it is")
    zig = toolchain.compiler_version
    tools = [
        Part("zig", zig, "MIT", f"pkg:pypi/ziglang@{zig}"),
        Part("clang", clang[1], "Apache-2.0 WITH LLVM-exception", f"pkg:generic/clang@{clang[1]}"),
    ]
    libraries = [
        Part("musl", musl[1], "MIT", f"pkg:generic/musl@{musl[1]}"),
        Part("compiler-rt", zig, "MIT", f"pkg:generic/zig-compiler-rt@{zig}"),
    ]
    return tools, libraries


def python_parts(root: Path) -> list[Part]:
    """What `colibri-deploy` and the making of a release need, and what pinned packages need.

    Versions and licences are those of the pinned packages that are installed. Raises ToolchainError
    for one that is not.
    """
    pinned = pinned_versions(root)
    ranges: dict[str, set[str]] = {}
    parts: dict[str, Part] = {}
    waiting = _wanted(root)
    while waiting:
        name, specifier = waiting.pop()
        ranges.setdefault(name, set()).update({specifier} - {""})
        if name in pinned and name not in parts:
            found = _distribution(name)
            needs = _applicable(found.requires or ())
            purl = f"pkg:pypi/{name}@{found.version}"
            names = tuple(sorted({need for need, _ in needs}))
            parts[name] = Part(name, found.version, license_of(found.metadata), purl, names)
            waiting += needs
    for name in ranges.keys() - parts.keys():
        requirement = ",".join(sorted(ranges[name]))
        parts[name] = Part(name, "", "", f"pkg:pypi/{name}", requirement=requirement)
    return [parts[name] for name in sorted(parts)]


def installed_packages(root: Path) -> dict[str, str]:
    """Name to version of all that `colibri-deploy` and the making of a release need here.

    Raises ToolchainError for a package that is not installed.
    """
    versions: dict[str, str] = {}
    waiting = _wanted(root)
    while waiting:
        name, _ = waiting.pop()
        if name not in versions:
            found = _distribution(name)
            versions[name] = found.version
            waiting += _applicable(found.requires or ())
    return versions


def _wanted(root: Path) -> list[tuple[str, str]]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return _applicable([*project["dependencies"], *project["optional-dependencies"][_EXTRA]])


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainError(f"{name} is not installed: pip install {name}") from None


def _applicable(requirements: Sequence[str]) -> list[tuple[str, str]]:
    """Names and version specifiers of the packages that are needed here, without extras."""
    from packaging.requirements import Requirement  # of the extra `release`
    from packaging.utils import canonicalize_name

    parsed = map(Requirement, requirements)
    here = {"extra": ""}
    return [
        (canonicalize_name(one.name), str(one.specifier))
        for one in parsed
        if not one.marker or one.marker.evaluate(here)
    ]


def license_of(metadata: importlib.metadata.PackageMetadata) -> str:
    """What a package says of its licence, from the most exact field that it has."""
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier") or ()
        if line.startswith("License :: ")
    ]
    return " AND ".join(classifiers) or (metadata.get_all("License") or [""])[0].partition("\n")[0]


def _number(files: Mapping[str, str]) -> uuid.UUID:
    """A number that depends on the digests of the files alone."""
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(files.items()))
    return uuid.uuid5(uuid.NAMESPACE_URL, f"urn:colibri:release:{lines}")


def _file(name: str, sha256: str, kind: str, version: str) -> dict[str, Any]:
    return {
        "type": kind,
        "bom-ref": name,
        "name": name,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": sha256}],
        "licenses": _licenses(_LICENSE),
    }


def _library(part: Part, kind: str) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": kind,
        "name": part.name,
        "purl": part.purl,
    }
    if part.version:
        component["version"] = part.version
    else:
        value = part.requirement or "any version"
        component["properties"] = [{"name": "colibri:requirement", "value": value}]
    if kind == "library":  # what a tool is called may be a library's name, too
        component["bom-ref"] = part.purl
    if part.license:
        component["licenses"] = _licenses(part.license)
    return component


def _licenses(text: str) -> list[dict[str, Any]]:
    """As an SPDX expression where it is one, otherwise as a name."""
    if re.fullmatch(r"[\w.+-]+( (AND|OR|WITH) [\w.+-]+)*", text):
        return [{"expression": text}]
    return [{"license": {"name": text}}]


def _dependencies(parts: Sequence[Part]) -> list[dict[str, Any]]:
    purls = {part.name: part.purl for part in parts}
    return [
        {"ref": part.purl, "dependsOn": sorted({purls[name] for name in part.needs})}
        for part in parts
    ]
