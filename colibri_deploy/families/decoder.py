# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What the families descended from Llama share: pre-norm decoder layers with GQA and RoPE."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from colibri_deploy.errors import ConfigError, ConversionError
from colibri_deploy.families.family import Kind, Piece, WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.families.rope import Rope, RopeDefaults, read_rope
from colibri_deploy.mapped_tensor import Raw
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.tiles import FloatArray

# Old checkpoints store what is computed from rope_theta anyway.
IGNORED: tuple[str, ...] = (r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclasses.dataclass(frozen=True)
class Defaults:
    """What transformers' config class assumes for a key that is absent."""

    n_kv_heads: int | None  # None: as many as heads
    norm_eps: float
    max_positions: int
    bos_id: int | None = 1
    eos_id: int | None = 2
    head_dim: int | None = None  # None: the hidden size divided by the heads
    rope: RopeDefaults = dataclasses.field(default_factory=RopeDefaults)


def read_config(
    hub: HubConfig, architecture: str, defaults: Defaults, heads: Mapping[str, Any], **family: Any
) -> ModelConfig:
    """The keys that all these families have, `heads` and what else the `family` says.

    Raises ConversionError, naming the key.
    """
    hub.refuse_if_set("quantization_config", (None,))  # what it says has been dealt with before
    activation = ACTIVATIONS.get(hub.text("hidden_act", "silu"))
    if activation is None:
        raise hub.refuse("hidden_act", f"only {', '.join(ACTIVATIONS)} are supported")
    vocab_size = hub.integer("vocab_size")
    bos_ids = hub.token_ids("bos_token_id", defaults.bos_id)
    eos_ids = hub.token_ids("eos_token_id", defaults.eos_id)
    values: dict[str, Any] = {
        "architecture": architecture,
        "n_layers": hub.integer("num_hidden_layers"),
        "hidden_size": hub.integer("hidden_size"),
        "vocab_size": vocab_size,
        "n_experts": 0,
        "top_k": 0,
        "sliding_window": 0,
        "norm_eps": hub.number("rms_norm_eps", defaults.norm_eps),
        "activation": activation,
        # An id outside the vocabulary (some checkpoints say -1) can neither come nor go.
        "bos_id": next((token for token in bos_ids if 0 <= token < vocab_size), -1),
        "eos_ids": tuple(token for token in eos_ids if 0 <= token < vocab_size),
    }
    try:
        return ModelConfig(**values | dict(heads) | family)
    except ConfigError as error:
        raise ConversionError(f"config.json cannot be converted: {error.message}") from None


def read_heads(hub: HubConfig, defaults: Defaults) -> dict[str, Any]:
    """Attention heads, their RoPE, and how long a sequence may be."""
    n_heads = hub.integer("num_attention_heads")
    head_dim = _head_dim(hub, defaults)
    n_kv_heads = hub.integer("num_key_value_heads", defaults.n_kv_heads or n_heads)
    if n_heads % n_kv_heads:
        raise hub.refuse("num_key_value_heads", f"does not divide the {n_heads} heads")
    rope = read_rope(hub, head_dim, defaults.rope)
    rotated = 2 * len(rope.frequencies)
    return {
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": head_dim,
        "attention_scale": float(np.float32(1) / np.sqrt(np.float32(head_dim))),
        "rope_dim": None if rotated == head_dim else rotated,
        "rope_scale": rope.scale,
        "max_positions": max_positions(hub, defaults, rope),
    }


def max_positions(hub: HubConfig, defaults: Defaults, rope: Rope) -> int:
    """The longest sequence that the config and RoPE allow."""
    said = hub.integer("max_position_embeddings", defaults.max_positions)
    return said if rope.longest is None else min(said, rope.longest)


def read_experts(
    hub: HubConfig, n_default: int, top_k_default: int, *names: str
) -> tuple[int, int]:
    """How many experts there are, by the first of these keys, and how many a token goes to."""
    n_experts = hub.integer(hub.first(*names), n_default)
    top_k = hub.integer("num_experts_per_tok", top_k_default)
    if top_k > n_experts:
        raise hub.refuse("num_experts_per_tok", f"more than the {n_experts} experts there are")
    return n_experts, top_k


def router_weights(hub: HubConfig, default: bool) -> Literal["chosen", "all"]:
    """What `norm_topk_prob` means for the weights of the chosen experts."""
    return "chosen" if hub.boolean("norm_topk_prob", default) else "all"


def layers_without_experts(hub: HubConfig) -> dict[str, Any]:
    """Qwen's `mlp_only_layers` and `decoder_sparse_step`."""
    only, step = hub.integers("mlp_only_layers"), hub.integer("decoder_sparse_step", 1)
    n_layers = hub.integer("num_hidden_layers")
    dense = [layer for layer in range(n_layers) if layer in only or (layer + 1) % step]
    return _dense(hub, "decoder_sparse_step" if step > 1 else "mlp_only_layers", dense)


def first_layers_without_experts(hub: HubConfig, default: int) -> dict[str, Any]:
    """DeepSeek's `first_k_dense_replace`."""
    name = "first_k_dense_replace"
    n_layers = hub.integer("num_hidden_layers")
    return _dense(hub, name, list(range(min(hub.integer(name, default, minimum=0), n_layers))))


def windows(hub: HubConfig, window: int, usual: Sequence[int]) -> dict[str, Any]:
    """The window and its layers: those that `layer_types` calls so, or the `usual` ones."""
    kinds, layers = hub.texts("layer_types"), tuple(usual)
    if kinds:
        n_layers = hub.integer("num_hidden_layers")
        known = {"sliding_attention", "full_attention"}
        if len(kinds) != n_layers or not known.issuperset(kinds):
            raise hub.refuse("layer_types", f"expected {n_layers} of {', '.join(sorted(known))}")
        layers = tuple(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")
    return {"sliding_window": window, "window_layers": layers} if layers else {}


def _dense(hub: HubConfig, name: str, layers: list[int]) -> dict[str, Any]:
    if len(layers) == hub.integer("num_hidden_layers"):
        raise hub.refuse(name, "no layer is left that has experts")
    size = hub.integer("intermediate_size") if layers else 0
    return {"dense_layers": tuple(layers), "dense_ffn_size": size}


def _head_dim(hub: HubConfig, defaults: Defaults) -> int:
    n_heads, hidden_size = hub.integer("num_attention_heads"), hub.integer("hidden_size")
    if hub.has("head_dim") or defaults.head_dim is not None:
        head_dim = hub.integer("head_dim", defaults.head_dim or 0)
    elif hidden_size % n_heads:
        raise hub.refuse("hidden_size", f"not a multiple of the {n_heads} heads")
    else:
        head_dim = hidden_size // n_heads
    if head_dim % 2:
        name = "head_dim" if hub.has("head_dim") else "hidden_size"
        raise hub.refuse(name, f"RoPE needs an even head_dim, not {head_dim}")
    return head_dim


class Decoder:
    """What a `Family` need not say itself if nothing but RoPE's frequencies is computed."""

    defaults: Defaults

    def computed(self, hub: HubConfig, config: ModelConfig) -> dict[str, FloatArray]:
        """See `Family`."""
        rope = read_rope(hub, _head_dim(hub, self.defaults), self.defaults.rope)
        return {"rope": rope.frequencies[None, :]}

    def ignored(self, hub: HubConfig, config: ModelConfig) -> tuple[str, ...]:
        """See `Family`."""
        return IGNORED


def layers_after(hub: HubConfig, config: ModelConfig) -> str:
    """A regular expression of the tensors of layers that predict the token after the next."""
    count = hub.integer(hub.first("num_nextn_predict_layers", "num_mtp_layers"), 1, minimum=0)
    numbers = "|".join(str(config.n_layers + after) for after in range(max(count, 1)))
    return rf"model\.layers\.({numbers})\..*"


def single(name: str, kind: Kind, tensor: str, shape: tuple[int, ...]) -> WeightSection:
    """One tensor; a vector is one row."""
    rows, cols = (1, *shape)[-2:]

    def source(layer: int, expert: int) -> Piece:
        return Piece(tensor, shape)

    return WeightSection(name, kind, 1, 1, rows, cols, source)


def per_layer(
    name: str,
    kind: Kind,
    layers: Sequence[int],
    tensor: str,
    shape: tuple[int, ...],
    group: str | None = None,
) -> WeightSection:
    """The tensor `model.layers.<layer>.<tensor>` of each of these layers; a vector is one row."""
    rows, cols = (1, *shape)[-2:]

    def source(layer: int, expert: int) -> Piece:
        return Piece(f"model.layers.{layers[layer]}.{tensor}", shape)

    return WeightSection(name, kind, len(layers), 1, rows, cols, source, group)


def per_expert(
    config: ModelConfig, name: str, tensor: str, shape: tuple[int, int]
) -> WeightSection:
    """One matrix for each expert, whose number stands in `tensor` for `{}`."""
    layers = config.expert_layers

    def source(layer: int, expert: int) -> Piece:
        return Piece(f"model.layers.{layers[layer]}.{tensor.format(expert)}", shape)

    return WeightSection(
        name, Kind.matrix, len(layers), config.n_experts, *shape, source, "experts"
    )


def slabs(
    config: ModelConfig,
    name: str,
    tensor: str,
    shape: tuple[int, ...],
    view: Callable[[Raw], Raw],
    size: tuple[int, int],
    kind: Kind = Kind.matrix,
) -> WeightSection:
    """Parts of a tensor [experts, ...] that holds all experts: `view` of each, [rows, cols]."""
    layers = config.expert_layers

    def source(layer: int, expert: int) -> Piece:
        return Piece(
            f"model.layers.{layers[layer]}.{tensor}", shape, view=lambda raw: view(raw[expert])
        )

    group = "experts" if kind is Kind.matrix else None
    return WeightSection(name, kind, len(layers), config.n_experts, *size, source, group)


def ffn(
    config: ModelConfig,
    prefix: str,
    layers: Sequence[int],
    tensor: str,
    size: int,
    *,
    bias: bool = False,
) -> tuple[WeightSection, ...]:
    """An FFN of `size` neurons a layer, in the tensors `<tensor>.gate_proj` and so on."""
    hidden = config.hidden_size
    group = None if prefix else "experts"
    sections = []
    for part, rows, cols in (
        ("gate", size, hidden),
        ("up", size, hidden),
        ("down", hidden, size),
    ):
        stem, shape = f"{tensor}.{part}_proj", (rows, cols)
        name = f"{prefix}{part}"
        sections.append(
            per_layer(f"{name}_weights", Kind.matrix, layers, f"{stem}.weight", shape, group)
        )
        if bias:
            sections.append(per_layer(f"{name}_bias", Kind.vector, layers, f"{stem}.bias", (rows,)))
    return tuple(sections)


def dense_ffn(config: ModelConfig) -> tuple[WeightSection, ...]:
    """The FFNs of layers without experts in a model that has them."""
    if not config.dense_layers:
        return ()
    return ffn(config, "dense_", config.dense_layers, "mlp", config.dense_ffn_size)


def experts(
    config: ModelConfig,
    tensor: str,
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> tuple[WeightSection, ...]:
    """Gate, up and down of each expert, in the tensors `<tensor>.<expert>.<part>`."""
    size, hidden = config.ffn_size, config.hidden_size
    gate, up, down = (f"{tensor}.{{}}.{part}.weight" for part in parts)
    return (
        per_expert(config, "gate_weights", gate, (size, hidden)),
        per_expert(config, "up_weights", up, (size, hidden)),
        per_expert(config, "down_weights", down, (hidden, size)),
    )


def router(config: ModelConfig, tensor: str) -> WeightSection:
    """The router's matrix, which stays f32."""
    shape = (config.n_experts, config.hidden_size)
    return per_layer("router", Kind.exact_matrix, config.expert_layers, tensor, shape)


def attention(
    config: ModelConfig,
    *,
    bias: bool = False,
    output_bias: bool = False,
    norms: Literal["no", "heads", "whole"] = "no",
) -> tuple[WeightSection, ...]:
    """The matrices of grouped-query attention, with biases and norms of q and k."""
    hidden, layers = config.hidden_size, range(config.n_layers)
    q_size, kv_size = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    sections = []
    for part, rows, cols, has_bias in (
        ("q", q_size, hidden, bias),
        ("k", kv_size, hidden, bias),
        ("v", kv_size, hidden, bias),
        ("o", hidden, q_size, output_bias),
    ):
        name, stem = f"attention_{part}", f"self_attn.{part}_proj"
        sections.append(per_layer(name, Kind.matrix, layers, f"{stem}.weight", (rows, cols)))
        if has_bias:
            sections.append(per_layer(f"{name}_bias", Kind.vector, layers, f"{stem}.bias", (rows,)))
    if norms != "no":
        for part, whole in (("q", q_size), ("k", kv_size)):
            size = whole if norms == "whole" else config.head_dim
            name, tensor = f"attention_{part}_norm", f"self_attn.{part}_norm.weight"
            sections.append(per_layer(name, Kind.vector, layers, tensor, (size,)))
    return tuple(sections)


def before_ffn(
    config: ModelConfig, attention: tuple[WeightSection, ...], *, norm_bias: bool = False
) -> tuple[WeightSection, ...]:
    """Embeddings, `attention` and the norms around it."""
    shape = (config.vocab_size, config.hidden_size)
    return (
        single("embeddings", Kind.embeddings, "model.embed_tokens.weight", shape),
        *_norm(config, "attention_norm", "input_layernorm", norm_bias),
        *attention,
        *_norm(config, "ffn_norm", "post_attention_layernorm", norm_bias),
    )


def after_ffn(
    config: ModelConfig, tied: bool, *, norm_bias: bool = False, head_bias: bool = False
) -> tuple[WeightSection, ...]:
    """The final norm, the head unless it is tied to the embeddings, and RoPE."""
    vocab, hidden = config.vocab_size, config.hidden_size
    sections = [single("final_norm", Kind.vector, "model.norm.weight", (hidden,))]
    if norm_bias:
        sections.append(single("final_norm_bias", Kind.vector, "model.norm.bias", (hidden,)))
    if not tied:
        sections.append(single("lm_head", Kind.matrix, "lm_head.weight", (vocab, hidden)))
    if head_bias:
        sections.append(single("lm_head_bias", Kind.vector, "lm_head.bias", (vocab,)))
    sections.append(WeightSection("rope", Kind.vector, 1, 1, 1, config.rotated // 2, None))
    return tuple(sections)


def _norm(config: ModelConfig, name: str, stem: str, bias: bool) -> tuple[WeightSection, ...]:
    shape, layers = (config.hidden_size,), range(config.n_layers)
    weights = per_layer(name, Kind.vector, layers, f"{stem}.weight", shape)
    if not bias:
        return (weights,)
    return weights, per_layer(f"{name}_bias", Kind.vector, layers, f"{stem}.bias", shape)
