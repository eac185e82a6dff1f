# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The one way in which colibri-deploy runs other programs: an argument list, never a shell."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from colibri_deploy.errors import ProcessError, ProcessTimeoutError

LAST_LINES = 20  # how much of a failed program's output an error carries


@dataclass(frozen=True)
class Completed:
    """A program that ended: its status and what it wrote (undecodable bytes replaced)."""

    argv: tuple[str, ...]
    status: int  # as in a shell: 128 + N if signal N ended it
    stdout: str
    stderr: str


def run(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    check: bool = True,
) -> Completed:
    """Runs a program to its end with an empty stdin.

    Raises ProcessError if it cannot be started, runs longer than `timeout_s` seconds, or (with
    `check`) ends with a status other than 0.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise _not_started(words, cwd, error) from error
    except subprocess.TimeoutExpired as error:
        raise ProcessTimeoutError(f"{shlex.join(words)} took longer than {timeout_s} s") from error
    status = _shell_status(done.returncode)
    if check and status != 0:
        raise _failed(words, cwd, status, (done.stdout + done.stderr).splitlines())
    return Completed(tuple(words), status, done.stdout, done.stderr)


def stream(
    argv: Sequence[str | Path],
    *,
    log: Path,
    on_line: Callable[[str], None],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Runs a program to its end; each line that it writes goes to `on_line` and to the file `log`.

    The command itself is the log's first line; the log is appended to. Raises ProcessError if the
    program cannot be started or ends with a status other than 0.
    """
    words = [str(word) for word in argv]
    last: deque[str] = deque(maxlen=LAST_LINES)
    with log.open("a", encoding="utf-8") as sink:
        sink.write(f"$ {shlex.join(words)}\n")
        sink.flush()
        try:
            child = subprocess.Popen(
                words,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise _not_started(words, cwd, error) from error
        with child:
            assert child.stdout is not None  # asked for above
            try:
                for line in child.stdout:
                    sink.write(line)
                    last.append(line.rstrip("\n"))
                    on_line(line.rstrip("\n"))
            except BaseException:
                child.terminate()
                raise
    status = _shell_status(child.returncode)
    if status != 0:
        raise _failed(words, cwd, status, list(last))


def _shell_status(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode


def _not_started(words: list[str], cwd: Path | None, error: OSError) -> ProcessError:
    if cwd is not None and not cwd.is_dir():
        return ProcessError(f"{words[0]} cannot be started in {cwd}: no such directory")
    return ProcessError(f"{words[0]} cannot be started: {os.strerror(error.errno or 0)}")


def _failed(words: list[str], cwd: Path | None, status: int, lines: list[str]) -> ProcessError:
    where = f" (in {cwd})" if cwd is not None else ""
    how = f"status {status}"
    if status > 128:
        with suppress(ValueError):
            how = f"{how}, {signal.Signals(status - 128).name}"
    return ProcessError(
        f"{shlex.join(words)}{where} failed with {how}",
        details="\n".join(lines[-LAST_LINES:]),
        status=status,
    )
