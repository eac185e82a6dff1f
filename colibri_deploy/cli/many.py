# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""How a verb works on one board or many, and says what came of it."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from colibri_deploy.cli.board_choice import BoardChoice
from colibri_deploy.cli.byte_progress import ByteProgress, byte_bars
from colibri_deploy.cli.console import print_json, printable, stderr_console, stdout_console
from colibri_deploy.errors import FileMissingError
from colibri_deploy.many import BoardRun, Work, run_all
from colibri_deploy.results import BoardResult, junit, verdict
from colibri_deploy.ssh import Connection

_STDOUT = "-"
_JOBS = 4
_STYLES = {"passed": "green", "failed": "bold red", "stopped": "yellow"}

BoardWork = Callable[[BoardRun, BoardChoice, Connection, ByteProgress], None]
Tasks = Sequence[tuple[BoardRun, Work]]


@dataclass(frozen=True)
class Many:
    """What the command line says of working on many boards, and of the results."""

    jobs: int
    fail_fast: bool
    timeout_s: float | None
    json_to: str | None  # a path, or "-" for standard output
    junit_to: Path | None

    @property
    def prints_json(self) -> bool:
        """Whether standard output is for a program."""
        return self.json_to == _STDOUT

    def run(
        self,
        verb: str,
        choices: Sequence[BoardChoice],
        work: BoardWork,
        shows: Sequence[Callable[[], None]],
        more: Mapping[str, object] | None = None,
    ) -> None:
        """Does the work on all boards, reports it, and raises unless every board passed.

        `shows`, which the work may add to, print what came of it where there is one board only.
        `more` is what the JSON has besides the boards.
        """

        def show(results: Sequence[BoardResult]) -> None:
            if len(results) > 1:
                _print(results)
            else:
                for show_one in shows:
                    show_one()

        def tasks(bars: Progress) -> Tasks:
            return [board_task(choice, work, bars) for choice in choices]

        self.run_tasks(verb, tasks, show, more)

    def run_tasks(
        self,
        verb: str,
        make_tasks: Callable[[Progress], Tasks],
        show: Callable[[Sequence[BoardResult]], None],
        more: Mapping[str, object] | None = None,
    ) -> None:
        """Does work that connects by itself; `show` prints what came of it. See `run`.

        `make_tasks` is given the bars on which each shows where it is.
        """
        console = stderr_console()

        def say(result: BoardResult) -> None:
            if len(tasks) > 1:
                console.print(
                    f"{result.board}: {result.outcome}, {_said(result)} ({result.seconds:.1f} s)",
                    soft_wrap=True,
                )

        def wait(names: Sequence[str]) -> None:
            console.print(f"stopping {', '.join(names)}; Ctrl-C again leaves at once")

        with byte_bars() as bars:
            tasks = make_tasks(bars)
            interrupted = run_all(
                tasks,
                jobs=self.jobs,
                timeout_s=self.timeout_s,
                fail_fast=self.fail_fast,
                on_end=say,
                on_interrupt=wait,
            )
        results = tuple(run.result() for run, _ in tasks)
        error = verdict(results, interrupted)
        if self.junit_to is not None:
            _write(self.junit_to, junit(verb, results))
        record = {
            "verb": verb,
            "ok": error is None,
            "boards": [result.record() for result in results],
            **(more or {}),
        }
        if self.json_to is not None and not self.prints_json:
            _write(Path(self.json_to), json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        if self.prints_json:
            print_json(record)
        else:
            show(results)
        if error is not None:
            raise error


def many_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Gives a verb the options of working on many boards; it receives them as `many`."""

    @functools.wraps(verb)
    def with_many(
        jobs: int,
        fail_fast: bool,
        timeout: float | None,
        json_to: str | None,
        junit_to: Path | None,
        **others: Any,
    ) -> None:
        verb(many=Many(jobs, fail_fast, timeout, json_to, junit_to), **others)

    for option in reversed(_OPTIONS):
        with_many = option(with_many)
    return with_many


_OPTIONS = (
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        default=_JOBS,
        show_default=True,
        help="How many boards are worked on at a time.",
    ),
    click.option(
        "--fail-fast", is_flag=True, help="Stop all boards as soon as one of them has failed."
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="A board that takes longer has failed.  [default: no limit]",
    ),
    click.option(
        "--json",
        "json_to",
        is_flag=False,
        flag_value=_STDOUT,
        metavar="[FILE]",
        help="Write the results as JSON; without FILE to standard output, instead of the text.",
    ),
    click.option(
        "--junit",
        "junit_to",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the results as JUnit XML.",
    ),
)


def board_task(choice: BoardChoice, work: BoardWork, bars: Progress) -> tuple[BoardRun, Work]:
    """Work on a board, with a connection to it."""
    task = functools.partial(_work, choice=choice, work=work, bars=bars)
    return BoardRun(choice.name, choice.target.name), task


def _work(run: BoardRun, *, choice: BoardChoice, work: BoardWork, bars: Progress) -> None:
    """The work on one board, with a connection to it."""
    with ByteProgress(bars, choice.name) as progress, contextlib.ExitStack() as stack:
        progress.start("connecting", 0)
        with run.step("connect") as step:
            connection = stack.enter_context(choice.connect())
            step.detail = connection.board.address
            run.use(connection)
        work(run, choice, connection, progress)


def _said(result: BoardResult) -> str:
    """What came of a board, in one line."""
    if result.trouble is None:
        return result.summary
    rollback = [step.detail for step in result.steps if step.name == "rollback"]
    return printable("; ".join([f"{result.trouble.name}: {result.trouble.detail}", *rollback]))


def _print(results: Sequence[BoardResult]) -> None:
    """The results of many boards, for people."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("board", no_wrap=True)
    table.add_column("target", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("result", overflow="fold")
    for result in results:
        outcome = Text(result.outcome, _STYLES[result.outcome])
        seconds = f"{result.seconds:.1f}"
        table.add_row(result.board, result.target, outcome, seconds, _said(result))
    stdout_console().print(table)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileMissingError(f"{path} cannot be written: {error.strerror}") from error
