# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The sections that a model's config calls for, and those that it may have (docs/FORMAT.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TypeAlias

from colibri_deploy.families.family import Kind
from colibri_deploy.model_config import ModelConfig

Shape: TypeAlias = tuple[int, int, int, int]  # layers, experts, rows, columns


@dataclasses.dataclass(frozen=True)
class Expected:
    """A section of a model; it has one of the `shapes`."""

    name: str
    kind: Kind
    shapes: tuple[Shape, ...]
    required: bool = True


def expected_sections(config: ModelConfig, tied: bool) -> dict[str, Expected]:
    """All sections that a model of this config may have, but `tokenizer`; no head if `tied`."""
    one = (
        *_ends(config, tied),
        *(_latent_attention(config) if config.kv_rank else _attention(config)),
        *_ffns(config),
    )
    return {section.name: section for section in one}


def _matrix(name: str, *shape: int, required: bool = True) -> Expected:
    layers, experts, rows, cols = shape
    return Expected(name, Kind.matrix, ((layers, experts, rows, cols),), required)


def _vector(
    name: str, layers: int, *sizes: int, experts: int = 1, required: bool = False
) -> Expected:
    shapes = tuple((layers, experts, 1, size) for size in sizes)
    return Expected(name, Kind.vector, shapes, required)


def _ends(config: ModelConfig, tied: bool) -> Iterator[Expected]:
    vocab, hidden = config.vocab_size, config.hidden_size
    yield Expected("embeddings", Kind.embeddings, ((1, 1, vocab, hidden),))
    places = ((1, 1, config.max_positions, hidden),)
    yield Expected("position_embeddings", Kind.vector, places, required=False)
    yield _vector("final_norm", 1, hidden, required=True)
    yield _vector("final_norm_bias", 1, hidden)
    if not tied:
        yield _matrix("lm_head", 1, 1, vocab, hidden)
    yield _vector("lm_head_bias", 1, vocab)
    if config.rotated:
        yield _vector("rope", 1, config.rotated // 2, required=True)
    for name in ("attention_norm", "ffn_norm"):
        yield _vector(name, config.n_layers, hidden, required=True)
        yield _vector(f"{name}_bias", config.n_layers, hidden)


def _attention(config: ModelConfig) -> Iterator[Expected]:
    layers, hidden, dim = config.n_layers, config.hidden_size, config.head_dim
    q_size, kv_size = config.n_heads * dim, config.n_kv_heads * dim
    for name, rows, cols in (
        ("attention_q", q_size, hidden),
        ("attention_k", kv_size, hidden),
        ("attention_v", kv_size, hidden),
        ("attention_o", hidden, q_size),
    ):
        yield _matrix(name, layers, 1, rows, cols)
        yield _vector(f"{name}_bias", layers, rows)
    yield _vector("attention_q_norm", layers, dim, q_size)
    yield _vector("attention_k_norm", layers, dim, kv_size)
    yield _vector("attention_sinks", layers, config.n_heads)


def _latent_attention(config: ModelConfig) -> Iterator[Expected]:
    layers, hidden, heads = config.n_layers, config.hidden_size, config.n_heads
    rank, q_rank = config.kv_rank, config.q_rank
    if q_rank:
        yield _matrix("attention_q_a", layers, 1, q_rank, hidden)
        yield _vector("attention_q_a_norm", layers, q_rank, required=True)
    yield _matrix("attention_q", layers, 1, heads * config.head_dim, q_rank or hidden)
    yield _vector("attention_q_bias", layers, heads * config.head_dim)
    yield _matrix("attention_kv_a", layers, 1, rank + config.rotated, hidden)
    yield _vector("attention_kv_a_norm", layers, rank, required=True)
    yield _matrix("attention_k_b", layers, heads, rank, config.head_dim - config.rotated)
    yield _matrix("attention_v_b", layers, heads, config.v_dim, rank)
    yield _matrix("attention_o", layers, 1, hidden, heads * config.v_dim)
    yield _vector("attention_o_bias", layers, hidden)
    yield _vector("attention_sinks", layers, heads)


def _ffns(config: ModelConfig) -> Iterator[Expected]:
    layers, hidden, experts = len(config.expert_layers), config.hidden_size, config.n_experts
    yield from _ffn(config, "", layers, max(experts, 1), config.ffn_size)
    if config.dense_layers:
        yield from _ffn(config, "dense_", len(config.dense_layers), 1, config.dense_ffn_size)
    if experts:
        yield Expected("router", Kind.exact_matrix, ((layers, 1, experts, hidden),))
        yield _vector("router_bias", layers, experts)
        yield _vector("router_correction", layers, experts)
    if config.shared_ffn_size:
        yield from _ffn(config, "shared_", layers, 1, config.shared_ffn_size)
        shapes = tuple((layers, 1, rows, hidden) for rows in (1, 2))
        yield Expected("shared_router", Kind.exact_matrix, shapes, required=False)
        yield _vector("shared_router_bias", layers, 1, 2)


def _ffn(
    config: ModelConfig, prefix: str, layers: int, experts: int, size: int
) -> Iterator[Expected]:
    hidden, gated = config.hidden_size, config.activation in ("silu", "swiglu_oai")
    for part, rows, cols in (("gate", size, hidden), ("up", size, hidden), ("down", hidden, size)):
        required = gated or part != "gate"
        yield _matrix(f"{prefix}{part}_weights", layers, experts, rows, cols, required=required)
        yield _vector(f"{prefix}{part}_bias", layers, rows, experts=experts)
