# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Reading Hugging Face directories: one file or shards, and what is wrong with them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from colibri_deploy.checkpoint import Checkpoint
from colibri_deploy.errors import ConversionError, FileMissingError
from colibri_deploy.tiles import DType

VALUES = np.array([[1.5, -2.0, 0.25], [3.0, 4.0, -65504.0]], dtype=np.float32)


def write_config(directory: Path) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text('{"architectures": ["X"]}')
    return directory


def write_shards(directory: Path, index: dict[str, str] | None = None) -> Path:
    write_config(directory)
    save_file({"a": VALUES}, directory / "model-00001-of-00002.safetensors")
    save_file({"b": -VALUES}, directory / "model-00002-of-00002.safetensors")
    weight_map = index or {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00002-of-00002.safetensors",
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def test_float_types_are_widened_exactly(tmp_path: Path) -> None:
    save_file(
        {"f32": VALUES, "f16": VALUES.astype(np.float16)},
        write_config(tmp_path) / "model.safetensors",
    )
    checkpoint = Checkpoint.open(tmp_path)
    for name in ("f32", "f16"):
        tensor = checkpoint.tensors[name]
        assert tensor.dtype is DType[name]
        assert np.array_equal(tensor.widen(tensor.raw()), VALUES)


def test_bf16_is_widened_exactly(tmp_path: Path) -> None:
    header = b'{"w": {"dtype": "BF16", "shape": [1, 3], "data_offsets": [2, 8]}}'
    data = struct.pack("<Q", len(header)) + header + bytes.fromhex("ffff 803f 2cc0 0100")
    (write_config(tmp_path) / "model.safetensors").write_bytes(data)
    tensor = Checkpoint.open(tmp_path).tensors["w"]
    assert tensor.dtype is DType.bf16
    assert tensor.widen(tensor.raw()).tolist() == [[1.0, -2.6875, 2.0**-133]]


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write_shards(tmp_path))
    assert np.array_equal(checkpoint.tensors["a"].raw(), VALUES)
    assert np.array_equal(checkpoint.tensors["b"].raw(), -VALUES)
    assert checkpoint.generation_config == {}


def test_generation_config_is_read(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert Checkpoint.open(tmp_path).generation_config == {"eos_token_id": [1, 2]}


def test_missing_files_are_named_with_code_3(tmp_path: Path) -> None:
    def message() -> str:
        with pytest.raises(FileMissingError) as caught:
            Checkpoint.open(tmp_path / "c")
        assert caught.value.exit_code == 3
        return caught.value.message

    assert "c is not a directory" in message()
    (tmp_path / "c").mkdir()
    assert "config.json cannot be read: No such file" in message()
    write_config(tmp_path / "c")
    assert "has neither model.safetensors nor model.safetensors.index.json" in message()
    (tmp_path / "c" / "consolidated.00.pth").touch()
    assert "consolidated.00.pth must be saved as safetensors first" in message()
    write_shards(tmp_path / "c")
    (tmp_path / "c" / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors cannot be read: No such file" in message()


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"a": "../x/model.safetensors"}, "does not name files of its own directory"),
        ({"a": "model-00002-of-00002.safetensors"}, "says that a is in model-00002"),
        (
            {"c": "model-00001-of-00002.safetensors"},
            "says that c is in model-00001-of-00002.safetensors, but it is not there",
        ),
    ],
)
def test_an_index_that_lies_is_refused(index: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=message):
        Checkpoint.open(write_shards(tmp_path, index))


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_file({"a": VALUES, "b": VALUES}, tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(ConversionError, match=r"a is in model-00001.* and in model-00002"):
        Checkpoint.open(tmp_path)


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    write_config(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({"a": VALUES}, path)
    data = path.read_bytes()
    for size, message in (
        (len(data) - 1, "is truncated: a ends at byte"),
        (20, "is truncated or not a safetensors file"),
        (4, "is truncated or not a safetensors file"),
        (0, "is truncated or not a safetensors file"),
    ):
        path.write_bytes(data[:size])
        with pytest.raises(ConversionError, match=message):
            Checkpoint.open(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [2, 2]}}',
        b'{"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]}}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}}',
        b'{"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}',
        b'{"a": {"dtype": [], "shape": [1], "data_offsets": [0, 4]}}',
        b"[" * 5000,
        b"\xff",
    ],
)
def test_damaged_headers_are_refused(header: bytes, tmp_path: Path) -> None:
    data = struct.pack("<Q", len(header)) + header + bytes(64)
    (write_config(tmp_path) / "model.safetensors").write_bytes(data)
    with pytest.raises(ConversionError, match=r"the header is damaged|is truncated"):
        Checkpoint.open(tmp_path)


def test_types_that_are_no_floats_are_refused_when_they_are_used(tmp_path: Path) -> None:
    save_file({"a": VALUES.astype(np.int8)}, write_config(tmp_path) / "model.safetensors")
    tensor = Checkpoint.open(tmp_path).tensors["a"]
    with pytest.raises(ConversionError, match="a is stored as I8; only F32, F16 and BF16"):
        tensor.raw()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": }', r"config\.json, line 1: no JSON"),
        ("[]", "is not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_config_that_is_no_json_is_refused(text: str, message: str, tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConversionError, match=message):
        Checkpoint.open(tmp_path)
