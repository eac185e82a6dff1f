# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `inspect`."""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path

import click
from rich import box
from rich.markup import escape
from rich.table import Table

from colibri_deploy.chat_form import ChatForm
from colibri_deploy.cli.console import print_json, stdout_console
from colibri_deploy.model import Model
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.model_header import VERSION
from colibri_deploy.router_health import RouterHealth, router_health
from colibri_deploy.sections import Section


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--routers", is_flag=True, help="Show what the weights tell about the routers' choices."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def inspect(directory: Path, routers: bool, as_json: bool) -> None:
    """Show what the model in DIR consists of, after checking its structure.

    Only header, tables, config.json and the chat form are read, with --routers also routers, norms
    and embeddings; `verify` checks the values.
    """
    model = Model.open(directory)
    health = router_health(model) if routers else None
    if as_json:
        print_json(_record(model) | ({"routers": health_record(health)} if routers else {}))
        return
    if routers:
        _print_health(health)
        return
    console = stdout_console()
    console.print(model_line(model.config))
    console.print(
        f"model.bin: format version {VERSION}, {model.file.file_size:,} bytes, "
        f"{len(model.file.sections)} sections, {len(model.file.crcs)} items"
    )
    console.print(_sections_table(model))
    console.print(_totals_table(model))
    config = Table("config.json", "", box=box.SIMPLE, pad_edge=False)
    for name, value in json.loads(model.config.to_json()).items():
        config.add_row(name, json.dumps(value))
    console.print(config)
    if model.chat_form is not None:
        chat = Table("chat", "", box=box.SIMPLE, pad_edge=False)
        for name, value in _chat_record(model.chat_form).items():
            chat.add_row(name, escape(json.dumps(value, ensure_ascii=False)))
        console.print(chat)


def model_line(config: ModelConfig) -> str:
    """One line that says what kind of model it is."""
    experts = f"{config.n_experts} experts (top {config.top_k})" if config.n_experts else "dense"
    return (
        f"{config.architecture}: {config.n_layers} layers, hidden {config.hidden_size}, "
        f"{experts} of {config.ffn_size}, {config.n_heads} heads ({config.n_kv_heads} KV) "
        f"of {config.head_dim}, {config.vocab_size} tokens"
    )


def section_record(section: Section) -> dict[str, object]:
    """A section for JSON; offsets, strides and sizes in bytes."""
    return {
        **dataclasses.asdict(section),
        "dtype": section.dtype.name,
        "layout": section.layout.name,
        "size": section.size,
    }


def _chat_record(form: ChatForm) -> dict[str, object]:
    """A chat form for JSON: its strings, trims and tokens."""
    record = dataclasses.asdict(form)
    return {**record.pop("strings"), **record}


def health_record(health: RouterHealth | None) -> dict[str, object] | None:
    """Routers for JSON; None for a dense model."""
    return None if health is None else dataclasses.asdict(health)


def _print_health(health: RouterHealth | None) -> None:
    console = stdout_console()
    if health is None:
        console.print("the model is dense: it has no routers")
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("layer", "logit scale", "smallest row", "largest row", "widest element"):
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in health.layers:
        table.add_row(
            str(layer.layer),
            f"{layer.logit_scale:.3g}",
            f"{layer.smallest_row:.3g}",
            f"{layer.largest_row:.3g}",
            f"{layer.channel} ({layer.channel_share:.1%})",
        )
    console.print(table)
    rows = health.embeddings
    console.print(
        f"embeddings: root mean square {rows.smallest:.3g} to {rows.largest:.3g}, "
        f"median {rows.median:.3g}; {len(rows.lost):,} too small for the norms to scale up",
        soft_wrap=True,
    )
    for warning in health.warnings or ["nothing stands out"]:
        console.print(warning, soft_wrap=True)


def _totals(model: Model) -> dict[str, int]:
    """Bytes of all items of each dtype."""
    totals: collections.Counter[str] = collections.Counter()
    for section in model.file.sections:
        totals[section.dtype.name] += section.size
    return dict(totals.most_common())


def _record(model: Model) -> dict[str, object]:
    return {
        "directory": str(model.directory),
        "version": VERSION,
        "bytes": model.file.file_size,
        "items": len(model.file.crcs),
        "sections": [section_record(section) for section in model.file.sections],
        "bytes_by_dtype": _totals(model),
        "config": json.loads(model.config.to_json()),
        "chat": None if model.chat_form is None else _chat_record(model.chat_form),
    }


def _sections_table(model: Model) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("section", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    table.add_column("layout", no_wrap=True)
    for heading in ("layers x experts", "rows x cols", "offset", "bytes", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    for section in model.file.sections:
        table.add_row(
            section.name,
            section.dtype.name,
            section.layout.name,
            f"{section.n_layers} x {section.n_experts}",
            f"{section.rows} x {section.cols}",
            f"{section.offset:,}",
            f"{section.size:,}",
            _share(section.size, model),
        )
    return table


def _totals_table(model: Model) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("total", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    totals = _totals(model)
    for name, size in totals.items():
        table.add_row(name, f"{size:,}", _share(size, model))
    other = model.file.file_size - sum(totals.values())
    table.add_row("tables and gaps", f"{other:,}", _share(other, model))
    return table


def _share(size: int, model: Model) -> str:
    return f"{100 * size / model.file.file_size:.1f} %"
