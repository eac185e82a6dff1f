# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `test`: `build`, `push` and `smoke` in one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from colibri_deploy.build import plan
from colibri_deploy.cli.board_choice import BoardChoice, board_options
from colibri_deploy.cli.build import build_with_progress, plan_record, print_plan
from colibri_deploy.cli.console import print_json
from colibri_deploy.cli.push import print_push, push_record, run_push
from colibri_deploy.cli.smoke import (
    HOST,
    PromptChoice,
    fail_unless_ok,
    print_smoke,
    prompt_options,
    run_smoke,
    smoke_record,
)
from colibri_deploy.resources import engine_root
from colibri_deploy.smoke import Reference
from colibri_deploy.targets import load_targets, select
from colibri_deploy.toolchain import find_toolchain


@click.command()
@board_options
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The model to push and to compute the golden numbers from.",
)
@prompt_options
@click.option("--dry-run", is_flag=True, help="Print what would be built and sent.")
@click.option("--json", "as_json", is_flag=True, help="Print all results as JSON.")
def test(
    choice: BoardChoice,
    model: Path | None,
    prompt: PromptChoice,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Build the engine for a board, push it, and prove there that its numbers are right."""
    root = engine_root()
    targets = [choice.target] + ([select(load_targets(root), HOST)] if model else [])
    toolchain = find_toolchain()
    compilations = plan(targets, root=root, build_root=choice.build_dir, toolchain=toolchain)
    wanted = prompt.prompt(model) if model else None
    record: dict[str, object] = {}
    if not dry_run:
        built = build_with_progress(compilations, toolchain)
        record["build"] = [
            {**asdict(one.record), "binary": str(one.binary)} for one in built.values()
        ]
    else:
        record["build"] = plan_record(compilations)
        if not as_json:
            print_plan(compilations, as_json=False)
        if not choice.engine.is_file():
            if as_json:
                print_json(record)
            else:
                click.echo("dry run: what would be sent is known once the engine is built")
            return
    with choice.connect() as connection:
        planned, pushed = run_push(choice, connection, model, dry_run)
        record["push"] = push_record(choice, connection, planned, pushed)
        if not as_json:
            print_push(connection, planned, pushed)
        result = None
        if not dry_run:
            reference = Reference(built[HOST].binary, model, wanted) if model and wanted else None
            result = run_smoke(choice, connection, reference)
            record["smoke"] = smoke_record(choice, connection, result)
    if as_json:
        print_json(record)
    elif result is not None:
        print_smoke(result)
    if result is not None:
        fail_unless_ok(connection, result)
