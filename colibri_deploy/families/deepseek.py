# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What DeepSeek-V2, DeepSeek-V3 and those that took it over share: latent attention, routing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from colibri_deploy.families import decoder
from colibri_deploy.families.family import Kind, Piece, WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.families.rope import positive, read_rope, yarn_factor, yarn_magnitude
from colibri_deploy.mapped_tensor import Raw
from colibri_deploy.model_config import ModelConfig, RopeKind
from colibri_deploy.tiles import FloatArray

EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
_LATENT_NORM_EPS = 1e-6  # of the norms' class, whatever rms_norm_eps says


def read_heads(hub: HubConfig, defaults: decoder.Defaults, kind: RopeKind) -> dict[str, Any]:
    """Latent attention (https://arxiv.org/abs/2405.04434)."""
    hub.refuse_if_set("attention_bias")
    n_heads = hub.integer("num_attention_heads")
    if hub.integer("num_key_value_heads", n_heads) != n_heads:
        raise hub.refuse("num_key_value_heads", f"expected {n_heads}, as there are heads")
    rotated = hub.integer("qk_rope_head_dim")
    head_dim = hub.integer("qk_nope_head_dim") + rotated
    if rotated % 2 or head_dim % 2:
        raise hub.refuse("qk_rope_head_dim", "RoPE needs an even number, and an even head_dim")
    rope = read_rope(hub, rotated, defaults.rope)
    scale = 1.0
    parameters = hub.rope()
    if parameters["rope_type"] != "default" and parameters.get("mscale_all_dim"):
        weight = positive(parameters, "mscale_all_dim")
        scale = yarn_magnitude(yarn_factor(parameters), weight) ** 2
    return {
        "n_heads": n_heads,
        "n_kv_heads": 1,
        "head_dim": head_dim,
        "attention_scale": float(np.float32(scale / np.sqrt(head_dim))),
        "rope_dim": rotated,
        "rope_kind": kind,
        "rope_scale": rope.scale,
        "max_positions": decoder.max_positions(hub, defaults, rope),
        "kv_rank": hub.integer("kv_lora_rank"),
        "q_rank": hub.integer("q_lora_rank") if hub.has("q_lora_rank") else 0,
        "v_dim": hub.integer("v_head_dim"),
        "latent_norm_eps": _LATENT_NORM_EPS,
    }


def computed(
    hub: HubConfig, config: ModelConfig, defaults: decoder.Defaults
) -> dict[str, FloatArray]:
    """RoPE's frequencies."""
    return {"rope": read_rope(hub, config.rotated, defaults.rope).frequencies[None, :]}


def sigmoid_routing(hub: HubConfig, n_groups: int, top_groups: int, scale: float) -> dict[str, Any]:
    """Scores of a sigmoid, chosen from some groups with a correction; values are defaults."""
    return {
        "router_score": "sigmoid",
        "router_weights": decoder.router_weights(hub, True),
        "router_scale": hub.number("routed_scaling_factor", scale),
        "n_groups": hub.integer("n_group", n_groups),
        "top_groups": hub.integer("topk_group", top_groups),
    }


def shared_size(hub: HubConfig, default: int) -> dict[str, Any]:
    """The shared experts are one FFN."""
    count = hub.integer("n_shared_experts", default, minimum=0)
    return {"shared_ffn_size": count * hub.integer("moe_intermediate_size")}


def ignored(config: ModelConfig) -> tuple[str, ...]:
    """Tensors that the model does not use; without shared experts theirs have no elements."""
    if config.shared_ffn_size:
        return decoder.IGNORED
    return (*decoder.IGNORED, r"model\.layers\.\d+\.mlp\.shared_experts\..*")


def dense_layers(hub: HubConfig, default: int) -> dict[str, Any]:
    """The first layers are dense."""
    if hub.integer("moe_layer_freq", 1) != 1:
        raise hub.refuse("moe_layer_freq", "only 1 is supported")
    return decoder.first_layers_without_experts(hub, default)


def attention(config: ModelConfig) -> tuple[WeightSection, ...]:
    """The matrices of latent attention."""
    hidden, layers, rank = config.hidden_size, range(config.n_layers), config.kv_rank
    q_size = config.n_heads * config.head_dim

    def matrix(name: str, tensor: str, rows: int, cols: int) -> WeightSection:
        stem = f"self_attn.{tensor}.weight"
        return decoder.per_layer(name, Kind.matrix, layers, stem, (rows, cols))

    def norm(name: str, tensor: str, size: int) -> WeightSection:
        stem = f"self_attn.{tensor}.weight"
        return decoder.per_layer(name, Kind.vector, layers, stem, (size,))

    queries = [matrix("attention_q", "q_proj", q_size, hidden)]
    if config.q_rank:
        queries = [
            matrix("attention_q_a", "q_a_proj", config.q_rank, hidden),
            norm("attention_q_a_norm", "q_a_layernorm", config.q_rank),
            matrix("attention_q", "q_b_proj", q_size, config.q_rank),
        ]
    kept = config.head_dim - config.rotated
    return (
        *queries,
        matrix("attention_kv_a", "kv_a_proj_with_mqa", rank + config.rotated, hidden),
        norm("attention_kv_a_norm", "kv_a_layernorm", rank),
        _of_heads(config, "attention_k_b", lambda head: head[:kept].T, (rank, kept)),
        _of_heads(config, "attention_v_b", lambda head: head[kept:], (config.v_dim, rank)),
        matrix("attention_o", "o_proj", hidden, config.n_heads * config.v_dim),
    )


def _of_heads(
    config: ModelConfig, name: str, view: Callable[[Raw], Raw], size: tuple[int, int]
) -> WeightSection:
    """A part of `kv_b_proj`, whose rows are, for each head, those of k and then those of v."""
    rows = config.head_dim - config.rotated + config.v_dim
    shape = (config.n_heads * rows, config.kv_rank)

    def source(layer: int, head: int) -> Piece:
        part = slice(head * rows, (head + 1) * rows)
        tensor = f"model.layers.{layer}.self_attn.kv_b_proj.weight"
        return Piece(tensor, shape, view=lambda raw: view(raw[part]))

    return WeightSection(name, Kind.matrix, config.n_layers, config.n_heads, *size, source)


def experts(config: ModelConfig, *, correction: bool) -> tuple[WeightSection, ...]:
    """Router, routed experts, shared experts and dense layers."""
    layers, sections = config.expert_layers, [decoder.router(config, "mlp.gate.weight")]
    if correction:
        name, size = "mlp.gate.e_score_correction_bias", (config.n_experts,)
        sections.append(decoder.per_layer("router_correction", Kind.vector, layers, name, size))
    sections += decoder.experts(config, "mlp.experts")
    if config.shared_ffn_size:
        shared = "mlp.shared_experts"
        sections += decoder.ffn(config, "shared_", layers, shared, config.shared_ffn_size)
    return (*sections, *decoder.dense_ffn(config))
