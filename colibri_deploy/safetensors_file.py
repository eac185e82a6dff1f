# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A safetensors file, read lazily.

The format (https://huggingface.co/docs/safetensors): 8 bytes with the length of a JSON header, the
header, then the tensors' little-endian bytes. It is read here without a framework because numpy
has no bf16.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from colibri_deploy.errors import ConversionError, FileMissingError
from colibri_deploy.mapped_tensor import NUMPY_DTYPES, Tensor

_MAX_HEADER = 100_000_000  # bytes: the limit of the reference implementation


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one file, after checking that their bytes are there.

    Raises FileMissingError, and ConversionError for a file that is damaged.
    """
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


def _read_entry(
    path: Path, name: str, entry: Mapping[str, Any], data_offset: int, file_size: int
) -> Tensor:
    stored, (begin, end) = entry["dtype"], entry["data_offsets"]
    shape = tuple(entry["shape"])
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(f"shape {shape}, bytes {begin} to {end} of {name}")
    size = end - begin
    if (
        stored in NUMPY_DTYPES
        and size != math.prod(shape) * np.dtype(NUMPY_DTYPES[stored]).itemsize
    ):
        raise ValueError(f"{name} has {size} bytes for {stored} {list(shape)}")
    if size < 0 or data_offset + end > file_size:
        raise ConversionError(
            f"{path} is truncated: {name} ends at byte {data_offset + end}, "
            f"the file has {file_size}; download it again"
        )
    return Tensor(name, stored, shape, path, data_offset + begin, size)
