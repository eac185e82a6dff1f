# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the verbs of board.sh on a board.

The command that the board's login shell sees is the same for all verbs and all users: it makes
/bin/sh evaluate as many bytes of standard input as the script has. The arguments stand there too,
quoted for /bin/sh. So no login shell ever sees a path or a name, no limit on the length of a
command is met (dropbear's is 9000 bytes), and nothing has to be installed first.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from colibri_deploy.errors import BoardError, BoardFullError
from colibri_deploy.ssh import Answer, Connection, Dialogue, Sinks

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
        mark, command, script = self._prepare(verb, arguments)

        def sent() -> Iterator[bytes]:
            yield script
            yield from stdin

        answer = self.connection.run(command, sent(), timeout_s=timeout_s)
        out, err = (text.partition(mark) for text in (answer.stdout, answer.stderr))
        if not out[1]:
            raise self._runs_nothing(answer.stderr or answer.stdout)
        return Answer(answer.status, out[2], err[2])

    def stream(self, verb: str, *arguments: str, sinks: Sinks, timeout_s: float) -> int:
        """Runs a verb that ends with its standard input, and passes its output on; the status.

        Raises BoardConnectionError, and what the sinks raise.
        """
        mark, command, script = self._prepare(verb, arguments)
        out, err = _After(mark, sinks.stdout), _After(mark, sinks.stderr)
        status = self.connection.stream(command, script, Sinks(out, err), timeout_s=timeout_s)
        if not out.has_begun:
            raise self._runs_nothing(err.before or out.before)
        return status

    @contextlib.contextmanager
    def converse(self, verb: str, *arguments: str, sinks: Sinks) -> Iterator[Dialogue]:
        """Runs a verb that is spoken to, and passes its output on.

        Raises BoardConnectionError.
        """
        mark, command, script = self._prepare(verb, arguments)
        heard = Sinks(_After(mark, sinks.stdout), _After(mark, sinks.stderr))
        with self.connection.converse(command, heard) as dialogue:
            dialogue.say(script)
            yield dialogue

    def _prepare(self, verb: str, arguments: Sequence[str]) -> tuple[bytes, str, bytes]:
        """The mark that output begins after, the command, and what it reads first."""
        mark = secrets.token_hex(16)
        words = shlex.join((verb, *arguments))
        root = shlex.quote(self.connection.board.workdir)
        script = os.fsencode(f"mark={mark}\nroot={root}\nset -- {words}\n{self._script}")
        return f"\n{mark}\n".encode(), _COMMAND.format(count=len(script)), script

    def _runs_nothing(self, said: bytes) -> BoardError:
        return BoardError(
            f"{self.connection.board.name} runs no commands for {self.connection.user!r}",
            details=said.decode(errors="replace").strip(),
        )

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


def ending(status: int) -> str:
    """How a program ended, by what the shell says of it."""
    with contextlib.suppress(ValueError):
        if status > 128:
            return f"status {status}, {signal.Signals(status - 128).name}"
    return f"status {status}"


class _After:
    """Passes on what comes after a mark."""

    def __init__(self, mark: bytes, sink: Callable[[bytes], None]) -> None:
        self._mark = mark
        self._sink = sink
        self.before = b""
        self.has_begun = False

    def __call__(self, data: bytes) -> None:
        if not self.has_begun:
            self.before, mark, data = (self.before + data).partition(self._mark)
            self.has_begun = bool(mark)
        if data:
            self._sink(data)
