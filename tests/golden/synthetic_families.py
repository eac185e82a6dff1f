#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Writes small, seeded, random models of every kind that docs/FORMAT.md knows, without converters.

No size is a multiple of a tile or of a block. Values come from synthetic.py; a section's stream is
named after the section and its item.

    python tests/golden/synthetic_families.py NAME DTYPE DIR
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from reference_file import F32, Shape, load_config, shapes
from synthetic import TensorSpec, tensor_values

from colibri_deploy.model_file import ModelWriter
from colibri_deploy.sections import ExpertLayout, SectionSpec, plan_file
from colibri_deploy.tiles import BLOCK_DTYPES, TILE_DTYPES, DType, Layout, pack_rows, pack_tiles

EXPERTS = ("gate_weights", "up_weights", "down_weights")
MIXED = "mixed"  # a section in this type, the next one in another

BASE: dict[str, Any] = {
    "config_version": 1,
    "n_layers": 2,
    "hidden_size": 72,
    "ffn_size": 40,
    "n_heads": 6,
    "n_kv_heads": 2,
    "head_dim": 24,
    "vocab_size": 50,
    "n_experts": 5,
    "top_k": 3,
    "max_positions": 1000,
    "sliding_window": 0,
    "norm_eps": 1e-5,
    "attention_scale": 0.204,
    "rope_scale": 1,
    "bos_id": -1,
    "eos_ids": [],
}
LATENT = {
    "n_kv_heads": 1,
    "n_heads": 5,
    "head_dim": 36,
    "rope_dim": 10,
    "kv_rank": 40,
    "v_dim": 20,
    "latent_norm_eps": 1e-6,
}
QKV_BIASES = ("attention_q_bias", "attention_k_bias", "attention_v_bias")
NORM_BIASES = ("attention_norm_bias", "ffn_norm_bias", "final_norm_bias")
HEAD_NORMS = ("attention_q_norm", "attention_k_norm")
FFN_BIASES = ("gate_bias", "up_bias", "down_bias")


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a kind of model has beyond the base."""

    config: dict[str, Any]
    sections: tuple[str, ...] = ()  # of those that a model may have
    gated: bool = True
    tied: bool = False
    whole_norms: bool = False  # q and k are normalised over all heads
    shared_router_rows: int = 1


KINDS = {
    "qwen2_moe": Kind(
        {
            "sliding_window": 9,
            "window_layers": [1],
            "router_weights": "all",
            "shared_ffn_size": 56,
        },
        (*QKV_BIASES, "shared_router"),
    ),
    "qwen3_moe": Kind(
        {"n_layers": 3, "n_experts": 9, "top_k": 4, "dense_layers": [1], "dense_ffn_size": 88},
        HEAD_NORMS,
    ),
    "olmoe": Kind(
        {"n_experts": 7, "top_k": 1, "router_weights": "all", "qk_clip": 0.875},
        HEAD_NORMS,
        whole_norms=True,
    ),
    "deepseek_v2": Kind(
        LATENT
        | {
            "n_layers": 3,
            "n_experts": 9,
            "top_k": 4,
            "rope_kind": "pairs",
            "router_weights": "all",
            "router_scale": 1.75,
            "n_groups": 3,
            "top_groups": 2,
            "dense_layers": [0],
            "dense_ffn_size": 104,
            "shared_ffn_size": 44,
        }
    ),
    "deepseek_v3": Kind(
        LATENT
        | {
            "n_layers": 3,
            "n_experts": 12,
            "top_k": 5,
            "q_rank": 44,
            "rope_kind": "pairs",
            "router_score": "sigmoid",
            "router_scale": 2.5,
            "n_groups": 4,
            "top_groups": 2,
            "dense_layers": [0],
            "dense_ffn_size": 104,
            "shared_ffn_size": 40,
        },
        ("router_correction",),
    ),
    "granitemoe": Kind(
        {
            "embedding_scale": 12,
            "residual_scale": 0.22,
            "logit_scale": 0.1666666667,
            "attention_scale": 0.015625,
        },
        tied=True,
    ),
    "phimoe": Kind(
        {"router_score": "sparsemixer", "router_jitter": 0.21, "top_k": 2, "n_experts": 11},
        (*QKV_BIASES, "attention_o_bias", *NORM_BIASES, "lm_head_bias"),
    ),
    "gpt_oss": Kind(
        {
            "rope_scale": 1.34657,
            "sliding_window": 16,
            "window_layers": [0],
            "activation": "swiglu_oai",
            "activation_limit": 1.25,
        },
        (*QKV_BIASES, "attention_o_bias", "attention_sinks", "router_bias", *FFN_BIASES),
    ),
    "glm4_moe": Kind(
        {
            "n_layers": 3,
            "n_experts": 7,
            "rope_dim": 10,
            "router_score": "sigmoid",
            "dense_layers": [0, 2],
            "dense_ffn_size": 72,
            "shared_ffn_size": 24,
        },
        (*QKV_BIASES, *HEAD_NORMS, "router_correction"),
    ),
    # What no family above has.
    "dense": Kind(
        {"n_experts": 0, "top_k": 0, "rope_dim": 0, "activation": "gelu"},
        (*QKV_BIASES, *NORM_BIASES, "position_embeddings", "up_bias", "down_bias"),
        gated=False,
    ),
    "two_row_shared_router": Kind(
        {
            "activation": "gelu_tanh",
            "rope_kind": "pairs",
            "rope_dim": 14,
            "router_score": "sigmoid",
            "router_weights": "all",
            "shared_ffn_size": 24,
        },
        ("shared_router", "shared_router_bias", "shared_gate_bias", "shared_down_bias"),
        shared_router_rows=2,
    ),
    "latent_sinks": Kind(
        LATENT
        | {
            "n_layers": 4,
            "n_experts": 1,
            "top_k": 1,
            "activation": "gelu",
            "sliding_window": 19,
            "window_layers": [1, 3],
            "dense_layers": [1, 2],
            "dense_ffn_size": 24,
            "shared_ffn_size": 24,
        },
        (
            *("attention_q_bias", "attention_o_bias", "attention_sinks", "shared_up_bias"),
            *("shared_router", "shared_router_bias", "dense_up_bias", "dense_down_bias"),
        ),
        gated=False,
    ),
}


def sections_of(kind: Kind, config: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    """The sections of a model, in the order of the file."""
    for name, must, shape in shapes(config):
        if name.endswith("gate_weights"):
            there = kind.gated
        else:
            there = must or name in kind.sections or (name == "lm_head" and not kind.tied)
        if name.startswith("shared_router"):
            size = shape.cols if name.endswith("bias") else shape.rows
            there &= size == kind.shared_router_rows
        if name in HEAD_NORMS and kind.whole_norms:
            heads = config["n_heads" if name == "attention_q_norm" else "n_kv_heads"]
            shape = dataclasses.replace(shape, cols=shape.cols * heads)
        if there:
            yield name, shape


def values(name: str, item: int, shape: Shape) -> F32:
    """The random values (rows, cols) of an item; activations keep their size."""
    centre, spread = 0.0, 0.25
    if name == "rope":
        steps = np.arange(shape.cols) / shape.cols
        return (10000.0**-steps).astype(np.float32)[None]
    if name.endswith("_norm"):
        centre = 1.0
    elif name == "embeddings":
        spread = 1.75
    elif name == "attention_sinks":
        spread = 3.0
    elif shape.kind != "vector":
        wide = {"attention_q", "attention_k", "attention_k_b", "lm_head", "router", "shared_router"}
        spread = (2 if name in wide else 1) * math.sqrt(3 / shape.cols)
    spec = TensorSpec(f"{name}.{item}", (shape.rows, shape.cols), centre, spread)
    return np.concatenate(list(tensor_values(1, spec))).reshape(shape.rows, shape.cols)


def write_family(
    name: str,
    dtype: str,
    directory: Path,
    changes: dict[str, Any] | None = None,
    expert_layout: ExpertLayout = "interleaved",
) -> None:
    """Write the model of a kind, its matrices in `dtype` or `MIXED`, into a new directory.

    `changes` are values of config.json other than the kind's.
    """
    kind = KINDS[name]
    directory.mkdir(parents=True)
    text = json.dumps(BASE | {"architecture": name} | kind.config | (changes or {}), indent=2)
    (directory / "config.json").write_text(text + "\n", encoding="utf-8")
    found = dict(sections_of(kind, load_config(directory / "config.json")))
    turns = itertools.cycle(TILE_DTYPES)
    specs = []
    for section, shape in found.items():
        stored = DType.f32
        if shape.kind == "matrix":
            stored = next(turns) if dtype == MIXED else DType[dtype]
        in_rows = section == "embeddings" and not kind.tied and stored not in BLOCK_DTYPES
        layout = Layout.rows if shape.kind == "vector" or in_rows else Layout.tiles
        size = shape.n_layers, shape.n_experts, shape.rows, shape.cols
        group = "experts" if section in EXPERTS else None
        specs.append(SectionSpec(section, stored, layout, *size, group))
    plan = plan_file(specs, expert_layout)
    with ModelWriter(directory / "model.bin", plan) as writer:
        for one in plan.sections:
            pack = pack_tiles if one.layout is Layout.tiles else pack_rows
            for item, place in enumerate(one.items()):
                data = pack(values(one.name, item, found[one.name]), one.dtype)
                writer.write_item(one.name, *place, [data])
        writer.finish()


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    write_family(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
