# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What `convert` writes, value by value, and what it refuses."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from colibri_deploy.convert import DTypeChoice, convert_checkpoint, plan_conversion
from colibri_deploy.dtype_choice import parse_dtypes
from colibri_deploy.errors import ConversionError
from colibri_deploy.model import Model
from colibri_deploy.process import run
from colibri_deploy.tiles import DType, Layout

Arrays = dict[str, npt.NDArray[Any]]


def edit_config(checkpoint: Path, **changes: object) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_tensors(checkpoint: Path, change: Callable[[Arrays], object]) -> None:
    path = checkpoint / "model.safetensors"
    arrays: Arrays = load_file(path)
    change(arrays)
    save_file(arrays, path)


def as_llama(checkpoint: Path) -> None:
    """Turn the checkpoint into a dense Llama whose FFN is the first expert."""

    def rename(arrays: Arrays) -> None:
        for name in list(arrays):
            array = arrays.pop(name)
            for old, new in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
                name = name.replace(f"block_sparse_moe.experts.0.{old}", f"mlp.{new}")
            if "block_sparse_moe" not in name:
                arrays[name] = array

    edit_tensors(checkpoint, rename)
    edit_config(checkpoint, architectures=["LlamaForCausalLM"])


def stored_values(checkpoint: Path) -> Arrays:
    """All tensors as float32, read without the code under test."""
    data = (checkpoint / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    arrays: Arrays = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            part = data[begin:end]
            if entry["dtype"] == "BF16":
                wide = np.frombuffer(part, "<u2").astype("<u4") << 16
                array = wide.astype("<u4").view("<f4")
            else:
                array = np.frombuffer(part, {"F32": "<f4", "F16": "<f2"}[entry["dtype"]])
            arrays[name] = array.astype(np.float32).reshape(entry["shape"])
    return arrays


ATTENTION = {
    "attention_norm": "input_layernorm",
    "attention_q": "self_attn.q_proj",
    "attention_k": "self_attn.k_proj",
    "attention_v": "self_attn.v_proj",
    "attention_o": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}
EXPERTS = {"gate_weights": "w1", "up_weights": "w3", "down_weights": "w2"}
DENSE = {
    "gate_weights": "mlp.gate_proj",
    "up_weights": "mlp.up_proj",
    "down_weights": "mlp.down_proj",
}
ALWAYS_F32 = {"attention_norm", "ffn_norm", "final_norm", "router", "rope"}


def expected_items(
    arrays: Arrays, n_layers: int, n_experts: int
) -> dict[tuple[str, int, int], Any]:
    """(section, layer, expert) -> [rows, cols], by the table of docs/FORMAT.md."""
    items = {
        ("embeddings", 0, 0): arrays["model.embed_tokens.weight"],
        ("final_norm", 0, 0): arrays["model.norm.weight"][None, :],
        ("lm_head", 0, 0): arrays["lm_head.weight"],
    }
    for layer in range(n_layers):
        place = f"model.layers.{layer}"
        for name, tensor in (ATTENTION | ({} if n_experts else DENSE)).items():
            array = arrays[f"{place}.{tensor}.weight"]
            items[name, layer, 0] = array if array.ndim == 2 else array[None, :]
        if n_experts:
            moe = f"{place}.block_sparse_moe"
            items["router", layer, 0] = arrays[f"{moe}.gate.weight"]
            for expert in range(n_experts):
                for name, tensor in EXPERTS.items():
                    array = arrays[f"{moe}.experts.{expert}.{tensor}.weight"]
                    items[name, layer, expert] = array
    return items


@pytest.mark.parametrize(
    ("fixture", "kept", "n_experts"),
    [("mixtral", "bf16", 8), ("llama", "f16", 0), ("starcoder_moe", "bf16", 4)],
)
@pytest.mark.parametrize("layout", ["interleaved", "grouped"])
@pytest.mark.parametrize("dtype", ["keep", "f32"])
def test_fixtures_are_converted_without_a_changed_value(
    fixture: str, kept: str, n_experts: int, layout: str, dtype: str, shared: Path, tmp_path: Path
) -> None:
    source = shared / "fixtures" / fixture
    convert_checkpoint(
        source,
        tmp_path / "m",
        "keep" if dtype == "keep" else "f32",
        expert_layout="grouped" if layout == "grouped" else "interleaved",
    )
    model = Model.open(tmp_path / "m")
    assert model.file.verify() == []
    stored = DType[kept] if dtype == "keep" else DType.f32
    for section in model.file.sections:
        if section.name != "tokenizer":
            wanted = DType.f32 if section.name in ALWAYS_F32 else stored
            assert section.dtype is wanted, section.name
    items = expected_items(stored_values(source), 2, n_experts)
    for (name, layer, expert), values in items.items():
        assert np.array_equal(model.file.matrix(name, layer, expert), values), (name, layer, expert)
    n_items = sum(section.n_items for section in model.file.sections)
    assert n_items == len(items) + 2  # and rope, tokenizer
    assert model.config.n_experts == n_experts
    golden = json.loads((source / "golden.json").read_text())
    assert list(model.config.eos_ids) == golden["eos_token_ids"]


@pytest.mark.parametrize("dtype", [DType.q8, DType.q4, DType.mxfp4])
@pytest.mark.parametrize("fixture", ["mixtral", "llama", "starcoder_moe"])
def test_blocks_keep_values_within_half_a_step(
    fixture: str, dtype: DType, shared: Path, tmp_path: Path
) -> None:
    source = shared / "fixtures" / fixture
    convert_checkpoint(source, tmp_path / "m", cast(DTypeChoice, dtype.name))
    model = Model.open(tmp_path / "m")
    assert model.file.verify() == []
    for section in model.file.sections:
        if section.name != "tokenizer" and section.name not in ALWAYS_F32:
            assert (section.dtype, section.layout) == (dtype, Layout.tiles)
    items = expected_items(stored_values(source), 2, model.config.n_experts)
    # Of q4 an integer 8, on the side of the sign that the largest does not have, becomes 7.
    # Of mxfp4 the largest is 4 to 8 times a power of two, and what is beyond 6 becomes 6.
    largest, steps = {DType.q8: (127, 0.5), DType.q4: (8, 1), DType.mxfp4: (4, 1)}[dtype]
    for (name, layer, expert), values in items.items():
        got = model.file.matrix(name, layer, expert)
        if name in ALWAYS_F32:
            assert np.array_equal(got, values)
            continue
        for first in range(0, values.shape[1], 32):
            block = values[:, first : first + 32]
            step = np.abs(block).max(axis=1, keepdims=True) / largest
            # And what rounding the scale to 11 bits moves the largest by.
            limit = step * (steps + largest / 2048) + 1e-7
            assert (np.abs(got[:, first : first + 32] - block) <= limit).all()


def test_an_unknown_architecture_is_refused_by_its_name(checkpoint: Path, tmp_path: Path) -> None:
    path = checkpoint / "config.json"
    path.write_text(path.read_text().replace("MixtralForCausalLM", "Qwen9ForCausalLM"))
    with pytest.raises(ConversionError, match="names Qwen9ForCausalLM; this version"):
        convert_checkpoint(checkpoint, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def halves(arrays: Arrays) -> None:
    """Values that f16 holds and bf16 does not."""
    for name, array in arrays.items():
        if array.ndim == 2 and "block_sparse_moe.gate" not in name:
            arrays[name] = array.astype(np.float16).astype(np.float32)


def bf16s(arrays: Arrays) -> None:
    """Values that bf16 holds; one of each kind of matrix is too small for f16."""
    for name, array in arrays.items():
        if array.ndim == 2 and "block_sparse_moe.gate" not in name:
            arrays[name] = (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    for name in ("lm_head.weight", "model.embed_tokens.weight", f"{Q0}.weight", W3):
        arrays[name][3, 5] = 2.0**-100


def eighths(arrays: Arrays) -> None:
    """Values that both hold."""
    for name, array in arrays.items():
        if array.ndim == 2:
            arrays[name] = np.round(array * 8) / np.float32(8)


def one_odd_value(arrays: Arrays) -> None:
    eighths(arrays)
    arrays["model.layers.1.block_sparse_moe.experts.2.w2.weight"][31, 39] = 1 / 3


@pytest.mark.parametrize(
    ("change", "chosen", "note"),
    [
        (lambda arrays: None, "f32", "only f32 holds all values"),
        (halves, "f16", "stored as f32; f16 holds all values exactly"),
        (bf16s, "bf16", "stored as f32; bf16 holds all values exactly"),
        (eighths, "f16", "stored as f32; f16 holds all values exactly"),
        (one_odd_value, {"ffn": "f32"}, "ffn are stored as f32; only f32 holds all values"),
        (one_odd_value, {"ffn": "f32"}, "embed, attn, head are stored as f32; f16 holds all"),
    ],
)
def test_keep_looks_at_the_values(
    change: Callable[[Arrays], None],
    chosen: str | dict[str, str],
    note: str,
    checkpoint: Path,
    tmp_path: Path,
) -> None:
    edit_tensors(checkpoint, change)
    plan = convert_checkpoint(checkpoint, tmp_path / "m")
    kinds = dict.fromkeys(("embed", "attn", "ffn", "head"), "f16")
    kinds = kinds | chosen if isinstance(chosen, dict) else dict.fromkeys(kinds, chosen)
    assert {kind: dtype.name for kind, dtype in plan.dtypes.items()} == kinds
    assert any(note in one for one in plan.notes)
    model = Model.open(tmp_path / "m")
    for item, values in expected_items(stored_values(checkpoint), 2, 3).items():
        assert np.array_equal(model.file.matrix(*item), values), item


def test_keep_of_mixed_types_takes_the_one_that_holds_both(checkpoint: Path) -> None:
    def mixed(arrays: Arrays) -> None:
        eighths(arrays)
        arrays["lm_head.weight"] = arrays["lm_head.weight"].astype(np.float16)

    edit_tensors(checkpoint, mixed)
    plan = plan_conversion(checkpoint)
    assert plan.dtype is DType.f16
    assert "the matrices are stored as f16, f32; f16 holds all values exactly" in plan.notes


def test_the_config_and_rope_are_written(checkpoint: Path, tmp_path: Path) -> None:
    edit_config(checkpoint, sliding_window=17, rope_theta=10000.0, eos_token_id=[4, 3])
    convert_checkpoint(checkpoint, tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text()) == {
        "config_version": 1,
        "architecture": "mixtral",
        "n_layers": 2,
        "hidden_size": 32,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 8,
        "ffn_size": 40,
        "vocab_size": 50,
        "n_experts": 3,
        "top_k": 2,
        "max_positions": 4096,
        "sliding_window": 17,
        "norm_eps": 1e-05,
        "attention_scale": 0.35355338,
        "rope_scale": 1.0,
        "bos_id": -1,
        "eos_ids": [4, 3],
    }
    rope = Model.open(tmp_path / "m").file.matrix("rope")
    assert rope.tolist() == [np.array([1, 0.1, 0.01, 0.001], dtype=np.float32).tolist()]


@pytest.mark.parametrize("stored", [True, False])
def test_tied_embeddings_are_stored_once_as_tiles(
    stored: bool, checkpoint: Path, tmp_path: Path
) -> None:
    def tie(arrays: Arrays) -> None:
        head = arrays.pop("lm_head.weight")
        if stored:
            arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"].copy()
        assert head.shape == (50, 32)

    edit_tensors(checkpoint, tie)
    edit_config(checkpoint, tie_word_embeddings=True)
    plan = convert_checkpoint(checkpoint, tmp_path / "m")
    assert any("it is stored once" in note for note in plan.notes) is stored
    file = Model.open(tmp_path / "m").file
    assert not file.has_section("lm_head")
    assert file.section("embeddings").layout is Layout.tiles
    embeddings = stored_values(checkpoint)["model.embed_tokens.weight"]
    assert np.array_equal(file.matrix("embeddings"), embeddings)


def test_shards_convert_to_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    convert_checkpoint(checkpoint, tmp_path / "one")
    arrays = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for index in range(3):
        shard = f"model-{index + 1:05}-of-00003.safetensors"
        part = {name: arrays[name] for name in sorted(arrays)[index::3]}
        save_file(part, checkpoint / shard)
        weight_map |= dict.fromkeys(part, shard)
    index_path = checkpoint / "model.safetensors.index.json"
    index_path.write_text(json.dumps({"weight_map": weight_map}))
    convert_checkpoint(checkpoint, tmp_path / "three")
    for name in ("model.bin", "config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "three" / name).read_bytes()


def test_a_llama_converts(checkpoint: Path, tmp_path: Path) -> None:
    as_llama(checkpoint)
    convert_checkpoint(checkpoint, tmp_path / "m")
    model = Model.open(tmp_path / "m")
    assert (model.config.architecture, model.config.n_experts, model.config.top_k) == (
        "llama",
        0,
        0,
    )
    assert not model.file.has_section("router")
    for item, values in expected_items(stored_values(checkpoint), 2, 0).items():
        assert np.array_equal(model.file.matrix(*item), values), item


def drop(name: str) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.pop(name)


def add(name: str, *shape: int) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.update({name: np.ones(shape, dtype=np.float32)})


def put(name: str, value: float) -> Callable[[Arrays], object]:
    return lambda arrays: arrays[name].reshape(-1).__setitem__(-1, value)


Q0 = "model.layers.0.self_attn.q_proj"
W3 = "model.layers.1.block_sparse_moe.experts.2.w3.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop(W3), f"tensors are missing: {W3}"),
        (drop("lm_head.weight"), "tensors are missing: lm_head.weight"),
        (
            add(f"{Q0}.weight", 32, 31),
            f"{Q0}.weight has shape [32, 31], config.json implies [32, 32]",
        ),
        (
            add("model.norm.weight", 1, 32),
            "model.norm.weight has shape [1, 32], config.json implies [32]",
        ),
        (
            add(f"{Q0}.bias", 32),
            f"tensors that a MixtralForCausalLM does not have: {Q0}.bias; the checkpoint is of",
        ),
        (put(W3, float("nan")), f"{W3} holds NaN or Inf; the checkpoint is damaged"),
        (put("model.norm.weight", float("inf")), "model.norm.weight holds NaN or Inf"),
        (
            lambda arrays: arrays.update({W3: arrays[W3].astype(np.int8)}),
            f"{W3} is stored as I8; only F32, F16 and BF16 can be converted",
        ),
    ],
)
def test_wrong_tensors_are_refused_by_name(
    change: Callable[[Arrays], object], message: str, checkpoint: Path, tmp_path: Path
) -> None:
    edit_tensors(checkpoint, change)
    with pytest.raises(ConversionError) as caught:
        convert_checkpoint(checkpoint, tmp_path / "m", "bf16")
    assert message in caught.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


def test_many_missing_tensors_are_counted(checkpoint: Path) -> None:
    edit_config(checkpoint, num_hidden_layers=3)
    with pytest.raises(ConversionError, match=r"missing: model\.layers\.2\..* and 11 more$"):
        plan_conversion(checkpoint)


def test_a_stale_inv_freq_is_ignored_and_told(checkpoint: Path) -> None:
    edit_tensors(checkpoint, add("model.layers.1.self_attn.rotary_emb.inv_freq", 4))
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    assert f"not used by the model: {name}" in plan_conversion(checkpoint).notes


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("f16", 65520.0, "65520.0, does not fit f16; choose another --dtype"),
        ("bf16", 3.4e38, "does not fit bf16; choose another --dtype"),
        ("q8", 65520.0 * 127, "is too large for a q8 scale; choose another --dtype"),
        ("q4", -65520.0 * 8, "524160.0, is too large for a q4 scale; choose another --dtype"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(
    dtype: str, value: float, message: str, checkpoint: Path, tmp_path: Path
) -> None:
    edit_tensors(checkpoint, put(W3, value))
    with pytest.raises(ConversionError) as caught:
        convert_checkpoint(checkpoint, tmp_path / "m", dtype)  # type: ignore[arg-type]
    assert caught.value.message.startswith(f"{W3}: ")
    assert message in caught.value.message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


def test_a_tied_checkpoint_with_another_head_is_refused(checkpoint: Path) -> None:
    edit_config(checkpoint, tie_word_embeddings=True)
    with pytest.raises(ConversionError, match="tie_word_embeddings is true, but lm_head"):
        plan_conversion(checkpoint)


MIXED = {"ffn": "q4", "attn": "q8", "embed": "f16"}


def test_each_kind_of_matrix_has_its_type(checkpoint: Path, tmp_path: Path) -> None:
    choices = parse_dtypes("ffn=q4,attn=q8,embed=f16")
    assert choices == MIXED
    plan = convert_checkpoint(checkpoint, tmp_path / "m", choices)
    assert plan.dtype is None
    assert {kind: dtype.name for kind, dtype in plan.dtypes.items()} == MIXED | {"head": "f32"}
    assert "head are stored as f32; only f32 holds all values" in plan.notes
    file = Model.open(tmp_path / "m").file
    assert file.verify() == []
    for section in file.sections:
        wanted = DType.f32
        if section.name not in ALWAYS_F32 and section.name != "lm_head":
            kind = section.name.split("_")[0]
            wanted = {"attention": DType.q8, "embeddings": DType.f16}.get(kind, DType.q4)
        assert section.dtype is wanted, section.name
    convert_checkpoint(checkpoint, tmp_path / "q4", "q4")
    other = Model.open(tmp_path / "q4").file
    assert np.array_equal(file.item("up_weights", 1, 2), other.item("up_weights", 1, 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q9", "'q9' is no type; they are keep, f32, f16, bf16, q8, q4, mxfp4"),
        ("ffn=q4,router=q8", "'router' is no kind of matrix; they are attn, ffn, embed, head"),
        ("ffn=", "'' is no type"),
        ("ffn=q4,ffn=q8", "ffn is there twice"),
    ],
)
def test_types_that_do_not_exist_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_dtypes(text)


def test_a_tied_model_has_no_head_of_its_own(checkpoint: Path) -> None:
    edit_tensors(checkpoint, drop("lm_head.weight"))
    edit_config(checkpoint, tie_word_embeddings=True)
    with pytest.raises(ConversionError, match="the model has no head; its head is its embeddings"):
        plan_conversion(checkpoint, {"head": "q8"})


def test_ids_outside_the_vocabulary_are_left_out_and_told(checkpoint: Path) -> None:
    edit_config(checkpoint, eos_token_id=[2, 50])
    plan = plan_conversion(checkpoint)
    assert plan.config.eos_ids == (2,)
    assert "eos_token_id 50 is left out: it is outside the vocabulary" in plan.notes


@pytest.mark.parametrize("dtype", ["q8", "q4", "mxfp4"])
def test_memory_does_not_grow_with_the_model(
    dtype: str, root: Path, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """A checkpoint of 128 MB in two tensors is converted in 48 MB above what Python takes."""
    options = {"hidden": 256, "vocab": 62_500, "experts": 1, "top_k": 1}
    source = make_checkpoint(tmp_path / "checkpoint", **options)
    assert (source / "model.safetensors").stat().st_size > 128_000_000
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from colibri_deploy.convert import convert_checkpoint\n"
        "if len(sys.argv) > 1:\n"
        "    convert_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    base = int(run([sys.executable, "-c", script], cwd=root).stdout)
    full = int(run([sys.executable, "-c", script, source, tmp_path / "m", dtype], cwd=root).stdout)
    assert full - base < 48 * 1024  # KiB
