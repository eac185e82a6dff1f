# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `doctor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich import box
from rich.table import Table
from rich.text import Text

from colibri_deploy import doctor as library
from colibri_deploy.checkup import HERE, Diagnosis
from colibri_deploy.cli.board_choice import BoardChoice, boards_options
from colibri_deploy.cli.console import print_json, stderr_console, stdout_console
from colibri_deploy.errors import ColibriDeployError, DoctorError
from colibri_deploy.model import Model
from colibri_deploy.resources import engine_root
from colibri_deploy.targets import load_targets, select

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
_HARMLESS = ("ok", "note")


@dataclass(frozen=True)
class _Examined:
    """What was found on one board, or here."""

    name: str
    target: str
    found: dict[str, Diagnosis]

    @property
    def worse_than_notes(self) -> list[str]:
        return [what for what, one in self.found.items() if one.severity not in _HARMLESS]

    def record(self) -> dict[str, object]:
        """The examination, for JSON."""
        return {
            "board": None if self.name == HERE else self.name,
            "target": self.target,
            "ok": not self.worse_than_notes,
            "findings": [{"what": what, **asdict(one)} for what, one in self.found.items()],
        }


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
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def doctor(
    context: click.Context,
    choose: Callable[[], list[BoardChoice]],
    build_dir: Path,
    model: Path | None,
    storage: bool,
    as_json: bool,
) -> None:
    """Find what ails boards, or without a board this machine.

    Each finding says what comes of it, and which command mends it. Without --storage nothing is
    written.
    """
    model_bytes = Model.open(model).file.file_size if model else None
    if any(context.params[name] for name in ("board", "tag", "host", "target")):
        console = stderr_console()
        examined = []
        for choice in choose():
            with console.status(choice.name):
                examined.append(_examine(choice, model_bytes, storage))
    else:
        target = select(load_targets(engine_root()), "host")
        levels = library.build_levels(build_dir, target)
        directory = build_dir if build_dir.is_dir() else Path()
        found = library.examine_here(directory, levels, model, model_bytes, with_storage=storage)
        examined = [_Examined(HERE, target.name, found)]
    if as_json:
        print_json([one.record() for one in examined])
    else:
        for one in examined:
            _print(one)
    ailing = [one for one in examined if one.worse_than_notes]
    if ailing:
        raise DoctorError(
            "; ".join(f"{one.name}: {', '.join(one.worse_than_notes)}" for one in ailing)
        )


def _examine(choice: BoardChoice, model_bytes: int | None, storage: bool) -> _Examined:
    targets = load_targets(engine_root())
    levels = library.build_levels(choice.build_dir, choice.target)
    try:
        with choice.connect() as connection:
            found = library.examine_board(
                connection, choice.target, targets, levels, model_bytes, with_storage=storage
            )
    except ColibriDeployError as error:
        found = library.unreachable(choice.board.address if choice.board else choice.name, error)
    return _Examined(choice.name, choice.target.name, found)


def _print(examined: _Examined) -> None:
    """The findings, for people; below each that is not well what comes of it, and the command."""
    prompt = "$" if examined.name == HERE else f"{examined.name}$"
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(examined.name, no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column(f"target {examined.target}", overflow="fold")
    for what, one in examined.found.items():
        mark = Text(one.severity, _STYLES[one.severity])
        table.add_row(what, mark, one.found)
        if one.consequence:
            table.add_row("", "", one.consequence)
        if one.remedy:
            by = "$" if one.remedy.startswith("colibri-deploy") else prompt
            table.add_row("", "", f"{by} {one.remedy}")
    stdout_console().print(table)
