# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `rollback`."""

from __future__ import annotations

from dataclasses import asdict

import click

from colibri_deploy.cli.board_choice import BoardChoice, board_options
from colibri_deploy.cli.byte_progress import ByteProgress
from colibri_deploy.cli.console import print_json, stdout_console
from colibri_deploy.releases import plan_rollback, roll_back


@click.command()
@board_options
@click.option("--to", metavar="ID", help="The release.  [default: the one before the current]")
@click.option("--dry-run", is_flag=True, help="Verify the release, write nothing there.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def rollback(choice: BoardChoice, to: str | None, dry_run: bool, as_json: bool) -> None:
    """Make the release before the current one the current one again.

    It is verified on the board first. A second rollback returns to where the first one began.
    """
    with choice.connect() as connection, ByteProgress() as progress:
        progress.start("verifying the release on the board", 0)
        plan = plan_rollback(connection, to)
        is_current = plan.release == plan.current
        if not dry_run and not is_current:
            roll_back(connection, plan, progress.wait_for)
    if as_json:
        names = {"board": connection.board.name, "address": connection.board.address}
        print_json({**names, "target": choice.target.name, "dry_run": dry_run, **asdict(plan)})
        return
    console = stdout_console()
    console.print(f"{connection.board.name}: {plan.root}", soft_wrap=True)
    if is_current:
        console.print(f"release {plan.release} is current already")
    elif dry_run:
        kept = ", ".join(plan.kept)
        console.print(
            f"dry run: release {plan.release} is whole and would replace {plan.current}; "
            f"kept: {kept}; nothing was written",
            soft_wrap=True,
        )
    else:
        console.print(f"release {plan.release} is current (before: {plan.current})")
