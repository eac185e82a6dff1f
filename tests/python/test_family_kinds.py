# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Every family: what its config becomes, the sections of it, parts of tensors, and refusals.

The numbers of whole models are in tests/golden/test_fixtures.py.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri_deploy.convert import plan_conversion
from colibri_deploy.errors import ConversionError
from colibri_deploy.families import FAMILIES, family_of
from colibri_deploy.families.family import WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.model_sections import expected_sections

Config = dict[str, Any]

COMMON: Config = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "vocab_size": 90,
}
MOE = COMMON | {"num_experts_per_tok": 2, "moe_intermediate_size": 20}
LATENT = MOE | {
    "first_k_dense_replace": 1,
    "kv_lora_rank": 10,
    "n_routed_experts": 8,
    "num_key_value_heads": 4,
    "q_lora_rank": 14,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}
CONFIGS: dict[str, Config] = {
    "LlamaForCausalLM": COMMON | {"attention_bias": True, "mlp_bias": True},
    "MixtralForCausalLM": COMMON | {"num_local_experts": 8, "sliding_window": 7},
    "Qwen2MoeForCausalLM": MOE | {"num_experts": 8, "shared_expert_intermediate_size": 30},
    "Qwen3MoeForCausalLM": MOE | {"num_local_experts": 8, "norm_topk_prob": True, "head_dim": 16},
    "OlmoeForCausalLM": COMMON | {"num_experts": 8, "clip_qkv": 8.0},
    "DeepseekV2ForCausalLM": LATENT | {"q_lora_rank": None},
    "DeepseekV3ForCausalLM": LATENT | {"n_group": 4, "topk_group": 2},
    "GraniteMoeForCausalLM": COMMON | {"logits_scaling": 8.0, "residual_multiplier": 0.5},
    "PhimoeForCausalLM": COMMON | {"attention_bias": True, "lm_head_bias": True},
    "GptOssForCausalLM": COMMON | {"num_local_experts": 8, "head_dim": 12},
    "Glm4MoeForCausalLM": MOE | {"n_routed_experts": 8, "use_qk_norm": True, "head_dim": 12},
}


def read(name: str, change: Config | None = None) -> tuple[ModelConfig, dict[str, WeightSection]]:
    """The model's config and sections of a checkpoint's config."""
    hub = HubConfig(CONFIGS[name] | {"architectures": [name]} | (change or {}))
    family = family_of(hub)
    config = family.read_config(hub)
    sections = family.sections(hub, config, tied=False)
    computed = family.computed(hub, config)
    for section in sections:
        if section.source is None:
            shape = (section.n_layers * section.rows, section.cols)
            assert computed[section.name].shape == shape, section.name
    return config, {section.name: section for section in sections}


def test_every_family_is_tested_here() -> None:
    assert {family.hub_architecture for family in FAMILIES} == set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_sections_are_those_of_the_format(name: str) -> None:
    config, sections = read(name)
    expected = expected_sections(config, tied=False)
    assert {name for name, one in expected.items() if one.required} <= set(sections)
    for name, section in sections.items():
        shape = (section.n_layers, section.n_experts, section.rows, section.cols)
        assert shape in expected[name].shapes, name
        assert section.kind is expected[name].kind, name


@pytest.mark.parametrize("name", CONFIGS)
def test_views_have_the_items_shape_and_no_element_is_left_out(name: str) -> None:
    _, sections = read(name)
    seen: dict[str, list[Any]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for section in sections.values():
        if section.source is None:
            continue
        for layer in range(section.n_layers):
            for expert in range(section.n_experts):
                piece = section.source(layer, expert)
                assert shapes.setdefault(piece.tensor, piece.shape) == piece.shape
                raw = np.arange(np.prod(piece.shape)).reshape(piece.shape)
                item = raw.reshape(section.rows, -1) if piece.view is None else piece.view(raw)
                assert item.shape == (section.rows, section.cols), section.name
                seen.setdefault(piece.tensor, []).append(item.ravel())
    for tensor, items in seen.items():
        elements = np.sort(np.concatenate(items))
        assert np.array_equal(elements, np.arange(np.prod(shapes[tensor]))), tensor


def part(name: str, section: str, layer: int, expert: int, raw: Any) -> Any:
    """What an item takes out of a tensor."""
    _, sections = read(name)
    source = sections[section].source
    assert source is not None
    piece = source(layer, expert)
    assert piece.view is not None
    assert piece.shape == raw.shape
    return piece.view(raw)


def test_latent_attention_splits_keys_and_values_of_each_head() -> None:
    raw = np.random.default_rng(1).random((4 * (6 + 5), 10))
    for head in range(4):
        first = head * 11
        keys = part("DeepseekV2ForCausalLM", "attention_k_b", 0, head, raw)
        assert np.array_equal(keys, np.transpose(raw[first : first + 6]))
        values = part("DeepseekV2ForCausalLM", "attention_v_b", 0, head, raw)
        assert np.array_equal(values, raw[first + 6 : first + 11])


def test_gpt_oss_has_gate_and_up_in_turn_and_transposed() -> None:
    name = "GptOssForCausalLM"
    raw = np.random.default_rng(1).random((8, 48, 80))
    gate, up = (part(name, f"{one}_weights", 1, 3, raw) for one in ("gate", "up"))
    for neuron in (0, 1, 39):
        assert np.array_equal(gate[neuron], raw[3, :, 2 * neuron])
        assert np.array_equal(up[neuron], raw[3, :, 2 * neuron + 1])
    down = np.random.default_rng(1).random((8, 40, 48))
    assert np.array_equal(part(name, "down_weights", 1, 3, down)[7], down[3, :, 7])
    bias = np.random.default_rng(1).random((8, 80))
    assert np.array_equal(part(name, "up_bias", 1, 3, bias)[0], bias[3, 1::2])


def test_granite_has_gate_before_up() -> None:
    raw = np.random.default_rng(1).random((8, 80, 48))
    name = "GraniteMoeForCausalLM"
    assert np.array_equal(part(name, "gate_weights", 1, 3, raw), raw[3, :40])
    assert np.array_equal(part(name, "up_weights", 1, 3, raw), raw[3, 40:])


def test_experts_of_a_model_with_dense_layers_are_those_of_the_others() -> None:
    _, sections = read("DeepseekV3ForCausalLM")
    for name, tensor in (
        ("up_weights", "model.layers.2.mlp.experts.5.up_proj.weight"),
        ("router", "model.layers.2.mlp.gate.weight"),
        ("router_correction", "model.layers.2.mlp.gate.e_score_correction_bias"),
        ("shared_down_weights", "model.layers.2.mlp.shared_experts.down_proj.weight"),
    ):
        source = sections[name].source
        assert sections[name].n_layers == 2
        assert source is not None
        assert source(1, 5).tensor == tensor
    dense = sections["dense_up_weights"].source
    assert dense is not None
    assert dense(0, 0).tensor == "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("MixtralForCausalLM", {}, {"sliding_window": 7, "window_layers": None, "top_k": 2}),
        ("LlamaForCausalLM", {"hidden_act": "gelu"}, {"activation": "gelu", "rope_dim": None}),
        ("LlamaForCausalLM", {"hidden_act": "gelu_pytorch_tanh"}, {"activation": "gelu_tanh"}),
        (
            "Qwen2MoeForCausalLM",
            {"mlp_only_layers": [0]},
            {"dense_layers": (0,), "dense_ffn_size": 40, "ffn_size": 20, "shared_ffn_size": 30},
        ),
        ("Qwen2MoeForCausalLM", {"decoder_sparse_step": 2}, {"dense_layers": (0, 2)}),
        ("Qwen2MoeForCausalLM", {"sliding_window": 9}, {"sliding_window": 0}),
        (
            "Qwen2MoeForCausalLM",
            {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 2},
            {"sliding_window": 9, "window_layers": (0,), "router_weights": "all"},
        ),
        (
            "Qwen2MoeForCausalLM",
            {"use_sliding_window": True, "layer_types": ["full_attention"] * 3},
            {"sliding_window": 0, "window_layers": None},
        ),
        (
            "Qwen3MoeForCausalLM",
            {"sliding_window": 9, "use_sliding_window": True},
            {"sliding_window": 9, "window_layers": None, "router_weights": "chosen"},
        ),
        ("OlmoeForCausalLM", {}, {"qk_clip": 8.0, "router_weights": "all", "eos_ids": ()}),
        (
            "DeepseekV2ForCausalLM",
            {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2},
            {"n_groups": 4, "top_groups": 2, "router_weights": "all", "router_score": "softmax"},
        ),
        (
            "DeepseekV2ForCausalLM",
            {"n_group": 4, "topk_group": 2, "rms_norm_eps": 1e-5},
            {"n_groups": 1, "kv_rank": 10, "q_rank": 0, "v_dim": 5, "latent_norm_eps": 1e-6},
        ),
        (
            "DeepseekV3ForCausalLM",
            {},
            {
                "router_score": "sigmoid",
                "router_weights": "chosen",
                "router_scale": 2.5,
                "n_groups": 4,
                "head_dim": 10,
                "n_kv_heads": 1,
                "rope_dim": 4,
                "rope_kind": "pairs",
                "q_rank": 14,
                "shared_ffn_size": 20,
                "bos_id": 0,
                "eos_ids": (1,),
            },
        ),
        (
            "DeepseekV3ForCausalLM",
            {"rope_interleave": False, "norm_topk_prob": False, "n_shared_experts": 3},
            {"rope_kind": "half", "router_weights": "all", "shared_ffn_size": 60},
        ),
        (
            "GraniteMoeForCausalLM",
            {"attention_multiplier": 0.0625, "embedding_multiplier": 12},
            {
                "attention_scale": 0.0625,
                "embedding_scale": 12.0,
                "residual_scale": 0.5,
                "logit_scale": 0.125,
            },
        ),
        (
            "PhimoeForCausalLM",
            {"num_experts_per_tok": 1},
            {"router_score": "sparsemixer", "router_jitter": 0.01, "top_k": 2, "n_experts": 16},
        ),
        ("PhimoeForCausalLM", {"router_jitter_noise": 0}, {"router_jitter": 1e-20}),
        (
            "GptOssForCausalLM",
            {"swiglu_limit": 5.5},
            {
                "activation": "swiglu_oai",
                "activation_limit": 5.5,
                "sliding_window": 128,
                "window_layers": (0, 2),
                "rope_scale": 1.3465735902799727,
            },
        ),
        (
            "GptOssForCausalLM",
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            {"window_layers": (1,)},
        ),
        ("Glm4MoeForCausalLM", {}, {"rope_dim": 6, "dense_layers": (0,), "router_scale": 1.0}),
        ("Glm4MoeForCausalLM", {"head_dim": 22}, {"rope_dim": 12}),  # of 11, as the reference does
        (
            "Glm4MoeForCausalLM",
            {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 1.0}},
            {"rope_dim": None},
        ),
    ],
)
def test_what_a_config_becomes(name: str, change: Config, expected: dict[str, Any]) -> None:
    config, _ = read(name, change)
    assert {key: getattr(config, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "change", "present", "absent"),
    [
        ("LlamaForCausalLM", {}, "attention_o_bias gate_bias down_bias", "router"),
        ("LlamaForCausalLM", {"attention_bias": False}, "up_bias", "attention_q_bias"),
        ("Qwen2MoeForCausalLM", {}, "attention_q_bias shared_router", "attention_o_bias"),
        ("Qwen2MoeForCausalLM", {"qkv_bias": False}, "router", "attention_q_bias"),
        ("Qwen3MoeForCausalLM", {}, "attention_q_norm", "attention_q_bias shared_up_weights"),
        ("Qwen3MoeForCausalLM", {"attention_bias": True}, "attention_o_bias", "router_bias"),
        ("OlmoeForCausalLM", {"attention_bias": True}, "attention_k_norm attention_o_bias", "x"),
        ("DeepseekV2ForCausalLM", {}, "attention_kv_a", "attention_q_a router_correction"),
        ("DeepseekV3ForCausalLM", {}, "attention_q_a_norm router_correction", "attention_k"),
        ("DeepseekV3ForCausalLM", {"n_shared_experts": 0}, "router", "shared_up_weights"),
        ("GraniteMoeForCausalLM", {"attention_bias": True}, "attention_q_bias", "gate_bias"),
        ("PhimoeForCausalLM", {}, "final_norm_bias ffn_norm_bias lm_head_bias", "gate_bias"),
        ("PhimoeForCausalLM", {"lm_head_bias": False}, "attention_o_bias", "lm_head_bias"),
        ("GptOssForCausalLM", {}, "attention_sinks router_bias down_bias", "final_norm_bias"),
        ("GptOssForCausalLM", {"attention_bias": False}, "router_bias", "attention_q_bias"),
        ("Glm4MoeForCausalLM", {"attention_bias": True}, "attention_v_bias", "attention_o_bias"),
        ("Glm4MoeForCausalLM", {"use_qk_norm": False}, "router", "attention_q_norm"),
    ],
)
def test_sections_that_depend_on_the_config(
    name: str, change: Config, present: str, absent: str
) -> None:
    _, sections = read(name, change)
    assert set(present.split()) <= set(sections)
    assert not set(absent.split()) & set(sections)


def test_yarn_makes_the_attention_of_deepseek_sharper() -> None:
    scaling = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    whole = scaling | {"mscale": 1.0, "mscale_all_dim": 1.0}
    config, _ = read("DeepseekV3ForCausalLM", {"rope_scaling": whole})
    magnitude = 0.1 * np.log(40) + 1
    assert config.attention_scale == pytest.approx(magnitude**2 / np.sqrt(10), rel=1e-7)
    assert config.rope_scale == 1.0
    config, _ = read("DeepseekV3ForCausalLM", {"rope_scaling": scaling})
    assert config.attention_scale == pytest.approx(1 / np.sqrt(10), rel=1e-7)
    assert config.rope_scale == pytest.approx(magnitude)


LONG = {
    "type": "longrope",
    "short_factor": [1.0] * 6,
    "long_factor": [4.0] * 6,
    "short_mscale": 1.25,
    "long_mscale": 1.5,
}


def test_longrope_holds_up_to_the_original_length() -> None:
    lengths = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    config, _ = read("PhimoeForCausalLM", lengths | {"rope_scaling": LONG})
    assert (config.max_positions, config.rope_scale) == (4096, 1.25)
    config, _ = read("LlamaForCausalLM", lengths | {"rope_scaling": LONG})
    assert config.max_positions == 4096
    assert config.rope_scale == pytest.approx(np.sqrt(1 + np.log(32) / np.log(4096)))


@pytest.mark.parametrize(
    ("name", "layers"),
    [("DeepseekV3ForCausalLM", {3}), ("Glm4MoeForCausalLM", {3}), ("OlmoeForCausalLM", set())],
)
def test_layers_that_predict_later_tokens_are_ignored(name: str, layers: set[int]) -> None:
    hub = HubConfig(CONFIGS[name] | {"architectures": [name], "num_nextn_predict_layers": 1})
    family = family_of(hub)
    rules = family.ignored(hub, family.read_config(hub))
    found = {
        layer
        for layer in range(34)
        if any(re.fullmatch(rule, f"model.layers.{layer}.eh_proj.weight") for rule in rules)
    }
    assert found == layers


@pytest.mark.parametrize("spelling", ["PhimoeForCausalLM", "PhiMoEForCausalLM"])
def test_both_spellings_of_phi(spelling: str) -> None:
    assert family_of(HubConfig({"architectures": [spelling]})).architecture == "phimoe"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("MixtralForCausalLM", {"attention_bias": True}, "attention_bias is true: not supported"),
        ("Qwen2MoeForCausalLM", {"decoder_sparse_step": 4}, "decoder_sparse_step is 4: no layer"),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": [0, 1, 2]}, "mlp_only_layers is [0, 1, 2]: no"),
        ("Qwen3MoeForCausalLM", {"mlp_only_layers": "all"}, 'mlp_only_layers is "all": expected a'),
        (
            "Qwen2MoeForCausalLM",
            {"layer_types": ["sliding_attention"] * 3},
            "layer_types is [",
        ),
        ("OlmoeForCausalLM", {"clip_qkv": 0}, "clip_qkv is 0: expected a positive number"),
        ("OlmoeForCausalLM", {"norm_topk_prob": 1}, "norm_topk_prob is 1: expected true or false"),
        ("DeepseekV2ForCausalLM", {"attention_bias": True}, "attention_bias is true: not support"),
        ("DeepseekV2ForCausalLM", {"mlp_bias": True}, "mlp_bias is true: not supported"),
        ("DeepseekV2ForCausalLM", {"moe_layer_freq": 2}, "moe_layer_freq is 2: only 1 is support"),
        ("DeepseekV2ForCausalLM", {"scoring_func": "sigmoid"}, 'scoring_func is "sigmoid": only'),
        ("DeepseekV2ForCausalLM", {"topk_method": "noaux_tc"}, 'topk_method is "noaux_tc": only'),
        ("DeepseekV2ForCausalLM", {"num_key_value_heads": 2}, "num_key_value_heads is 2: expected"),
        ("DeepseekV2ForCausalLM", {"qk_rope_head_dim": 3}, "qk_rope_head_dim is 3: RoPE needs"),
        ("DeepseekV3ForCausalLM", {"attention_bias": True}, "attention_bias is true: not support"),
        ("DeepseekV3ForCausalLM", {"scoring_func": "softmax"}, 'scoring_func is "softmax": only'),
        ("DeepseekV3ForCausalLM", {"topk_method": "greedy"}, 'topk_method is "greedy": only'),
        ("DeepseekV3ForCausalLM", {"n_group": 3}, "n_groups (3) and top_groups (2) do not fit"),
        ("DeepseekV3ForCausalLM", {"topk_group": 0}, "topk_group is 0: expected an integer"),
        (
            "DeepseekV3ForCausalLM",
            {"first_k_dense_replace": 3},
            "first_k_dense_replace is 3: no layer is left that has experts",
        ),
        ("GraniteMoeForCausalLM", {"logits_scaling": -1}, "logits_scaling is -1: expected a posit"),
        ("GraniteMoeForCausalLM", {"residual_multiplier": 0}, "residual_multiplier is 0: expected"),
        ("PhimoeForCausalLM", {"num_local_experts": 1}, "num_local_experts is 1: sparsemixer"),
        (
            "PhimoeForCausalLM",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "type 'linear' is not supported, only default, longrope",
        ),
        (
            "PhimoeForCausalLM",
            {"rope_scaling": {key: LONG[key] for key in ("type", "short_factor", "long_factor")}},
            "RoPE original_max_position_embeddings is None",
        ),
        (
            "PhimoeForCausalLM",
            {"max_position_embeddings": 64, "rope_scaling": LONG | {"short_mscale": None}},
            "RoPE short_mscale is None, expected a positive number",
        ),
        ("GptOssForCausalLM", {"swiglu_alpha": 1.5}, "swiglu_alpha is 1.5: only 1.702 is support"),
        ("GptOssForCausalLM", {"hidden_act": "gelu"}, 'hidden_act is "gelu": only silu is support'),
        ("GptOssForCausalLM", {"layer_types": ["chunked"] * 3}, "layer_types is ["),
        ("GptOssForCausalLM", {"layer_types": ["full_attention"]}, "layer_types is ["),
        ("Glm4MoeForCausalLM", {"partial_rotary_factor": 1.5}, "partial_rotary_factor rotates 18"),
        ("Glm4MoeForCausalLM", {"routed_scaling_factor": 0}, "routed_scaling_factor is 0: expect"),
        ("LlamaForCausalLM", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, only"),
        (
            "LlamaForCausalLM",
            {"rope_scaling": {"type": "dynamic"}},
            "type 'dynamic' is not support",
        ),
        ("LlamaForCausalLM", {"quantization_config": {}}, "quantization_config is {}: not support"),
        ("LlamaForCausalLM", {"rms_norm_eps": 1.5e-22}, "norm_eps is 1.5E-22, expected 15 dig"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(name: str, change: Config, message: str) -> None:
    with pytest.raises(ConversionError) as caught:
        read(name, change)
    assert message in caught.value.message


def test_the_config_of_every_family_comes_back_from_its_text() -> None:
    for name in CONFIGS:
        config, _ = read(name)
        again = ModelConfig.from_json(config.to_json())
        assert again.to_json() == config.to_json()
        for field in dataclasses.fields(config):
            before, after = getattr(config, field.name), getattr(again, field.name)
            if isinstance(before, float):
                assert np.float32(before) == np.float32(after), field.name
            else:
                assert before == after, field.name


def test_a_limited_length_is_said(checkpoint: Path) -> None:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    rotated = config["hidden_size"] // config["num_attention_heads"]
    factors = {"short_factor": [1.0] * (rotated // 2), "long_factor": [4.0] * (rotated // 2)}
    config |= {"max_position_embeddings": 4096, "original_max_position_embeddings": 1024}
    path.write_text(json.dumps(config | {"rope_scaling": {"rope_type": "longrope"} | factors}))
    plan = plan_conversion(checkpoint)
    assert plan.config.max_positions == 1024
    assert any("sequences are at most 1,024 tokens, not 4,096" in note for note in plan.notes)
