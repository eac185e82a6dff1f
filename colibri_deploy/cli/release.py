# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `release`."""

from __future__ import annotations

from pathlib import Path

import click
from rich import box
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from colibri_deploy.cli.console import print_json, stderr_console, stdout_console
from colibri_deploy.cli.release_documents import documents
from colibri_deploy.cli.release_verify import verify
from colibri_deploy.file_hash import file_sha256
from colibri_deploy.release.pipeline import (
    Observer,
    Release,
    State,
    Step,
    StepResult,
    artifacts,
    choose,
    run_steps,
)
from colibri_deploy.release.steps import STEPS
from colibri_deploy.release.tree import read_tree
from colibri_deploy.release.versions import installed_versions
from colibri_deploy.resources import engine_root
from colibri_deploy.toolchain import find_toolchain

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_NAMES = ", ".join(step.name for step in STEPS)


@click.group(invoke_without_command=True, epilog=f"The steps: {_NAMES}.")
@click.option("--only", multiple=True, metavar="STEP", help="Run this step alone; repeatable.")
@click.option("--skip", multiple=True, metavar="STEP", help="Leave this step out; repeatable.")
@click.option(
    "--build-dir", type=_FOLDER, default=Path("build"), show_default=True, help="Where builds lie."
)
@click.option(
    "--dist-dir",
    type=_FOLDER,
    default=Path("dist"),
    show_default=True,
    help="The release goes into a directory in it, named after the version.",
)
@click.option(
    "--ssh-key", type=_FILE, metavar="FILE", help="Sign with this key, by ssh-keygen -Y sign."
)
@click.option("--minisign-key", type=_FILE, metavar="FILE", help="Sign with minisign's key.")
@click.option("--dry-run", is_flag=True, help="Print what would be done and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what was made as JSON.")
@click.pass_context
def release(
    ctx: click.Context,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    build_dir: Path,
    dist_dir: Path,
    ssh_key: Path | None,
    minisign_key: Path | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a release of a clean checkout: dist/<version>/, the same bytes wherever it is made.

    First come the gates: nothing is packed before all of them are passed. A step that is done is
    not run again as long as nothing has changed.
    """
    if ctx.invoked_subcommand is not None:
        return
    root = engine_root()
    tree = read_tree(root)
    plan = Release(
        tree=tree,
        toolchain=find_toolchain(),
        versions=installed_versions(root),
        documents=documents(ctx.find_root()),
        build_dir=build_dir.resolve(),
        dist_dir=dist_dir.resolve() / tree.version,
        ssh_key=ssh_key,
        minisign_key=minisign_key,
    )
    choose(STEPS, only, skip)
    if dry_run:
        _print_plan(plan, only, skip, as_json)
        return
    with _Reporter() as reporter:
        run_steps(plan, STEPS, only=only, skip=skip, observer=reporter)
    rows = [(path, path.stat().st_size, file_sha256(path)) for path in artifacts(plan)]
    if as_json:
        print_json(
            [{"name": str(path), "bytes": size, "sha256": sha256} for path, size, sha256 in rows]
        )
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("file", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("SHA-256", no_wrap=True)
    for path, size, sha256 in rows:
        table.add_row(path.name, f"{size:,}", sha256[:12])
    stdout_console().print(table)


release.add_command(verify)


def _print_plan(plan: Release, only: tuple[str, ...], skip: tuple[str, ...], as_json: bool) -> None:
    state = State(plan)
    rows = []
    for step in STEPS:
        if step.name in skip:
            would = "skip: asked for with --skip"
        elif state.kept(step):
            would = "keep: nothing has changed"
        else:
            would = "not run" if only and step.name not in only else "run"
        rows.append((step.name, step.about, would))
    if as_json:
        print_json([{"step": name, "about": about, "would": would} for name, about, would in rows])
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("step", "what", "would"):
        table.add_column(title, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    stdout_console().print(table)


class _Reporter(Observer):
    """A line on stderr for each step, and what the running one does where that is a terminal."""

    def __init__(self) -> None:
        self._console = stderr_console()
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bars.add_task("")

    def __enter__(self) -> _Reporter:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.stop()

    def begin(self, step: Step) -> None:
        self.tell(step.about)

    def tell(self, what: str) -> None:
        self._bars.update(self._task, description=what[: self._console.width - 12])

    def end(self, step: Step, result: StepResult) -> None:
        how = {
            "done": f"done in {result.seconds:.1f} s",
            "kept": "kept: nothing has changed",
            "skipped": f"skipped: {result.reason}",
        }
        self._console.print(f"{step.name + ':':12}{how[result.status]}", soft_wrap=True)
