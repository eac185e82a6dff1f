# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The list of what is in a release (SBOM), as CycloneDX 1.6: https://cyclonedx.org/docs/1.6/json/

It is the same when the release is built again with the same versions: its number is made of the
digests of the files, and its time is the commit's.
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
from colibri_deploy.toolchain import Toolchain

_LICENSE = "Apache-2.0"
_CLANG = re.compile(r"clang version (\S+)")
_MUSL = re.compile(r'VERSION "([^"]+)"')
_EXTRA = "release"  # of pyproject.toml: what releases are made with


@dataclass(frozen=True)
class Part:
    """A piece of software by others."""

    name: str
    version: str
    license: str  # an SPDX expression, or what the package says; empty: it says nothing
    purl: str
    needs: tuple[str, ...] = ()  # names of parts


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
        *(_installed(name) for name in ("jinja2", "meson", "ninja")),
    ]
    libraries = [
        Part("musl", musl[1], "MIT", f"pkg:generic/musl@{musl[1]}"),
        Part("compiler-rt", zig, "MIT", f"pkg:generic/zig-compiler-rt@{zig}"),
    ]
    return tools, libraries


def python_parts(root: Path) -> list[Part]:
    """What `colibri-deploy` and the making of a release need, and what that needs in turn.

    Versions and licences are those of the installed packages. Raises ToolchainError for one that
    is not installed.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"][_EXTRA]]
    waiting = _applicable(wanted)
    parts: dict[str, Part] = {}
    while waiting:
        name = waiting.pop()
        if name not in parts:
            parts[name] = _installed(name)
            waiting += parts[name].needs
    return [parts[name] for name in sorted(parts)]


def _installed(name: str) -> Part:
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainError(f"{name} is not installed: pip install {name}") from None
    license_text = _license_of(found.metadata)
    needs = tuple(sorted(_applicable(found.requires or ())))
    return Part(name, found.version, license_text, f"pkg:pypi/{name}@{found.version}", needs)


def _applicable(requirements: Sequence[str]) -> list[str]:
    """The names of the packages that are needed here, without extras."""
    from packaging.requirements import Requirement  # of the extra `release`
    from packaging.utils import canonicalize_name

    parsed = map(Requirement, requirements)
    here = {"extra": ""}
    return [
        canonicalize_name(one.name) for one in parsed if not one.marker or one.marker.evaluate(here)
    ]


def _license_of(metadata: importlib.metadata.PackageMetadata) -> str:
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
        "version": part.version,
        "purl": part.purl,
    }
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
