# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""FP8 and MXFP4 checkpoints: what their bytes mean, and what is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from colibri_deploy.checkpoint import Checkpoint
from colibri_deploy.convert import DTypeChoice, convert_checkpoint, plan_conversion
from colibri_deploy.errors import ConversionError
from colibri_deploy.hub_quantised import dequantised
from colibri_deploy.model import Model
from colibri_deploy.tiles import DType, pack_mxfp4_blocks, unpack_tiles

Array = npt.NDArray[Any]
Stored = dict[str, tuple[str, Array]]  # safetensors' name of the type, and the elements

E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def write_safetensors(path: Path, tensors: Stored) -> None:
    """The file, byte by byte: safetensors' own numpy writer has no FP8."""
    header: dict[str, object] = {}
    data = b""
    for name, (stored, array) in tensors.items():
        end = len(data) + array.nbytes
        offsets = [len(data), end]
        header[name] = {"dtype": stored, "shape": array.shape, "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def e4m3(code: int) -> float:
    """The value of a code (OCP 8-bit floating point, E4M3)."""
    sign = -1.0 if code & 128 else 1.0
    exponent, fraction = code >> 3 & 15, code & 7
    if exponent == 0:
        return float(sign * fraction * 2.0**-9)
    return float(sign * (8 + fraction) * 2.0 ** (exponent - 10))


def fp8_checkpoint(checkpoint: Path, block: tuple[int, int]) -> dict[str, Array]:
    """Makes all matrices but embeddings, head and router FP8; returns what they stand for."""
    path = checkpoint / "model.safetensors"
    rng = np.random.default_rng(3)
    values: dict[str, Array] = {}
    tensors: Stored = {}
    for name, array in load_file(path).items():
        if array.ndim != 2 or not any(part in name for part in ("_proj", ".experts.")):
            tensors[name] = ("F32", array)
            continue
        codes = rng.integers(0, 127, array.shape, dtype=np.uint8)
        codes |= rng.integers(0, 2, array.shape, dtype=np.uint8) << 7
        n_blocks = [-(-size // step) for size, step in zip(array.shape, block, strict=True)]
        scales = rng.uniform(1e-3, 2e-3, n_blocks).astype(np.float32)
        tensors[name] = ("F8_E4M3", codes)
        tensors[f"{name}_scale_inv"] = ("F32", scales)
        values[name] = np.array(
            [
                [
                    np.float32(e4m3(code)) * scales[row // block[0], column // block[1]]
                    for column, code in enumerate(line)
                ]
                for row, line in enumerate(codes.tolist())
            ],
            dtype=np.float32,
        )
    write_safetensors(path, tensors)
    set_quantisation(
        checkpoint,
        quant_method="fp8",
        fmt="e4m3",
        activation_scheme="dynamic",
        weight_block_size=list(block),
    )
    return values


def set_quantisation(checkpoint: Path, **quantisation: object) -> None:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"quantization_config": quantisation}))


@pytest.mark.parametrize("block", [(128, 128), (24, 20), (16, 32)])
def test_fp8_is_each_value_times_the_scale_of_its_block(
    block: tuple[int, int], checkpoint: Path, tmp_path: Path
) -> None:
    values = fp8_checkpoint(checkpoint, block)
    plan = convert_checkpoint(checkpoint, tmp_path / "m")
    assert {kind: dtype.name for kind, dtype in plan.dtypes.items()} == dict.fromkeys(
        ("embed", "attn", "ffn", "head"), "f32"
    )
    assert any(
        note.startswith("FP8 values times their scales: --dtype bf16") for note in plan.notes
    )
    file = Model.open(tmp_path / "m").file
    names = {"attention_k": "self_attn.k_proj", "down_weights": "block_sparse_moe.experts.2.w2"}
    for section, tensor in names.items():
        expert = 2 if section == "down_weights" else 0
        found = file.matrix(section, 1, expert)
        assert np.array_equal(found, values[f"model.layers.1.{tensor}.weight"]), section


@pytest.mark.parametrize(("dtype", "limit"), [("bf16", 2.0**-8), ("q8", 0.006)])
def test_fp8_goes_to_q8_or_bf16(dtype: Any, limit: float, checkpoint: Path, tmp_path: Path) -> None:
    values = fp8_checkpoint(checkpoint, (128, 128))
    convert_checkpoint(checkpoint, tmp_path / "m", dtype)
    found = Model.open(tmp_path / "m").file.matrix("attention_q", 1)
    expected = values["model.layers.1.self_attn.q_proj.weight"]
    assert np.abs(found - expected).max() <= limit * np.abs(expected).max()
    assert np.abs(found - expected).max() > 0


def test_a_view_of_fp8_sees_the_scales_of_its_own_values(checkpoint: Path) -> None:
    """As DeepSeek's kv_b_proj, which is cut into heads and transposed."""
    values = fp8_checkpoint(checkpoint, (24, 20))
    opened = Checkpoint.open(checkpoint)
    _, tensors = dequantised(opened.config, opened.tensors)
    name = "model.layers.1.block_sparse_moe.experts.2.w2.weight"  # [32, 40]
    found = tensors[name].rows(lambda raw: raw[8:24].T, slice(3, 20), 40)
    assert np.array_equal(tensors[name].widen(found), values[name][8:24].T[3:20])


def test_nan_in_fp8_is_refused_by_name(checkpoint: Path) -> None:
    fp8_checkpoint(checkpoint, (128, 128))
    path = checkpoint / "model.safetensors"
    data = bytearray(path.read_bytes())
    name = "model.layers.0.self_attn.q_proj.weight"
    tensor = Checkpoint.open(checkpoint).tensors[name]
    data[tensor.offset + 5] = 0xFF
    path.write_bytes(data)
    with pytest.raises(ConversionError, match=f"{name} holds NaN or Inf"):
        convert_checkpoint(checkpoint, checkpoint.with_name("m"), "q8")


def without_scales(tensors: Stored) -> None:
    del tensors["w.weight_scale_inv"]


def with_wrong_scales(tensors: Stored) -> None:
    tensors["w.weight_scale_inv"] = ("F32", np.ones((2, 3), np.float32))


def with_integer_scales(tensors: Stored) -> None:
    tensors["w.weight_scale_inv"] = ("U8", np.ones((2, 2), np.uint8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_scales, r"tensors are missing: w\.weight_scale_inv"),
        (with_wrong_scales, r"has shape \[2, 3\], blocks of 128 x 128 imply \[2, 2\]"),
        (with_integer_scales, r"w\.weight_scale_inv is stored as U8"),
    ],
)
def test_scales_that_do_not_fit_are_refused(
    change: Callable[[Stored], None], message: str, tmp_path: Path
) -> None:
    tensors: Stored = {
        "w.weight": ("F8_E4M3", np.zeros((200, 129), np.uint8)),
        "w.weight_scale_inv": ("F32", np.ones((2, 2), np.float32)),
    }
    change(tensors)
    (tmp_path / "config.json").write_text("{}")
    set_quantisation(tmp_path, quant_method="fp8", weight_block_size=[128, 128])
    write_safetensors(tmp_path / "model.safetensors", tensors)
    opened = Checkpoint.open(tmp_path)
    with pytest.raises(ConversionError, match=message):
        dequantised(opened.config, opened.tensors)


@pytest.mark.parametrize(
    ("quantisation", "message"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quant_method is 'gptq', only fp8 and mxfp4"),
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes', only fp8 and mxfp4"),
        ({}, "quant_method is None, only fp8 and mxfp4"),
        ({"quant_method": "fp8"}, "weight_block_size is None, expected rows and columns"),
        ({"quant_method": "fp8", "weight_block_size": [0, 8]}, "weight_block_size is .0, 8."),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt is 'e5m2', only e4m3 is supported"),
        (
            {"quant_method": "fp8", "activation_scheme": "static"},
            "activation_scheme is 'static', only dynamic",
        ),
    ],
)
def test_other_quantisations_are_refused_by_name(
    quantisation: dict[str, object], message: str, checkpoint: Path
) -> None:
    set_quantisation(checkpoint, **quantisation)
    with pytest.raises(ConversionError, match=message):
        plan_conversion(checkpoint)


def test_mxfp4_keeps_every_code_and_every_scale(tmp_path: Path) -> None:
    """gpt-oss: [experts, out, blocks, 16], read through the view of [experts, in, out]."""
    rng = np.random.default_rng(4)
    n_experts, n_out, n_blocks = 3, 40, 2
    codes = rng.integers(0, 256, (n_experts, n_out, n_blocks, 16), dtype=np.uint8)
    scales = rng.integers(0, 253, (n_experts, n_out, n_blocks), dtype=np.uint8)
    write_safetensors(
        tmp_path / "model.safetensors",
        {"e.up_blocks": ("U8", codes), "e.up_scales": ("U8", scales)},
    )
    (tmp_path / "config.json").write_text("{}")
    set_quantisation(tmp_path, quant_method="mxfp4")
    opened = Checkpoint.open(tmp_path)
    config, tensors = dequantised(opened.config, opened.tensors)
    assert (config, list(tensors)) == ({}, ["e.up"])
    tensor = tensors["e.up"]
    assert (tensor.shape, tensor.dtype) == ((n_experts, 64, n_out), DType.mxfp4)
    expected = np.zeros((20, 64), np.float64)  # every other row of expert 1
    for row in range(20):
        for column in range(64):
            byte = int(codes[1, 2 * row, column // 32, column % 32 // 2])
            code = byte >> 4 if column % 2 else byte & 15
            exponent = int(scales[1, 2 * row, column // 32]) - 127
            expected[row, column] = E2M1[code] * 2.0**exponent
    raw = tensor.rows(lambda whole: whole[1].T[0::2], slice(0, 20), 20)
    assert np.array_equal(tensor.widen(raw), expected)
    packed = pack_mxfp4_blocks(*tensor.blocks(raw))
    assert np.array_equal(unpack_tiles(packed, DType.mxfp4, 20, 64), expected)
    part = tensor.rows(lambda whole: whole[1].T[0::2], slice(16, 20), 20)
    assert np.array_equal(tensor.widen(part), expected[16:])


def test_mxfp4_of_another_shape_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    set_quantisation(tmp_path, quant_method="mxfp4")
    for codes, scales, message in (
        (("U8", (2, 4, 1, 8)), ("U8", (2, 4, 1)), r"expected \[experts, rows, blocks, 16\]"),
        (("U8", (2, 4, 1, 16)), ("I8", (2, 4, 1)), "e.up_scales is stored as I8, MXFP4 is U8"),
    ):
        tensors = {
            "e.up_blocks": (codes[0], np.zeros(codes[1], np.uint8)),
            "e.up_scales": (scales[0], np.zeros(scales[1], np.uint8)),
        }
        write_safetensors(tmp_path / "model.safetensors", tensors)
        opened = Checkpoint.open(tmp_path)
        with pytest.raises(ConversionError, match=message):
            dequantised(opened.config, opened.tensors)


def test_gpt_oss_stays_mxfp4(shared: Path, tmp_path: Path) -> None:
    """The same model with its experts in MXFP4, and in bf16, which holds their values exactly."""
    source = shared / "fixtures" / "gpt_oss"
    rng = np.random.default_rng(5)
    config = json.loads((source / "config.json").read_text())
    quantised: Stored = {}
    plain: Stored = {}
    for name, tensor in Checkpoint.open(source).tensors.items():
        elements = np.asarray(tensor.elements())
        if not name.endswith(("gate_up_proj", "down_proj")):
            quantised[name] = plain[name] = (tensor.stored, elements)
            continue
        n_experts, n_in, n_out = tensor.shape
        codes = rng.integers(0, 16, (n_experts, n_out, n_in), dtype=np.uint8)
        scales = rng.integers(118, 124, (n_experts, n_out, n_in // 32), dtype=np.uint8)
        packed = codes[:, :, 0::2] | codes[:, :, 1::2] << np.uint8(4)
        blocks = packed.reshape(n_experts, n_out, n_in // 32, 16)
        quantised[f"{name}_blocks"] = ("U8", blocks)
        quantised[f"{name}_scales"] = ("U8", scales)
        factors = np.exp2(scales.astype(np.float32) - 127).repeat(32, axis=2)
        values = np.array(E2M1, np.float32)[codes] * factors
        bits = np.ascontiguousarray(values.transpose(0, 2, 1)).view("<u4") >> 16
        plain[name] = ("BF16", bits.astype("<u2"))
    for name, tensors in (("mxfp4", quantised), ("bf16", plain)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        write_safetensors(tmp_path / name / "model.safetensors", tensors)
    set_quantisation(tmp_path / "mxfp4", quant_method="mxfp4")
    plan = convert_checkpoint(tmp_path / "mxfp4", tmp_path / "a")
    assert {kind: dtype.name for kind, dtype in plan.dtypes.items()} == {
        "embed": "bf16",
        "attn": "bf16",
        "ffn": "mxfp4",
        "head": "bf16",
    }
    assert "ffn are stored as mxfp4 and stay mxfp4" in plan.notes
    convert_checkpoint(tmp_path / "bf16", tmp_path / "b")
    one, other = Model.open(tmp_path / "a").file, Model.open(tmp_path / "b").file
    for section in one.sections:
        for layer, expert in section.items():
            if section.dtype is not DType.u8:
                found = one.matrix(section.name, layer, expert)
                assert np.array_equal(found, other.matrix(section.name, layer, expert))


def test_deepseek_v3_in_fp8(shared: Path, tmp_path: Path) -> None:
    """Its kv_b_proj is cut into heads and transposed; blocks of rows end within heads."""
    source = shared / "fixtures" / "deepseek_v3"
    rng = np.random.default_rng(6)
    config = json.loads((source / "config.json").read_text())
    quantised: Stored = {}
    plain: Stored = {}
    values_of = np.array([e4m3(code) for code in range(256)], np.float32)
    for name, tensor in Checkpoint.open(source).tensors.items():
        elements = np.asarray(tensor.elements())
        if not name.endswith("_proj.weight"):
            quantised[name] = plain[name] = (tensor.stored, elements)
            continue
        n_rows, n_cols = tensor.shape
        codes = rng.integers(0, 127, tensor.shape, dtype=np.uint8)
        scales = rng.uniform(0.001, 0.002, (-(-n_rows // 24), -(-n_cols // 40))).astype(np.float32)
        quantised[name] = ("F8_E4M3", codes)
        quantised[f"{name}_scale_inv"] = ("F32", scales)
        rows, columns = np.arange(n_rows) // 24, np.arange(n_cols) // 40
        plain[name] = ("F32", values_of[codes] * scales[rows][:, columns])
    for name, tensors in (("fp8", quantised), ("f32", plain)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        write_safetensors(tmp_path / name / "model.safetensors", tensors)
    set_quantisation(tmp_path / "fp8", quant_method="fp8", weight_block_size=[24, 40])
    choices: tuple[DTypeChoice, ...] = ("keep", "q8")
    for dtype in choices:
        for name in ("fp8", "f32"):
            convert_checkpoint(tmp_path / name, tmp_path / f"{name}-{dtype}", dtype)
        one, other = (tmp_path / f"{name}-{dtype}" / "model.bin" for name in ("fp8", "f32"))
        assert one.read_bytes() == other.read_bytes()
