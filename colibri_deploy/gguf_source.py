# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A GGUF file of the architecture `llama` (dense, or Mixtral's experts) as a conversion's source.

What its keys mean is what llama.cpp makes of them (`llama-model.cpp`, LLM_ARCH_LLAMA). Its names
of tensors are mapped to the hub's, so that the families of this package serve both.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri_deploy.errors import ConfigError, ConversionError
from colibri_deploy.families.family import Order, Piece, WeightSection
from colibri_deploy.families.hub_config import HubConfig, is_number
from colibri_deploy.families.llama import Llama
from colibri_deploy.families.mixtral import Mixtral
from colibri_deploy.families.rope import inverse_frequencies
from colibri_deploy.gguf_file import GgufFile
from colibri_deploy.mapped_tensor import Raw
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.source import Source
from colibri_deploy.tiles import FloatArray
from colibri_deploy.tokenizer_gguf import build_gguf_tokenizer

_PREFIX = "llama."
_THETA = 10000.0  # llama.cpp's default of rope.freq_base

# Keys that say nothing about the numbers.
_SILENT = ("tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length")
# Keys whose value must be the one that changes nothing.
_NEUTRAL: dict[str, Any] = {
    "use_parallel_residual": False,
    "attention.sliding_window": 0,
    "attention.clamp_kqv": 0,
    "attention.causal": True,
    "expert_shared_count": 0,
    "logit_scale": 1,
    "residual_scale": 1,
    "embedding_scale": 1,
    "rope.scaling.attn_factor": 1,
}

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "w1": "ffn_gate",
    "w2": "ffn_down",
    "w3": "ffn_up",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(?:block_sparse_moe\.experts\.(\d+)\.)?(.+)\.weight")
_FACTORS = "rope_freqs.weight"
_IGNORED = (r"blk\.\d+\.attn_rot_embd(\.weight)?",)  # recomputed from the metadata, as in llama.cpp


def is_gguf(path: Path) -> bool:
    """Whether a conversion's source is meant as a GGUF file: it is no directory."""
    return path.is_file()


def open_gguf_source(path: Path) -> Source:
    """Read a file's header and say what it means.

    Raises FileMissingError, and ConversionError, with the key's or the tensor's name, for
    everything that the engine would compute otherwise.
    """
    file = GgufFile.open(path)
    keys = _Keys(file)
    config = _read_config(keys)
    frequencies = _frequencies(keys, config)
    keys.refuse_rest()
    family = Mixtral() if config.n_experts else Llama()
    tied = "output.weight" not in file.tensors
    stored = family.sections(HubConfig({}), config, tied)
    sections = tuple(_translate(section, file, config) for section in stored)
    tensors = {name: tensor for name, tensor in file.tensors.items() if name != _FACTORS}
    return Source(
        path=path,
        kind="a llama GGUF",
        shapes_from="the metadata",
        config=config,
        tied=tied,
        sections=sections,
        computed={"rope": frequencies[None, :]},
        tensors=tensors,
        ignored=_IGNORED,
        tokenizer=build_gguf_tokenizer(file),
    )


class _Keys:
    """Typed access to the keys `llama.*`; remembers which were asked for."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self._known = {*_SILENT}

    def refuse(self, name: str, why: str) -> ConversionError:
        """An error about a key, to be raised."""
        value = self.file.metadata.get(name)
        shown = "missing" if value is None else f"{value!r:.60}"
        return ConversionError(f"{self.file.path}: {name} is {shown}: {why}")

    def get(self, name: str, default: Any = None) -> Any:
        self._known.add(name)
        value = self.file.metadata.get(_PREFIX + name)
        if isinstance(value, list) and value and all(one == value[0] for one in value):
            value = value[0]  # one value a layer
        return default if value is None else value

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        value = self.get(name, default)
        if type(value) is not int or value < minimum:
            raise self.refuse(_PREFIX + name, f"expected an integer of at least {minimum}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if not is_number(value) or value <= 0:
            raise self.refuse(_PREFIX + name, "expected a positive number")
        return float(value)

    def equal(self, name: str, value: Any, why: str) -> None:
        """Refuse any value but this one; the key may be absent."""
        if self.get(name, value) != value:
            raise self.refuse(_PREFIX + name, why)

    def refuse_rest(self) -> None:
        """Every other key may change what the model computes."""
        for name, neutral in _NEUTRAL.items():
            self.equal(name, neutral, "not supported")
        for name in self.file.metadata:
            if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) not in self._known:
                raise self.refuse(name, "a key that is not known; it may change the numbers")


def _read_config(keys: _Keys) -> ModelConfig:
    metadata = keys.file.metadata
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise keys.refuse("general.architecture", "only llama is supported")
    if metadata.get("general.type", "model") != "model":
        raise keys.refuse("general.type", "only a model can be converted")
    if metadata.get("general.quantization_version", 2) != 2:
        raise keys.refuse("general.quantization_version", "only 2 is supported")
    if metadata.get("split.count", 1) not in (0, 1):
        raise keys.refuse("split.count", "merge the parts first (llama-gguf-split --merge)")
    hidden, n_heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", hidden // n_heads, minimum=2)
    for name in ("attention.value_length", "rope.dimension_count"):
        keys.equal(name, head_dim, f"only the whole head of {head_dim} values is supported")
    n_experts = keys.integer("expert_count", 0, minimum=0)
    top_k = keys.integer("expert_used_count", 0, minimum=0)
    if top_k > n_experts or (top_k == 0) != (n_experts == 0):
        raise keys.refuse("llama.expert_used_count", f"there are {n_experts} experts")
    embeddings = keys.file.tensors.get("token_embd.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise ConversionError(f"{keys.file.path}: tensors are missing: token_embd.weight")
    vocab_size = embeddings.shape[0]
    keys.equal("vocab_size", vocab_size, f"token_embd.weight has {vocab_size:,} rows")
    try:
        return ModelConfig(
            architecture="mixtral" if n_experts else "llama",
            n_layers=keys.integer("block_count"),
            hidden_size=hidden,
            n_heads=n_heads,
            n_kv_heads=keys.integer("attention.head_count_kv", n_heads),
            head_dim=head_dim,
            ffn_size=keys.integer("feed_forward_length"),
            vocab_size=vocab_size,
            n_experts=n_experts,
            top_k=top_k,
            max_positions=keys.integer("context_length"),
            sliding_window=0,
            norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
            attention_scale=float(np.float32(1) / np.sqrt(np.float32(head_dim))),
            rope_scale=1.0,
            bos_id=_token(metadata, "bos", vocab_size),
            eos_ids=tuple(
                dict.fromkeys(
                    token
                    for token in (_token(metadata, name, vocab_size) for name in _ENDS)
                    if token >= 0
                )
            ),
        )
    except ConfigError as error:
        raise ConversionError(f"{keys.file.path} cannot be converted: {error.message}") from None


_ENDS = ("eos", "eot", "eom")  # tokens that end a text, a turn, a message


def _token(metadata: dict[str, Any], name: str, vocab_size: int) -> int:
    """The token that the tokenizer's metadata name, or -1."""
    token = metadata.get(f"tokenizer.ggml.{name}_token_id", -1)
    return token if type(token) is int and 0 <= token < vocab_size else -1


def _frequencies(keys: _Keys, config: ModelConfig) -> FloatArray:
    """RoPE's inverse frequencies [head_dim / 2]: linear scaling, then the factors of Llama 3.1.

    llama.cpp divides the angle by the factor, the float32 frequency here is divided instead.
    """
    kind = keys.get("rope.scaling.type", "linear")  # llama.cpp's default
    factor = keys.number("rope.scaling.factor", keys.get("rope.scale_linear", 1.0))
    if kind not in ("none", "linear"):
        raise keys.refuse("llama.rope.scaling.type", "only none and linear are supported")
    rope: dict[str, Any] = {"rope_theta": keys.number("rope.freq_base", _THETA)}
    if kind == "linear" and factor != 1:
        rope["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    hub = HubConfig(rope, where=str(keys.file.path))
    frequencies = inverse_frequencies(hub, config.head_dim, _THETA)
    tensor = keys.file.tensors.get(_FACTORS)
    if tensor is None:
        return frequencies
    if tensor.shape != frequencies.shape or tensor.stored != "F32":
        raise ConversionError(
            f"{_FACTORS} has shape {list(tensor.shape)} of {tensor.stored}, "
            f"expected {list(frequencies.shape)} of F32"
        )
    factors = tensor.widen(tensor.raw())
    if not bool((np.isfinite(factors) & (factors > 0)).all()):
        raise ConversionError(f"{_FACTORS} holds factors that are not positive numbers")
    return frequencies / factors


def _translate(section: WeightSection, file: GgufFile, config: ModelConfig) -> WeightSection:
    """A section of the hub's tensors as one of this file's."""
    if section.source is None:
        return section
    source = section.source
    rows: Order | None = None
    if section.name in ("attention_q", "attention_k"):
        n_heads = config.n_heads if section.name == "attention_q" else config.n_kv_heads
        rows = _half_rotation(n_heads, config.head_dim)

    def translated(layer: int, expert: int) -> Piece:
        piece = source(layer, expert)
        match = _LAYER.fullmatch(piece.tensor)
        if match is None:
            name = _NAMES[piece.tensor.removesuffix(".weight")]
            return dataclasses.replace(piece, tensor=f"{name}.weight")
        number, of_expert, name = match.groups()
        name = f"blk.{number}.{_NAMES[name]}"
        if of_expert is None:
            return dataclasses.replace(piece, tensor=f"{name}.weight", rows=rows)
        if f"{name}.{of_expert}.weight" in file.tensors:  # files from before April 2024
            return dataclasses.replace(piece, tensor=f"{name}.{of_expert}.weight")
        shape = (config.n_experts, *piece.shape)
        return Piece(f"{name}_exps.weight", shape, view=_slab(expert))

    return dataclasses.replace(section, source=translated)


def _slab(index: int) -> Callable[[Raw], Raw]:
    return lambda raw: raw[index]


def _half_rotation(n_heads: int, head_dim: int) -> Order:
    """The rows of q or k in the hub's order.

    GGUF's RoPE rotates neighbours, so its writer moved rows `i` and `i + D/2` of a head next to
    each other (`permute` in convert_hf_to_gguf.py).
    """

    def order() -> npt.NDArray[np.intp]:
        stored = np.arange(n_heads * head_dim).reshape(n_heads, head_dim // 2, 2)
        return stored.transpose(0, 2, 1).reshape(-1)

    return order
