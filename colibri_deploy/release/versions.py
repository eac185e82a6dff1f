# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The packages that decide the bytes of a release, and their versions."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path


def pinned_versions(root: Path) -> dict[str, str]:
    """What pyproject.toml asks for by `name==version`, for the project or for releases."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["release"]]
    pins = (one.partition("==") for one in wanted if "==" in one)
    return {name.strip(): version.strip() for name, _, version in pins}


def installed_versions(root: Path) -> dict[str, str]:
    """Of the same packages what is installed; one that is not is left out."""
    found = {}
    for name in pinned_versions(root):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
