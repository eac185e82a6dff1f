# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `verify`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from colibri_deploy.cli.byte_progress import ByteProgress
from colibri_deploy.cli.console import print_json
from colibri_deploy.errors import ModelCorruptError
from colibri_deploy.model import Model
from colibri_deploy.model_file import Damage


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(directory: Path, as_json: bool) -> None:
    """Read the whole model in DIR and compare every item with its checksum.

    Damaged items are named by section, layer and expert; the exit code is 7 then.
    """
    model = Model.open(directory)
    with ByteProgress() as progress:
        progress.start("verifying", model.file.file_size)
        damages = model.file.verify(progress.advance)
    if as_json:
        print_json(_record(model, damages))
    if damages:
        raise ModelCorruptError(
            f"{model.file.path} is damaged in {len(damages)} "
            f"{'place' if len(damages) == 1 else 'places'}; "
            "copy the file again or convert the checkpoint again",
            details="\n".join(damage.text for damage in damages),
        )
    if not as_json:
        size, items = model.file.file_size, len(model.file.crcs)
        click.echo(f"{model.file.path}: {size:,} bytes, {items} items, all as written")


def _record(model: Model, damages: list[Damage]) -> dict[str, object]:
    return {
        "directory": str(model.directory),
        "bytes": model.file.file_size,
        "items": len(model.file.crcs),
        "ok": not damages,
        "damaged": [dataclasses.asdict(damage) for damage in damages],
    }
