# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""How the command line writes: results to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import sys

from rich.console import Console

from colibri_deploy.errors import ColibriDeployError

_PIPE_WIDTH = 160  # columns; rich assumes 80 where there is no terminal, and cuts


def stdout_console() -> Console:
    """For results that people read."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False)


def stderr_console() -> Console:
    """For progress and errors."""
    return Console(stderr=True, highlight=False, markup=False)


def print_json(value: object) -> None:
    """For results that programs read."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_error(error: ColibriDeployError) -> None:
    """One line, then the details as they are."""
    console = stderr_console()
    console.print("error:", style="bold red", end=" ")
    console.print(error.message, soft_wrap=True)
    if error.details:
        console.print(error.details, soft_wrap=True)
