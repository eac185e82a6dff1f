# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `doctor`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich import box
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from colibri_deploy import doctor as library
from colibri_deploy.checkup import HERE, Diagnosis
from colibri_deploy.cli.board_choice import BoardChoice, boards_options
from colibri_deploy.cli.byte_progress import ByteProgress
from colibri_deploy.cli.console import stdout_console
from colibri_deploy.cli.many import Many, Tasks, many_options
from colibri_deploy.errors import ColibriDeployError, DoctorError
from colibri_deploy.many import BoardRun
from colibri_deploy.model import Model
from colibri_deploy.resources import engine_root
from colibri_deploy.results import BoardResult, Step
from colibri_deploy.targets import load_targets, select

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
_HARMLESS = ("ok", "note")

Found = dict[str, Diagnosis]  # by the name of the check
Examine = Callable[[BoardRun], Found]


@click.command()
@boards_options
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="A model that is to run; memory and disk are held against it.",
)
@click.option(
    "--storage", is_flag=True, help="Measure the storage, too: writes 64 MiB and removes them."
)
@many_options
@click.pass_context
def doctor(
    context: click.Context,
    choose: Callable[[], list[BoardChoice]],
    build_dir: Path,
    model: Path | None,
    storage: bool,
    many: Many,
) -> None:
    """Find what ails boards, or without a board this machine.

    Each finding says what comes of it, and which command mends it. Without --storage nothing is
    written.
    """
    model_bytes = Model.open(model).file.file_size if model else None
    patients: list[tuple[str, str, Examine]] = []  # name, target
    if any(context.params[name] for name in ("board", "tag", "host", "target")):
        for choice in choose():
            examine: Examine = functools.partial(
                _examine_board, choice=choice, model_bytes=model_bytes, storage=storage
            )
            patients.append((choice.name, choice.target.name, examine))
    else:
        examine = functools.partial(
            _examine_here,
            build_dir=build_dir,
            model=model,
            model_bytes=model_bytes,
            storage=storage,
        )
        patients.append((HERE, "host", examine))
    noted: dict[str, Found] = {}

    def tasks(bars: Progress) -> Tasks:
        return [
            (
                BoardRun(name, target),
                functools.partial(_work, examine=examine, noted=noted, bars=bars),
            )
            for name, target, examine in patients
        ]

    def show(results: Sequence[BoardResult]) -> None:
        for result in results:
            if result.board in noted:
                _print(result, noted[result.board])

    many.run_tasks("doctor", tasks, show)


def _work(run: BoardRun, *, examine: Examine, noted: dict[str, Found], bars: Progress) -> None:
    """The examination as work on a board: each check is a step. Raises DoctorError."""
    with ByteProgress(bars, run.board) as progress:
        progress.start("examining", 0)
        found = examine(run)
    noted[run.board] = found
    for what, one in found.items():
        said = "; ".join(filter(None, (one.found, one.consequence, one.remedy)))
        run.end(Step(what, "passed" if one.severity in _HARMLESS else "failed", said, 0.0))
    ailing = [what for what, one in found.items() if one.severity not in _HARMLESS]
    notes = [what for what, one in found.items() if one.severity == "note"]
    run.reports["doctor"] = {
        "ok": not ailing,
        "findings": [{"what": what, **asdict(one)} for what, one in found.items()],
    }
    run.summary = f"{len(found)} checks" + (f", with notes on {', '.join(notes)}" if notes else "")
    if ailing:
        raise DoctorError(f"{run.board}: {', '.join(ailing)}")


def _examine_board(
    run: BoardRun, *, choice: BoardChoice, model_bytes: int | None, storage: bool
) -> Found:
    levels = library.build_levels(choice.build_dir, choice.target)
    try:
        with contextlib.ExitStack() as stack:
            with run.step("connect") as step:
                connection = stack.enter_context(choice.connect())
                step.detail = connection.board.address
                run.use(connection)
            with run.step("examine"):
                return library.examine_board(
                    connection,
                    choice.target,
                    load_targets(engine_root()),
                    levels,
                    model_bytes,
                    with_storage=storage,
                    is_emulated=choice.emulated is not None,
                )
    except ColibriDeployError as error:
        run.check()  # the error may come of being stopped
        address = choice.board.address if choice.board else choice.name
        return library.unreachable(address, error)


def _examine_here(
    run: BoardRun,
    *,
    build_dir: Path,
    model: Path | None,
    model_bytes: int | None,
    storage: bool,
) -> Found:
    target = select(load_targets(engine_root()), run.target)
    levels = library.build_levels(build_dir, target)
    directory = build_dir if build_dir.is_dir() else Path()
    with run.step("examine"):
        return library.examine_here(directory, levels, model, model_bytes, with_storage=storage)


def _print(result: BoardResult, found: Found) -> None:
    """The findings, for people; below each that is not well what comes of it, and the command."""
    prompt = "$" if result.board == HERE else f"{result.board}$"
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(result.board, no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column(f"target {result.target}", overflow="fold")
    for what, one in found.items():
        mark = Text(one.severity, _STYLES[one.severity])
        table.add_row(what, mark, one.found)
        if one.consequence:
            table.add_row("", "", one.consequence)
        if one.remedy:
            by = "$" if one.remedy.startswith(("colibri-deploy ", "ssh ")) else prompt
            table.add_row("", "", f"{by} {one.remedy}")
    stdout_console().print(table)
