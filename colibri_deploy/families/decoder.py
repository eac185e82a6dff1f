# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What the families descended from Llama share: pre-norm decoder layers with GQA and RoPE."""

from __future__ import annotations

import dataclasses

import numpy as np

from colibri_deploy.errors import ConfigError, ConversionError
from colibri_deploy.families.family import Kind, Piece, WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.model_config import ModelConfig

# Old checkpoints store what is computed from rope_theta anyway.
IGNORED: tuple[str, ...] = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)


@dataclasses.dataclass(frozen=True)
class Defaults:
    """What transformers' config class assumes for a key that is absent."""

    n_kv_heads: int | None  # None: as many as heads
    norm_eps: float
    max_positions: int
    bos_id: int = 1
    eos_id: int = 2


def read_config(
    hub: HubConfig,
    architecture: str,
    defaults: Defaults,
    *,
    n_experts: int,
    top_k: int,
    sliding_window: int,
) -> ModelConfig:
    """The keys that all these families have. Raises ConversionError, naming the key."""
    hub.refuse_if_set("attention_bias")
    hub.refuse_if_set("quantization_config", (None,))
    activation = hub.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise hub.refuse("hidden_act", "only silu is supported")
    n_heads = hub.integer("num_attention_heads")
    hidden_size = hub.integer("hidden_size")
    if not hub.has("head_dim") and hidden_size % n_heads:
        raise hub.refuse("hidden_size", f"not a multiple of the {n_heads} heads")
    head_dim = hub.integer("head_dim", hidden_size // n_heads)
    if head_dim % 2:
        name = "head_dim" if hub.has("head_dim") else "hidden_size"
        raise hub.refuse(name, f"RoPE needs an even head_dim, not {head_dim}")
    n_kv_heads = hub.integer("num_key_value_heads", defaults.n_kv_heads or n_heads)
    if n_heads % n_kv_heads:
        raise hub.refuse("num_key_value_heads", f"does not divide the {n_heads} heads")
    vocab_size = hub.integer("vocab_size")
    bos_ids = hub.token_ids("bos_token_id", defaults.bos_id)
    eos_ids = hub.token_ids("eos_token_id", defaults.eos_id)
    try:
        return ModelConfig(
            architecture=architecture,
            n_layers=hub.integer("num_hidden_layers"),
            hidden_size=hidden_size,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            ffn_size=hub.integer("intermediate_size"),
            vocab_size=vocab_size,
            n_experts=n_experts,
            top_k=top_k,
            max_positions=hub.integer("max_position_embeddings", defaults.max_positions),
            sliding_window=sliding_window,
            norm_eps=hub.number("rms_norm_eps", defaults.norm_eps),
            attention_scale=float(np.float32(1) / np.sqrt(np.float32(head_dim))),
            rope_scale=1.0,
            # An id outside the vocabulary (some checkpoints say -1) can neither come nor go.
            bos_id=next((token for token in bos_ids if 0 <= token < vocab_size), -1),
            eos_ids=tuple(token for token in eos_ids if 0 <= token < vocab_size),
        )
    except ConfigError as error:
        raise ConversionError(f"config.json cannot be converted: {error.message}") from None


def layer_matrix(
    config: ModelConfig, name: str, tensor: str, rows: int, cols: int, kind: Kind = Kind.matrix
) -> WeightSection:
    """One matrix [rows, cols] a layer, `model.layers.<l>.<tensor>.weight`."""

    def source(layer: int, expert: int) -> Piece:
        return Piece(f"model.layers.{layer}.{tensor}.weight", (rows, cols))

    return WeightSection(name, kind, config.n_layers, 1, rows, cols, source)


def layer_vector(config: ModelConfig, name: str, tensor: str, size: int) -> WeightSection:
    """One vector [size] a layer, `model.layers.<l>.<tensor>.weight`."""

    def source(layer: int, expert: int) -> Piece:
        return Piece(f"model.layers.{layer}.{tensor}.weight", (size,))

    return WeightSection(name, Kind.vector, config.n_layers, 1, 1, size, source)


def sections_before_ffn(config: ModelConfig) -> tuple[WeightSection, ...]:
    """Embeddings, attention and the norm before the FFN."""
    hidden = config.hidden_size
    q_size, kv_size = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    return (
        _single("embeddings", Kind.embeddings, "model.embed_tokens", (config.vocab_size, hidden)),
        layer_vector(config, "attention_norm", "input_layernorm", hidden),
        layer_matrix(config, "attention_q", "self_attn.q_proj", q_size, hidden),
        layer_matrix(config, "attention_k", "self_attn.k_proj", kv_size, hidden),
        layer_matrix(config, "attention_v", "self_attn.v_proj", kv_size, hidden),
        layer_matrix(config, "attention_o", "self_attn.o_proj", hidden, q_size),
        layer_vector(config, "ffn_norm", "post_attention_layernorm", hidden),
    )


def sections_after_ffn(config: ModelConfig, tied: bool) -> tuple[WeightSection, ...]:
    """The final norm, the head unless it is tied to the embeddings, and RoPE."""
    head = _single("lm_head", Kind.matrix, "lm_head", (config.vocab_size, config.hidden_size))
    return (
        _single("final_norm", Kind.vector, "model.norm", (config.hidden_size,)),
        *(() if tied else (head,)),
        WeightSection("rope", Kind.vector, 1, 1, 1, config.head_dim // 2, None),
    )


def _single(name: str, kind: Kind, tensor: str, shape: tuple[int, ...]) -> WeightSection:
    rows, cols = (1, *shape)[-2:]

    def source(layer: int, expert: int) -> Piece:
        return Piece(f"{tensor}.weight", shape)

    return WeightSection(name, kind, 1, 1, rows, cols, source)
