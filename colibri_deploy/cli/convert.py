# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `convert`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import click
from rich import box
from rich.table import Table

from colibri_deploy import convert as library
from colibri_deploy.cli.byte_progress import ByteProgress
from colibri_deploy.cli.console import print_json, stdout_console
from colibri_deploy.cli.inspect import health_record, model_line, section_record
from colibri_deploy.dtype_choice import DTypeChoices, parse_dtypes
from colibri_deploy.model import Model
from colibri_deploy.model_dir import check_destination
from colibri_deploy.rounding import RoundingError
from colibri_deploy.router_health import RouterHealth, router_health
from colibri_deploy.sections import ExpertLayout
from colibri_deploy.upcycle import Upcycling


def _read_upcycling(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> Upcycling | None:
    try:
        return None if text is None else Upcycling.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def _read_dtypes(context: click.Context, parameter: click.Parameter, text: str) -> DTypeChoices:
    try:
        return parse_dtypes(text)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


@click.command()
@click.argument("source", type=click.Path(path_type=Path), metavar="SRC")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the model goes: a new directory.",
)
@click.option(
    "--dtype",
    metavar="TYPE|KIND=TYPE,...",
    callback=_read_dtypes,
    default="keep",
    show_default=True,
    help="How matrices are stored: keep, f32, f16, bf16, q8, q4 or mxfp4, for all of them or for "
    "each kind (attn, ffn, embed, head; one that is not named: keep), such as ffn=q4,attn=q8. "
    "keep: q8 if all of a kind are Q8_0 (GGUF), q4 if all are Q4_0, mxfp4 if all are MXFP4, which "
    "they hold without loss; otherwise the smallest float type that holds every value exactly.",
)
@click.option(
    "--expert-layout",
    type=click.Choice(["interleaved", "grouped"]),
    default="interleaved",
    show_default=True,
    help="interleaved: all experts of one matrix together; grouped: one expert's matrices.",
)
@click.option(
    "--upcycle",
    metavar="EXPERTSxTOP_K",
    callback=_read_upcycling,
    help="Make a Mixture of Experts out of a dense model, such as 4x2. Every expert is the dense "
    "FFN with its neurons in a random order: the same function up to rounding, other bits.",
)
@click.option(
    "--upcycle-seed",
    type=click.IntRange(min=1),
    help="The seed of the neurons' orders and of the router.  [default: 1]",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Read the written file again and compare every value with SRC's, before it appears.",
)
@click.option("--force", is_flag=True, help="Replace the model that DIR holds.")
@click.option("--dry-run", is_flag=True, help="Check everything but the values; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def convert(
    source: Path,
    output: Path | None,
    dtype: DTypeChoices,
    expert_layout: str,
    upcycle: Upcycling | None,
    upcycle_seed: int | None,
    verify: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Convert SRC to a model directory: a Hugging Face checkpoint's directory, or a GGUF file.

    A checkpoint: safetensors or PyTorch files, one or several; FP8 with block scales and MXFP4
    too. PyTorch files are read without executing what their pickles say.

    GGUF: llama (dense or with Mixtral's experts), qwen2moe, qwen3moe, olmoe, granitemoe, gpt-oss,
    deepseek2, in one file. Q8_0 matrices are taken over as q8, Q4_0 ones as q4, MXFP4 ones as mxfp4
    without loss, other types are dequantised.

    The model appears under its name when it is complete and on the disk. Whatever the engine does
    not compute exactly as the checkpoint means it is refused by name.
    """
    if output is None and not dry_run:
        raise click.UsageError("give -o DIR, or --dry-run")
    if upcycle is None and upcycle_seed is not None:
        raise click.UsageError("--upcycle-seed goes with --upcycle")
    upcycling = upcycle and dataclasses.replace(upcycle, seed=upcycle_seed or upcycle.seed)
    started = time.monotonic()
    if output is not None:
        check_destination(output, force)
    with ByteProgress() as progress:
        plan = library.plan_conversion(
            source,
            dtype,
            cast(ExpertLayout, expert_layout),
            progress,
            upcycling,
        )
        if not as_json:
            _print_plan(plan)
        errors = health = None
        if output is not None and not dry_run:
            errors = library.write_model(plan, output, force, progress, verify)
            health = router_health(Model.open(output))
    seconds = time.monotonic() - started
    if as_json:
        print_json(_record(plan, output, expert_layout, upcycling, errors, health, verify, seconds))
    elif errors is None:
        click.echo("dry run: nothing was written")
    else:
        if any(error.errors for error in errors.values()):
            stdout_console().print(_errors_table(plan, errors))
        for warning in health.warnings if health else []:
            click.echo(f"warning: {warning}", err=True)
        checked = ", read back and compared" if verify else ""
        click.echo(f"wrote {output} in {seconds:.1f} s{checked}")


def _print_plan(plan: library.ConversionPlan) -> None:
    console = stdout_console()
    console.print(model_line(plan.config), soft_wrap=True)
    for note in plan.notes:
        console.print(note, soft_wrap=True)
    matrices = "" if plan.dtype is None else plan.dtype.name
    if plan.dtype is None:
        matrices = ", ".join(
            f"{kind} {dtype.name} ({plan.kind_bytes(kind):,} bytes)"
            for kind, dtype in plan.dtypes.items()
        )
    console.print(f"model.bin: {plan.file.file_size:,} bytes, matrices {matrices}", soft_wrap=True)


def _errors_table(plan: library.ConversionPlan, errors: Mapping[str, RoundingError]) -> Table:
    """What rounding did to the sections that it did anything to."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("rounded section", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    for heading in ("rms error", "max error"):
        table.add_column(heading, justify="right", no_wrap=True)
    dtypes = {spec.name: spec.dtype.name for spec in plan.specs}
    for name, error in errors.items():
        if error.errors:
            rms, largest = (100 * share for share in (error.rms_relative, error.max_relative))
            table.add_row(name, dtypes[name], f"{rms:.3g} %", f"{largest:.3g} %")
    return table


def _record(
    plan: library.ConversionPlan,
    output: Path | None,
    expert_layout: str,
    upcycling: Upcycling | None,
    errors: Mapping[str, RoundingError] | None,
    health: RouterHealth | None,
    verified: bool,
    seconds: float,
) -> dict[str, object]:
    return {
        "source": str(plan.source),
        "output": None if output is None else str(output),
        "dry_run": errors is None,
        "verified": verified and errors is not None,
        "architecture": plan.config.architecture,
        "dtype": None if plan.dtype is None else plan.dtype.name,
        "dtypes": {kind: dtype.name for kind, dtype in plan.dtypes.items()},
        "expert_layout": expert_layout,
        "upcycle": None if upcycling is None else dataclasses.asdict(upcycling),
        "bytes": plan.file.file_size,
        "notes": list(plan.notes),
        "errors": {
            name: {"rms_relative": error.rms_relative, "max_relative": error.max_relative}
            for name, error in (errors or {}).items()
        },
        "routers": health_record(health),
        "sections": [section_record(section) for section in plan.file.sections],
        "seconds": round(seconds, 3),
    }
