# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers as `model.bin` stores them: rounding, rows and tiles (docs/FORMAT.md, "Item layouts").

Everything here is bit-deterministic: float32 `/`, conversions and `rint` round to nearest, ties to
even, on every machine that numpy runs on.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float32]
ByteArray: TypeAlias = npt.NDArray[np.uint8]

TILE_ROWS = 16
PAD_COLS = 64  # columns of a tile are padded to this multiple
BLOCK_COLS = 32  # columns that share a scale of q8, q4 or mxfp4
Q8_MAX = 127
Q4_MIN, Q4_MAX = -8, 7
Q4_ZERO = 8  # what is stored for 0
# Between the codes 0 to 7, in units of the element; a tie goes to the even code.
_MXFP4_BORDERS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
_MXFP4_MIN_EXPONENT = -127


class DType(enum.IntEnum):
    """Element types; the values are those of the section table."""

    f32 = 0
    f16 = 1
    bf16 = 2
    q8 = 3
    q4 = 4
    mxfp4 = 5
    u8 = 6


class Layout(enum.IntEnum):
    """How the elements of an item lie; the values are those of the section table."""

    rows = 0
    tiles = 1


ELEMENT_BYTES = {DType.f32: 4, DType.f16: 2, DType.bf16: 2, DType.u8: 1}
# Integers and scales; no layout but `tiles` holds them.
BLOCK_DTYPES = (DType.q8, DType.q4, DType.mxfp4)
TILE_DTYPES = (DType.f32, DType.f16, DType.bf16, *BLOCK_DTYPES)
# Two blocks of 16 rows: 64 bytes of scales, then the integers or codes.
PAIR_BYTES = {DType.q8: 64 + 2 * 512, DType.q4: 64 + 2 * 256, DType.mxfp4: 64 + 2 * 256}
_SCALE_DTYPES = {DType.q8: DType.f16, DType.q4: DType.f16, DType.mxfp4: DType.bf16}
_CODE_INTEGERS = {
    DType.q4: np.arange(-8, 8, dtype=np.float32),
    DType.mxfp4: np.array(
        [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32
    ),
}
_STORED_ZERO = {DType.q8: 0, DType.q4: Q4_ZERO, DType.mxfp4: 0}


class RangeError(ValueError):
    """A value does not fit the type that it is to be stored in."""


def round_up(n: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `n`."""
    return -(-n // multiple) * multiple


def item_size(dtype: DType, layout: Layout, rows: int, cols: int) -> int:
    """Bytes of one item of `rows` x `cols`. Raises ValueError for a pair that does not exist."""
    if layout is Layout.rows and dtype in ELEMENT_BYTES:
        return rows * cols * ELEMENT_BYTES[dtype]
    if layout is Layout.tiles and dtype in TILE_DTYPES:
        padded_rows, padded_cols = round_up(rows, TILE_ROWS), round_up(cols, PAD_COLS)
        if dtype in BLOCK_DTYPES:
            return padded_rows // TILE_ROWS * (padded_cols // PAD_COLS) * PAIR_BYTES[dtype]
        return padded_rows * padded_cols * ELEMENT_BYTES[dtype]
    raise ValueError(f"dtype {dtype.name} has no layout {layout.name}")


def widen_bf16(bits: npt.NDArray[np.uint16]) -> FloatArray:
    """bf16 bit patterns to float32, exactly; any shape."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_bf16(values: FloatArray) -> npt.NDArray[np.uint16]:
    """Finite float32 values to bf16 bit patterns, to nearest, ties to even; any shape.

    Raises RangeError if a value rounds to infinity.
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    even = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + even) >> np.uint32(16)).astype(np.uint16)
    if bool(((rounded & np.uint16(0x7F80)) == 0x7F80).any()):
        raise RangeError(f"the largest magnitude, {_largest(values)}, does not fit bf16")
    return rounded


def round_f16(values: FloatArray) -> npt.NDArray[np.float16]:
    """Finite float32 values to IEEE binary16, to nearest, ties to even; any shape.

    Raises RangeError if a value rounds to infinity.
    """
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float16)
    if not bool(np.isfinite(rounded).all()):
        raise RangeError(f"the largest magnitude, {_largest(values)}, does not fit f16")
    return rounded


def is_exact(values: FloatArray, dtype: DType) -> bool:
    """Whether `dtype` (f32, f16, bf16) holds every value bit for bit, signs of zeros included."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    if dtype is DType.f32:
        return True
    if dtype is DType.bf16:
        return not bool((bits & np.uint32(0xFFFF)).any())
    if dtype is DType.f16:
        with np.errstate(over="ignore"):
            back = values.astype(np.float16).astype(np.float32)
        return bool(np.array_equal(np.ascontiguousarray(back).view(np.uint32), bits))
    raise ValueError(f"{dtype.name} is not a float type")


def pack_rows(values: FloatArray, dtype: DType) -> ByteArray:
    """Float32 [rows, cols] to the layout `rows` of a float type, as bytes."""
    if dtype is DType.f32:
        return _bytes(values.astype("<f4"))
    if dtype is DType.f16:
        return _bytes(round_f16(values).astype("<f2"))
    if dtype is DType.bf16:
        return _bytes(round_bf16(values).astype("<u2"))
    raise ValueError(f"floats are not stored as rows of {dtype.name}")


def unpack_rows(data: ByteArray, dtype: DType, rows: int, cols: int) -> FloatArray:
    """The inverse of `pack_rows`, to float32 [rows, cols]."""
    return _floats(data, dtype).reshape(rows, cols)


def pack_tiles(values: FloatArray, dtype: DType) -> ByteArray:
    """Float32 [rows, cols] to the layout `tiles`, as bytes; padding is zero.

    Tiles are independent of each other, so a matrix may be packed a multiple of 16 rows at a time.
    Raises RangeError if a value, or the scale of a block, does not fit.
    """
    rows, cols = values.shape
    if dtype in BLOCK_DTYPES:
        whole = np.zeros((rows, round_up(cols, BLOCK_COLS)), dtype=np.float32)
        whole[:, :cols] = values
        blocks = whole.reshape(rows, -1, BLOCK_COLS)
        if dtype is DType.mxfp4:
            return pack_mxfp4_blocks(*quantise_mxfp4(blocks))
        if dtype is DType.q4:
            return pack_q4_blocks(*quantise_q4(blocks))
        return pack_q8_blocks(*quantise_q8(blocks))
    padded = np.zeros((round_up(rows, TILE_ROWS), round_up(cols, PAD_COLS)), dtype=np.float32)
    padded[:rows, :cols] = values
    n_tiles = padded.shape[0] // TILE_ROWS
    columns = padded.reshape(n_tiles, TILE_ROWS, padded.shape[1]).transpose(0, 2, 1)
    return pack_rows(np.ascontiguousarray(columns).reshape(1, -1), dtype)


def unpack_tiles(data: ByteArray, dtype: DType, rows: int, cols: int) -> FloatArray:
    """The inverse of `pack_tiles`, to float32 [rows, cols]; blocks give integer times scale."""
    n_tiles, padded_cols = round_up(rows, TILE_ROWS) // TILE_ROWS, round_up(cols, PAD_COLS)
    if dtype in BLOCK_DTYPES:
        pairs = data.reshape(n_tiles, padded_cols // PAD_COLS, PAIR_BYTES[dtype])
        scales = _floats(pairs[:, :, :64], _SCALE_DTYPES[dtype])
        packed = np.ascontiguousarray(pairs[:, :, 64:])
        if dtype is DType.q8:
            integers = packed.view(np.int8).astype(np.float32)
        else:
            halves = packed.reshape(n_tiles, -1, 2, 4, 1, TILE_ROWS * 4)
            codes = np.concatenate([halves & np.uint8(15), halves >> np.uint8(4)], axis=4)
            integers = _CODE_INTEGERS[dtype][codes]
        blocks = integers.reshape(n_tiles, -1, 2, 8, TILE_ROWS, 4)
        # Both to (tile, row, pair, block of the pair, group of four columns, column of the group).
        products = (
            blocks.transpose(0, 4, 1, 2, 3, 5)
            * scales.reshape(n_tiles, -1, 2, TILE_ROWS).transpose(0, 3, 1, 2)[..., None, None]
        )
        return np.ascontiguousarray(products.reshape(-1, padded_cols)[:rows, :cols])
    columns = _floats(data, dtype).reshape(n_tiles, padded_cols, TILE_ROWS)
    return np.ascontiguousarray(columns.transpose(0, 2, 1).reshape(-1, padded_cols)[:rows, :cols])


def quantise_q8(blocks: FloatArray) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]:
    """Float32 [..., 32] to integers [..., 32] in -127..127 and scales [...].

    Raises RangeError if a scale is not finite in f16.
    """
    amax = np.abs(blocks).max(axis=-1)
    with np.errstate(over="ignore"):
        scales = (amax / np.float32(Q8_MAX)).astype(np.float16)
    if not bool(np.isfinite(scales).all()):
        raise RangeError(f"the largest magnitude, {_largest(blocks)}, is too large for a q8 scale")
    divisors = scales.astype(np.float32)[..., None]
    with np.errstate(over="ignore"):
        ratios = np.divide(blocks, divisors, out=np.zeros_like(blocks), where=divisors != 0)
    integers = np.clip(np.rint(ratios), -Q8_MAX, Q8_MAX).astype(np.int8)
    return integers, scales


def quantise_q4(blocks: FloatArray) -> tuple[ByteArray, npt.NDArray[np.float16]]:
    """Float32 [..., 32] to integers [..., 32] as stored, 0 to 15, and scales [...].

    Raises RangeError if a scale is not finite in f16.
    """
    first = np.abs(blocks).argmax(axis=-1, keepdims=True)  # of equals the first
    with np.errstate(over="ignore", under="ignore"):
        scales = (np.take_along_axis(blocks, first, -1) / np.float32(Q4_MIN)).astype(np.float16)
    if not bool(np.isfinite(scales).all()):
        raise RangeError(f"the largest magnitude, {_largest(blocks)}, is too large for a q4 scale")
    divisors = scales.astype(np.float32)
    ratios = np.divide(blocks, divisors, out=np.zeros_like(blocks), where=divisors != 0)
    integers = np.clip(np.rint(ratios), Q4_MIN, Q4_MAX) + np.float32(Q4_ZERO)
    return integers.astype(np.uint8), scales[..., 0]


def quantise_mxfp4(blocks: FloatArray) -> tuple[ByteArray, FloatArray]:
    """Finite float32 [..., 32] to codes [..., 32], 0 to 15, and scales [...], powers of two or 0.

    Nothing is too large: what is beyond the largest element becomes that element.
    """
    amax = np.abs(blocks).max(axis=-1)
    exponents = np.maximum(np.frexp(amax)[1] - 3, _MXFP4_MIN_EXPONENT)  # frexp's is one too large
    # In float64 every quotient is exact.
    elements = np.ldexp(np.abs(blocks).astype(np.float64), -exponents[..., None])
    below = np.searchsorted(_MXFP4_BORDERS, elements, side="left")  # of equals the lower code
    above = np.searchsorted(_MXFP4_BORDERS, elements, side="right")
    codes = np.where(below % 2 == 0, below, above).astype(np.uint8)
    codes |= np.where((blocks < 0) & (codes > 0), np.uint8(8), np.uint8(0))
    scales = np.where(amax > 0, np.ldexp(np.float32(1), exponents - 1), np.float32(0))
    return codes, scales.astype(np.float32)


def pack_q8_blocks(integers: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]) -> ByteArray:
    """Integers [rows, blocks, 32] and scales [rows, blocks] to the layout `tiles` of q8, as bytes.

    Raises RangeError if a scale is not finite.
    """
    return _pack_pairs(integers.view(np.uint8), scales, DType.q8)


def pack_q4_blocks(integers: ByteArray, scales: npt.NDArray[np.float16]) -> ByteArray:
    """Integers [rows, blocks, 32], 0 to 15, and scales [rows, blocks] to the layout `tiles` of q4.

    Raises RangeError if a scale is not finite.
    """
    return _pack_pairs(integers, scales, DType.q4)


def pack_mxfp4_blocks(codes: ByteArray, scales: FloatArray) -> ByteArray:
    """Codes [rows, blocks, 32] and scales [rows, blocks] to the layout `tiles` of mxfp4, as bytes.

    The scales are exact in bf16. Raises RangeError if one is so large that not all values of its
    block are finite.
    """
    with np.errstate(over="ignore"):
        largest = np.abs(_CODE_INTEGERS[DType.mxfp4][codes]).max(axis=-1, initial=0) * scales
    if not bool(np.isfinite(largest).all()):
        raise RangeError(f"the mxfp4 scale {_largest(scales)} makes a value that is NaN or Inf")
    return _pack_pairs(codes, scales, DType.mxfp4)


def _pack_pairs(
    integers: ByteArray, scales: npt.NDArray[np.float16 | np.float32], dtype: DType
) -> ByteArray:
    if not bool(np.isfinite(scales).all()):
        raise RangeError(f"a {dtype.name} scale is NaN or Inf")
    rows, n_blocks = scales.shape
    n_tiles = round_up(rows, TILE_ROWS) // TILE_ROWS
    n_pairs = round_up(n_blocks * BLOCK_COLS, PAD_COLS) // PAD_COLS
    if (rows, n_blocks) != (n_tiles * TILE_ROWS, n_pairs * 2):
        padding = ((0, n_tiles * TILE_ROWS - rows), (0, n_pairs * 2 - n_blocks))
        scales = np.pad(scales, padding)
        integers = np.pad(integers, (*padding, (0, 0)), constant_values=_STORED_ZERO[dtype])
    pairs = np.empty((n_tiles, n_pairs, PAIR_BYTES[dtype]), dtype=np.uint8)
    by_pair = scales.reshape(n_tiles, TILE_ROWS, n_pairs, 2).transpose(0, 2, 3, 1)
    stored = pack_rows(by_pair.astype(np.float32), _SCALE_DTYPES[dtype])
    pairs[:, :, :64] = stored.reshape(n_tiles, n_pairs, 64)
    groups = integers.reshape(n_tiles, TILE_ROWS, n_pairs, 2, 8, 4).transpose(0, 2, 3, 4, 1, 5)
    if dtype is not DType.q8:  # an even group and the odd one behind it share their bytes
        groups = groups[:, :, :, 0::2] | groups[:, :, :, 1::2] << np.uint8(4)
    pairs[:, :, 64:] = _bytes(groups).reshape(n_tiles, n_pairs, PAIR_BYTES[dtype] - 64)
    return pairs.reshape(-1)


def _bytes(values: npt.NDArray[np.generic]) -> ByteArray:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _floats(data: ByteArray, dtype: DType) -> FloatArray:
    """Stored float elements to float32, flat."""
    raw = np.ascontiguousarray(data)
    if dtype is DType.f32:
        return raw.view("<f4").astype(np.float32)
    if dtype is DType.f16:
        return raw.view("<f2").astype(np.float32)
    if dtype is DType.bf16:
        return widen_bf16(raw.view("<u2"))
    raise ValueError(f"{dtype.name} is not a float type")


def _largest(values: FloatArray) -> np.float32:
    return np.float32(np.abs(values).max())
