# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the verbs of board.sh on a board.

The command that the board's login shell sees is the same for all verbs and all users: it makes
/bin/sh evaluate as many bytes of standard input as the script has. The arguments stand there too,
quoted for /bin/sh. So no login shell ever sees a path or a name, no limit on the length of a
command is met (dropbear's is 9000 bytes), and nothing has to be installed first.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from colibri_deploy.errors import BoardError, BoardFullError
from colibri_deploy.ssh import Answer, Connection

VERB_SECONDS = 60.0
_SCRIPT = Path(__file__).with_name("board.sh")

# dd with blocks of one byte is the one standard tool that reads no byte too many from a pipe.
_COMMAND = """exec /bin/sh -c 'eval "$(dd bs=1 count={count} 2>/dev/null)"'"""

# How the C locale's strerror calls ENOSPC, EFBIG and EDQUOT.
_FULL = ("No space left on device", "File too large", "Disk quota exceeded")


class BoardShell:
    """The verbs of board.sh on one board, with everything below one directory there."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._script = _SCRIPT.read_text(encoding="utf-8")

    def call(
        self,
        verb: str,
        *arguments: str,
        stdin: Iterable[bytes] = (),
        timeout_s: float = VERB_SECONDS,
    ) -> list[list[str]]:
        """The answer of a verb: lines of words.

        Raises BoardConnectionError, and BoardError or BoardFullError with the board's own words.
        """
        answer = self.attempt(verb, *arguments, stdin=stdin, timeout_s=timeout_s)
        if answer.status != 0:
            self._fail(verb, answer)
        return [line.split(" ") for line in answer.stdout.decode(errors="replace").splitlines()]

    def attempt(
        self,
        verb: str,
        *arguments: str,
        stdin: Iterable[bytes] = (),
        timeout_s: float = VERB_SECONDS,
    ) -> Answer:
        """Runs a verb to its end, any status. Raises BoardConnectionError."""
        mark = secrets.token_hex(16)
        words = shlex.join((verb, *arguments))
        root = shlex.quote(self.connection.board.workdir)
        script = f"mark={mark}\nroot={root}\nset -- {words}\n{self._script}".encode()

        def sent() -> Iterator[bytes]:
            yield script
            yield from stdin

        command = _COMMAND.format(count=len(script))
        answer = self.connection.run(command, sent(), timeout_s=timeout_s)
        begin = f"\n{mark}\n".encode()
        out, err = (text.partition(begin) for text in (answer.stdout, answer.stderr))
        if not out[1]:
            said = (answer.stderr or answer.stdout).decode(errors="replace").strip()
            raise BoardError(
                f"{self.connection.board.name} runs no commands for {self.connection.user!r}",
                details=said,
            )
        return Answer(answer.status, out[2], err[2])

    def _fail(self, verb: str, answer: Answer) -> None:
        name = self.connection.board.name
        lines = answer.stderr.decode(errors="replace").strip().splitlines()
        if any(words in line for line in lines for words in _FULL):
            raise BoardFullError(
                f"no room on {name}: {lines[-1]}; what was sent so far stays there "
                "for the next push, and the current release is untouched"
            )
        reason = lines[-1] if lines else f"status {answer.status} without a word"
        raise BoardError(f"{verb} failed on {name}: {reason}", details="\n".join(lines[:-1]))
