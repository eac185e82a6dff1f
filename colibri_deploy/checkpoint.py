# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face checkpoint directory: its JSON files, and its safetensors read lazily.

The safetensors format (https://huggingface.co/docs/safetensors): 8 bytes with the length of a
JSON header, the header, then the tensors' little-endian bytes. It is read here without a
framework because numpy has no bf16.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri_deploy.errors import ConversionError, FileMissingError
from colibri_deploy.tiles import DType, FloatArray, widen_bf16

FLOAT_DTYPES = {"F32": DType.f32, "F16": DType.f16, "BF16": DType.bf16}
_NUMPY_DTYPES = {DType.f32: "<f4", DType.f16: "<f2", DType.bf16: "<u2"}  # bf16 as bit patterns
_MAX_HEADER = 100_000_000  # bytes: the limit of the reference implementation

Raw = npt.NDArray[Any]  # elements as they are stored


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Where a tensor lies; nothing of it has been read yet."""

    name: str
    stored: str  # safetensors' name of the element type
    shape: tuple[int, ...]
    path: Path
    offset: int  # bytes, in the file
    size: int  # bytes

    @property
    def dtype(self) -> DType:
        """The element type. Raises ConversionError if it is not a float type."""
        if self.stored not in FLOAT_DTYPES:
            raise ConversionError(
                f"{self.name} is stored as {self.stored}; only F32, F16 and BF16 can be converted"
            )
        return FLOAT_DTYPES[self.stored]

    def raw(self) -> Raw:
        """The elements as stored, mapped; bf16 as uint16. The mapping ends with the array.

        Raises FileMissingError if the file has changed since its header was read.
        """
        dtype = np.dtype(_NUMPY_DTYPES[self.dtype])
        if self.size == 0:
            return np.empty(self.shape, dtype=dtype)
        try:
            return np.memmap(self.path, dtype=dtype, mode="r", offset=self.offset, shape=self.shape)
        except (OSError, ValueError) as error:
            raise FileMissingError(f"{self.path}: {self.name} cannot be read: {error}") from None

    def widen(self, raw: Raw) -> FloatArray:
        """Stored elements to float32, exactly; any shape."""
        if self.dtype is DType.bf16:
            return widen_bf16(raw)
        return raw.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The tensors and JSON files of a directory."""

    directory: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]  # empty if there is none
    tensors: Mapping[str, Tensor]

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Read the JSON files and the headers of all shards.

        Raises FileMissingError, and ConversionError for files that are damaged.
        """
        if not directory.is_dir():
            raise FileMissingError(
                f"{directory} is not a directory; give that of a checkpoint, or a GGUF file"
            )
        config = read_json(directory / "config.json")
        generation = directory / "generation_config.json"
        return cls(
            directory,
            config,
            read_json(generation) if generation.exists() else {},
            _read_tensors(directory),
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises FileMissingError and ConversionError."""
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text)
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConversionError(f"{path} is not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ConversionError(f"{path}, line {error.lineno}: no JSON: {error.msg}") from None
    except RecursionError:
        raise ConversionError(f"{path}: no JSON that can be read: nested too deeply") from None
    if not isinstance(value, dict):
        raise ConversionError(f"{path} is not a JSON object")
    return value


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        return _read_header(single)
    if not index.exists():
        found = sorted(path.name for pattern in _OTHER_FORMATS for path in directory.glob(pattern))
        hint = ""
        if found:
            hint = f"; {found[0]} must be saved as safetensors first"
            if found[0].endswith(".gguf"):
                hint = f"; to convert {found[0]}, give that file"
        raise FileMissingError(f"{directory} has neither {single.name} nor {index.name}{hint}")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(shard, str) and Path(shard).name == shard for shard in weight_map.values()
    ):
        raise ConversionError(f"{index}: weight_map does not name files of its own directory")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(weight_map.values())):
        for name, tensor in _read_header(directory / shard).items():
            if name in tensors:
                raise ConversionError(f"{name} is in {tensors[name].path.name} and in {shard}")
            tensors[name] = tensor
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].path.name != shard:
            raise ConversionError(f"{index} says that {name} is in {shard}, but it is not there")
    return tensors


_OTHER_FORMATS = ("*.gguf", "*.bin", "*.pt", "*.pth")


def _read_header(path: Path) -> dict[str, Tensor]:
    """All tensors of one file, after checking that their bytes are there."""
    try:
        with path.open("rb") as file:
            file_size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if file_size < 8 or length > min(file_size - 8, _MAX_HEADER):
                raise ConversionError(f"{path} is truncated or not a safetensors file")
            header = file.read(length)
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from None
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        return {
            name: _read_entry(path, name, entry, 8 + length, file_size)
            for name, entry in entries.items()
        }
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ConversionError(f"{path}: the header is damaged: {error}") from None


_ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def _read_entry(
    path: Path, name: str, entry: Mapping[str, Any], data_offset: int, file_size: int
) -> Tensor:
    stored, (begin, end) = entry["dtype"], entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(f"shape {shape}, bytes {begin} to {end} of {name}")
    size = end - begin
    if stored in _ELEMENT_BYTES and size != math.prod(shape) * _ELEMENT_BYTES[stored]:
        raise ValueError(f"{name} has {size} bytes for {stored} {list(shape)}")
    if size < 0 or data_offset + end > file_size:
        raise ConversionError(
            f"{path} is truncated: {name} ends at byte {data_offset + end}, "
            f"the file has {file_size}; download it again"
        )
    return Tensor(name, stored, shape, path, data_offset + begin, size)
