# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""GGUF architectures that are read as the hub's config of the same family would be.

What llama.cpp has in its code rather than in the file (whether weights are normalised, which
layers have a window) stands here, from `llama-model.cpp`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from colibri_deploy.errors import ConversionError
from colibri_deploy.families import family_of
from colibri_deploy.families.family import Family
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.gguf_keys import Keys, first_token, last_tokens
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.tiles import FloatArray


@dataclasses.dataclass(frozen=True)
class GgufModel:
    """What a file's metadata mean."""

    family: Family
    hub: HubConfig
    config: ModelConfig
    computed: Mapping[str, FloatArray]


def open_by_family(keys: Keys) -> GgufModel:
    """Read the metadata of an architecture of `HUB_CONFIGS`. Raises ConversionError."""
    values = _common(keys) | HUB_CONFIGS[keys.prefix.removesuffix(".")](keys)
    hub = HubConfig(values, where=str(keys.file.path))
    family = family_of(hub)
    config = family.read_config(hub)
    return GgufModel(family, hub, config, family.computed(hub, config))


def read_vocab_size(keys: Keys) -> int:
    """The number of rows of the embeddings, and of tokens. Raises ConversionError."""
    embeddings = keys.file.tensors.get("token_embd.weight")
    if embeddings is None or len(embeddings.shape) != 2:
        raise ConversionError(f"{keys.file.path}: tensors are missing: token_embd.weight")
    vocab_size = embeddings.shape[0]
    keys.equal("vocab_size", vocab_size, f"token_embd.weight has {vocab_size:,} rows")
    return vocab_size


def _common(keys: Keys) -> dict[str, Any]:
    """What all architectures have."""
    vocab_size = read_vocab_size(keys)
    values: dict[str, Any] = {
        "num_hidden_layers": keys.integer("block_count"),
        "hidden_size": keys.integer("embedding_length"),
        "num_attention_heads": keys.integer("attention.head_count"),
        "max_position_embeddings": keys.integer("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": vocab_size,
        "num_experts": keys.integer("expert_count"),
        "num_experts_per_tok": keys.integer("expert_used_count"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "bos_token_id": first_token(keys.file, vocab_size),
        "eos_token_id": list(last_tokens(keys.file, vocab_size)),
    }
    return values | _rope_scaling(keys)


def _heads(keys: Keys) -> dict[str, int]:
    """Of grouped-query attention."""
    hidden, n_heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_dim = keys.integer("attention.key_length", hidden // n_heads, minimum=2)
    for name in ("attention.value_length", "rope.dimension_count"):
        keys.equal(name, head_dim, f"only the whole head of {head_dim} values is supported")
    n_kv_heads = keys.integer("attention.head_count_kv", n_heads)
    return {"num_key_value_heads": n_kv_heads, "head_dim": head_dim}


def _rope_scaling(keys: Keys) -> dict[str, Any]:
    kind, factor = keys.get("rope.scaling.type", "none"), keys.number("rope.scaling.factor", 1.0)
    if kind == "none" or (kind == "linear" and factor == 1):
        return {}
    if kind not in ("linear", "yarn"):
        raise keys.refuse(f"{keys.prefix}rope.scaling.type", "supported are none, linear, yarn")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        length = keys.integer("rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = length
    return {"rope_scaling": scaling}


def _qwen2moe(keys: Keys) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2MoeForCausalLM"],
        **_heads(keys),
        **_expert_size(keys),
        "shared_expert_intermediate_size": keys.integer(
            "expert_shared_feed_forward_length", keys.get("feed_forward_length")
        ),
        "norm_topk_prob": False,
    }


def _qwen3moe(keys: Keys) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        **_heads(keys),
        **_expert_size(keys),
        "norm_topk_prob": True,
    }


def _expert_size(keys: Keys) -> dict[str, int]:
    """The neurons of one expert; old files only have those of all that a token goes to."""
    used = keys.integer("feed_forward_length") // keys.integer("expert_used_count")
    return {"moe_intermediate_size": keys.integer("expert_feed_forward_length", used)}


def _olmoe(keys: Keys) -> dict[str, Any]:
    values = {
        "architectures": ["OlmoeForCausalLM"],
        **_heads(keys),
        "intermediate_size": keys.integer("feed_forward_length"),
        "norm_topk_prob": False,
    }
    if keys.get("attention.clamp_kqv"):
        values["clip_qkv"] = keys.number("attention.clamp_kqv")
    return values


def _granitemoe(keys: Keys) -> dict[str, Any]:
    return {
        "architectures": ["GraniteMoeForCausalLM"],
        **_heads(keys),
        "intermediate_size": keys.integer("feed_forward_length"),
        "attention_multiplier": keys.number("attention.scale"),
        "embedding_multiplier": keys.number("embedding_scale", 1.0),
        "residual_multiplier": keys.number("residual_scale", 1.0),
        "logits_scaling": keys.number("logit_scale", 1.0),
    }


def _gpt_oss(keys: Keys) -> dict[str, Any]:
    """Even layers have the window; the scaling is not truncated, as in the hub's config."""
    rope = _rope_scaling(keys)
    if rope:
        rope["rope_scaling"] |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    else:
        rope["rope_scaling"] = {"rope_type": "default"}
    return {
        "architectures": ["GptOssForCausalLM"],
        **_heads(keys),
        "intermediate_size": keys.integer(
            "expert_feed_forward_length", keys.get("feed_forward_length")
        ),
        "sliding_window": keys.integer("attention.sliding_window"),
        **rope,
    }


def _deepseek2(keys: Keys) -> dict[str, Any]:
    """DeepSeek-V2 has a softmax, DeepSeek-V3 a sigmoid; the heads' own sizes are those of MLA."""
    if "attention.key_length_mla" not in keys:
        raise keys.refuse(
            f"{keys.prefix}attention.key_length_mla",
            "the file has kv_b as one matrix; convert the model to GGUF again",
        )
    rotated = keys.integer("rope.dimension_count")
    rank = keys.integer("attention.kv_lora_rank")
    keys.equal("attention.head_count_kv", 1, "latent attention has one")
    keys.equal("attention.key_length", rank + rotated, f"expected {rank} + {rotated}")
    keys.equal("attention.value_length", rank, f"expected {rank}")
    sigmoid = keys.integer("expert_gating_func", 1) == 2
    if not sigmoid:
        keys.equal("expert_gating_func", 1, "supported are 1, softmax, and 2, sigmoid")
        keys.equal("expert_weights_norm", False, "not supported with a softmax")
    n_groups = keys.integer("expert_group_count", 1)
    values: dict[str, Any] = {
        "architectures": ["DeepseekV3ForCausalLM" if sigmoid else "DeepseekV2ForCausalLM"],
        "num_key_value_heads": keys.integer("attention.head_count"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys.integer("attention.key_length_mla") - rotated,
        "v_head_dim": keys.integer("attention.value_length_mla"),
        "kv_lora_rank": rank,
        "q_lora_rank": keys.get("attention.q_lora_rank"),
        "intermediate_size": keys.integer("feed_forward_length"),
        "moe_intermediate_size": keys.integer("expert_feed_forward_length"),
        "first_k_dense_replace": keys.integer("leading_dense_block_count", 0, minimum=0),
        "n_routed_experts": keys.integer("expert_count"),
        "n_shared_experts": keys.integer("expert_shared_count", 0, minimum=0),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0),
        "norm_topk_prob": bool(keys.get("expert_weights_norm", False)),
        "n_group": n_groups,
        "topk_group": keys.integer("expert_group_used_count", 1),
        "topk_method": "noaux_tc" if sigmoid else "greedy",
    }
    if n_groups > 1 and not sigmoid:
        values["topk_method"] = "group_limited_greedy"
    scaling = _rope_scaling(keys)
    if scaling:
        # llama.cpp's converter stores a tenth of mscale_all_dim, and expects mscale to be the same.
        weight = keys.number("rope.scaling.yarn_log_multiplier") * 10
        scaling["rope_scaling"] |= {"mscale": weight, "mscale_all_dim": weight}
    return values | scaling


# Each adds to `_common` the keys of its family in the hub's config.json.
HUB_CONFIGS: dict[str, Callable[[Keys], dict[str, Any]]] = {
    "qwen2moe": _qwen2moe,
    "qwen3moe": _qwen3moe,
    "olmoe": _olmoe,
    "granitemoe": _granitemoe,
    "gpt-oss": _gpt_oss,
    "deepseek2": _deepseek2,
}
