# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Rows and tiles, against layouts written out by hand."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from colibri_deploy.tiles import (
    DType,
    Layout,
    item_size,
    pack_mxfp4_blocks,
    pack_q4_blocks,
    pack_rows,
    pack_tiles,
    quantise_q4,
    quantise_q8,
    unpack_rows,
    unpack_tiles,
)

FLOATS = (DType.f32, DType.f16, DType.bf16)


@pytest.mark.parametrize(
    ("dtype", "layout", "rows", "cols", "size"),
    [
        (DType.f32, Layout.rows, 1, 3, 12),
        (DType.bf16, Layout.rows, 5, 7, 70),
        (DType.u8, Layout.rows, 1, 1001, 1001),
        (DType.f32, Layout.tiles, 1, 1, 16 * 64 * 4),
        (DType.f16, Layout.tiles, 17, 65, 32 * 128 * 2),
        (DType.q8, Layout.tiles, 16, 64, 1088),
        (DType.q8, Layout.tiles, 1568, 1056, 98 * 17 * 1088),
        (DType.q4, Layout.tiles, 16, 64, 576),
        (DType.q4, Layout.tiles, 1569, 1025, 99 * 17 * 576),
        (DType.mxfp4, Layout.tiles, 16, 64, 576),
        (DType.mxfp4, Layout.tiles, 1569, 1025, 99 * 17 * 576),
    ],
)
def test_item_sizes(dtype: DType, layout: Layout, rows: int, cols: int, size: int) -> None:
    assert item_size(dtype, layout, rows, cols) == size


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        (DType.q8, Layout.rows),
        (DType.u8, Layout.tiles),
        (DType.q4, Layout.rows),
        (DType.mxfp4, Layout.rows),
    ],
)
def test_pairs_that_do_not_exist_are_refused(dtype: DType, layout: Layout) -> None:
    with pytest.raises(ValueError, match=f"dtype {dtype.name} has no layout {layout.name}"):
        item_size(dtype, layout, 16, 64)


def test_rows_lie_one_after_another() -> None:
    values = np.array([[1, -2], [0.5, 3]], dtype=np.float32)
    data = pack_rows(values, DType.bf16)
    assert data.tobytes().hex() == "803f00c0003f4040"
    data = pack_rows(values, DType.f16)
    assert data.tobytes().hex() == "003c00c000380042"
    data = pack_rows(values[:1], DType.f32)
    assert data.tobytes().hex() == "0000803f000000c0"


def test_a_float_tile_lies_column_after_column() -> None:
    # Value 100 * row + column, 18 rows x 3 columns: two tiles of 16 x 64.
    values = (100 * np.arange(18)[:, None] + np.arange(3)[None, :]).astype(np.float32)
    data = pack_tiles(values, DType.f32)
    numbers = struct.unpack("<2048f", data.tobytes())
    first, second = numbers[:1024], numbers[1024:]
    assert first[:16] == (0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1200, 1300,
                          1400, 1500)  # fmt: skip
    assert first[16:20] == (1, 101, 201, 301)
    assert first[32:36] == (2, 102, 202, 302)
    assert not any(first[48:])
    assert second[:4] == (1600, 1700, 0, 0)
    assert second[16:20] == (1601, 1701, 0, 0)
    assert second[32:36] == (1602, 1702, 0, 0)
    assert not any(second[48:])


def test_a_q8_pair_is_scales_then_two_blocks_in_groups_of_four_columns() -> None:
    values = np.zeros((16, 64), dtype=np.float32)
    values[0, 0] = 127.0  # scale 1
    values[0, 1] = -3.0
    values[0, 4] = 5.0
    values[3, 2] = 254.0  # scale 2
    values[3, 37] = -63.5  # scale 1/2: column 5 of the second block
    values[15, 63] = 127.0
    data = pack_tiles(values, DType.q8).tobytes()
    expected = bytearray(1088)
    expected[0:2] = b"\x00\x3c"  # first block, row 0: 1.0
    expected[6:8] = b"\x00\x40"  # first block, row 3: 2.0
    expected[32 + 6 : 32 + 8] = b"\x00\x38"  # second block, row 3: 0.5
    expected[32 + 30 : 32 + 32] = b"\x00\x3c"  # second block, row 15: 1.0
    expected[64 + 0] = 127  # row 0: group 0, columns 0 and 1
    expected[64 + 1] = 256 - 3
    expected[64 + 64] = 5  # row 0: group 1, column 4
    expected[64 + 4 * 3 + 2] = 127  # row 3: group 0, column 2
    expected[576 + 64 + 4 * 3 + 1] = 256 - 127  # row 3: group 1, column 5 of the block
    expected[576 + 64 * 7 + 4 * 15 + 3] = 127  # row 15: group 7, column 31 of the block
    assert data == bytes(expected)


def test_q8_pairs_and_tiles_follow_one_another() -> None:
    values = np.zeros((17, 65), dtype=np.float32)
    values[0, 64] = 127.0
    values[16, 0] = 127.0
    data = pack_tiles(values, DType.q8).tobytes()
    assert len(data) == 4 * 1088
    where = [index for index, byte in enumerate(data) if byte == 127]
    assert where == [1088 + 64, 2 * 1088 + 64]


def test_a_q4_pair_is_scales_then_two_blocks_whose_bytes_hold_two_columns() -> None:
    values = np.zeros((16, 64), dtype=np.float32)
    values[0, 0] = -8.0  # scale 1
    values[0, 1] = 3.0
    values[0, 4] = -5.0
    values[0, 5] = 7.0
    values[0, 30] = -1.0
    values[3, 2] = 16.0  # scale -2: integer -8
    values[3, 37] = 4.0  # scale -1/2: column 5 of the second block
    values[15, 63] = -8.0
    data = pack_tiles(values, DType.q4).tobytes()
    expected = bytearray(576)
    expected[64:] = b"\x88" * 512
    scales = bytearray(b"\x00\x80" * 32)  # 0 / -8
    scales[0:2] = b"\x00\x3c"  # first block, row 0: 1.0
    scales[6:8] = b"\x00\xc0"  # first block, row 3: -2.0
    scales[32 + 6 : 32 + 8] = b"\x00\xb8"  # second block, row 3: -0.5
    scales[32 + 30 : 32 + 32] = b"\x00\x3c"  # second block, row 15: 1.0
    expected[:64] = scales
    expected[64 + 0] = 0x30  # row 0: column 0 is -8, column 4 is -5
    expected[64 + 1] = 0xFB  # columns 1 and 5: 3 and 7
    expected[64 + 192 + 2] = 0x78  # p = 3: columns 26 and 30, 0 and -1
    expected[64 + 4 * 3 + 2] = 0x80  # row 3: column 2, and column 6 is 0
    expected[320 + 4 * 3 + 1] = 0x08  # row 3: column 5 of the block above column 1, which is 0
    expected[320 + 64 * 3 + 4 * 15 + 3] = 0x08  # row 15: columns 27 and 31 of the block
    assert data == bytes(expected)


def test_q4_pairs_and_tiles_follow_one_another_and_padding_is_8_times_0() -> None:
    values = np.zeros((17, 65), dtype=np.float32)
    values[:, :] = -8.0
    data = pack_tiles(values, DType.q4)
    assert data.size == 4 * 576
    expected = np.zeros((4, 576), dtype=np.uint8)
    expected[:, 64:] = 0x88
    expected[0, :64] = [0x00, 0x3C] * 32
    expected[0, 64:] = 0x00
    expected[1, :32] = [0x00, 0x3C] * 16  # column 64 alone
    expected[1, 64:128:4] = 0x80
    expected[2, [0, 1, 32, 33]] = [0x00, 0x3C, 0x00, 0x3C]  # row 16 alone
    for place in range(64, 576, 64):
        expected[2, place : place + 4] = 0x00
    expected[3, :2] = [0x00, 0x3C]
    expected[3, 64] = 0x80
    assert np.array_equal(data.reshape(4, 576), expected)


def test_an_mxfp4_pair_has_bf16_scales_and_codes_where_q4_has_integers() -> None:
    values = np.zeros((17, 65), dtype=np.float32)
    values[0, 0] = 4.0  # element scale 1, so 1/2 for the integers: 8, code 6
    values[0, 1] = -6.0  # 12, code 15
    values[0, 4] = 0.5  # 1, code 1
    values[0, 5] = -0.5  # code 9
    values[3, 37] = -192.0  # element scale 32, so 16: column 5 of the second block, code 15
    values[16, 64] = 2.0**-127  # element scale 2^-127, the smallest: code 2, scale 2^-128
    data = pack_tiles(values, DType.mxfp4)
    expected = np.zeros((4, 576), dtype=np.uint8)
    expected[0, 0:2] = 0x00, 0x3F  # first block, row 0: 0.5
    expected[0, 32 + 6 : 32 + 8] = 0x80, 0x41  # second block, row 3: 16
    expected[0, 64 + 0] = 0x16  # row 0: columns 0 and 4
    expected[0, 64 + 1] = 0x9F  # columns 1 and 5
    expected[0, 320 + 4 * 3 + 1] = 0xF0  # row 3: column 5 of the block above column 1
    expected[3, 0:2] = 0x20, 0x00  # subnormal
    expected[3, 64] = 0x02
    assert np.array_equal(data.reshape(4, 576), expected)
    assert np.array_equal(unpack_tiles(data, DType.mxfp4, 17, 65), values)


SHAPES = hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=150)


@given(st.data(), st.sampled_from(FLOATS), SHAPES)
def test_float_tiles_and_rows_come_back(
    data: st.DataObject, dtype: DType, shape: tuple[int, int]
) -> None:
    bits = data.draw(hnp.arrays(np.uint8, shape))
    values = (bits.astype(np.float32) - np.float32(128)) / np.float32(16)
    tiles = pack_tiles(values, dtype)
    assert tiles.size == item_size(dtype, Layout.tiles, *shape)
    assert np.array_equal(unpack_tiles(tiles, dtype, *shape), values)
    rows = pack_rows(values, dtype)
    assert rows.size == item_size(dtype, Layout.rows, *shape)
    assert np.array_equal(unpack_rows(rows, dtype, *shape), values)


@given(st.data(), SHAPES)
def test_q8_tiles_hold_what_the_blocks_were_rounded_to(
    data: st.DataObject, shape: tuple[int, int]
) -> None:
    values = data.draw(hnp.arrays(np.float32, shape, elements=st.floats(-8, 8, width=32)))
    tiles = pack_tiles(values, DType.q8)
    assert tiles.size == item_size(DType.q8, Layout.tiles, *shape)
    got = unpack_tiles(tiles, DType.q8, *shape)
    for row in range(shape[0]):
        for first in range(0, shape[1], 32):
            block = np.zeros(32, dtype=np.float32)
            part = values[row, first : first + 32]
            block[: part.size] = part
            integers, scale = quantise_q8(block)
            expected = integers.astype(np.float32) * np.float32(scale)
            assert np.array_equal(got[row, first : first + 32], expected[: part.size])


@given(st.data(), SHAPES)
def test_q4_tiles_hold_what_the_blocks_were_rounded_to(
    data: st.DataObject, shape: tuple[int, int]
) -> None:
    values = data.draw(hnp.arrays(np.float32, shape, elements=st.floats(-8, 8, width=32)))
    tiles = pack_tiles(values, DType.q4)
    assert tiles.size == item_size(DType.q4, Layout.tiles, *shape)
    got = unpack_tiles(tiles, DType.q4, *shape)
    for row in range(shape[0]):
        for first in range(0, shape[1], 32):
            block = np.zeros(32, dtype=np.float32)
            part = values[row, first : first + 32]
            block[: part.size] = part
            integers, scale = quantise_q4(block)
            expected = (integers.astype(np.float32) - np.float32(8)) * np.float32(scale)
            assert np.array_equal(got[row, first : first + 32], expected[: part.size])


@given(st.data(), st.integers(1, 40), st.integers(1, 5))
def test_q4_blocks_lie_where_the_document_says(
    data: st.DataObject, rows: int, n_blocks: int
) -> None:
    """Every integer and every scale, looked up one by one; what is padding is 8 times 0."""
    integers = data.draw(hnp.arrays(np.uint8, (rows, n_blocks, 32), elements=st.integers(0, 15)))
    scales = data.draw(
        hnp.arrays(np.float16, (rows, n_blocks), elements=st.floats(-9, 9, width=16))
    )
    tiles = pack_q4_blocks(integers, scales).tobytes()
    n_pairs, n_tiles = (n_blocks + 1) // 2, (rows + 15) // 16
    assert len(tiles) == n_tiles * n_pairs * 576
    for row in range(16 * n_tiles):
        for block in range(2 * n_pairs):
            pair = (row // 16 * n_pairs + block // 2) * 576
            place = pair + 32 * (block % 2) + 2 * (row % 16)
            is_padding = row >= rows or block >= n_blocks
            scale = np.float16(0) if is_padding else scales[row, block]
            assert tiles[place : place + 2] == struct.pack("<e", scale)
            place = pair + 64 + 256 * (block % 2) + 4 * (row % 16)
            stored = [
                tiles[place + 64 * (c // 8) + c % 4] >> (4 if c % 8 > 3 else 0) & 15
                for c in range(32)
            ]
            assert stored == ([8] * 32 if is_padding else integers[row, block].tolist())


@given(st.data(), st.integers(1, 40), st.integers(1, 5))
def test_mxfp4_blocks_lie_where_the_document_says(
    data: st.DataObject, rows: int, n_blocks: int
) -> None:
    """Every code and every scale, looked up one by one; what is padding is 0 times 0."""
    codes = data.draw(hnp.arrays(np.uint8, (rows, n_blocks, 32), elements=st.integers(0, 15)))
    exponents = data.draw(hnp.arrays(np.int32, (rows, n_blocks), elements=st.integers(-128, 124)))
    tiles = pack_mxfp4_blocks(codes, np.ldexp(np.float32(1), exponents)).tobytes()
    n_pairs, n_tiles = (n_blocks + 1) // 2, (rows + 15) // 16
    assert len(tiles) == n_tiles * n_pairs * 576
    for row in range(16 * n_tiles):
        for block in range(2 * n_pairs):
            pair = (row // 16 * n_pairs + block // 2) * 576
            place = pair + 32 * (block % 2) + 2 * (row % 16)
            is_padding = row >= rows or block >= n_blocks
            scale = 0.0 if is_padding else 2.0 ** int(exponents[row, block])
            assert struct.unpack("<f", b"\0\0" + tiles[place : place + 2]) == (scale,)
            place = pair + 64 + 256 * (block % 2) + 4 * (row % 16)
            stored = [
                tiles[place + 64 * (c // 8) + c % 4] >> (4 if c % 8 > 3 else 0) & 15
                for c in range(32)
            ]
            assert stored == ([0] * 32 if is_padding else codes[row, block].tolist())


@given(
    st.integers(1, 6),
    st.integers(1, 80),
    st.sampled_from([*FLOATS, DType.q8, DType.q4, DType.mxfp4]),
)
def test_a_matrix_may_be_packed_some_tiles_at_a_time(n_tiles: int, cols: int, dtype: DType) -> None:
    values = np.arange(16 * n_tiles * cols, dtype=np.float32).reshape(-1, cols) / np.float32(64)
    parts = [pack_tiles(values[row : row + 16], dtype) for row in range(0, 16 * n_tiles, 16)]
    assert np.array_equal(np.concatenate(parts), pack_tiles(values, dtype))
