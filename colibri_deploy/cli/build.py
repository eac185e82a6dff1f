# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `build`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

import click
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table

from colibri_deploy import build as library
from colibri_deploy.cli.console import print_json, stderr_console, stdout_console
from colibri_deploy.cli.targets import complete_target
from colibri_deploy.resources import engine_root
from colibri_deploy.targets import Target, load_targets, select
from colibri_deploy.toolchain import Toolchain, find_toolchain

_STEP_WIDTH = 24  # columns beside the progress bar


@click.command()
@click.option(
    "--target",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_target,
    help="What to build for; repeatable.",
)
@click.option("--all", "every", is_flag=True, help="Build for every target.")
@click.option(
    "--build-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build"),
    show_default=True,
    help="Where the builds lie.",
)
@click.option("--debug", is_flag=True, help="With asserts and logs, into <target>-debug/.")
@click.option("--dry-run", is_flag=True, help="Print the commands and run none.")
@click.option("--json", "as_json", is_flag=True, help="Print what was built as JSON.")
def build(
    names: tuple[str, ...],
    every: bool,
    build_dir: Path,
    debug: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Compile the engine for targets: build/<target>/colibri, and build.json beside it."""
    if every == bool(names):
        raise click.UsageError("give either --target NAME or --all; `targets` lists the names")
    root = engine_root()
    known = load_targets(root)
    chosen = list(known.values()) if every else [select(known, name) for name in names]
    toolchain = find_toolchain()
    compilations = library.plan(
        chosen, root=root, build_root=build_dir, toolchain=toolchain, debug=debug
    )
    if dry_run:
        print_plan(compilations, as_json)
        return
    results = build_with_progress(compilations, toolchain)
    in_order = [results[target.name] for target in _unique(chosen)]
    if as_json:
        print_json([{**asdict(one.record), "binary": str(one.binary)} for one in in_order])
    else:
        _print_results(in_order)


def _unique(targets: list[Target]) -> list[Target]:
    return list({target.name: target for target in targets}.values())


def plan_record(compilations: tuple[library.Compilation, ...]) -> list[dict[str, object]]:
    """The commands of a build and what they make, for JSON."""
    return [
        {
            "arch": compilation.arch,
            "commands": [list(compilation.setup), list(compilation.compile)],
            "outputs": {
                target: str(compilation.output(target) / "colibri")
                for target in compilation.targets
            },
        }
        for compilation in compilations
    ]


def print_plan(compilations: tuple[library.Compilation, ...], as_json: bool) -> None:
    """The commands of a build and what they make."""
    if as_json:
        print_json(plan_record(compilations))
        return
    for compilation in compilations:
        for command in (compilation.setup, compilation.compile):
            click.echo(shlex.join(command))
        for target in compilation.targets:
            click.echo(f"# {target}: {_shown(compilation.output(target) / 'colibri')}")


def build_with_progress(
    compilations: tuple[library.Compilation, ...], toolchain: Toolchain
) -> dict[str, library.Built]:
    """Builds, and says on stderr how far it is; the results by target."""
    console = stderr_console()
    results: dict[str, library.Built] = {}
    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=20),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[step]}", table_column=Column(no_wrap=True)),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        for compilation in compilations:
            title = f"{compilation.arch} ({', '.join(compilation.targets)})"
            if not console.is_terminal:
                console.print(f"building {title}", soft_wrap=True)
            task = bars.add_task(title, total=None, step="configuring")

            def show(progress: library.Progress, task: TaskID = task) -> None:
                total = progress.total or None
                # Of "Compiling C object src/libcolibri.a.p/file.c.o" the file is what changes.
                step = progress.step.rsplit("/", 1)[-1][:_STEP_WIDTH]
                bars.update(task, completed=progress.done, total=total, step=step)

            for one in library.build(compilation, toolchain, show):
                results[one.record.target] = one
            bars.update(task, completed=bars.tasks[task].total or 0, step="done")
    return results


def _print_results(results: list[library.Built]) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("target", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("SHA-256", no_wrap=True)
    table.add_column("binary", no_wrap=True)
    table.add_column("ISA levels")
    for one in results:
        table.add_row(
            one.record.target,
            f"{one.record.bytes:,}",
            one.record.sha256[:12],
            _shown(one.binary),
            " ".join(one.record.isas),
        )
    stdout_console().print(table)


def _shown(path: Path) -> str:
    """Relative to the current directory where that is shorter to read."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
