# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A GGUF file as the source of a conversion.

What its keys mean is what llama.cpp makes of them (`llama-model.cpp`). The architecture `llama`
(dense, or Mixtral's experts) is read here, the others are read by gguf_families.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from colibri_deploy.chat_template import gguf_template
from colibri_deploy.errors import ConfigError, ConversionError
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.families.llama import Llama
from colibri_deploy.families.mixtral import Mixtral
from colibri_deploy.families.rope import inverse_frequencies
from colibri_deploy.gguf_families import HUB_CONFIGS, GgufModel, open_by_family, read_vocab_size
from colibri_deploy.gguf_file import GgufFile
from colibri_deploy.gguf_keys import Keys, first_token, last_tokens
from colibri_deploy.gguf_tensors import gguf_section
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.source import Source
from colibri_deploy.tiles import FloatArray
from colibri_deploy.tokenizer_gguf import build_gguf_tokenizer

_THETA = 10000.0  # llama.cpp's default of rope.freq_base

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
    architecture = file.metadata.get("general.architecture")
    keys = Keys(file, str(architecture))
    if architecture != "llama" and architecture not in HUB_CONFIGS:
        known = ", ".join(("llama", *HUB_CONFIGS))
        raise keys.refuse("general.architecture", f"supported are {known}")
    _check_kind(keys)
    model = _open_llama(keys) if architecture == "llama" else open_by_family(keys)
    keys.refuse_rest()
    tied = "output.weight" not in file.tensors
    sections = model.family.sections(model.hub, model.config, tied)
    return Source(
        path=path,
        kind=f"a {architecture} GGUF",
        shapes_from="the metadata",
        config=model.config,
        tied=tied,
        sections=tuple(gguf_section(one, file, model.config) for one in sections),
        computed=model.computed,
        tensors={name: tensor for name, tensor in file.tensors.items() if name != _FACTORS},
        ignored=_IGNORED,
        tokenizer=build_gguf_tokenizer(file),
        chat_template=gguf_template(file),
    )


def _open_llama(keys: Keys) -> GgufModel:
    config = _read_config(keys)
    frequencies = _frequencies(keys, config)
    family = Mixtral() if config.n_experts else Llama()
    return GgufModel(family, HubConfig({}), config, {"rope": frequencies[None, :]})


def _check_kind(keys: Keys) -> None:
    metadata = keys.file.metadata
    if metadata.get("general.type", "model") != "model":
        raise keys.refuse("general.type", "only a model can be converted")
    if metadata.get("general.quantization_version", 2) != 2:
        raise keys.refuse("general.quantization_version", "only 2 is supported")
    if metadata.get("split.count", 1) not in (0, 1):
        raise keys.refuse("split.count", "merge the parts first (llama-gguf-split --merge)")


def _read_config(keys: Keys) -> ModelConfig:
    hidden, n_heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", hidden // n_heads, minimum=2)
    for name in ("attention.value_length", "rope.dimension_count"):
        keys.equal(name, head_dim, f"only the whole head of {head_dim} values is supported")
    n_experts = keys.integer("expert_count", 0, minimum=0)
    top_k = keys.integer("expert_used_count", 0, minimum=0)
    if top_k > n_experts or (top_k == 0) != (n_experts == 0):
        raise keys.refuse("llama.expert_used_count", f"there are {n_experts} experts")
    vocab_size = read_vocab_size(keys)
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
            bos_id=first_token(keys.file, vocab_size),
            eos_ids=last_tokens(keys.file, vocab_size),
        )
    except ConfigError as error:
        raise ConversionError(f"{keys.file.path} cannot be converted: {error.message}") from None


def _frequencies(keys: Keys, config: ModelConfig) -> FloatArray:
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
