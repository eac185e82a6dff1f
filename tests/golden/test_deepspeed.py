# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed-MoE checkpoints: what the engine computes from them, and what is refused.

The files are in the layout that Megatron-DeepSpeed and DeepSpeed document in their sources, written
here without PyTorch; the reference below is written from those sources too, in f64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from torch_writer import Call, Object, save_torch

from colibri_deploy.convert import convert_checkpoint, plan_conversion
from colibri_deploy.errors import ConversionError
from colibri_deploy.process import run

Array = npt.NDArray[Any]
Weights = dict[str, Array]

HIDDEN, HEADS, LAYERS, EXPERTS, VOCAB, POSITIONS = 48, 4, 3, 5, 70, 32
HEAD, FFN = HIDDEN // HEADS, 40
STEM = "language_model.encoder.layers"
ARGS: dict[str, Any] = {
    "num_layers": LAYERS,
    "hidden_size": HIDDEN,
    "ffn_hidden_size": FFN,
    "num_attention_heads": HEADS,
    "kv_channels": HEAD,
    "max_position_embeddings": POSITIONS,
    "padded_vocab_size": VOCAB,
    "layernorm_epsilon": 1e-5,
    "num_experts": [EXPERTS],
    "topk": 1,
    "bias_gelu_fusion": False,
    "openai_gelu": False,
    "params_dtype": Call("torch", "float32"),  # as real arguments have, and nothing reads
}
IDS = [3, 68, 5, 5, 41, 0, 17, 9, 22, 60, 31, 8]


def make_weights(moe_layers: tuple[int, ...], residual: bool, tied: bool) -> Weights:
    """Random values; gates are large enough for the choice of experts to be clear."""
    random = np.random.default_rng(7)
    weights: Weights = {}

    def matrix(name: str, rows: int, cols: int, spread: float = 0.15) -> None:
        weights[name] = random.normal(0, spread, (rows, cols)).astype(np.float32)

    def vector(name: str, size: int, centre: float = 0.0) -> None:
        weights[name] = (centre + random.normal(0, 0.2, size)).astype(np.float32)

    def linear(name: str, rows: int, cols: int) -> None:
        matrix(f"{name}.weight", rows, cols)
        vector(f"{name}.bias", rows)

    def ffn(name: str) -> None:
        linear(f"{name}.dense_h_to_4h", FFN, HIDDEN)
        linear(f"{name}.dense_4h_to_h", HIDDEN, FFN)

    def norm(name: str) -> None:
        vector(f"{name}.weight", HIDDEN, 1.0)
        vector(f"{name}.bias", HIDDEN)

    matrix("language_model.embedding.word_embeddings.weight", VOCAB, HIDDEN, 0.7)
    matrix("language_model.embedding.position_embeddings.weight", POSITIONS, HIDDEN, 0.3)
    for layer in range(LAYERS):
        place = f"{STEM}.{layer}"
        norm(f"{place}.input_layernorm")
        linear(f"{place}.self_attention.query_key_value", 3 * HIDDEN, HIDDEN)
        linear(f"{place}.self_attention.dense", HIDDEN, HIDDEN)
        norm(f"{place}.post_attention_layernorm")
        if layer not in moe_layers:
            ffn(f"{place}.mlp")
            continue
        matrix(f"{place}.mlp.deepspeed_moe.gate.wg.weight", EXPERTS, HIDDEN, 0.5)
        for expert in range(EXPERTS):
            ffn(f"{place}.mlp.deepspeed_moe.experts.deepspeed_experts.{expert}")
        if residual:
            ffn(f"{place}.mlp.mlp")
            linear(f"{place}.mlp.coefficient", 2, HIDDEN)
    norm("language_model.encoder.final_layernorm")
    if not tied:
        matrix("language_model.output_layer.weight", VOCAB, HIDDEN)
    return weights


def nested(weights: Weights) -> dict[str, Any]:
    """As Megatron's `state_dict_for_save_checkpoint` nests modules; a layer's names stay whole."""
    root: dict[str, Any] = {}
    for name, value in weights.items():
        _, part, rest = name.split(".", 2)
        if part == "embedding":
            table, _, last = rest.partition(".")
            place = root.setdefault(part, {}).setdefault(table, {})
        else:
            place, last = root.setdefault(part, {}), rest
        place[last] = value
    return {"language_model": root}


def save(path: Path, weights: Weights, args: dict[str, Any], version: float | None = 3.0) -> None:
    """A checkpoint's directory, as `DeepSpeedEngine.save_checkpoint` leaves it."""
    path.mkdir(parents=True)
    module = {name: one for name, one in weights.items() if "deepspeed_experts" not in name}
    state: dict[str, Any] = {
        "module": nested(module),
        "optimizer": Call("apex.optimizers", "FusedAdam", ()),
        "args": Object("argparse", "Namespace", args),
        "iteration": 10,
    }
    if version is not None:
        state["checkpoint_version"] = version
    save_torch(path / "mp_rank_00_model_states.pt", state)
    layers = sorted({name.split(".")[3] for name in weights if "deepspeed_experts" in name})
    for number, layer in enumerate(layers):
        for expert in range(EXPERTS):
            place = f"{STEM}.{layer}.mlp.deepspeed_moe.experts.deepspeed_experts.{expert}."
            tensors = {name: one for name, one in weights.items() if name.startswith(place)}
            assert tensors
            name = f"layer_{number}_expert_{expert}_mp_rank_00_model_states.pt"
            save_torch(path / name, tensors)
    save_torch(path / "expp_rank_0_mp_rank_00_optim_states.pt", {"optimizer": {"step": 10}})


def reference(weights: Weights, ids: list[int], top_k: int, tanh: bool) -> Array:
    """The logits after each token, f64 [tokens, vocabulary]."""
    exact = {name: one.astype(np.float64) for name, one in weights.items()}

    def linear(name: str, x: Array) -> Array:
        result: Array = x @ exact[f"{name}.weight"].T + exact[f"{name}.bias"]
        return result

    def norm(name: str, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        result: Array = scaled * exact[f"{name}.weight"] + exact[f"{name}.bias"]
        return result

    def gelu(x: Array) -> Array:
        if tanh:
            inner = np.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
        else:
            inner = np.vectorize(math.erf)(x / math.sqrt(2))
        result: Array = 0.5 * x * (1 + inner)
        return result

    def ffn(name: str, x: Array) -> Array:
        return linear(f"{name}.dense_4h_to_h", gelu(linear(f"{name}.dense_h_to_4h", x)))

    def softmax(x: Array) -> Array:
        powers = np.exp(x - x.max(-1, keepdims=True))
        result: Array = powers / powers.sum(-1, keepdims=True)
        return result

    def attention(name: str, x: Array) -> Array:
        # [tokens, heads, 3 * head]: q, k and v of a head are neighbours
        mixed = linear(f"{name}.query_key_value", x).reshape(len(x), HEADS, 3 * HEAD)
        q, k, v = np.split(mixed, 3, axis=-1)
        out = np.zeros((len(x), HEADS, HEAD))
        for token in range(len(x)):
            for head in range(HEADS):
                scores = k[: token + 1, head] @ q[token, head] / math.sqrt(HEAD)
                out[token, head] = softmax(scores) @ v[: token + 1, head]
        return linear(f"{name}.dense", out.reshape(len(x), HIDDEN))

    def moe(name: str, x: Array) -> Array:
        gates = softmax(x @ exact[f"{name}.deepspeed_moe.gate.wg.weight"].T)
        out = np.zeros_like(x)
        for token, gate in enumerate(gates):
            chosen = np.argsort(-gate)[:top_k]
            whole = gate[chosen].sum() if top_k == 2 else 1.0
            for expert in chosen:
                place = f"{name}.deepspeed_moe.experts.deepspeed_experts.{expert}"
                out[token] += gate[expert] / whole * ffn(place, x[token])
        if f"{name}.coefficient.weight" not in exact:
            return out
        share = softmax(linear(f"{name}.coefficient", x))
        result: Array = out * share[:, :1] + ffn(f"{name}.mlp", x) * share[:, 1:]
        return result

    x = exact["language_model.embedding.word_embeddings.weight"][ids]
    x = x + exact["language_model.embedding.position_embeddings.weight"][: len(ids)]
    for layer in range(LAYERS):
        place = f"{STEM}.{layer}"
        x = x + attention(f"{place}.self_attention", norm(f"{place}.input_layernorm", x))
        h = norm(f"{place}.post_attention_layernorm", x)
        has_experts = f"{place}.mlp.deepspeed_moe.gate.wg.weight" in exact
        x = x + (moe if has_experts else ffn)(f"{place}.mlp", h)
    embeddings = exact["language_model.embedding.word_embeddings.weight"]
    head = exact.get("language_model.output_layer.weight", embeddings)
    logits: Array = norm("language_model.encoder.final_layernorm", x) @ head.T
    return logits


def check(source: Path, expected: Array, colibri: Path, tmp_path: Path) -> None:
    """The engine's logits and likelihood of IDS."""
    convert_checkpoint(source, tmp_path / "m")
    ids = ",".join(map(str, IDS))
    command: list[str | Path] = [colibri, "--model", tmp_path / "m", "--tokens", ids]
    logits = np.array(run([*command, "--logits"]).stdout.split(), dtype=np.float64)
    assert np.abs(logits - expected[-1]).max() < 1e-4
    powers = np.exp(expected[:-1] - expected[:-1].max(-1, keepdims=True))
    chances = (powers / powers.sum(-1, keepdims=True))[range(len(IDS) - 1), IDS[1:]]
    nll = float(run([*command, "--nll"]).stdout.split()[-1])
    assert nll == pytest.approx(-np.log(chances).mean(), abs=1e-5)


@pytest.mark.parametrize(
    ("top_k", "residual", "moe_layers", "tied", "tanh"),
    [
        (1, False, (1,), True, False),
        (2, False, (0, 1, 2), True, True),
        (1, True, (0, 2), True, True),
        (2, True, (0, 1, 2), False, False),
    ],
)
def test_logits_are_those_of_the_reference(
    top_k: int,
    residual: bool,
    moe_layers: tuple[int, ...],
    tied: bool,
    tanh: bool,
    engine: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    weights = make_weights(moe_layers, residual, tied)
    args = ARGS | {"topk": top_k, "bias_gelu_fusion": tanh}
    save(tmp_path / "global_step10", weights, args)
    (tmp_path / "latest").write_text("global_step10")
    expected = reference(weights, IDS, top_k, tanh)
    check(tmp_path, expected, engine("x86_64"), tmp_path)


@pytest.mark.parametrize("version", [0, 1.0, None])
def test_older_orders_of_q_k_and_v(
    version: float | None, engine: Callable[[str], Path], tmp_path: Path
) -> None:
    weights = make_weights((1,), residual=False, tied=True)
    expected = reference(weights, IDS, 1, False)
    for name in weights if version is not None else ():
        if "query_key_value" in name:
            heads = weights[name].reshape(HEADS, 3, HEAD, -1)
            axes = (1, 0, 2, 3) if version == 0 else (0, 2, 1, 3)
            weights[name] = heads.transpose(axes).reshape(weights[name].shape).copy()
    old = {
        name.replace(".encoder.", ".transformer.").replace("self_attention", "attention"): one
        for name, one in weights.items()
        if "deepspeed_experts" not in name
    }
    experts = {name: one for name, one in weights.items() if "deepspeed_experts" in name}
    save(tmp_path / "c", old | experts, ARGS, version)
    check(tmp_path / "c", expected, engine("x86_64"), tmp_path)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"topk": 4}, "topk is 4: only top-1 and top-2 gates are supported"),
        ({"swiglu": True}, "swiglu is true: not supported"),
        ({"apply_layernorm_1p": True}, "apply_layernorm_1p is true: not supported"),
        ({"squared_relu": True}, "squared_relu is true: not supported"),
        ({"normalization": "rmsnorm"}, 'normalization is "rmsnorm": only layernorm is supported'),
        ({"use_rotary_position_embeddings": True}, "use_rotary_position_embeddings is true: not"),
        ({"position_embedding_type": "alibi"}, 'position_embedding_type is "alibi": only'),
        ({"apply_residual_connection_post_layernorm": True}, "post_layernorm is true: not supp"),
        ({"embed_layernorm": True}, "embed_layernorm is true: not supported"),
        ({"add_bias_linear": False}, "add_bias_linear is false: not supported"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2: expected 4, as there are heads"),
        ({"tensor_model_parallel_size": 2}, "tensor_model_parallel_size is 2: not supported"),
        ({"num_layers": 2}, "tensors that a DeepSpeed-MoE GPT does not have"),
        ({"num_layers": 4}, "tensors are missing: language_model.encoder.layers.3."),
        ({"hidden_size": "48"}, 'hidden_size is "48": expected an integer'),
        ({"max_position_embeddings": 64}, "position_embeddings.weight has shape [32, 48]"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    args: dict[str, Any], message: str, tmp_path: Path
) -> None:
    weights = make_weights((0, 1, 2), residual=False, tied=True)
    save(tmp_path / "c", weights, ARGS | args)
    with pytest.raises(ConversionError) as caught:
        plan_conversion(tmp_path / "c")
    assert message in caught.value.message


def test_layers_with_different_numbers_of_experts_are_refused(tmp_path: Path) -> None:
    weights = make_weights((0, 1), residual=False, tied=True)
    gate = f"{STEM}.0.mlp.deepspeed_moe.gate.wg.weight"
    weights[gate] = weights[gate][:3].copy()
    save(tmp_path / "c", weights, ARGS)
    with pytest.raises(ConversionError, match=r"num_experts is \[5\]: 2 numbers of experts"):
        plan_conversion(tmp_path / "c")


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    save(tmp_path / "c", make_weights((0, 1), residual=False, tied=True), ARGS)
    (tmp_path / "c/layer_1_expert_3_mp_rank_00_model_states.pt").unlink()
    with pytest.raises(ConversionError, match=r"layers.1.mlp.deepspeed_moe.*experts\.3\.dense_h"):
        plan_conversion(tmp_path / "c")


def test_parts_of_tensor_and_pipeline_parallelism_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save(path, make_weights((0,), residual=False, tied=True), ARGS)
    save_torch(path / "mp_rank_01_model_states.pt", {"module": {}})
    with pytest.raises(ConversionError, match="has parts of tensor parallelism"):
        plan_conversion(path)
    (path / "mp_rank_01_model_states.pt").unlink()
    save_torch(path / "mp_rank_00_model_states.pt", {"module": None})
    with pytest.raises(ConversionError, match="with pipeline parallelism it has none"):
        plan_conversion(path)


def test_a_config_beside_the_checkpoint_goes_before_its_arguments(tmp_path: Path) -> None:
    save(tmp_path / "c", make_weights((0,), residual=False, tied=True), ARGS)
    (tmp_path / "c/config.json").write_text('{"topk": 2, "eos_token_id": 69}')
    plan = plan_conversion(tmp_path / "c")
    assert (plan.config.top_k, plan.config.eos_ids) == (2, (69,))
    assert any("it is not sampled" in note for note in plan.notes)
