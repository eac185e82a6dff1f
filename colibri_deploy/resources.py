# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Where the engine's sources and data lie: in a checkout beside the package, in a wheel inside it.

This is the one module that knows. Everything else takes the root as a parameter.
"""

from __future__ import annotations

from pathlib import Path

from colibri_deploy.errors import ResourceError

_PACKAGE = Path(__file__).resolve().parent


def engine_root() -> Path:
    """The directory that holds meson.build, cross/, src/, templates/ and targets/.

    Raises ResourceError if neither a checkout nor the wheel's copy is there.
    """
    for root in (_PACKAGE.parent, _PACKAGE / "engine"):
        if (root / "meson.build").is_file() and (root / "targets").is_dir():
            return root
    raise ResourceError(
        f"the engine's sources are neither beside nor inside {_PACKAGE}: "
        "install colibri-deploy again, or run it from a complete checkout"
    )
