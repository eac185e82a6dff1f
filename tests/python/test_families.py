# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""How checkpoints' configs are read: both styles, defaults, RoPE, and every refusal by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from colibri_deploy.errors import ConversionError
from colibri_deploy.families import FAMILIES, family_of
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.families.rope import RopeDefaults, inverse_frequencies, read_rope
from colibri_deploy.model_config import ModelConfig

MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 768,
}

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 640,
}


def read(config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    hub = HubConfig(config, generation)
    family = family_of(hub)
    read = family.read_config(hub)
    family.sections(hub, read, tied=False)  # reads what only sections depend on
    return read


def test_a_mixtral_config() -> None:
    assert read(MIXTRAL) == ModelConfig(
        architecture="mixtral",
        n_layers=2,
        hidden_size=64,
        n_heads=4,
        n_kv_heads=2,
        head_dim=16,
        ffn_size=96,
        vocab_size=768,
        n_experts=8,
        top_k=2,
        max_positions=512,
        sliding_window=0,
        norm_eps=1e-05,
        attention_scale=0.25,
        rope_scale=1.0,
        bos_id=1,
        eos_ids=(2,),
    )


def test_a_llama_config_with_the_class_defaults() -> None:
    config = read(LLAMA)
    assert (config.architecture, config.n_experts, config.top_k) == ("llama", 0, 0)
    assert (config.n_kv_heads, config.norm_eps, config.max_positions) == (4, 1e-6, 2048)
    assert (config.sliding_window, config.bos_id, config.eos_ids) == (0, 1, (2,))


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        ({"sliding_window": 16}, "sliding_window", 16),
        ({"head_dim": 32}, "head_dim", 32),
        ({"head_dim": None}, "head_dim", 16),
        ({"num_key_value_heads": 4}, "n_kv_heads", 4),
        ({"num_local_experts": None, "num_experts": 6}, "n_experts", 6),
        ({"hidden_act": "swish"}, "n_layers", 2),
        ({"attention_bias": False, "quantization_config": None}, "n_layers", 2),
        ({"head_dim": 22}, "attention_scale", 0.21320071816444397),  # float32(1 / sqrt(22))
        ({"eos_token_id": [3, 2, 3]}, "eos_ids", (3, 2)),
        ({"eos_token_id": None}, "eos_ids", ()),
        ({"eos_token_id": [2, 768, -1]}, "eos_ids", (2,)),
        ({"bos_token_id": None}, "bos_id", -1),
        ({"bos_token_id": -1}, "bos_id", -1),
        ({"bos_token_id": 767}, "bos_id", 767),
    ],
)
def test_values_that_vary(change: dict[str, Any], field: str, expected: object) -> None:
    assert getattr(read(MIXTRAL | change), field) == expected


def test_generation_config_goes_first() -> None:
    assert read(MIXTRAL, {"eos_token_id": [7, 8], "bos_token_id": 5}).eos_ids == (7, 8)
    assert read(MIXTRAL, {"eos_token_id": [7, 8], "bos_token_id": 5}).bos_id == 5
    assert read(MIXTRAL, {"eos_token_id": 7}).eos_ids == (7,)
    assert read(MIXTRAL, {"do_sample": False}).eos_ids == (2,)


@pytest.mark.parametrize(
    ("base", "change", "message"),
    [
        (MIXTRAL, {"architectures": ["Qwen9"]}, "config.json names Qwen9; this version converts L"),
        (MIXTRAL, {"architectures": []}, "config.json names no architecture"),
        (MIXTRAL, {"architectures": "X"}, 'architectures is "X": expected a list of names'),
        (MIXTRAL, {"attention_bias": True}, "attention_bias is true: not supported"),
        (LLAMA, {"attention_bias": 1}, "attention_bias is 1: expected true or false"),
        (LLAMA, {"mlp_bias": "no"}, 'mlp_bias is "no": expected true or false'),
        (MIXTRAL, {"hidden_act": "relu"}, 'hidden_act is "relu": only silu, swish, gelu, gelu_new'),
        (
            MIXTRAL,
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            'quantization_config is {"quant_method": "gptq", "bits": 4}: not supported',
        ),
        (MIXTRAL, {"num_experts_per_tok": 9}, "num_experts_per_tok is 9: more than the 8 experts"),
        (MIXTRAL, {"num_local_experts": "8 "}, 'num_local_experts is "8 ": expected an integer'),
        (MIXTRAL, {"num_local_experts": 513}, "n_experts is 513, expected 0 to 512"),
        (
            MIXTRAL,
            {"num_experts_per_tok": 17, "num_local_experts": 32},
            "top_k is 17, expected 0 to 16",
        ),
        (MIXTRAL, {"head_dim": 15}, "head_dim is 15: RoPE needs an even head_dim, not 15"),
        (MIXTRAL, {"hidden_size": 60}, "hidden_size is 60: RoPE needs an even head_dim, not 15"),
        (MIXTRAL, {"hidden_size": 66}, "hidden_size is 66: not a multiple of the 4 heads"),
        (MIXTRAL, {"hidden_size": None}, "hidden_size is null: it must be given"),
        (MIXTRAL, {"hidden_size": True}, "hidden_size is true: expected an integer"),
        (MIXTRAL, {"num_key_value_heads": 3}, "num_key_value_heads is 3: does not divide the 4"),
        (MIXTRAL, {"sliding_window": -1}, "sliding_window is -1: expected an integer"),
        (MIXTRAL, {"rms_norm_eps": 0}, "rms_norm_eps is 0: expected a positive number"),
        (MIXTRAL, {"rms_norm_eps": math.inf}, "rms_norm_eps is Infinity: expected a positive"),
        (MIXTRAL, {"rms_norm_eps": 1e-60}, "norm_eps is 1e-60, expected a float32 above 0"),
        (MIXTRAL, {"eos_token_id": "</s>"}, 'eos_token_id is "</s>": expected token ids'),
        (MIXTRAL, {"vocab_size": 2**31}, "vocab_size is 2147483648, expected 1 to 16777216"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    base: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConversionError) as caught:
        read(base | change)
    assert message in caught.value.message
    assert caught.value.exit_code == 26


def frequencies(head_dim: int, **config: Any) -> list[float]:
    return [float(one) for one in inverse_frequencies(HubConfig(config), head_dim, 10000.0)]


def test_frequencies_in_both_styles() -> None:
    expected = [1.0, 0.10000000149011612, 0.009999999776482582, 0.0010000000474974513]
    assert frequencies(8, rope_theta=10000.0) == expected
    assert frequencies(8) == expected
    assert frequencies(8, rope_theta=5.0, rope_parameters={"rope_theta": 10000}) == expected
    assert frequencies(8, rope_parameters={"rope_type": "default", "rope_theta": 1e4}) == expected
    assert frequencies(8, rope_scaling=None, rope_theta=10000) == expected
    assert frequencies(8, rope_scaling={"rope_type": "default"}) == expected
    assert frequencies(8, partial_rotary_factor=1.0) == expected


@pytest.mark.parametrize("theta", [1e4, 5e5, 1e6, 12345.678])
@pytest.mark.parametrize("head_dim", [2, 16, 88, 96, 128])
def test_frequencies_are_those_of_the_formula(theta: float, head_dim: int) -> None:
    got = frequencies(head_dim, rope_theta=theta)
    for index, value in enumerate(got):
        assert value == pytest.approx(theta ** (-2 * index / head_dim), rel=1e-6)


def test_linear_scaling_divides() -> None:
    for scaling in ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4}):
        assert frequencies(4, rope_scaling=scaling, rope_theta=65536.0) == [0.25, 2.0**-10]
    v5 = {"rope_type": "linear", "factor": 4.0, "rope_theta": 65536.0}
    assert frequencies(4, rope_parameters=v5) == [0.25, 2.0**-10]


def test_llama3_scaling_slows_long_wavelengths_down() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    theta, dim = 500000.0, 128
    got = frequencies(dim, rope_scaling=scaling, rope_theta=theta)
    kinds = set()
    for index, value in enumerate(got):
        plain = theta ** (-2 * index / dim)
        wavelength = 2 * math.pi / plain
        if wavelength < 8192 / 4:
            kinds.add("kept")
            expected = plain
        elif wavelength > 8192 / 1:
            kinds.add("slowed")
            expected = plain / 8
        else:
            kinds.add("between")
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected = (1 - smooth) * plain / 8 + smooth * plain
        assert value == pytest.approx(expected, rel=2e-6), index
    assert kinds == {"kept", "slowed", "between"}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 4.0],
    "long_factor": [8.0] * 8,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("scaling", "theta", "expected", "scale"),
    [
        (
            YARN,
            1e4,
            [
                *(1.0, 0.23717082, 0.049999997, 0.007905695, 0.0025),
                *(0.00079056947, 0.00025, 7.905695e-05),
            ],
            1.138629436111989,
        ),
        (
            YARN | {"factor": None},  # then it is that of the lengths
            1e4,
            [
                *(1.0, 0.23717082, 0.049999997, 0.007905695, 0.0025),
                *(0.00079056947, 0.00025, 7.905695e-05),
            ],
            1.138629436111989,
        ),
        (
            YARN | {"factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
            150000.0,
            [
                *(1.0, 0.085249096, 0.0015879148, 0.00035794458, 8.0687154e-05),
                *(1.8188337e-05, 4.0999785e-06, 9.2420896e-07),
            ],
            1.3465735902799727,
        ),
        (
            YARN | {"factor": 40, "mscale": 0.707, "mscale_all_dim": 1.0, "beta_fast": 8},
            1e4,
            [
                *(1.0, 0.21345372, 0.034999996, 0.00079056947, 0.00025),
                *(7.905695e-05, 2.5e-05, 7.9056945e-06),
            ],
            0.9210423553163399,
        ),
        (
            YARN | {"attention_factor": 1.5},
            1e4,
            [
                *(1.0, 0.23717082, 0.049999997, 0.007905695, 0.0025),
                *(0.00079056947, 0.00025, 7.905695e-05),
            ],
            1.5,
        ),
        (
            LONGROPE,
            1e4,
            [
                *(1.0, 0.28747976, 0.083333336, 0.024325214, 0.006666667),
                *(0.0015811389, 0.00033333333, 7.905695e-05),
            ],
            1.1547005383792517,
        ),
        (
            LONGROPE | {"factor": 16.0},
            1e4,
            [
                *(1.0, 0.28747976, 0.083333336, 0.024325214, 0.006666667),
                *(0.0015811389, 0.00033333333, 7.905695e-05),
            ],
            1.2909944487358056,
        ),
    ],
)
def test_scalings_give_what_transformers_gives(
    scaling: dict[str, Any], theta: float, expected: list[float], scale: float
) -> None:
    """The values are those of modeling_rope_utils.py of transformers 5.24, for heads of 16."""
    config = {"rope_scaling": scaling, "rope_theta": theta, "max_position_embeddings": 256}
    rope = read_rope(HubConfig(config), 16, RopeDefaults())
    assert rope.frequencies.tolist() == pytest.approx(expected, rel=2e-7)
    assert rope.scale == pytest.approx(scale, rel=1e-15)
    assert rope.longest == (64 if scaling["rope_type"] == "longrope" else None)


def test_an_original_length_beside_the_parameters_goes_first() -> None:
    scaling = {name: YARN[name] for name in ("rope_type", "factor")}
    inside = {"rope_scaling": YARN | {"original_max_position_embeddings": 128}}
    beside = {"rope_scaling": YARN, "original_max_position_embeddings": 128}
    absent = {"rope_scaling": scaling, "max_position_embeddings": 128}
    assert frequencies(16, **inside) == frequencies(16, **beside) == frequencies(16, **absent)
    short = YARN | {"original_max_position_embeddings": 16}
    assert frequencies(16, **inside) != frequencies(16, rope_scaling=short)


def test_a_part_of_the_head() -> None:
    half = RopeDefaults(partial=0.5)
    whole = read_rope(HubConfig({"rope_theta": 16.0}), 8, half).frequencies.tolist()
    assert whole == [1.0, 0.25]
    odd = read_rope(HubConfig({"rope_theta": 8.0}), 6, half).frequencies.tolist()  # 3 elements
    assert odd == pytest.approx([1.0, 0.25])
    with pytest.raises(ConversionError, match="yarn needs an even number of elements, not 3"):
        read_rope(HubConfig({"rope_scaling": YARN}), 6, half)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "type 'dynamic' is not supported"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "RoPE original_max_position_embedd"),
        ({"rope_scaling": {"type": "longrope"}}, "RoPE short_factor is not 8 numbers"),
        ({"rope_parameters": {"rope_type": "mrope"}}, "type 'mrope' is not supported"),
        ({"rope_parameters": {"rope_type": ["x"]}}, "is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "RoPE factor is None, expected a positive number"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "RoPE factor is '2'"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "RoPE factor is 0"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4}}, "RoPE high_freq_factor 4.0 is not"),
        (
            {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": None}},
            "RoPE original_max_position_embeddings is None",
        ),
        ({"rope_theta": -1}, "RoPE rope_theta is -1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, only 1 is supported"),
        (
            {"rope_parameters": {"rope_theta": 1.0, "partial_rotary_factor": 0.25}},
            "partial_rotary_factor is 0.25",
        ),
        ({"rope_scaling": "linear"}, 'rope_scaling is "linear": expected one set of parameters'),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters is",
        ),
    ],
)
def test_unknown_rope_is_refused_by_name(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConversionError) as caught:
        inverse_frequencies(HubConfig(config), 16, 10000.0)
    assert message in caught.value.message


def test_families_are_found_by_their_name_and_are_told_apart() -> None:
    assert len({family.architecture for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert family_of(HubConfig({"architectures": [family.hub_architecture]})) is family


def test_attention_scale_is_a_float32() -> None:
    for head_dim in (16, 22, 64, 88, 96, 128):
        scale = read(MIXTRAL | {"head_dim": head_dim}).attention_scale
        assert scale == float(np.float32(1) / np.sqrt(np.float32(head_dim)))
        assert scale == pytest.approx(head_dim**-0.5, rel=1e-7)
