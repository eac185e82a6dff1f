# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""How the command line writes: results to stdout, progress and errors to stderr."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import TextIO

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


def printable(text: str) -> str:
    """A text, of which a terminal obeys nothing but line breaks and tabs; boards say the rest."""
    lines = (
        "".join(c if c.isprintable() or c == "\t" else "?" for c in line)
        for line in text.splitlines()
    )
    return "\n".join(lines)


def print_error(error: ColibriDeployError) -> None:
    """One line, then the details; nothing where stderr takes nothing."""
    console = stderr_console()
    with suppress(OSError):
        console.print("error:", style="bold red", end=" ")
        console.print(printable(error.message), soft_wrap=True)
        if error.details:
            console.print(printable(error.details), soft_wrap=True)


def flush(stream: TextIO | None) -> OSError | None:
    """Why a standard stream takes no more; what it has not taken is dropped then.

    Otherwise Python would try again when it ends, and complain in its own words.
    """
    if stream is None:  # closed before the start
        return None
    try:
        stream.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return error
    return None
