# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `header`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click
from rich import box
from rich.table import Table

from colibri_deploy.cli.console import print_json, stdout_console
from colibri_deploy.model_file import ModelFile
from colibri_deploy.model_header import Field, HeaderDump, dump_header

_IN_HEX = ("byte_order", "sections_crc", "crcs_crc", "header_crc")


@click.command()
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def header(model: Path, as_json: bool) -> None:
    """Show header and section table of MODEL, a directory or its model.bin, field by field.

    A damaged file is shown, too, as far as it makes sense, and what is wrong is marked. What is
    wrong then ends the command as it would end `inspect`, with the same exit code.
    """
    path = model / "model.bin" if model.is_dir() else model
    dump = dump_header(path)
    if as_json:
        print_json(_record(path, dump))
    else:
        _print(path, dump)
    ModelFile.open(path)


def _record(path: Path, dump: HeaderDump) -> dict[str, object]:
    return {
        "file": str(path),
        "bytes": dump.file_size,
        "problems": dump.problems,
        "header": [_field_record(field) for field in dump.header],
        "sections": [[_field_record(field) for field in entry] for entry in dump.sections],
    }


def _field_record(field: Field) -> dict[str, object]:
    return dataclasses.asdict(field) | {"offset": _hex(field)}


def _hex(field: Field) -> str:
    return f"0x{field.offset:04x}"


def _print(path: Path, dump: HeaderDump) -> None:
    console = stdout_console()
    console.print(f"{path}: {dump.file_size:,} bytes", soft_wrap=True)
    console.print(_table("header", dump.header))
    for index, entry in enumerate(dump.sections):
        console.print(_table(f"section {index}", entry))


def _table(title: str, fields: tuple[Field, ...]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("offset", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column(title, no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("meaning")
    for field in fields:
        meaning = field.meaning if field.problem is None else f"WRONG: {field.problem}"
        table.add_row(_hex(field), str(field.size), field.name, _shown(field), meaning)
    return table


def _shown(field: Field) -> str:
    """A number as it is, or in hex."""
    if isinstance(field.value, int) and field.name in _IN_HEX:
        return f"{field.value:08x}"
    return str(field.value)
