# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `undeploy`."""

from __future__ import annotations

from dataclasses import asdict

import click

from colibri_deploy.cli.board_choice import BoardChoice, board_options
from colibri_deploy.cli.byte_progress import ByteProgress
from colibri_deploy.cli.console import print_json, stdout_console
from colibri_deploy.releases import plan_undeploy
from colibri_deploy.releases import undeploy as remove


@click.command()
@board_options
@click.option("--dry-run", is_flag=True, help="Look at the board, remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def undeploy(choice: BoardChoice, dry_run: bool, as_json: bool) -> None:
    """Remove everything from a board that was put there by deploys.

    A directory that holds anything else is left as it is.
    """
    with choice.connect() as connection, ByteProgress() as progress:
        plan = plan_undeploy(connection)
        is_there = plan.bytes is not None
        is_gone = not is_there
        if is_there and not dry_run:
            progress.start(f"removing {plan.root}", 0)
            is_gone = remove(connection, plan, progress.wait_for)
    if as_json:
        names = {"board": connection.board.name, "address": connection.board.address}
        record = {**names, "target": choice.target.name, "dry_run": dry_run, **asdict(plan)}
        print_json({**record, "directory_removed": is_there and is_gone})
        return
    console = stdout_console()
    what = f"{plan.bytes or 0:,} bytes, {len(plan.releases)} releases"
    if not is_there:
        text = "nothing is there"
    elif dry_run:
        text = f"dry run: {what} would be removed; nothing was"
    else:
        text = f"removed {what}" + ("" if is_gone else "; the empty directory cannot be removed")
    console.print(f"{connection.board.name}, {plan.root}: {text}", soft_wrap=True)
