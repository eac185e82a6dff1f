# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Where passwords and passphrases come from: a file descriptor or a terminal, nowhere else."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import termios
from collections.abc import Iterator

import click

from colibri_deploy.cli.byte_progress import hidden_bars
from colibri_deploy.ssh_login import Secrets


def secrets_from(descriptor: int | None) -> Secrets:
    """The first line of a file descriptor answers all questions; without one a person does.

    Raises click.UsageError if the descriptor cannot be read.
    """
    if descriptor is None:
        return Secrets(_prompt)
    try:
        with os.fdopen(descriptor, encoding="utf-8") as file:
            line = file.readline().rstrip("\n")
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--password-fd {descriptor} cannot be read: {error}") from error
    return Secrets(lambda wanted: line)


def _prompt(wanted: str) -> str | None:
    """Asks without an echo; None where nobody sits at a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    with hidden_bars(), _echo_comes_back():
        answer: str = click.prompt(
            wanted, hide_input=True, err=True, default="", show_default=False
        )
    return answer or None


@contextlib.contextmanager
def _echo_comes_back() -> Iterator[None]:
    """However the program ends: it does not wait for a thread that asks."""
    before = termios.tcgetattr(sys.stdin)
    restore = functools.partial(termios.tcsetattr, sys.stdin, termios.TCSAFLUSH, before)
    atexit.register(restore)
    try:
        yield
    finally:
        atexit.unregister(restore)
