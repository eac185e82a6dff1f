# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Asks a board, or this machine, with a shell script of which nothing is installed there.

The script goes through the connection into the board's /bin/sh, after ask.sh; its answers are
lines `key value`.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from colibri_deploy.errors import BoardError
from colibri_deploy.process import run
from colibri_deploy.ssh import Connection

ASK_SECONDS = 30.0
_HERE = Path(__file__).parent
_COMMAND = "exec /bin/sh -s"  # the same words in every login shell
_END = "echo end\n"


@dataclass(frozen=True)
class Answers:
    """What a script said."""

    lines: Mapping[str, list[str]] = field(default_factory=dict)  # values by key, in their order

    def all(self, key: str) -> list[str]:
        """All values of a key; none: it was not said."""
        return self.lines.get(key, [])

    def first(self, key: str) -> str | None:
        """The first value of a key."""
        return next(iter(self.all(key)), None)

    def number(self, key: str, unit: int = 1) -> int | None:
        """The first value of a key, times `unit`, if it is a whole number."""
        value = self.first(key) or ""
        return int(value) * unit if value.isdecimal() else None


def ask(
    connection: Connection,
    script: str,
    variables: Mapping[str, str],
    timeout_s: float = ASK_SECONDS,
) -> Answers:
    """The answers of a board; `script` is the name of a file beside this one.

    Raises BoardConnectionError, and BoardError where the script does not come to its end.
    """
    mark = secrets.token_hex(16)
    board = connection.board
    text = script_text(script, board.workdir, mark, variables)
    answer = connection.run(_COMMAND, [text.encode()], timeout_s=timeout_s)
    answers = parse_answers(answer.stdout.decode(errors="replace"), mark)
    if answers is None:
        raise BoardError(
            f"{board.name} does not run a shell script to its end",
            details=(answer.stderr or answer.stdout).decode(errors="replace").strip(),
        )
    return answers


def ask_here(script: str, directory: Path, variables: Mapping[str, str]) -> Answers:
    """The answers of this machine, with `directory` as the work directory. Raises BoardError."""
    mark = secrets.token_hex(16)
    text = script_text(script, str(directory.resolve()), mark, variables)
    done = run(["/bin/sh", "-c", text], check=False)
    answers = parse_answers(done.stdout, mark)
    if answers is None:
        raise BoardError("this machine does not run a shell script to its end", done.stderr)
    return answers


def script_text(script: str, workdir: str, mark: str, variables: Mapping[str, str]) -> str:
    """What a shell has to read from its standard input."""
    words = {"mark": mark, "root": workdir, **variables}
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in words.items())
    parts = ((_HERE / name).read_text(encoding="utf-8") for name in ("ask.sh", script))
    return head + "\n".join(parts) + _END


def parse_answers(output: str, mark: str) -> Answers | None:
    """The answers in what a script prints; None if it did not reach its end."""
    text = output.partition(f"\n{mark}\n")[2]
    if not f"\n{text}".endswith("\nend\n"):
        return None
    lines: dict[str, list[str]] = {}
    for line in text.splitlines()[:-1]:
        key, _, value = line.partition(" ")
        lines.setdefault(key, []).append(value.strip())
    return Answers(lines)
