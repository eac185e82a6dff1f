# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A GGUF file: its metadata and its list of tensors; the tensors themselves are read lazily.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic and counts, keys with
typed values, names and shapes of tensors, then their data. The package `gguf` knows the element
types. Its reader is not used: it makes some numpy arrays for each string (a vocabulary of 49,152
tokens takes it 2 s and 160 MB), and does not say what is wrong with a damaged file.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from colibri_deploy.errors import ConversionError, FileMissingError
from colibri_deploy.mapped_tensor import Raw, Rows, View, matrix_rows
from colibri_deploy.tiles import BLOCK_COLS, DType, FloatArray, widen_bf16

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_ALIGNMENT = 32  # unless `general.alignment` says otherwise
_MAX_DIMENSIONS = 4
_MAX_ENTRIES = 1 << 24  # keys, tensors, or strings of an array
_MAX_STRING = 1 << 26
_MAX_ELEMENTS = 1 << 40

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q"}
_SCALARS |= {12: "d"}
_STRING, _ARRAY = 8, 9

_EXACT = {"F32": DType.f32, "F16": DType.f16, "BF16": DType.bf16}
_EXACT |= {"Q8_0": DType.q8, "Q4_0": DType.q4, "MXFP4": DType.mxfp4}
_Q8_0_BYTES = 2 + BLOCK_COLS  # an f16 scale, then the integers
_Q4_0_BYTES = 2 + BLOCK_COLS // 2  # the same; two integers a byte
_MXFP4_BYTES = 1 + BLOCK_COLS // 2  # an exponent, then two codes a byte
_MXFP4_BIAS = 128  # of the exponent, for elements of twice their value

# Name, element type, shape and offset of a tensor
_Entry: TypeAlias = tuple[str, str, tuple[int, ...], int]


class _UnreadableError(Exception):
    """What is wrong with the file."""


@dataclasses.dataclass(frozen=True)
class GgufTensor:
    """Implements `StoredTensor`: where a tensor lies and how it is stored."""

    name: str
    stored: str  # ggml's name of the element type
    shape: tuple[int, ...]
    path: Path
    offset: int  # bytes, in the file

    @property
    def dtype(self) -> DType | None:
        """See `StoredTensor`."""
        kind = GGMLQuantizationType[self.stored]
        try:
            if self.stored not in _EXACT:
                quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
        except NotImplementedError:
            raise ConversionError(
                f"{self.name} is stored as {self.stored}, which cannot be converted"
            ) from None
        return _EXACT.get(self.stored)

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape[:-1]) * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[self.stored]]
        return self.shape[-1] // int(block) * int(size)

    def rows(self, view: View | None, rows: Rows, n_rows: int) -> Raw:
        """See `StoredTensor`."""
        return matrix_rows(self.raw(), view, rows, n_rows)

    def blocks(self, raw: Raw) -> tuple[Raw, Raw]:
        """See `StoredTensor`."""
        return _SPLITS[self.stored](raw)

    def raw(self) -> Raw:
        """As stored, mapped: bytes [..., bytes of a row].

        Raises FileMissingError if the file has changed since its header was read.
        """
        shape = (*self.shape[:-1], self._row_bytes)
        try:
            return np.memmap(self.path, dtype=np.uint8, mode="r", offset=self.offset, shape=shape)
        except (OSError, ValueError) as error:
            raise FileMissingError(f"{self.path}: {self.name} cannot be read: {error}") from None

    def widen(self, raw: Raw) -> FloatArray:
        """See `StoredTensor`: one float32 multiplication, and for some types an addition, each."""
        data = np.ascontiguousarray(raw)
        if self.stored == "F32":
            return data.view("<f4").astype(np.float32)
        if self.stored == "F16":
            return data.view("<f2").astype(np.float32)
        if self.stored == "BF16":
            return widen_bf16(data.view("<u2"))
        with np.errstate(all="ignore"):  # NaN and Inf are found later, with the tensor's name
            values = quants.dequantize(data, GGMLQuantizationType[self.stored])
        return np.asarray(values, dtype=np.float32)


def split_q8_0(raw: Raw) -> tuple[Raw, Raw]:
    """Stored rows of Q8_0 to int8 [rows, blocks, 32] and f16 scales [rows, blocks], bit for bit."""
    blocks = np.ascontiguousarray(raw).reshape(len(raw), -1, _Q8_0_BYTES)
    return blocks[:, :, 2:].view(np.int8), _scales(blocks)


def split_q4_0(raw: Raw) -> tuple[Raw, Raw]:
    """Stored rows of Q4_0 to integers [rows, blocks, 32], 0 to 15, and f16 scales [rows, blocks].

    The low halves of the bytes are the first 16 integers, the high halves the other 16.
    """
    blocks = np.ascontiguousarray(raw).reshape(len(raw), -1, _Q4_0_BYTES)
    return _halves(blocks[:, :, 2:]), _scales(blocks)


def split_mxfp4(raw: Raw) -> tuple[Raw, FloatArray]:
    """Stored rows of MXFP4 to codes [rows, blocks, 32] and float32 scales [rows, blocks].

    The codes lie as the integers of Q4_0 do.
    """
    blocks = np.ascontiguousarray(raw).reshape(len(raw), -1, _MXFP4_BYTES)
    exponents = blocks[:, :, 0].astype(np.int32) - _MXFP4_BIAS
    return _halves(blocks[:, :, 1:]), np.ldexp(np.float32(1), exponents)


_SPLITS = {"Q8_0": split_q8_0, "Q4_0": split_q4_0, "MXFP4": split_mxfp4}


def _halves(both: Raw) -> Raw:
    return np.concatenate([both & np.uint8(15), both >> np.uint8(4)], axis=2)


def _scales(blocks: Raw) -> Raw:
    return np.ascontiguousarray(blocks[:, :, :2]).view("<f2")[:, :, 0]


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """Metadata and tensors of one file."""

    path: Path
    metadata: dict[str, Any]  # int, float, bool, str, or a list of one of these
    tensors: dict[str, GgufTensor]

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Read everything but the tensors' data, and check that this is there.

        Raises FileMissingError, and ConversionError for what is no GGUF or damaged.
        """
        try:
            with path.open("rb") as file:
                return cls(path, *_read_header(path, _Cursor(file)))
        except OSError as error:
            raise FileMissingError(f"{path} cannot be read: {error.strerror}") from None
        except _UnreadableError as error:
            raise ConversionError(f"{path}: {error}") from None


class _Cursor:
    """Reads little-endian values, one after another, up to the end of the file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, 2)
        self.position = file.seek(0)

    def take(self, size: int) -> bytes:
        if size > self.size - self.position:
            raise _UnreadableError(
                f"truncated: its header goes on after the end at byte {self.size:,}; "
                "download it again"
            )
        self.position += size
        return self._file.read(size)

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def count(self, what: str, limit: int) -> int:
        value = int(self.number("Q"))
        if value > limit:
            raise _UnreadableError(f"damaged: it has {value:,} {what}; download it again")
        return value

    def text(self) -> str:
        data = self.take(self.count("bytes in a name or text", _MAX_STRING))
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise _UnreadableError(
                f"damaged: {data[:40]!r} is no text; download it again"
            ) from None

    def value(self, kind: int, where: str) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            raise _UnreadableError(f"damaged: {where} has a value of the unknown type {kind}")
        kind = self.number("I")
        n_values = self.count(f"values in {where}", self.size)
        if kind in _SCALARS:
            code = _SCALARS[kind]
            data = self.take(n_values * struct.calcsize("<" + code))
            return list(struct.unpack(f"<{n_values}{code}", data))
        if kind != _STRING or n_values > _MAX_ENTRIES:
            raise _UnreadableError(f"{where} is a list of a kind that is not supported")
        return [self.text() for _ in range(n_values)]


def _read_header(path: Path, cursor: _Cursor) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
    if cursor.size < 4 or cursor.take(4) != MAGIC:
        raise _UnreadableError("not a GGUF file; give one, or the directory of a checkpoint")
    version = cursor.number("I")
    if version not in VERSIONS:
        big = version & 0xFFFF == 0
        raise _UnreadableError(
            "big-endian GGUF is not supported, convert the model to GGUF again"
            if big
            else f"GGUF version {version} is not supported, only {VERSIONS[0]} and {VERSIONS[1]}"
        )
    n_tensors = cursor.count("tensors", _MAX_ENTRIES)
    n_keys = cursor.count("keys", _MAX_ENTRIES)
    metadata: dict[str, Any] = {}
    for _ in range(n_keys):
        key = cursor.text()
        value = cursor.value(cursor.number("I"), key)
        if key in metadata:
            raise _UnreadableError(f"damaged: the key {key} is there twice")
        metadata[key] = value
    entries: dict[str, _Entry] = {}
    for _ in range(n_tensors):
        entry = _read_entry(cursor)
        if entry[0] in entries:
            raise _UnreadableError(f"damaged: the tensor {entry[0]} is there twice")
        entries[entry[0]] = entry
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise _UnreadableError(f"damaged: general.alignment is {alignment!r}")
    start = -(-cursor.position // alignment) * alignment
    tensors = {}
    for name, stored, shape, offset in entries.values():
        tensor = GgufTensor(name, stored, shape, path, start + offset)
        end = tensor.offset + tensor.size
        if end > cursor.size:
            raise _UnreadableError(
                f"truncated: {name} ends at byte {end:,}, the file has {cursor.size:,}; "
                "download it again"
            )
        tensors[name] = tensor
    return metadata, tensors


def _read_entry(cursor: _Cursor) -> _Entry:
    name = cursor.text()
    n_dimensions = cursor.number("I")
    if not 1 <= n_dimensions <= _MAX_DIMENSIONS:
        raise _UnreadableError(f"damaged: {name} has {n_dimensions} dimensions; download it again")
    # ggml counts the dimension that is contiguous first.
    shape = tuple(cursor.number("Q") for _ in range(n_dimensions))[::-1]
    if min(shape) < 1 or max(shape) > _MAX_ELEMENTS or math.prod(shape) > _MAX_ELEMENTS:
        raise _UnreadableError(f"damaged: {name} has the shape {list(shape)}; download it again")
    number = cursor.number("I")
    try:
        kind = GGMLQuantizationType(number)
        block, _ = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise _UnreadableError(
            f"{name} has the element type {number}, which is not known"
        ) from None
    if shape[-1] % block:
        raise _UnreadableError(f"damaged: {name} has rows of {shape[-1]} values as {kind.name}")
    return name, str(kind.name), shape, int(cursor.number("Q"))
