# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from colibri_deploy.errors import FileMissingError


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex. Raises FileMissingError."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from error
