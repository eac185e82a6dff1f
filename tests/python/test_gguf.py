# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""GGUF files, written here with the package `gguf`, against the checkpoints that they came from."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from colibri_deploy.cli import cli
from colibri_deploy.convert import DTypeChoice, convert_checkpoint, plan_conversion
from colibri_deploy.errors import ConversionError, FileMissingError
from colibri_deploy.model import Model
from colibri_deploy.targets import machine_arch
from colibri_deploy.tiles import DType, pack_tiles
from colibri_deploy.upcycle import Upcycling, neuron_order

Types = gguf.GGMLQuantizationType
Array = npt.NDArray[Any]
MakeCheckpoint = Callable[..., Path]

DENSE = {"hidden": 64, "ffn": 96, "experts": 0, "top_k": 0}
MOE = {"hidden": 64, "ffn": 96, "experts": 3, "top_k": 2}


def permuted(weights: Array, n_heads: int) -> Array:
    """Rows of q or k as llama.cpp's convert_hf_to_gguf.py stores them (`LlamaModel.permute`)."""
    halves = weights.reshape(n_heads, 2, weights.shape[0] // n_heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def gguf_tensors(checkpoint: Path, stacked: bool = True) -> dict[str, Array]:
    """A checkpoint's tensors under the names that the package `gguf` gives them."""
    config = json.loads((checkpoint / "config.json").read_text())
    n_layers = config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, n_layers)
    tensors: dict[str, Array] = {}
    experts: dict[str, list[Array]] = {}
    for name, array in sorted(load_file(checkpoint / "model.safetensors").items()):
        if ".experts." in name:  # model.layers.<l>.block_sparse_moe.experts.<e>.<matrix>.weight
            layer, matrix = name.split(".")[2], name.split(".")[6]
            stem = str(names.get_name(f"layers.{layer}.feed_forward.experts.{matrix}"))
            experts.setdefault(stem, []).append(array)
            continue
        if name.endswith("q_proj.weight"):
            array = permuted(array, config["num_attention_heads"])
        if name.endswith("k_proj.weight"):
            array = permuted(array, config["num_key_value_heads"])
        tensors[str(names.get_name(name, try_suffixes=(".weight",)))] = array
    for stem, arrays in experts.items():
        if stacked:
            tensors[f"{stem}.weight"] = np.stack(arrays)
        else:
            stem = stem.removesuffix("_exps")
            tensors |= {f"{stem}.{index}.weight": one for index, one in enumerate(arrays)}
    return tensors


def write_gguf(
    path: Path,
    checkpoint: Path,
    tensors: Mapping[str, Array | tuple[Array, Types]],
    **keys: Any,
) -> Path:
    """A GGUF file with a checkpoint's metadata. A tuple is a tensor's stored bytes and their type.

    `keys` are set last, `__` standing for a dot; None leaves one out.
    """
    config = json.loads((checkpoint / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    values: dict[str, Any] = {
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.rope.dimension_count": config["hidden_size"] // config["num_attention_heads"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.vocab_size": config["vocab_size"],
        "general.quantization_version": 2,
    }
    if "num_local_experts" in config:
        values["llama.expert_count"] = config["num_local_experts"]
        values["llama.expert_used_count"] = config["num_experts_per_tok"]
    values |= {key.replace("__", "."): value for key, value in keys.items()}
    for key, value in values.items():
        if key == "general.architecture":
            writer.kv_data[0][key].value = value
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    for name, tensor in tensors.items():
        array, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def typed(tensors: Mapping[str, Array], kind: Types) -> dict[str, tuple[Array, Types]]:
    """Matrices in another type; vectors and routers stay F32, as in llama.cpp's files."""
    return {
        name: (array, Types.F32)
        if array.ndim == 1 or "ffn_gate_inp" in name
        else (gguf.quants.quantize(array, kind), kind)
        for name, array in tensors.items()
    }


def files(directory: Path) -> tuple[bytes, bytes]:
    return (directory / "config.json").read_bytes(), (directory / "model.bin").read_bytes()


@pytest.fixture
def dense(make_checkpoint: MakeCheckpoint, tmp_path: Path) -> Path:
    """A Llama: hidden 64, FFN 96, 2 layers, 4 heads (2 KV) of 16, 50 tokens, float32."""
    return make_checkpoint(tmp_path / "checkpoint", **DENSE)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q8", "q4", "mxfp4"])
@pytest.mark.parametrize(
    ("shape", "stacked"),
    [(DENSE, True), (MOE, True), (MOE, False)],
    ids=["dense", "mixtral", "mixtral of single experts"],
)
def test_gguf_and_checkpoint_give_the_same_files(
    dtype: DTypeChoice,
    shape: dict[str, int],
    stacked: bool,
    make_checkpoint: MakeCheckpoint,
    tmp_path: Path,
) -> None:
    source = make_checkpoint(tmp_path / "checkpoint", **shape)
    path = write_gguf(tmp_path / "m.gguf", source, gguf_tensors(source, stacked))
    convert_checkpoint(source, tmp_path / "hub", dtype)
    convert_checkpoint(path, tmp_path / "gguf", dtype)
    assert files(tmp_path / "gguf") == files(tmp_path / "hub")


def test_a_tied_head(dense: Path, tmp_path: Path) -> None:
    arrays = load_file(dense / "model.safetensors")
    del arrays["lm_head.weight"]
    save_file(arrays, dense / "model.safetensors")
    config = json.loads((dense / "config.json").read_text()) | {"tie_word_embeddings": True}
    (dense / "config.json").write_text(json.dumps(config))
    path = write_gguf(tmp_path / "m.gguf", dense, gguf_tensors(dense))
    convert_checkpoint(dense, tmp_path / "hub", "f16")
    convert_checkpoint(path, tmp_path / "gguf", "f16")
    assert files(tmp_path / "gguf") == files(tmp_path / "hub")


def test_the_engine_runs_it(dense: Path, tmp_path: Path, run_engine: Callable[..., Any]) -> None:
    path = write_gguf(tmp_path / "m.gguf", dense, gguf_tensors(dense))
    answers = []
    for name, source in (("hub", dense), ("gguf", path)):
        convert_checkpoint(source, tmp_path / name)
        options = "--tokens 1,2,3 --num_tokens 4 --format ids --logits_hash".split()
        answers.append(run_engine(machine_arch(), "--model", tmp_path / name, *options).stdout)
    assert answers[0] == answers[1]
    assert "clb1:" in answers[0]


@pytest.mark.parametrize(
    ("kind", "keeps"),
    [
        (Types.F16, "f16"),
        (Types.BF16, "bf16"),
        (Types.Q8_0, "q8"),
        (Types.Q4_0, "q4"),
        (Types.MXFP4, "mxfp4"),
    ],
)
def test_keep_takes_the_type_that_all_matrices_have(
    kind: Types, keeps: str, dense: Path, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf", dense, typed(gguf_tensors(dense), kind))
    plan = plan_conversion(path)
    assert plan.dtype is DType[keeps]
    assert f"the matrices are stored as {kind.name.lower()} and stay {keeps}" in plan.notes


def kept(path: Path) -> dict[str, str]:
    return {kind: dtype.name for kind, dtype in plan_conversion(path).dtypes.items()}


def test_keep_decides_for_each_kind_of_matrix(dense: Path, tmp_path: Path) -> None:
    tensors = gguf_tensors(dense)
    mixed = typed(tensors, Types.BF16) | {"output.weight": (tensors["output.weight"], Types.F32)}
    path = write_gguf(tmp_path / "m.gguf", dense, mixed)
    others = dict.fromkeys(("embed", "attn", "ffn"), "bf16")
    assert kept(path) == others | {"head": "f32"}
    coarse = mixed["token_embd.weight"][0].view("<u2").astype("<u4") << 16
    coarse[0, 0] = 1 << 28  # too small for f16
    mixed["output.weight"] = (coarse.view("<f4").reshape(50, 64), Types.F32)
    path = write_gguf(tmp_path / "n.gguf", dense, mixed)
    assert kept(path) == others | {"head": "bf16"}
    blocks = typed(tensors, Types.Q4_0)
    blocks["output.weight"] = typed(tensors, Types.Q8_0)["output.weight"]
    path = write_gguf(tmp_path / "p.gguf", dense, blocks)
    assert kept(path) == dict.fromkeys(("embed", "attn", "ffn"), "q4") | {"head": "q8"}
    assert "head are stored as q8_0 and stay q8" in plan_conversion(path).notes
    blocks["blk.1.ffn_up.weight"] = typed(tensors, Types.Q8_0)["blk.1.ffn_up.weight"]
    path = write_gguf(tmp_path / "q.gguf", dense, blocks)
    plan = plan_conversion(path)
    assert plan.dtypes["ffn"] is DType.f32
    assert "ffn are stored as q4_0, q8_0; only f32 holds all values" in plan.notes
    del blocks["blk.1.ffn_up.weight"]
    blocks["blk.1.ffn_up.weight"] = typed(tensors, Types.Q4_0)["blk.1.ffn_up.weight"]
    path = write_gguf(tmp_path / "r.gguf", dense, blocks)
    assert "15 of 16 matrices are stored as q4_0 and stay as they are" in (
        plan_conversion(path, "q4").notes
    )
    assert "1 of 16 matrices are stored as q8_0 and stay as they are" in (
        plan_conversion(path, "q8").notes
    )


def stored_q8(model: Model, section: str, rows: int, cols: int) -> tuple[Array, Array]:
    """Integers [rows, cols] and f16 bits [rows, blocks], read as docs/FORMAT.md says."""
    data = model.file.item(section)
    integers = np.zeros((rows, cols), np.int8)
    scales = np.zeros((rows, cols // 32), np.uint16)
    for row in range(rows):
        for block in range(cols // 32):
            pair = (row // 16 * -(-cols // 64) + block // 2) * 1088
            place = pair + 32 * (block % 2) + 2 * (row % 16)
            scales[row, block] = int(data[place]) | int(data[place + 1]) << 8
            for c in range(32):
                place = pair + 64 + 512 * (block % 2) + 64 * (c // 4) + 4 * (row % 16) + c % 4
                integers[row, block * 32 + c] = data[place].astype(np.int8)
    return integers, scales


def test_q8_0_keeps_every_integer_and_every_scale(dense: Path, tmp_path: Path) -> None:
    """-128, which no writer of ours makes, and scales of any sign and size among them."""
    tensors = typed(gguf_tensors(dense), Types.Q8_0)
    rng = np.random.default_rng(1)
    wild = rng.integers(0, 256, (50, 2, 34), dtype=np.uint8)
    wild[:, :, 1] &= 0xBB  # scales are finite
    wild[7, 1, 2:] = 128
    tensors["output.weight"] = (wild.reshape(50, -1), Types.Q8_0)
    path = write_gguf(tmp_path / "m.gguf", dense, tensors)
    plan = convert_checkpoint(path, tmp_path / "model", "q8")
    assert "16 of 16 matrices are stored as q8_0 and stay as they are" in plan.notes
    integers, scales = stored_q8(Model.open(tmp_path / "model"), "lm_head", 50, 64)
    assert np.array_equal(integers.reshape(50, 2, 32), wild[:, :, 2:].view(np.int8))
    assert np.array_equal(scales, np.ascontiguousarray(wild[:, :, :2]).view("<u2")[:, :, 0])


@pytest.mark.parametrize("dtype", ["keep", "q4"])
def test_q4_0_keeps_every_integer_and_every_scale(
    dtype: DTypeChoice, dense: Path, tmp_path: Path
) -> None:
    """Scales of any sign and size, and rows and columns that are padded, among them."""
    tensors = typed(gguf_tensors(dense), Types.Q4_0)
    rng = np.random.default_rng(1)
    wild = {"output.weight": (50, 2), "blk.1.ffn_down.weight": (64, 3)}
    for name, shape in wild.items():
        data = rng.integers(0, 256, (*shape, 18), dtype=np.uint8)
        data[:, :, 1] &= 0xBB  # scales are finite
        data[7, 1, :2] = (0x00, 0x80)  # -0
        tensors[name] = (data.reshape(shape[0], -1), Types.Q4_0)
    path = write_gguf(tmp_path / "m.gguf", dense, tensors)
    plan = convert_checkpoint(path, tmp_path / "model", dtype)
    if dtype == "q4":
        assert "16 of 16 matrices are stored as q4_0 and stay as they are" in plan.notes
    file = Model.open(tmp_path / "model").file
    for name, section, layer in (
        ("output.weight", "lm_head", 0),
        ("blk.1.ffn_down.weight", "down_weights", 1),
    ):
        stored = tensors[name][0]
        found = file.matrix(section, layer)
        expected = np.asarray(gguf.quants.dequantize(stored, Types.Q4_0), np.float32)
        assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))
        data, n_pairs = file.item(section, layer), -(-stored.shape[1] // 36)
        for row in range(len(stored)):
            for block in range(stored.shape[1] // 18):
                pair = (row // 16 * n_pairs + block // 2) * 576
                place = pair + 32 * (block % 2) + 2 * (row % 16)
                one = stored[row, 18 * block : 18 * block + 18]
                assert data[place : place + 2].tolist() == one[:2].tolist()
                for c in range(32):
                    place = pair + 64 + 256 * (block % 2) + 64 * (c // 8) + 4 * (row % 16) + c % 4
                    half, whole = int(data[place]), int(one[2 + c % 16])
                    assert half >> (c & 4) & 15 == whole >> (4 if c > 15 else 0) & 15


@pytest.mark.parametrize("dtype", ["keep", "mxfp4"])
def test_mxfp4_keeps_every_code_and_every_scale(
    dtype: DTypeChoice, dense: Path, tmp_path: Path
) -> None:
    """Every code and every exponent whose values are finite, the code 8 among them."""
    tensors = typed(gguf_tensors(dense), Types.MXFP4)
    rng = np.random.default_rng(1)
    wild = {"output.weight": (50, 2), "blk.1.ffn_down.weight": (64, 3)}
    for name, shape in wild.items():
        data = rng.integers(0, 256, (*shape, 17), dtype=np.uint8)
        data[:, :, 0] = np.resize(np.arange(253), shape)
        tensors[name] = (data.reshape(shape[0], -1), Types.MXFP4)
    path = write_gguf(tmp_path / "m.gguf", dense, tensors)
    plan = convert_checkpoint(path, tmp_path / "model", dtype)
    if dtype == "mxfp4":
        assert "16 of 16 matrices are stored as mxfp4 and stay as they are" in plan.notes
    file = Model.open(tmp_path / "model").file
    for name, section, layer in (
        ("output.weight", "lm_head", 0),
        ("blk.1.ffn_down.weight", "down_weights", 1),
    ):
        stored = tensors[name][0]
        found = file.matrix(section, layer)
        expected = np.asarray(gguf.quants.dequantize(stored, Types.MXFP4), np.float32)
        assert np.array_equal(found, expected)
        data, n_pairs = file.item(section, layer), -(-stored.shape[1] // 34)
        for row in range(len(stored)):
            for block in range(stored.shape[1] // 17):
                pair = (row // 16 * n_pairs + block // 2) * 576
                place = pair + 32 * (block % 2) + 2 * (row % 16)
                one = stored[row, 17 * block : 17 * block + 17]
                (scale,) = struct.unpack("<f", b"\0\0" + data[place : place + 2].tobytes())
                assert scale == 2.0 ** (int(one[0]) - 128)
                for c in range(32):
                    place = pair + 64 + 256 * (block % 2) + 64 * (c // 8) + 4 * (row % 16) + c % 4
                    half, whole = int(data[place]), int(one[1 + c % 16])
                    assert half >> (c & 4) & 15 == whole >> (4 if c > 15 else 0) & 15


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(Types.Q8_0, DType.q8), (Types.Q4_0, DType.q4), (Types.MXFP4, DType.mxfp4)],
)
def test_upcycling_moves_the_blocks_of_gate_and_up_and_rounds_down_anew(
    kind: Types, dtype: DType, dense: Path, tmp_path: Path
) -> None:
    tensors = typed(gguf_tensors(dense), kind)
    path = write_gguf(tmp_path / "m.gguf", dense, tensors)
    choice = cast(DTypeChoice, dtype.name)
    plan = convert_checkpoint(path, tmp_path / "moe", choice, upcycling=Upcycling(4, 2, seed=3))
    # Of 2 layers: 4 matrices of the attention, 4 experts of 3; embeddings and head.
    kept = f"26 of 34 matrices are stored as {kind.name.lower()} and stay as they are"
    assert kept in plan.notes
    file = Model.open(tmp_path / "moe").file
    for layer in range(2):
        gate, up, down = (
            np.asarray(gguf.quants.dequantize(tensors[f"blk.{layer}.ffn_{name}.weight"][0], kind))
            for name in ("gate", "up", "down")
        )
        for expert in range(4):
            order = neuron_order(3, layer, expert, 96)
            assert np.array_equal(file.matrix("gate_weights", layer, expert), gate[order])
            assert np.array_equal(file.matrix("up_weights", layer, expert), up[order])
            anew = pack_tiles(down[:, order], dtype)
            assert np.array_equal(file.item("down_weights", layer, expert), anew)


DEQUANTISED = (
    "Q2_K Q3_K Q4_K Q5_K Q6_K IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ1_S IQ1_M IQ4_NL IQ4_XS "
    "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 TQ1_0 TQ2_0 MXFP4"
)


@pytest.mark.parametrize("name", DEQUANTISED.split())
def test_every_type_is_dequantised_as_gguf_does_it(
    name: str, make_checkpoint: MakeCheckpoint, tmp_path: Path
) -> None:
    source = make_checkpoint(tmp_path / "c", **DENSE | {"hidden": 256, "layers": 1, "vocab": 16})
    kind: Types = getattr(Types, name)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(1)
    # Bytes below 0x3C, so that whatever is an f16 is a small number.
    data = rng.integers(0, 0x3C, (96, 256 // block * size), dtype=np.uint8)
    tensors = gguf_tensors(source) | {"blk.0.ffn_up.weight": (data, kind)}
    path = write_gguf(tmp_path / "m.gguf", source, tensors)
    convert_checkpoint(path, tmp_path / "model", "f32")
    found = Model.open(tmp_path / "model").file.matrix("up_weights")
    expected = np.asarray(gguf.quants.dequantize(data, kind), np.float32)
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_a_type_without_values_is_refused(dense: Path, tmp_path: Path) -> None:
    integers = np.zeros((96, 64), np.int32)
    tensors = gguf_tensors(dense) | {"blk.1.ffn_up.weight": (integers, Types.I32)}
    path = write_gguf(tmp_path / "m.gguf", dense, tensors)
    with pytest.raises(ConversionError, match=r"blk\.1\.ffn_up\.weight is stored as I32"):
        plan_conversion(path)


def rope_of(path: Path, tmp_path: Path) -> Array:
    model = tmp_path / f"{path.stem}-model"
    convert_checkpoint(path, model, "f32")
    return Model.open(model).file.matrix("rope").reshape(-1)


def test_rope(dense: Path, tmp_path: Path) -> None:
    """The frequencies of head size 16: base ** (-i / 8), then the scalings."""
    tensors = gguf_tensors(dense)

    def rope(name: str, **keys: Any) -> Array:
        return rope_of(write_gguf(tmp_path / f"{name}.gguf", dense, tensors, **keys), tmp_path)

    plain = 10000.0 ** (-np.arange(8) / 8)
    assert rope("plain") == pytest.approx(plain, rel=1e-6)
    assert rope("default", llama__rope__freq_base=None) == pytest.approx(plain, rel=1e-6)
    wide = rope("wide", llama__rope__freq_base=500000.0)
    assert wide == pytest.approx(500000.0 ** (-np.arange(8) / 8), rel=1e-6)
    linear = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    assert rope("linear", **linear) == pytest.approx(plain / 4, rel=1e-6)
    assert rope("old", llama__rope__scale_linear=4.0) == pytest.approx(plain / 4, rel=1e-6)
    assert rope("none", **linear | {"llama__rope__scaling__type": "none"}) == pytest.approx(plain)
    factors = np.array([1, 1, 1, 1.5, 2, 4, 8, 8], np.float32)
    tensors["rope_freqs.weight"] = factors
    assert rope("llama3") == pytest.approx(plain / factors, rel=1e-6)


REFUSED = [
    ("general.architecture", "qwen2", "general.architecture is 'qwen2'"),
    ("general.type", "adapter", "general.type is 'adapter'"),
    ("general.quantization_version", 1, "general.quantization_version is 1"),
    ("split.count", 3, "split.count is 3"),
    ("llama.rope.scaling.type", "yarn", "llama.rope.scaling.type is 'yarn'"),
    ("llama.rope.scaling.attn_factor", 2.0, "llama.rope.scaling.attn_factor is 2.0"),
    ("llama.rope.dimension_count", 8, "llama.rope.dimension_count is 8"),
    ("llama.attention.value_length", 8, "llama.attention.value_length is 8"),
    ("llama.attention.sliding_window", 8, "llama.attention.sliding_window is 8"),
    ("llama.attention.head_count_kv", [2, 1], r"llama.attention.head_count_kv is \[2, 1\]"),
    ("llama.attention.head_count", None, "llama.attention.head_count is missing"),
    ("llama.block_count", 3, "tensors are missing: blk.2.attn_norm.weight, .* and 4 more"),
    ("llama.block_count", 1 << 31, "n_layers is 2147483648, expected 1 to 1024"),
    ("llama.expert_count", 2, "llama.expert_used_count is missing"),
    ("llama.logit_scale", 0.5, "llama.logit_scale is 0.5"),
    ("llama.attention.layer_norm_rms_epsilon", 0.0, "layer_norm_rms_epsilon is 0.0"),
    ("llama.vocab_size", 49, "llama.vocab_size is 49"),
    ("llama.new_trick", True, "llama.new_trick is True"),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED, ids=[str(row[0]) for row in REFUSED])
def test_what_changes_the_numbers_is_refused_by_name(
    key: str, value: Any, message: str, dense: Path, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf", dense, gguf_tensors(dense), **{key: value})
    with pytest.raises(ConversionError, match=message):
        plan_conversion(path)


def test_missing_unknown_and_misshapen_tensors_are_named(dense: Path, tmp_path: Path) -> None:
    def message(change: Callable[[dict[str, Array]], object]) -> str:
        tensors = gguf_tensors(dense)
        change(tensors)
        path = write_gguf(tmp_path / "m.gguf", dense, tensors)
        with pytest.raises(ConversionError) as caught:
            plan_conversion(path)
        return caught.value.message

    vector = np.zeros(64, np.float32)
    missing = message(lambda tensors: tensors.pop("blk.1.attn_q.weight"))
    assert missing == "tensors are missing: blk.1.attn_q.weight"
    bias = message(lambda tensors: tensors.update({"blk.0.attn_q.bias": vector}))
    assert "tensors that a llama GGUF does not have: blk.0.attn_q.bias" in bias
    shape = message(lambda tensors: tensors.update({"blk.0.attn_v.weight": vector}))
    assert shape == "blk.0.attn_v.weight has shape [64], the metadata implies [32, 64]"
    factors = message(lambda tensors: tensors.update({"rope_freqs.weight": vector}))
    assert "rope_freqs.weight has shape [64] of F32, expected [8] of F32" in factors


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        (Types.Q8_0, (0x00, 0x7C)),  # a scale of infinity
        (Types.Q4_0, (0x00, 0x7C)),
        (Types.MXFP4, (0xFF, 0x07)),  # 12 times 2^127
    ],
)
def test_a_number_that_is_none_is_refused_with_its_name(
    kind: Types, start: tuple[int, int], dense: Path, tmp_path: Path
) -> None:
    tensors = typed(gguf_tensors(dense), kind)
    data = tensors["blk.0.attn_v.weight"][0].copy()
    data[3, :2] = start
    tensors["blk.0.attn_v.weight"] = (data, kind)
    path = write_gguf(tmp_path / "m.gguf", dense, tensors)
    dtypes: tuple[DTypeChoice, ...] = ("keep", "f32")
    for dtype in dtypes:
        with pytest.raises(ConversionError, match=r"blk\.0\.attn_v\.weight"):
            convert_checkpoint(path, tmp_path / "model", dtype)
    assert not (tmp_path / "model").exists()


def test_a_file_cut_anywhere_is_refused(dense: Path, tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf", dense, gguf_tensors(dense)).read_bytes()
    cut = tmp_path / "cut.gguf"
    header = whole.index(b"output_norm.weight") + 100
    for size in (*range(0, header, 7), *range(header, len(whole), 9973), len(whole) - 1):
        cut.write_bytes(whole[:size])
        with pytest.raises(ConversionError, match=r"truncated|not a GGUF"):
            plan_conversion(cut)


def test_a_damaged_header_is_refused_or_read_never_worse(dense: Path, tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf", dense, gguf_tensors(dense)).read_bytes()
    header = whole.index(b"output_norm.weight") + 60
    damaged = tmp_path / "damaged.gguf"
    rng = random.Random(1)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(header)] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        damaged.write_bytes(data)
        try:
            plan_conversion(damaged)
        except (ConversionError, FileMissingError):
            refused += 1
    assert refused > 200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "GGUF version 1 is not supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian GGUF is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "damaged"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62), "damaged"),
    ],
)
def test_garbage_is_one_clear_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    done = CliRunner().invoke(cli, ["convert", str(path), "-o", str(tmp_path / "model")])
    assert done.exit_code == 26
    assert done.stderr.startswith(f"error: {path}: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "model").exists()


def test_a_directory_that_holds_only_a_gguf_says_what_to_give(dense: Path, tmp_path: Path) -> None:
    (dense / "model.safetensors").unlink()
    (dense / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(FileMissingError, match=r"to convert m\.gguf, give that file"):
        plan_conversion(dense)
