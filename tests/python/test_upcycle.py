# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`convert --upcycle`: a Mixture of Experts that computes what the dense model does."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from colibri_deploy import splitmix
from colibri_deploy.cli import cli
from colibri_deploy.convert import DTypeChoice, convert_checkpoint, plan_conversion, write_model
from colibri_deploy.errors import ConversionError
from colibri_deploy.model import Model
from colibri_deploy.targets import machine_arch
from colibri_deploy.upcycle import Upcycling

GAMMA = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
EXPECTED: dict[DTypeChoice, str] = {
    "q8": "b7b5f7f3a7493c9599f1bb9a7a9d5289561801f519d53d5d1e38c8a591da1ff3",
    "q4": "0ed223ae5ea8d0edc92f7c19c106935c3a4f6b2fefb4c1009fe3b27136d71746",
}


@pytest.fixture
def dense(make_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A Llama: hidden 64, FFN 160, 2 layers, 4 heads (2 KV), 50 tokens, float32."""
    return make_checkpoint(tmp_path / "dense", hidden=64, ffn=160, experts=0, top_k=0)


def test_the_generator_is_splitmix64() -> None:
    """The first outputs for seed 1234567, as published for the reference implementation."""
    assert splitmix.numbers(1234567, 5).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def reference_order(seed: int, name: str, count: int) -> list[int]:
    """Fisher and Yates over splitmix64, in plain integers."""
    state = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") + seed * GAMMA

    def output(index: int) -> int:
        z = (state + (index + 1) * GAMMA) & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        return z ^ z >> 31

    order = list(range(count))
    for last in reversed(range(1, count)):
        place = output(last) * (last + 1) // (1 << 64)
        order[last], order[place] = order[place], order[last]
    return order


def test_a_permutation_is_that_of_plain_integers() -> None:
    for count in (1, 2, 7, 160, 1536):
        found = splitmix.permutation(splitmix.stream(5, "neurons.0.1"), count).tolist()
        assert found == reference_order(5, "neurons.0.1", count)
        assert sorted(found) == list(range(count))


def test_every_expert_is_the_dense_ffn_in_another_order(dense: Path, tmp_path: Path) -> None:
    plan = convert_checkpoint(dense, tmp_path / "moe", upcycling=Upcycling(4, 2, seed=9))
    assert (plan.config.architecture, plan.config.n_experts, plan.config.top_k) == ("mixtral", 4, 2)
    file = Model.open(tmp_path / "moe").file
    arrays = load_file(dense / "model.safetensors")
    orders = set()
    for layer, expert in itertools.product(range(2), range(4)):
        order = reference_order(9, f"neurons.{layer}.{expert}", 160)
        orders.add(tuple(order))
        mlp = f"model.layers.{layer}.mlp"
        gate, up, down = (arrays[f"{mlp}.{name}_proj.weight"] for name in ("gate", "up", "down"))
        assert np.array_equal(file.matrix("gate_weights", layer, expert), gate[order])
        assert np.array_equal(file.matrix("up_weights", layer, expert), up[order])
        assert np.array_equal(file.matrix("down_weights", layer, expert), down[:, order])
    assert len(orders) == 8
    routers = np.stack([file.matrix("router", layer) for layer in range(2)])
    assert routers.shape == (2, 4, 64)
    assert not np.array_equal(routers[0], routers[1])
    for layer in range(2):
        # Uniform, so that a logit deviates by 2 if the norm's output is its weights.
        norm = arrays[f"model.layers.{layer}.post_attention_layernorm.weight"]
        deviation = 2 / np.linalg.norm(norm)
        assert np.std(routers[layer]) == pytest.approx(deviation, rel=0.15)
        assert np.abs(routers[layer]).max() < 3**0.5 * deviation


def test_biases_go_with_their_neurons(dense: Path, tmp_path: Path) -> None:
    path = dense / "model.safetensors"
    arrays = load_file(path)
    for layer in range(2):
        for name, size in (("gate", 160), ("up", 160), ("down", 64)):
            bias = np.arange(size, dtype=np.float32) + layer
            arrays[f"model.layers.{layer}.mlp.{name}_proj.bias"] = bias
    save_file(arrays, path)
    config = json.loads((dense / "config.json").read_text())
    (dense / "config.json").write_text(json.dumps(config | {"mlp_bias": True}))
    convert_checkpoint(dense, tmp_path / "moe", upcycling=Upcycling(4, 2, seed=9))
    file = Model.open(tmp_path / "moe").file
    for layer, expert in itertools.product(range(2), range(4)):
        order = reference_order(9, f"neurons.{layer}.{expert}", 160)
        for name in ("gate_bias", "up_bias"):
            assert (file.matrix(name, layer, expert)[0] - layer).tolist() == order
        assert (file.matrix("down_bias", layer, expert)[0] - layer).tolist() == list(range(64))


@pytest.mark.parametrize("dtype", EXPECTED)
def test_the_bytes_are_the_same_everywhere(dtype: DTypeChoice, dense: Path, tmp_path: Path) -> None:
    def digest(name: str, seed: int) -> str:
        convert_checkpoint(dense, tmp_path / name, dtype, upcycling=Upcycling(4, 2, seed))
        return hashlib.sha256((tmp_path / name / "model.bin").read_bytes()).hexdigest()

    assert digest("one", 1) == EXPECTED[dtype]
    assert digest("two", 2) != digest("again", 1)


def logits(run_engine: Callable[..., Any], model: Path, tokens: str) -> np.ndarray[Any, Any]:
    done = run_engine(machine_arch(), "--model", model, "--tokens", tokens, "--logits")
    assert done.status == 0, done.stderr
    return np.array(done.stdout.split(), dtype=np.float64)


def test_the_logits_are_those_of_the_dense_model_up_to_rounding(
    dense: Path, tmp_path: Path, run_engine: Callable[..., Any]
) -> None:
    convert_checkpoint(dense, tmp_path / "one", "f32")
    expected = logits(run_engine, tmp_path / "one", "3,1,4,1,5,9,2,6")
    for experts, top_k in ((1, 1), (4, 2), (5, 5)):
        name = f"{experts}x{top_k}"
        convert_checkpoint(dense, tmp_path / name, "f32", upcycling=Upcycling(experts, top_k))
        found = logits(run_engine, tmp_path / name, "3,1,4,1,5,9,2,6")
        assert found == pytest.approx(expected, abs=2e-5)
        assert not np.array_equal(found, expected)


def test_a_token_at_the_wrong_expert_changes_the_hash(
    dense: Path, tmp_path: Path, run_engine: Callable[..., Any]
) -> None:
    """Experts change places in the router of a layer, and a single token is computed.

    Of the six pairs of experts only the one that was not chosen leaves the hash as it was.
    """
    plan = plan_conversion(dense, "f32", upcycling=Upcycling(4, 2))
    router = np.asarray(plan.computed["router"])

    def run(name: str) -> str:
        options = "--tokens 7 --num_tokens 0 --format ids --logits_hash".split()
        done = run_engine(machine_arch(), "--model", tmp_path / name, *options)
        assert done.status == 0, done.stderr
        return str(done.stdout.strip())

    write_model(plan, tmp_path / "right")
    right = run("right")
    assert "clb1:" in right
    expected = logits(run_engine, tmp_path / "right", "7")
    changed = 0
    for one, other in itertools.combinations(range(4), 2):
        swapped = router.copy()
        swapped[[4 + one, 4 + other]] = router[[4 + other, 4 + one]]  # layer 1
        wrong = dataclasses.replace(plan, computed={**plan.computed, "router": swapped})
        name = f"{one}-{other}"
        write_model(wrong, tmp_path / name)
        changed += run(name) != right
        assert logits(run_engine, tmp_path / name, "7") == pytest.approx(expected, abs=2e-5)
    assert changed == 5


def test_what_cannot_be_upcycled_is_refused(checkpoint: Path, dense: Path) -> None:
    with pytest.raises(ConversionError, match="has experts already"):
        plan_conversion(checkpoint, upcycling=Upcycling(4, 2))
    for experts, top_k, message in (
        (4, 5, r"top_k \(5\) does not fit n_experts \(4\)"),
        (4, 0, r"top_k \(0\) does not fit"),
        (0, 0, "one expert at least"),
        (513, 2, "n_experts is 513, expected 0 to 512"),
    ):
        with pytest.raises(ConversionError, match=message):
            plan_conversion(dense, upcycling=Upcycling(experts, top_k))


def test_the_command_line(dense: Path, tmp_path: Path) -> None:
    def convert(*options: str) -> Any:
        words = ["convert", str(dense), "-o", str(tmp_path / "moe"), "--dtype", "bf16", *options]
        return CliRunner().invoke(cli, words)

    for text in ("4", "4x", "x2", "4x2x1", "-4x2", "four", "4 x 2"):
        done = convert("--upcycle", text)
        assert done.exit_code == 2
        assert "is not EXPERTSxTOP_K, such as 4x2" in done.stderr
    assert convert("--upcycle-seed", "3").exit_code == 2
    done = convert("--upcycle", "3x1", "--upcycle-seed", "3", "--json")
    assert done.exit_code == 0, done.stderr
    assert '"upcycle": {\n    "n_experts": 3,\n    "top_k": 1,\n    "seed": 3\n  }' in done.stdout
    model = Model.open(tmp_path / "moe")
    assert (model.config.n_experts, model.config.top_k) == (3, 1)
    convert_checkpoint(dense, tmp_path / "same", "bf16", upcycling=Upcycling(3, 1, 3))
    same = (tmp_path / "same/model.bin").read_bytes()
    assert (tmp_path / "moe/model.bin").read_bytes() == same
