# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""config.json: what is written, what is read, what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri_deploy.errors import ConfigError, FileMissingError
from colibri_deploy.model_config import ModelConfig

CONFIG = ModelConfig(
    architecture="mixtral",
    n_layers=2,
    hidden_size=64,
    n_heads=4,
    n_kv_heads=2,
    head_dim=22,
    ffn_size=96,
    vocab_size=768,
    n_experts=8,
    top_k=2,
    max_positions=512,
    sliding_window=0,
    norm_eps=float(np.float32(1e-5)),
    attention_scale=float(np.float32(1) / np.sqrt(np.float32(22))),
    rope_scale=1.0,
    bos_id=1,
    eos_ids=(2, 5),
)

TEXT = """{
  "config_version": 1,
  "architecture": "mixtral",
  "n_layers": 2,
  "hidden_size": 64,
  "n_heads": 4,
  "n_kv_heads": 2,
  "head_dim": 22,
  "ffn_size": 96,
  "vocab_size": 768,
  "n_experts": 8,
  "top_k": 2,
  "max_positions": 512,
  "sliding_window": 0,
  "norm_eps": 1e-05,
  "attention_scale": 0.21320072,
  "rope_scale": 1.0,
  "bos_id": 1,
  "eos_ids": [
    2,
    5
  ]
}
"""


def test_the_text_has_the_fewest_digits_that_give_the_float32_back() -> None:
    assert CONFIG.to_json() == TEXT


def test_the_text_reads_back() -> None:
    config = ModelConfig.from_json(TEXT)
    assert config.to_json() == TEXT
    for name in ("norm_eps", "attention_scale", "rope_scale"):
        assert np.float32(getattr(config, name)) == np.float32(getattr(CONFIG, name))


@given(st.floats(2.0**-45, 2.0**43, width=32))  # what the engine can read
def test_every_float32_comes_back(value: float) -> None:
    text = dataclasses.replace(CONFIG, norm_eps=value).to_json()
    assert np.float32(json.loads(text)["norm_eps"]) == np.float32(value)
    assert np.float32(ModelConfig.from_json(text).norm_eps) == np.float32(value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"n_experts": 8', '"n_experts": "8 "', 'n_experts is "8 ", expected an integer'),
        ('"n_experts": 8', '"n_experts": 8.0', "n_experts is 8.0, expected an integer"),
        ('"n_experts": 8', '"n_experts": true', "n_experts is true, expected an integer"),
        ('"n_experts": 8', '"n_experts": null', "n_experts is null, expected an integer"),
        ('"n_experts": 8', '"n_experts": 513', "n_experts is 513, expected 0 to 512"),
        ('"n_experts": 8', '"n_experts": 0', r"top_k \(2\) does not fit n_experts \(0\)"),
        ('"n_experts": 8', '"n_experts": 1', r"top_k \(2\) does not fit n_experts \(1\)"),
        ('"top_k": 2', '"top_k": 0', r"top_k \(0\) does not fit n_experts \(8\)"),
        ('"top_k": 2', '"top_k": 17', "top_k is 17, expected 0 to 16"),
        ('"n_layers": 2', '"n_layers": 0', "n_layers is 0, expected 1 to 1024"),
        ('"n_layers": 2', '"n_layers": 2147483648', "n_layers is 2147483648"),
        ('"n_layers": 2,', "", "the key n_layers is missing"),
        ('"n_layers": 2', '"n_layers": 2, "n_layers": 2', "a key occurs twice"),
        ('"n_layers": 2', '"n_layers": 2, "q_bias": 1', 'unknown key "q_bias"'),
        ('"config_version": 1', '"config_version": 2', "config_version is 2, this version reads"),
        ('"n_kv_heads": 2', '"n_kv_heads": 3', r"n_heads \(4\) is no multiple of n_kv_heads"),
        ('"head_dim": 22', '"head_dim": 21', "head_dim is 21, RoPE needs an even number"),
        ('"sliding_window": 0', '"sliding_window": -1', "sliding_window is -1"),
        ("1e-05", '"1e-05"', 'norm_eps is "1e-05", expected a number'),
        ("1e-05", "0", "norm_eps is 0.0, expected a float32 above 0 and below 1e\\+30"),
        ("1e-05", "1e-60", "norm_eps is 0.0, expected a float32 above 0 and below 1e\\+30"),
        ("1e-05", "1e39", "norm_eps is inf, expected a float32 above 0 and below 1e\\+30"),
        ("1e-05", "1e999", "norm_eps is Infinity, expected a number"),
        ("1e-05", "NaN", "NaN is not JSON"),
        ("1e-05", "1" + "0" * 400, "norm_eps is too large"),
        ("5\n", ", ".join("5" * 16) + "\n", "eos_ids has 17 entries, at most 16 fit"),
        ('"bos_id": 1', '"bos_id": -2', "bos_id is -2, expected a token id or -1"),
        ('"bos_id": 1', '"bos_id": 768', "bos_id is 768"),
        ("5\n", "768\n", "eos_ids is 768, expected token ids"),
        ("5\n", '"5"\n', "eos_ids is .*, expected an array of integers"),
        ('"mixtral"', "1", "architecture is 1, expected a string"),
        ("{", "[", "no JSON"),
    ],
)
def test_a_wrong_text_is_refused_by_name(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message) as caught:
        ModelConfig.read(path)
    assert caught.value.exit_code == 4
    assert caught.value.message.startswith(f"{path}: ")


def test_files_that_are_no_config(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(FileMissingError, match="cannot be read"):
        ModelConfig.read(path)
    path.write_bytes(b'{"\xff')
    with pytest.raises(ConfigError, match="is not UTF-8: byte 2"):
        ModelConfig.read(path)
    path.write_bytes(b" " * (1 << 20) + b"{")
    with pytest.raises(ConfigError, match="larger than 1048576 bytes"):
        ModelConfig.read(path)
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(ConfigError, match="nested too deeply"):
        ModelConfig.read(path)
    path.write_bytes(b"[1]")
    with pytest.raises(ConfigError, match="not a JSON object"):
        ModelConfig.read(path)


MORE: dict[str, Any] = {
    "window_layers": (0,),
    "rope_dim": 8,
    "rope_kind": "pairs",
    "qk_clip": 4.5,
    "embedding_scale": 12.0,
    "residual_scale": 0.25,
    "logit_scale": 0.125,
    "activation": "swiglu_oai",
    "activation_limit": 7.0,
    "router_score": "sigmoid",
    "router_weights": "all",
    "router_scale": 2.5,
    "n_groups": 4,
    "top_groups": 2,
    "dense_layers": (1,),
    "dense_ffn_size": 80,
    "shared_ffn_size": 24,
}
LATENT: dict[str, Any] = {
    "n_kv_heads": 1,
    "rope_dim": 8,
    "kv_rank": 32,
    "q_rank": 24,
    "v_dim": 10,
    "latent_norm_eps": 1e-6,
}
SPARSEMIXER: dict[str, Any] = {"router_score": "sparsemixer", "router_jitter": 0.01}


@pytest.mark.parametrize("changes", [MORE, LATENT, SPARSEMIXER], ids=["more", "latent", "sparse"])
def test_keys_that_may_be_absent_come_back(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    text = config.to_json()
    values = json.loads(text)
    for name, value in changes.items():
        assert values[name] == (list(value) if isinstance(value, tuple) else value)
    again = ModelConfig.from_json(text)
    assert again.to_json() == text
    assert {name: getattr(again, name) for name in changes} == changes


@pytest.mark.parametrize(
    "changes",
    [{"window_layers": (0, 1)}, {"rope_dim": 22}, {"n_groups": 1}, {"rope_kind": "half"}],
)
def test_a_key_that_says_nothing_new_is_left_out(changes: dict[str, Any]) -> None:
    assert dataclasses.replace(CONFIG, **changes).to_json() == TEXT


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('"rope_dim": 7', "rope_dim is 7, expected an even number up to head_dim \\(22\\)"),
        ('"rope_dim": 24', "rope_dim is 24, expected an even number"),
        ('"rope_dim": null', "rope_dim is null, expected an integer"),
        ('"rope_kind": "whole"', "rope_kind is whole, expected one of half, pairs"),
        ('"activation": "relu"', "activation is relu, expected one of silu, gelu, gelu_tanh, swi"),
        ('"activation": "swiglu_oai"', "activation_limit and the activation swiglu_oai go toget"),
        ('"activation_limit": 7', "activation_limit and the activation swiglu_oai go together"),
        ('"router_score": "sparsemixer"', "router_jitter and the router_score sparsemixer go"),
        ('"router_jitter": 0.01', "router_jitter and the router_score sparsemixer go together"),
        ('"router_weights": "none"', "router_weights is none, expected one of chosen, all"),
        ('"router_scale": 0', "router_scale is 0.0, expected a float32 above 0"),
        ('"router_scale": 1.23456789012345678', "router_scale is 1.2345.*, expected 15 digits"),
        ('"router_scale": 10000000000000001', "router_scale is 1000.*, expected 15 digits"),
        ('"router_scale": 0.0000000000000000000000011', "router_scale is 1.1E-24, expected 15 d"),
        ('"router_scale": 1e23', "router_scale is 1E\\+23, expected 15 digits"),
        ('"qk_clip": "8"', 'qk_clip is "8", expected a number'),
        ('"n_groups": 3', "n_groups \\(3\\) and top_groups \\(1\\) do not fit n_experts"),
        ('"n_groups": 8', "n_groups \\(8\\) and top_groups \\(1\\) do not fit"),
        ('"top_groups": 2', "n_groups \\(1\\) and top_groups \\(2\\) do not fit"),
        ('"top_groups": 17', "top_groups is 17, expected 1 to 16"),
        ('"window_layers": [1, 0]', "window_layers are not layers below 2 in ascending order"),
        ('"window_layers": [2]', "window_layers are not layers below 2 in ascending order"),
        ('"window_layers": ["0"]', "window_layers is .*, expected an array of integers"),
        ('"dense_layers": [0]', "dense_layers and dense_ffn_size go together"),
        ('"dense_ffn_size": 8', "dense_layers and dense_ffn_size go together"),
        ('"dense_layers": [0, 1], "dense_ffn_size": 8', "dense_layers are those without experts"),
        ('"kv_rank": 8', "kv_rank, v_dim and latent_norm_eps go together"),
        ('"v_dim": 8', "kv_rank, v_dim and latent_norm_eps go together"),
        ('"q_rank": 8', "q_rank is 8, but there is no kv_rank"),
        (
            '"kv_rank": 8, "v_dim": 8, "latent_norm_eps": 1e-6, "rope_dim": 2',
            "n_kv_heads is 2, expected 1 with kv_rank",
        ),
    ],
)
def test_a_wrong_key_that_may_be_absent_is_refused(keys: str, message: str) -> None:
    text = TEXT.replace('"config_version": 1,', f'"config_version": 1, {keys},')
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_json(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (LATENT | {"rope_dim": 22}, "rope_dim is 22, expected less than head_dim"),
        (SPARSEMIXER | {"top_k": 3}, "top_k is 3, expected 2 with sparsemixer"),
        (SPARSEMIXER | {"n_groups": 2, "top_groups": 1}, "n_groups is 2, expected 1 with spars"),
        (LATENT | {"qk_clip": 1.0}, "qk_clip does not go with kv_rank"),
        ({"n_experts": 0, "top_k": 0, "shared_ffn_size": 8}, "shared_ffn_size is 8, but there are"),
        (
            {"n_experts": 0, "top_k": 0, "dense_layers": (0,), "dense_ffn_size": 8},
            "dense_layers are those without experts in a model that has them",
        ),
        ({"architecture": "x" * 32}, "architecture is x*, expected 1 to 31 characters"),
        ({"norm_eps": 2.0**-120}, "norm_eps is 7.523164E-37, expected 15 digits"),
        ({"norm_eps": 2.0**50}, "norm_eps is 1125899900000000.0, expected 15 digits"),
    ],
)
def test_values_that_contradict_each_other(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(CONFIG, **changes)
