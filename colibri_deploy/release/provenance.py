# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The statement on how a release was built: in-toto's Statement v1 with SLSA's provenance v1.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
https://slsa.dev/spec/v1.0/provenance

It tells of one build, with its time, so SHA256SUMS does not cover it; it is signed by itself.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colibri_deploy.errors import ToolchainError
from colibri_deploy.release.sbom import license_of
from colibri_deploy.release.sums import SUMS_NAME, provenance_name, read_sums

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"

_BUILD_TYPE = "urn:colibri:release:v1"
_BUILDER = "urn:colibri:colibri-deploy-release"


def write_provenance(
    directory: Path,
    *,
    version: str,
    commit: str,
    parameters: Mapping[str, Any],
    packages: Mapping[str, str],
) -> Path:
    """Writes the statement on the release in a directory that has its SHA256SUMS.

    `parameters` are those of the command; `packages`, name to version, are the Python packages that
    were installed for it. Raises ReleaseFilesError and ToolchainError.
    """
    subjects = read_sums(directory / SUMS_NAME)
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": sha}} for name, sha in subjects.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {"version": version, **parameters},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}},
                    *(_package(name, number) for name, number in sorted(packages.items())),
                ],
            },
            "runDetails": {
                "builder": {"id": _BUILDER, "version": {"colibri-deploy": version}},
                "metadata": {
                    "finishedOn": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
                },
            },
        },
    }
    path = directory / provenance_name(version)
    path.write_text(json.dumps(statement, indent=2) + "\n", encoding="utf-8")
    return path


def _package(name: str, version: str) -> dict[str, Any]:
    """An installed package, with a digest over the checksums that its wheel brought."""
    found = importlib.metadata.distribution(name)
    if found.files is None:
        raise ToolchainError(
            f"{name} has no list of its files: pip install --force-reinstall {name}"
        )
    # What the installer itself adds has no hash, or lies in .dist-info.
    lines = sorted(
        f"{file},{file.hash.mode}={file.hash.value}\n"
        for file in found.files
        if file.hash and not file.parts[0].endswith(".dist-info")
    )
    return {
        "name": name,
        "uri": f"pkg:pypi/{name}@{version}",
        "digest": {"sha256": hashlib.sha256("".join(lines).encode()).hexdigest()},
        "annotations": {
            "digest": "of path,hash of the lines of RECORD, sorted, without .dist-info",
            "license": license_of(found.metadata),
        },
    }
