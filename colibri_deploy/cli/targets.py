# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `targets`, and how the names of targets complete in a shell."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem
from rich import box
from rich.table import Table

from colibri_deploy.cli.console import print_json, stdout_console
from colibri_deploy.errors import ColibriDeployError
from colibri_deploy.resources import engine_root
from colibri_deploy.targets import Target, TargetFile, load_targets
from colibri_deploy.yaml_file import json_schema


def complete_target(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The targets whose names begin with `incomplete`, for the shell."""
    try:
        known = load_targets(engine_root())
    except ColibriDeployError:
        return []  # a completion has nobody to tell
    return [
        CompletionItem(name, help=target.facts.description)
        for name, target in known.items()
        if name.startswith(incomplete)
    ]


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print all facts as JSON.")
@click.pass_context
def targets(ctx: click.Context, as_json: bool) -> None:
    """List the kinds of board that the engine is built for."""
    if ctx.invoked_subcommand is not None:
        return
    known = load_targets(engine_root()).values()
    if as_json:
        print_json([_record(target) for target in known])
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("target", "arch", "ISA", "RAM, GiB", "GB/s", "board"):
        table.add_column(heading, no_wrap=heading != "board")
    for target in known:
        table.add_row(*_row(target))
    stdout_console().print(table)


@targets.command()
def schema() -> None:
    """Print the JSON Schema of target files, for editors."""
    print_json(json_schema(TargetFile))


def _record(target: Target) -> dict[str, object]:
    facts = target.facts.model_dump(mode="json")
    return {"name": target.name, **facts, "arch": target.arch}


def _row(target: Target) -> tuple[str, ...]:
    facts = target.facts
    bandwidth = facts.memory_bandwidth
    return (
        target.name,
        target.arch,
        facts.expected_isa or "best",
        "/".join(map(str, facts.ram_gib)) or "-",
        f"{bandwidth.gb_per_s:g}" if bandwidth else "-",
        facts.description + (f": {facts.cpu}" if facts.cpu else ""),
    )
