# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `test`: `build`, `push` and `smoke` in one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from colibri_deploy.build import plan
from colibri_deploy.cli.board_choice import BoardChoice, boards_options
from colibri_deploy.cli.build import build_with_progress, plan_record, print_plan
from colibri_deploy.cli.byte_progress import ByteProgress
from colibri_deploy.cli.many import Many, many_options
from colibri_deploy.cli.push import deliver
from colibri_deploy.cli.smoke import HOST, PromptChoice, prompt_options, prove
from colibri_deploy.many import BoardRun
from colibri_deploy.resources import engine_root
from colibri_deploy.smoke import Reference
from colibri_deploy.ssh import Connection
from colibri_deploy.targets import load_targets, select
from colibri_deploy.toolchain import find_toolchain


@click.command()
@boards_options
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The model to push and to compute the golden numbers from.",
)
@prompt_options
@click.option("--dry-run", is_flag=True, help="Print what would be built and sent.")
@many_options
def test(
    choose: Callable[[], list[BoardChoice]],
    build_dir: Path,
    model: Path | None,
    prompt: PromptChoice,
    dry_run: bool,
    many: Many,
) -> None:
    """Build the engine for boards, push it, and prove there that its numbers are right.

    A board on which they are not goes back to the release before, if it has one.
    """
    chosen = choose()
    root = engine_root()
    targets = [choice.target for choice in chosen]
    if model:
        targets.append(select(load_targets(root), HOST))
    toolchain = find_toolchain()
    compilations = plan(targets, root=root, build_root=build_dir, toolchain=toolchain)
    wanted = prompt.prompt(model) if model else None
    reference = None
    if dry_run:
        build: list[dict[str, object]] = plan_record(compilations)
        if not many.prints_json:
            print_plan(compilations, as_json=False)
        if not all(choice.engine.is_file() for choice in chosen) and not many.prints_json:
            click.echo("dry run: what would be sent is known once the engine is built")
        chosen = [choice for choice in chosen if choice.engine.is_file()]
    else:
        built = build_with_progress(compilations, toolchain)
        build = [{**asdict(one.record), "binary": str(one.binary)} for one in built.values()]
        if model and wanted:
            reference = Reference.compute(built[HOST].binary, model, wanted)
    shows: list[Callable[[], None]] = []

    def work(
        run: BoardRun, choice: BoardChoice, connection: Connection, progress: ByteProgress
    ) -> None:
        pushed = deliver(
            run, choice, connection, choice.engine, model, progress, shows, dry_run=dry_run
        )
        if pushed is not None:
            before = pushed.previous if pushed.previous != pushed.release else None
            prove(run, choice, connection, reference, progress, shows, back_to=before)

    many.run("test", chosen, work, shows, {"build": build})
