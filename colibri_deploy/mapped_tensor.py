# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A tensor that lies somewhere in a file, and is mapped when it is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from colibri_deploy.errors import ConversionError, FileMissingError
from colibri_deploy.tiles import DType, FloatArray, widen_bf16

FLOAT_DTYPES = {"F32": DType.f32, "F16": DType.f16, "BF16": DType.bf16}
# safetensors' names of element types; bf16 and fp8 as bit patterns
NUMPY_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "u1",
}

Raw: TypeAlias = npt.NDArray[Any]  # elements as they are stored
Rows: TypeAlias = slice | npt.NDArray[np.intp]  # which rows of a matrix
View: TypeAlias = Callable[[Raw], Raw]  # a tensor, as stored, to a matrix


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Where a tensor lies; nothing of it has been read yet."""

    name: str
    stored: str  # safetensors' name of the element type
    shape: tuple[int, ...]
    path: Path
    offset: int  # bytes, in the file
    size: int  # bytes from the first element to the end of the last
    strides: tuple[int, ...] | None = None  # elements; None: the last index runs fastest

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

        Raises FileMissingError if the file has changed since its header was read, and
        ConversionError for elements that are not floats.
        """
        _ = self.dtype
        return self.elements()

    def elements(self) -> Raw:
        """As `raw`, for elements of any type that numpy can hold."""
        dtype = np.dtype(NUMPY_DTYPES[self.stored])
        if 0 in self.shape:
            return np.empty(self.shape, dtype=dtype)
        flat = self.strides is not None
        shape = (self.size // dtype.itemsize,) if flat else self.shape
        try:
            mapped = np.memmap(self.path, dtype=dtype, mode="r", offset=self.offset, shape=shape)
        except (OSError, ValueError) as error:
            raise FileMissingError(f"{self.path}: {self.name} cannot be read: {error}") from None
        if self.strides is None:
            return mapped
        strides = [stride * dtype.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(mapped, self.shape, strides, writeable=False)

    def rows(self, view: View | None, rows: Rows, n_rows: int) -> Raw:
        """See `StoredTensor`."""
        return matrix_rows(self.raw(), view, rows, n_rows)

    def blocks(self, raw: Raw) -> tuple[Raw, Raw]:
        """See `StoredTensor`; floats have none."""
        raise TypeError(f"{self.name} is stored as {self.stored}, not in blocks")

    def widen(self, raw: Raw) -> FloatArray:
        """Stored elements to float32, exactly; any shape."""
        if self.dtype is DType.bf16:
            return widen_bf16(raw)
        return raw.astype(np.float32)


def matrix_rows(raw: Raw, view: View | None, rows: Rows, n_rows: int) -> Raw:
    """Some of the `n_rows` rows that `view`, or a reshape, makes of a tensor."""
    matrix = raw.reshape(n_rows, -1) if view is None else view(raw)
    return matrix[rows]


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from one index to the next of each dimension, the last running fastest."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
