# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Which tensor of a GGUF file each section of `model.bin` is made of (`llama-arch.cpp`).

The names say what a tensor does, whatever the architecture, as those of the sections do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from colibri_deploy.families.family import Kind, Order, Piece, WeightSection
from colibri_deploy.gguf_file import GgufFile
from colibri_deploy.mapped_tensor import Raw
from colibri_deploy.model_config import ModelConfig

_WHOLE = {
    "embeddings": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "lm_head": "output.weight",
}
# Of a layer: the first name that the file has, or the first of all.
_OF_LAYER = {
    "attention_norm": ("attn_norm.weight",),
    "attention_q": ("attn_q.weight", "attn_q_b.weight"),
    "attention_q_bias": ("attn_q.bias",),
    "attention_q_norm": ("attn_q_norm.weight",),
    "attention_k": ("attn_k.weight",),
    "attention_k_bias": ("attn_k.bias",),
    "attention_k_norm": ("attn_k_norm.weight",),
    "attention_v": ("attn_v.weight",),
    "attention_v_bias": ("attn_v.bias",),
    "attention_o": ("attn_output.weight",),
    "attention_o_bias": ("attn_output.bias",),
    "attention_q_a": ("attn_q_a.weight",),
    "attention_q_a_norm": ("attn_q_a_norm.weight",),
    "attention_kv_a": ("attn_kv_a_mqa.weight",),
    "attention_kv_a_norm": ("attn_kv_a_norm.weight",),
    "attention_sinks": ("attn_sinks.weight",),
    "ffn_norm": ("ffn_norm.weight", "post_attention_norm.weight"),
    "router": ("ffn_gate_inp.weight",),
    "router_bias": ("ffn_gate_inp.bias",),
    "router_correction": ("exp_probs_b.bias",),
    "shared_router": ("ffn_gate_inp_shexp.weight",),
    "gate_weights": ("ffn_gate.weight",),
    "up_weights": ("ffn_up.weight",),
    "down_weights": ("ffn_down.weight",),
    "dense_gate_weights": ("ffn_gate.weight",),
    "dense_up_weights": ("ffn_up.weight",),
    "dense_down_weights": ("ffn_down.weight",),
    "shared_gate_weights": ("ffn_gate_shexp.weight",),
    "shared_up_weights": ("ffn_up_shexp.weight",),
    "shared_down_weights": ("ffn_down_shexp.weight",),
}
# One matrix for each head
_OF_HEADS = {"attention_k_b": "attn_k_b.weight", "attention_v_b": "attn_v_b.weight"}
_OF_EXPERTS = {
    "gate_weights": "ffn_gate{}.weight",
    "gate_bias": "ffn_gate{}.bias",
    "up_weights": "ffn_up{}.weight",
    "up_bias": "ffn_up{}.bias",
    "down_weights": "ffn_down{}.weight",
    "down_bias": "ffn_down{}.bias",
}
# Architectures whose files have RoPE's halves as neighbours (`permute` in convert_hf_to_gguf.py)
_PERMUTED = ("llama", "mixtral", "granitemoe")


def gguf_section(section: WeightSection, file: GgufFile, config: ModelConfig) -> WeightSection:
    """A section of a family as one of this file's tensors."""
    if section.source is None:
        return section
    if section.name in _WHOLE:
        return dataclasses.replace(section, source=_whole(section, file))
    layers: Sequence[int] = range(config.n_layers)
    if config.n_experts and section.name in _OF_EXPERTS:
        return dataclasses.replace(section, source=_of_expert(section, file, config))
    if section.name in _OF_HEADS:
        return dataclasses.replace(section, source=_of_head(section))
    if section.name.startswith("dense_"):
        layers = config.dense_layers
    elif section.name.startswith(("router", "shared_")):
        layers = config.expert_layers
    return dataclasses.replace(section, source=_of_layer(section, file, config, layers))


def _whole(section: WeightSection, file: GgufFile) -> Callable[[int, int], Piece]:
    name = _WHOLE[section.name]
    return lambda layer, expert: Piece(name, _shape(section, file, name))


def _of_layer(
    section: WeightSection, file: GgufFile, config: ModelConfig, layers: Sequence[int]
) -> Callable[[int, int], Piece]:
    names = _OF_LAYER[section.name]
    rows: Order | None = None
    if config.architecture in _PERMUTED and section.name in ("attention_q", "attention_k"):
        n_heads = config.n_heads if section.name == "attention_q" else config.n_kv_heads
        rows = _half_rotation(n_heads, config.head_dim)

    def source(layer: int, expert: int) -> Piece:
        candidates = [f"blk.{layers[layer]}.{name}" for name in names]
        name = next((one for one in candidates if one in file.tensors), candidates[0])
        return Piece(name, _shape(section, file, name), rows=rows)

    return source


def _of_head(section: WeightSection) -> Callable[[int, int], Piece]:
    name = _OF_HEADS[section.name]
    shape = (section.n_experts, section.rows, section.cols)
    return lambda layer, head: Piece(f"blk.{layer}.{name}", shape, view=_slab(head))


def _of_expert(
    section: WeightSection, file: GgufFile, config: ModelConfig
) -> Callable[[int, int], Piece]:
    name = _OF_EXPERTS[section.name]

    def source(layer: int, expert: int) -> Piece:
        place = f"blk.{config.expert_layers[layer]}.{name}"
        single = place.format(f".{expert}")
        if single in file.tensors:  # files from before April 2024
            return Piece(single, (section.rows, section.cols))
        if section.kind is Kind.vector:
            shape: tuple[int, ...] = (config.n_experts, section.cols)
            return Piece(place.format("_exps"), shape, view=lambda raw: raw[expert][None])
        shape = (config.n_experts, section.rows, section.cols)
        return Piece(place.format("_exps"), shape, view=_slab(expert))

    return source


def _shape(section: WeightSection, file: GgufFile, name: str) -> tuple[int, ...]:
    """A vector's one dimension, or a matrix' two; a matrix of one row may have been squeezed."""
    tensor = file.tensors.get(name)
    squeezed = section.rows == 1 and tensor is not None and len(tensor.shape) == 1
    if section.kind is Kind.vector or squeezed:
        return (section.cols,)
    return (section.rows, section.cols)


def _slab(index: int) -> Callable[[Raw], Raw]:
    return lambda raw: raw[index]


def _half_rotation(n_heads: int, head_dim: int) -> Order:
    """The rows of q or k in the hub's order.

    GGUF's RoPE rotates neighbours, so its writer moved rows `i` and `i + D/2` of a head next to
    each other.
    """

    def order() -> npt.NDArray[np.intp]:
        stored = np.arange(n_heads * head_dim).reshape(n_heads, head_dim // 2, 2)
        return stored.transpose(0, 2, 1).reshape(-1)

    return order
