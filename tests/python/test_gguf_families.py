# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""GGUF files of architectures beyond `llama`: the same model as the hub's checkpoint gives.

The files are written as llama.cpp's convert_hf_to_gguf.py does it: names from the package `gguf`,
experts stacked, keys of the architecture.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType as Types

from colibri_deploy.checkpoint import Checkpoint
from colibri_deploy.convert import convert_checkpoint, plan_conversion
from colibri_deploy.errors import ConversionError

Array = npt.NDArray[Any]

ARCHITECTURES = {
    "qwen2_moe": ("qwen2moe", gguf.MODEL_ARCH.QWEN2MOE),
    "qwen3_moe": ("qwen3moe", gguf.MODEL_ARCH.QWEN3MOE),
    "olmoe": ("olmoe", gguf.MODEL_ARCH.OLMOE),
    "granitemoe": ("granitemoe", gguf.MODEL_ARCH.GRANITE_MOE),
    "gpt_oss": ("gpt-oss", gguf.MODEL_ARCH.GPT_OSS),
    "deepseek_v2": ("deepseek2", gguf.MODEL_ARCH.DEEPSEEK2),
    "deepseek_v3": ("deepseek2", gguf.MODEL_ARCH.DEEPSEEK2),
}


def hub_checkpoint(shared: Path, name: str, directory: Path, **changes: object) -> Path:
    """A fixture without its tokenizer, the config changed."""
    directory.mkdir()
    for path in (shared / "fixtures" / name).glob("model*"):
        shutil.copy(path, directory)
    config = json.loads((shared / "fixtures" / name / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | changes))
    return directory


def split(name: str, array: Array, config: Mapping[str, Any]) -> dict[str, Array]:
    """A tensor of fused experts, or of keys and values, as the ones that GGUF has."""
    if name.endswith("kv_b_proj.weight"):  # each head: the rows of k, then those of v
        kept = config["qk_nope_head_dim"]
        heads = array.reshape(config["num_attention_heads"], -1, array.shape[-1])
        return {
            name.replace("kv_b_proj", "k_b_proj"): heads[:, :kept].transpose(0, 2, 1),
            name.replace("kv_b_proj", "v_b_proj"): heads[:, kept:],
        }
    if name.endswith("e_score_correction_bias"):
        return {name.replace("_bias", ".bias"): array}
    if name.endswith("input_linear.weight"):  # GraniteMoE: the rows of gate, then those of up
        gate, up = np.split(array, 2, axis=1)
        stem = name.removesuffix("input_linear.weight")
        return {f"{stem}gate.weight": gate, f"{stem}up.weight": up}
    if name.endswith("experts.gate_up_proj"):  # GPT-OSS: [experts, in, out], they alternate
        both = array.transpose(0, 2, 1)
        return {
            name.replace("gate_up", "gate") + ".weight": both[:, 0::2],
            name.replace("gate_up", "up") + ".weight": both[:, 1::2],
        }
    if name.endswith("experts.gate_up_proj_bias"):
        stem = name.removesuffix("gate_up_proj_bias")
        return {f"{stem}gate_proj.bias": array[:, 0::2], f"{stem}up_proj.bias": array[:, 1::2]}
    if name.endswith("experts.down_proj"):
        return {f"{name}.weight": array.transpose(0, 2, 1)}
    if name.endswith("experts.down_proj_bias"):
        return {name.replace("_bias", ".bias"): array}
    return {name: array}


FUSED = {
    "block_sparse_moe.gate": "ffn_gate_exps",
    "block_sparse_moe.up": "ffn_up_exps",
    "block_sparse_moe.output_linear": "ffn_down_exps",
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.router": "ffn_gate_inp",
    "self_attn.sinks": "attn_sinks.weight",
}


def gguf_tensors(checkpoint: Path, arch: Any, config: Mapping[str, Any]) -> dict[str, Array]:
    """float32 tensors under GGUF's names."""
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    tensors: dict[str, Array] = {}
    experts: dict[str, list[tuple[int, Array]]] = {}
    for hub_name, tensor in Checkpoint.open(checkpoint).tensors.items():
        if hub_name.startswith(f"model.layers.{config['num_hidden_layers']}."):
            continue  # predicts the token after the next
        for name, array in split(hub_name, tensor.widen(tensor.raw()), config).items():
            match = re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+)\.weight", name)
            if match:
                stem = f"{match[1]}.{match[3]}"
                experts.setdefault(stem, []).append((int(match[2]), array))
                continue
            layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+?)(\.weight|\.bias)?", name)
            assert layer or not name.startswith("model.layers")
            if layer and layer[2] in FUSED:
                found = f"blk.{layer[1]}.{FUSED[layer[2]]}{layer[3] or ''}"
            else:
                found = str(names.get_name(name, try_suffixes=(".weight", ".bias")))
            if arch is gguf.MODEL_ARCH.GRANITE_MOE and re.search(r"attn_[qk]\.", found):
                heads = "num_attention_heads" if "attn_q." in found else "num_key_value_heads"
                halves = array.reshape(config[heads], 2, -1, array.shape[-1])
                array = halves.swapaxes(1, 2).reshape(array.shape)
            tensors[found] = np.ascontiguousarray(array)
    for stem, arrays in experts.items():
        found = str(names.get_name(stem))
        tensors[f"{found}.weight"] = np.stack([array for _, array in sorted(arrays, key=first)])
    return tensors


def first(pair: tuple[int, Array]) -> int:
    return pair[0]


def metadata(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys without their architecture."""
    values: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config.get("rope_theta", 10000.0)),
        "expert_count": config.get("num_experts", config.get("num_local_experts", 0)),
        "expert_used_count": config["num_experts_per_tok"],
    }
    if name.startswith("deepseek"):
        values |= latent_metadata(config)
    if config.get("head_dim"):
        values |= dict.fromkeys(
            ("attention.key_length", "attention.value_length"), config["head_dim"]
        )
    if "moe_intermediate_size" in config:
        values["expert_feed_forward_length"] = config["moe_intermediate_size"]
    if "shared_expert_intermediate_size" in config:
        size = config["shared_expert_intermediate_size"]
        values["expert_shared_feed_forward_length"] = size
    if name == "granitemoe":
        values["rope.freq_base"] = float(config["rope_parameters"]["rope_theta"])
        values["attention.scale"] = config["attention_multiplier"]
        values["embedding_scale"] = config["embedding_multiplier"]
        values["residual_scale"] = config["residual_multiplier"]
        values["logit_scale"] = config["logits_scaling"]
    if name == "gpt_oss":
        scaling = config["rope_scaling"]
        values["attention.sliding_window"] = config["sliding_window"]
        values["expert_feed_forward_length"] = config["intermediate_size"]
        values["rope.scaling.type"] = "yarn"
        values["rope.scaling.factor"] = float(scaling["factor"])
        values["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
    return values


def latent_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of DeepSeek's attention and experts."""
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    values: dict[str, Any] = {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
        "attention.value_length_mla": config["v_head_dim"],
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": rotated,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": 2 if config["scoring_func"] == "sigmoid" else 1,
        "expert_group_count": config["n_group"],
        "expert_group_used_count": config["topk_group"],
    }
    if config["q_lora_rank"]:
        values["attention.q_lora_rank"] = config["q_lora_rank"]
    return values


def write_gguf(
    path: Path,
    arch: str,
    tensors: Mapping[str, Array],
    values: Mapping[str, Any],
    tokens: Mapping[str, int],
    kind: Types | None = None,
) -> Path:
    writer = gguf.GGUFWriter(path, arch)
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(f"{arch}.{key}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"{arch}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        else:
            writer.add_string(f"{arch}.{key}", value)
    for key, token in tokens.items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", token)
    for name, array in tensors.items():
        if kind is not None and "exps.weight" in name:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_gguf_and_checkpoint_give_the_same_files(name: str, shared: Path, tmp_path: Path) -> None:
    # What llama.cpp does whatever the hub's config says
    changes = {"norm_topk_prob": False} if name == "qwen2_moe" else {}
    source = hub_checkpoint(shared, name, tmp_path / "checkpoint", **changes)
    config = json.loads((source / "config.json").read_text())
    word, arch = ARCHITECTURES[name]
    ends = config["eos_token_id"]
    tokens = {"eos": ends[0] if isinstance(ends, list) else ends}
    if config.get("bos_token_id") is not None:
        tokens["bos"] = config["bos_token_id"]
    tensors = gguf_tensors(source, arch, config)
    values = metadata(name, config)
    path = write_gguf(tmp_path / "m.gguf", word, tensors, values, tokens)
    convert_checkpoint(source, tmp_path / "hub", "f32")
    convert_checkpoint(path, tmp_path / "gguf", "f32")
    for file in ("config.json", "model.bin"):
        assert (tmp_path / "gguf" / file).read_bytes() == (tmp_path / "hub" / file).read_bytes()
    kind = Types.MXFP4 if name == "gpt_oss" else Types.Q8_0
    path = write_gguf(tmp_path / "q.gguf", word, tensors, values, tokens, kind)
    shared_expert = name in ("qwen2_moe", "deepseek_v2", "deepseek_v3")  # which stays f32
    kept = "f32" if shared_expert else "mxfp4" if name == "gpt_oss" else "q8"
    assert plan_conversion(path).dtypes["ffn"].name == kept


def test_a_file_whose_keys_and_values_are_one_matrix_is_refused(
    shared: Path, tmp_path: Path
) -> None:
    """Written by llama.cpp before April 2025."""
    source = hub_checkpoint(shared, "deepseek_v2", tmp_path / "checkpoint")
    config = json.loads((source / "config.json").read_text())
    values = metadata("deepseek_v2", config)
    del values["attention.key_length_mla"]
    embeddings = {"token_embd.weight": np.zeros((config["vocab_size"], 64), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", "deepseek2", embeddings, values, {})
    with pytest.raises(ConversionError, match=r"key_length_mla is missing: the file has kv_b as"):
        plan_conversion(path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("expert_gating_func", 3, "expert_gating_func is 3: supported are 1, softmax, and 2"),
        ("rope.scaling.type", "longrope", "rope.scaling.type is 'longrope': supported are none"),
        ("attention.value_length", 8, "attention.value_length is 8: expected 32"),
        ("new_trick", True, "deepseek2.new_trick is True: a key that is not known"),
    ],
)
def test_what_changes_the_numbers_is_refused_by_name(
    key: str, value: Any, message: str, shared: Path, tmp_path: Path
) -> None:
    source = hub_checkpoint(shared, "deepseek_v2", tmp_path / "checkpoint")
    config = json.loads((source / "config.json").read_text())
    values = metadata("deepseek_v2", config) | {key: value}
    embeddings = {"token_embd.weight": np.zeros((config["vocab_size"], 64), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", "deepseek2", embeddings, values, {})
    with pytest.raises(ConversionError, match=message):
        plan_conversion(path)
