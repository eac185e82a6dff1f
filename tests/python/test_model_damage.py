# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""One flipped bit in every kind of section: `colibri --verify` and `colibri-deploy verify` name
section, layer and expert."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from reference_file import load_config
from synthetic_families import BASE, KINDS, MIXED, sections_of, write_family

from colibri_deploy.model_file import ModelFile
from colibri_deploy.process import Completed, run
from colibri_deploy.sections import ExpertLayout

Run = Callable[..., Completed]


def sections_by_kind(scratch: Path) -> dict[str, set[str]]:
    """The sections of each kind of model that no kind before it has."""
    seen: set[str] = set()
    found: dict[str, set[str]] = {}
    for name, kind in KINDS.items():
        path = scratch / f"{name}.json"
        path.write_text(json.dumps(BASE | {"architecture": name} | kind.config), encoding="utf-8")
        sections = {section for section, _ in sections_of(kind, load_config(path))}
        if sections - seen:
            found[name] = sections - seen
        seen |= sections
    return found


def flip(data: bytearray, offset: int, size: int) -> None:
    """Flips a bit in the last byte of what is at `offset`."""
    data[offset + size - 1] ^= 1 << size % 8


def test_every_kind_of_section_is_named_by_both_programs(tmp_path: Path, run_engine: Run) -> None:
    kinds = sections_by_kind(tmp_path)
    assert sum(map(len, kinds.values())) > 45
    for number, (kind, names) in enumerate(kinds.items()):
        model = tmp_path / kind
        write_family(kind, MIXED, model, expert_layout="grouped" if number % 2 else "interleaved")
        path = model / "model.bin"
        good = path.read_bytes()
        everywhere = bytearray(good)
        expected = []
        for section in ModelFile.open(path).sections:
            layer, expert = section.n_layers - 1, section.n_experts - 1
            place = (section.item_offset(layer, expert), section.item_size)
            flip(everywhere, *place)
            expected.append((place, (section.name, layer, expert)))
            if section.name not in names:
                continue
            data = bytearray(good)
            flip(data, *place)
            path.write_bytes(data)
            done = run_engine("x86_64", "--model", model, "--verify")
            assert (done.status, done.stdout) == (7, "")
            where = f"section {section.name}, layer {layer}, expert {expert}"
            assert f"{path}: {where} does not match its checksum" in done.stderr
        path.write_bytes(everywhere)
        done = verify(model, "--json")
        assert done.status == 7
        damaged = json.loads(done.stdout)["damaged"]
        assert [(one["section"], one["layer"], one["expert"]) for one in damaged] == [
            item for _, item in sorted(expected)
        ]


def verify(model: Path, *options: str) -> Completed:
    """Runs `colibri-deploy verify`, any status."""
    command: list[str | Path] = [sys.executable, "-m", "colibri_deploy", "verify", model, *options]
    return run(command, check=False)


@pytest.mark.parametrize("expert_layout", ["interleaved", "grouped"])
def test_header_tables_and_gaps_are_named(
    expert_layout: ExpertLayout, tmp_path: Path, run_engine: Run
) -> None:
    model = tmp_path / "model"
    write_family("qwen2_moe", "q8", model, expert_layout=expert_layout)
    path = model / "model.bin"
    good = path.read_bytes()
    gate = ModelFile.open(path).section("gate_weights")
    tables = 128 + 128 * len(ModelFile.open(path).sections)
    places = {"the header": 33, "the section table": tables - 90, "the CRC table": tables + 9}
    for what, offset in places.items():
        data = bytearray(good)
        data[offset] ^= 4
        path.write_bytes(data)
        engine, tool = run_engine("x86_64", "--model", model, "--verify"), verify(model)
        assert (engine.status, tool.status) == (7, 7)
        assert f"{what} does not match its checksum" in engine.stderr
        assert f"{what} is damaged" in tool.stderr
    data = bytearray(good)
    data[gate.item_offset(1, 2) + gate.item_size] ^= 4  # in the gap behind the item
    path.write_bytes(data)
    tool = verify(model)
    assert tool.status == 7
    assert "bytes after section gate_weights, layer 1, expert 2 are not all zero" in tool.stderr
    # Nothing is computed from a gap, and the engine never reads it.
    assert run_engine("x86_64", "--model", model, "--verify").status == 0
