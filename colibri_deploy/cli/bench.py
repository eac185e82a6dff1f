# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `bench`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem
from rich import box
from rich.progress import Progress
from rich.table import Table

from colibri_deploy import bench as library
from colibri_deploy.bench import Bench
from colibri_deploy.checkup import HERE
from colibri_deploy.cli.board_choice import BoardChoice, boards_options
from colibri_deploy.cli.byte_progress import ByteProgress
from colibri_deploy.cli.console import stdout_console
from colibri_deploy.cli.many import Many, Tasks, board_task, many_options
from colibri_deploy.cli.push import deliver
from colibri_deploy.cli.smoke import HOST, host_engine
from colibri_deploy.detect import ISA_FEATURES
from colibri_deploy.errors import FileMissingError
from colibri_deploy.many import BoardRun
from colibri_deploy.model import Model
from colibri_deploy.results import BoardResult, Step
from colibri_deploy.run import RunOptions
from colibri_deploy.ssh import Connection

_COLUMNS = {  # of the table, with the engine's name and the form of the figure
    "decode tokens/s": ("decode_tokens_per_second", ",.1f"),
    "of read": ("percent_of_read", ".0f"),
    "prefill tokens/s": ("long_tokens_per_second", ",.1f"),
    "of kernels": ("percent_of_kernels", ".0f"),
    "p50 ms": ("ms_p50", ",.2f"),
    "p99 ms": ("ms_p99", ",.2f"),
}
_EMULATED = "its speed says nothing of a real one."
_COMPARED = {"decode": "decode_tokens_per_second", "prefill": "long_tokens_per_second"}


def _complete_level(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The ISA levels, for the shell, which does not know the board."""
    names = dict.fromkeys(name for levels in ISA_FEATURES.values() for name in levels)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command()
@boards_options
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The model to push first, and the one to measure on this machine; without it, the one on "
    "the board is used.",
)
@click.option(
    "--num-tokens",
    type=click.IntRange(min=2),
    help="How many tokens to decode.  [default: 128]",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads.  [default: one for each CPU]")
@click.option(
    "--isa",
    metavar="LEVEL",
    shell_complete=_complete_level,
    help="Level of the kernels.  [default: the best usable]",
)
@click.option(
    "--kv",
    type=click.Choice(["auto", "f32", "f16", "q8"]),
    help="Type of the key/value cache.  [default: auto]",
)
@click.option(
    "--compare",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Show how many times as fast it is as in this file, which `bench --json FILE` wrote.",
)
@many_options
@click.pass_context
def bench(
    context: click.Context,
    choose: Callable[[], list[BoardChoice]],
    build_dir: Path,
    model: Path | None,
    num_tokens: int | None,
    threads: int | None,
    isa: str | None,
    kv: str | None,
    compare: Path | None,
    many: Many,
) -> None:
    """Measure how fast boards, or without a board this machine, run a model.

    Decoding is held against what the memory can read, prefill (of 512 tokens) against what the
    kernels multiply in the first cache: `colibri --bench` on the board.
    """
    options = RunOptions(num_tokens, threads, kv, isa)
    before = library.earlier_benches(compare) if compare is not None else None
    if model is not None:
        Model.open(model)  # before anything is compiled or measured for it
    found: dict[str, Bench] = {}
    chosen: list[BoardChoice] = []
    here: Callable[[], Bench] | None = None
    if any(context.params[name] for name in ("board", "tag", "host", "target")):
        chosen = choose()
    elif model is None:
        raise click.UsageError("give --board NAME or --host USER@ADDR, or --model DIR to measure")
    names = [choice.name for choice in chosen] or [HERE]
    if before is not None and before.keys().isdisjoint(names):
        raise FileMissingError(f"{compare} has no speeds of {', '.join(names)}")
    if model is not None and not chosen:
        here = functools.partial(
            library.bench_here, host_engine(build_dir), model, options, many.timeout_s
        )

    def work(
        run: BoardRun, choice: BoardChoice, connection: Connection, progress: ByteProgress
    ) -> None:
        run.reports["emulated"] = choice.emulated is not None
        if model is not None:
            deliver(run, choice, connection, choice.engine, model, progress, [], dry_run=False)
        progress.start("measuring", 0)
        on_board = functools.partial(library.bench_board, connection, options)
        found[run.board] = _measure(run, before, on_board)

    def work_here(run: BoardRun, bars: Progress, measure: Callable[[], Bench]) -> None:
        with ByteProgress(bars, run.board) as progress:
            progress.start("measuring", 0)
            run.reports["emulated"] = False
            found[run.board] = _measure(run, before, measure)

    def tasks(bars: Progress) -> Tasks:
        if here is None:
            return [board_task(choice, work, bars) for choice in chosen]
        return [(BoardRun(HERE, HOST), functools.partial(work_here, bars=bars, measure=here))]

    def show(results: Sequence[BoardResult]) -> None:
        _print([one.board for one in results if one.board in found], found, before)
        for choice in chosen:
            if choice.emulated is not None and choice.name in found:
                stdout_console().print(f"{choice.name} is emulated: {_EMULATED}")

    many.run_tasks("bench", tasks, show)


def _measure(
    run: BoardRun, before: Mapping[str, Bench] | None, measure: Callable[[], Bench]
) -> Bench:
    """The measurement as a step of the work on a board, with its figures."""
    run.begin("measure")
    started = time.monotonic()
    found = measure()
    run.check()
    cells = _cells(found)
    detail = ", ".join(f"{title} {cell}" for title, cell in zip(_COLUMNS, cells, strict=True))
    figures = {name: found.figures.get(name) for name, _ in _COLUMNS.values()}
    run.end(Step("measure", "passed", detail, time.monotonic() - started, figures))
    run.summary = f"{detail} ({found.isa}, {found.threads} threads)"
    run.reports["bench"] = found.record()
    if before is not None and run.board in before:
        run.reports["ratio"] = _ratios(found, before[run.board])
    return found


def _ratios(found: Bench, before: Bench) -> dict[str, float | None]:
    """How many times as fast it is as before; None: nobody knows, or it is not the same."""
    pairs = {
        name: (found.figures.get(of), before.figures.get(of)) for name, of in _COMPARED.items()
    }
    same = found.other_than(before) is None
    return {
        name: now / then if same and now and then else None for name, (now, then) in pairs.items()
    }


def _cells(found: Bench) -> list[str]:
    cells = []
    for figure, form in _COLUMNS.values():
        value = found.figures.get(figure)
        unit = " %" if figure.startswith("percent") else ""
        cells.append("?" if value is None else format(value, form) + unit)
    return cells


def _print(
    boards: Sequence[str], found: Mapping[str, Bench], before: Mapping[str, Bench] | None
) -> None:
    """The measurements, for people."""
    if not boards:
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("board", no_wrap=True)
    table.add_column("ISA level", no_wrap=True)
    for title in ("threads", *_COLUMNS, *([f"{name} x" for name in _COMPARED] if before else [])):
        table.add_column(title, justify="right", no_wrap=True)
    for board in boards:
        one = found[board]
        ratios = [] if before is None else _ratio_cells(one, before.get(board))
        table.add_row(board, one.isa, str(one.threads), *_cells(one), *ratios)
    stdout_console().print(table)


def _ratio_cells(found: Bench, before: Bench | None) -> list[str]:
    if before is None:
        return ["not in file"] * len(_COMPARED)
    if other := found.other_than(before):
        return [f"other {other}"] * len(_COMPARED)
    ratios = _ratios(found, before).values()
    return ["?" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
