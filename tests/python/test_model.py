# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A model directory whose two files do not fit each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.errors import ColibriDeployError, ConfigError, ModelFormatError
from colibri_deploy.model import Model
from colibri_deploy.model_file import ModelFile, ModelWriter
from colibri_deploy.sections import SectionSpec, plan_file
from colibri_deploy.tiles import DType, Layout


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ('"mixtral"', '""', ConfigError, "architecture is , expected 1 to 31 characters"),
        (
            '"ffn_size": 40',
            '"ffn_size": 41',
            ConfigError,
            "section gate_weights holds 2 x 3 of 40 x 32, config.json implies 2 x 3 of 41 x 32",
        ),
        ('"vocab_size": 50', '"vocab_size": 51', ConfigError, "section embeddings holds 1 x 1 of"),
        (
            '"n_experts": 3,\n  "top_k": 2',
            '"n_experts": 0,\n  "top_k": 0',
            ModelFormatError,
            "has a section router, which a model of this config.json does not have",
        ),
        (
            '"rope_scale": 1.0,',
            '"rope_scale": 1.0, "shared_ffn_size": 24,',
            ModelFormatError,
            "lacks the section shared_gate_weights",
        ),
        (
            '"rope_scale": 1.0,',
            '"rope_scale": 1.0, "dense_layers": [0], "dense_ffn_size": 40,',
            ConfigError,
            "section gate_weights holds 2 x 3 of 40 x 32, config.json implies 1 x 3 of 40 x 32",
        ),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    old: str,
    new: str,
    error: type[ColibriDeployError],
    message: str,
    checkpoint: Path,
    tmp_path: Path,
) -> None:
    convert_checkpoint(checkpoint, tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.write_text(config.read_text().replace(old, new))
    with pytest.raises(error) as caught:
        Model.open(tmp_path / "m")
    assert message in caught.value.message


def rewrite(path: Path, change: Callable[[SectionSpec], SectionSpec | None]) -> None:
    """Write a `model.bin` anew, of zeros, with other sections."""
    old = ModelFile.open(path).sections
    names = [field.name for field in dataclasses.fields(SectionSpec) if field.name != "group"]
    specs = [SectionSpec(**{name: getattr(one, name) for name in names}) for one in old]
    changed = [one for spec in specs if (one := change(spec)) is not None]
    path.unlink()
    plan = plan_file(changed, "interleaved")
    with ModelWriter(path, plan) as writer:
        for section in plan.sections:
            for layer, expert in section.items():
                writer.write_item(section.name, layer, expert, [bytes(section.item_size)])
        writer.finish()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("router", None, "lacks the section router"),
        ("embeddings", None, "lacks the section embeddings"),
        ("router", {"name": "router_2"}, "has a section router_2, which a model of this config.js"),
        ("router", {"dtype": DType.q4}, "router is stored as q4 tiles, expected f32 tiles"),
        ("router", {"dtype": DType.f16}, "router is stored as f16 tiles, expected f32 tiles"),
        ("final_norm", {"dtype": DType.bf16}, "final_norm is stored as bf16 rows, expected f32 r"),
        ("lm_head", {"layout": Layout.rows}, "lm_head is stored as f32 rows, expected f32/f16/b"),
        ("embeddings", {"layout": Layout.tiles}, "embeddings is stored as f32 tiles, expected f32"),
        (
            "lm_head",
            None,
            "embeddings is stored as f32 rows, expected f32/f16/bf16/q8/q4/mxfp4 tiles",
        ),
        ("rope", {"name": "tokenizer"}, "section tokenizer is not one row of bytes"),
    ],
)
def test_sections_that_the_engine_would_not_take_are_refused(
    name: str, changes: dict[str, Any] | None, message: str, checkpoint: Path, tmp_path: Path
) -> None:
    def change(spec: SectionSpec) -> SectionSpec | None:
        if spec.name != name:
            return spec
        return None if changes is None else dataclasses.replace(spec, **changes)

    convert_checkpoint(checkpoint, tmp_path / "m")
    path = tmp_path / "m" / "model.bin"
    rewrite(path, change)
    with pytest.raises(ModelFormatError) as caught:
        Model.open(tmp_path / "m")
    assert message in caught.value.message
    assert caught.value.message.startswith(str(path))
