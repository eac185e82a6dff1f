# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Rows, tiles and rounding, against layouts written out by hand and exact fractions."""

from __future__ import annotations

import struct
from fractions import Fraction

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from colibri_deploy.tiles import (
    DType,
    Layout,
    RangeError,
    is_exact,
    item_size,
    pack_mxfp4_blocks,
    pack_q4_blocks,
    pack_q8_blocks,
    pack_rows,
    pack_tiles,
    quantise_mxfp4,
    quantise_q4,
    quantise_q8,
    round_bf16,
    round_f16,
    unpack_rows,
    unpack_tiles,
    widen_bf16,
)

FLOATS = (DType.f32, DType.f16, DType.bf16)


def f32(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


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
    data = pack_rows(f32(1, -2, 0.5, 3).reshape(2, 2), DType.bf16)
    assert data.tobytes().hex() == "803f00c0003f4040"
    data = pack_rows(f32(1, -2, 0.5, 3).reshape(2, 2), DType.f16)
    assert data.tobytes().hex() == "003c00c000380042"
    data = pack_rows(f32(1, -2), DType.f32)
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


def test_a_scale_that_vanishes_in_f16_gives_zeros() -> None:
    integers, scales = quantise_q8(f32(*[1e-7] * 32)[None, :])
    assert scales.tolist() == [0.0]
    assert not integers.any()
    for value in (2.0**-22, -(2.0**-22)):  # a tie between 0 and the smallest f16
        stored, scales = quantise_q4(f32(*[value] * 32)[None, :])
        assert scales.tolist() == [0.0]
        assert (stored == 8).all()


def test_integers_are_clamped_where_the_scale_was_rounded_down() -> None:
    # amax / 127 = 1.4 * 2^-24 becomes 2^-24, the smallest f16; the ratio 177.8 is clamped.
    value = 127 * 1.4 * 2.0**-24
    integers, scales = quantise_q8(f32(value, -value, *[0.0] * 30)[None, :])
    assert scales.tolist() == [2.0**-24]
    assert integers[0, :3].tolist() == [127, -127, 0]
    # The same for m / -8 and the ratio 11.2.
    stored, scales = quantise_q4(f32(-8 * 1.4 * 2.0**-24, 6e-7, *[0.0] * 30)[None, :])
    assert scales.tolist() == [2.0**-24]
    assert stored[0, :3].tolist() == [0, 15, 8]


def test_the_first_of_equal_magnitudes_gives_a_q4_block_its_sign() -> None:
    for sign in (1.0, -1.0):
        integers, scales = quantise_q4(f32(1.0, sign * 4, -sign * 4, sign * 4, *[0.0] * 28)[None])
        assert scales.tolist() == [-sign / 2]
        assert integers[0, 1:5].tolist() == [0, 15, 0, 8]


def test_ties_go_to_the_even_integer() -> None:
    integers, _ = quantise_q8(f32(127, 0.5, 1.5, 2.5, -0.5, -1.5, *[0.0] * 26)[None, :])
    assert integers[0, :6].tolist() == [127, 0, 2, 2, 0, -2]
    stored, _ = quantise_q4(f32(-8, 0.5, 1.5, 2.5, -0.5, -1.5, 6.5, 7.5, *[0.0] * 24)[None, :])
    assert stored[0, :8].tolist() == [0, 8, 10, 10, 8, 6, 14, 15]


def test_mxfp4_ties_go_to_the_even_code_and_what_is_beyond_6_becomes_6() -> None:
    ties = f32(0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0)
    zeros = [0.0] * 17
    codes, scale = quantise_mxfp4(f32(4.0, *ties, *zeros)[None])
    assert scale.tolist() == [0.5]
    assert codes[0, :15].tolist() == [6, 0, 2, 2, 4, 4, 6, 6, 0, 10, 10, 12, 12, 14, 14]
    codes, _ = quantise_mxfp4(f32(4.0, *np.nextafter(ties, np.float32(0)), *zeros)[None])
    assert codes[0, :15].tolist() == [6, 0, 1, 2, 3, 4, 5, 6, 0, 9, 10, 11, 12, 13, 14]
    codes, _ = quantise_mxfp4(f32(4.0, *np.nextafter(ties, ties * 2), *zeros)[None])
    assert codes[0, :15].tolist() == [6, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15]
    codes, scale = quantise_mxfp4(f32(7.999, -7.0, 6.5, 5.01, -0.24, -0.0, *[0.0] * 26)[None])
    assert scale.tolist() == [0.5]
    assert codes[0, :7].tolist() == [7, 15, 7, 7, 0, 0, 0]


def test_mxfp4_takes_every_float() -> None:
    largest, smallest = float(np.finfo(np.float32).max), 2.0**-149
    codes, scale = quantise_mxfp4(f32(largest, -(2.0**127), 2.0**-149, *[0.0] * 29)[None])
    assert (codes[0, :4].tolist(), scale.tolist()) == ([7, 14, 0, 0], [2.0**124])
    codes, scale = quantise_mxfp4(f32(smallest, *[0.0] * 31)[None])
    assert (codes[0, :2].tolist(), scale.tolist()) == ([0, 0], [2.0**-128])
    codes, scale = quantise_mxfp4(np.zeros((1, 32), np.float32))
    assert (codes[0].tolist(), scale.tolist()) == ([0] * 32, [0.0])


def test_an_mxfp4_scale_that_makes_an_infinite_value_is_refused() -> None:
    codes = np.zeros((16, 1, 32), dtype=np.uint8)
    scales = np.full((16, 1), 2.0**125, dtype=np.float32)
    codes[3, 0, 5] = 5  # 6 times 2^125
    assert np.isfinite(unpack_tiles(pack_mxfp4_blocks(codes, scales), DType.mxfp4, 16, 32)).all()
    codes[3, 0, 5] = 14  # -8 times 2^125
    with pytest.raises(RangeError, match="makes a value that is NaN or Inf"):
        pack_mxfp4_blocks(codes, scales)


def test_a_block_whose_scale_is_too_large_is_refused() -> None:
    with pytest.raises(RangeError, match="too large for a q8 scale"):
        quantise_q8(f32(65520.0 * 127, *[0.0] * 31)[None, :])
    for sign in (1.0, -1.0):
        with pytest.raises(RangeError, match=r"524160\.0, is too large for a q4 scale"):
            quantise_q4(f32(0.0, sign * 65520.0 * 8, *[0.0] * 30)[None, :])
        _, scales = quantise_q4(f32(sign * 65519.0 * 8, *[0.0] * 31)[None, :])
        assert scales.tolist() == [-sign * 65504.0]


@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
def test_stored_blocks_with_a_scale_that_is_no_number_are_refused(scale: float) -> None:
    scales = np.ones((16, 2), dtype=np.float16)
    scales[5, 1] = scale
    with pytest.raises(RangeError, match="a q8 scale is NaN or Inf"):
        pack_q8_blocks(np.zeros((16, 2, 32), dtype=np.int8), scales)
    with pytest.raises(RangeError, match="a q4 scale is NaN or Inf"):
        pack_q4_blocks(np.zeros((16, 2, 32), dtype=np.uint8), scales)


def test_values_too_large_for_half_types_are_refused() -> None:
    assert round_f16(f32(65519.0)).tolist() == [65504.0]
    with pytest.raises(RangeError, match=r"65520\.0, does not fit f16"):
        round_f16(f32(1.0, -65520.0))
    with pytest.raises(RangeError, match="does not fit bf16"):
        round_bf16(f32(3.4e38))


def test_bf16_rounds_to_nearest_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x80000001], dtype=np.uint32)
    assert [hex(one) for one in round_bf16(bits.view(np.float32))] == [
        "0x3f80",
        "0x3f82",
        "0x3f81",
        "0x3f80",
        "0x8000",
    ]


def test_every_bf16_survives_widening_and_rounding() -> None:
    bits = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    finite = bits[(bits & 0x7F80) != 0x7F80]
    assert np.array_equal(round_bf16(widen_bf16(finite)), finite)


def test_what_each_type_holds_exactly() -> None:
    cases = {
        1.0: (True, True),
        1 / 3: (False, False),
        1.00390625: (True, False),  # 8 bits after the point
        65536.0: (False, True),
        2.0**-24: (True, True),
        2.0**-25: (False, True),
        -0.0: (True, True),
    }
    for value, (f16, bf16) in cases.items():
        assert is_exact(f32(value), DType.f32)
        assert is_exact(f32(value), DType.f16) is f16, value
        assert is_exact(f32(value), DType.bf16) is bf16, value
        assert is_exact(f32(1.0, value), DType.f16) is f16, value


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


def round_binary(value: Fraction, digits: int, lowest: int) -> Fraction:
    """The nearest multiple of 2^e, e >= `lowest`, with `digits` binary digits; ties to even."""
    if value == 0:
        return Fraction(0)
    exponent = lowest
    while abs(value) >= Fraction(2) ** (exponent + digits):
        exponent += 1
    return round(value / Fraction(2) ** exponent) * Fraction(2) ** exponent


def exact_q8(block: list[float]) -> tuple[list[int], Fraction]:
    """FORMAT.md's rule in exact arithmetic with explicit roundings."""
    numbers = [Fraction(value) for value in block]
    ratio = round_binary(max(abs(value) for value in numbers) / 127, 24, -149)  # float32
    scale = round_binary(ratio, 11, -24)  # f16
    if scale == 0:
        return [0] * len(block), scale
    quotients = [round_binary(value / scale, 24, -149) for value in numbers]  # float32
    return [max(-127, min(127, round(quotient))) for quotient in quotients], scale


@given(
    st.lists(st.floats(-8e6, 8e6, width=32), min_size=32, max_size=32),
    st.sampled_from([0, 0, -20, -30, -60, -120]),
)
def test_q8_rounds_as_exact_fractions_do(values: list[float], exponent: int) -> None:
    block = np.ldexp(np.array(values, dtype=np.float32), exponent).astype(np.float32)
    integers, scale = quantise_q8(block)
    expected_integers, expected_scale = exact_q8([float(value) for value in block])
    assert Fraction(float(scale)) == expected_scale
    assert integers.tolist() == expected_integers


def exact_q4(block: list[float]) -> tuple[list[int], Fraction]:
    """The same for q4."""
    numbers = [Fraction(value) for value in block]
    largest = numbers[0]
    for value in numbers:
        if abs(value) > abs(largest):
            largest = value
    scale = round_binary(round_binary(largest / -8, 24, -149), 11, -24)  # float32, then f16
    if scale == 0:
        return [8] * len(block), scale
    quotients = [round_binary(value / scale, 24, -149) for value in numbers]  # float32
    return [max(-8, min(7, round(quotient))) + 8 for quotient in quotients], scale


@given(
    st.lists(
        st.one_of(st.floats(-524000, 524000, width=32), st.integers(-16, 16).map(float)),
        min_size=32,
        max_size=32,
    ),
    st.sampled_from([0, 0, -16, -24, -35, -60, -120]),
)
def test_q4_rounds_as_exact_fractions_do(values: list[float], exponent: int) -> None:
    block = np.ldexp(np.array(values, dtype=np.float32), exponent).astype(np.float32)
    integers, scale = quantise_q4(block)
    expected_integers, expected_scale = exact_q4([float(value) for value in block])
    assert Fraction(float(scale)) == expected_scale
    assert integers.tolist() == expected_integers


ELEMENTS = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]  # of the codes 0 to 7


def exact_mxfp4(block: list[float]) -> tuple[list[int], Fraction]:
    """The same for mxfp4: the nearest element by trying them all."""
    numbers = [Fraction(value) for value in block]
    largest = max(map(abs, numbers))
    if largest == 0:
        return [0] * len(block), largest
    exponent = -127
    while Fraction(2) ** (exponent + 3) <= largest:
        exponent += 1
    codes = []
    for value in numbers:
        element = abs(value) / Fraction(2) ** exponent
        gaps = [(abs(element - one), code % 2, code) for code, one in enumerate(ELEMENTS)]
        code = min(gaps)[2]
        codes.append(code + 8 if value < 0 and code else code)
    return codes, Fraction(2) ** (exponent - 1)


@given(
    st.lists(
        st.one_of(st.floats(-9, 9, width=32), st.integers(-64, 64).map(lambda n: n / 8)),
        min_size=32,
        max_size=32,
    ),
    st.sampled_from([0, 0, 3, -2, 124, -60, -126, -140]),
)
def test_mxfp4_rounds_as_exact_fractions_do(values: list[float], exponent: int) -> None:
    block = np.ldexp(np.array(values, dtype=np.float32), exponent).astype(np.float32)
    codes, scale = quantise_mxfp4(block)
    expected_codes, expected_scale = exact_mxfp4([float(value) for value in block])
    assert Fraction(float(scale)) == expected_scale
    assert codes.tolist() == expected_codes


@given(st.lists(st.integers(0, 15), min_size=32, max_size=32), st.integers(-127, 125))
def test_mxfp4_holds_what_ggml_says(codes: list[int], exponent: int) -> None:
    """The package gguf dequantises the same codes; a value that it holds is rounded to itself."""
    packed = [codes[i] | codes[i + 16] << 4 for i in range(16)]
    stored = np.array([[exponent + 127, *packed]], dtype=np.uint8)
    kind = gguf.GGMLQuantizationType.MXFP4
    values = np.asarray(gguf.quants.dequantize(stored, kind), np.float32)
    scales = np.full((1, 1), 2.0 ** (exponent - 1), dtype=np.float32)
    tiles = pack_mxfp4_blocks(np.array(codes, dtype=np.uint8).reshape(1, 1, 32), scales)
    assert np.array_equal(unpack_tiles(tiles, DType.mxfp4, 1, 32), values)
    assert np.array_equal(unpack_tiles(pack_tiles(values, DType.mxfp4), DType.mxfp4, 1, 32), values)


@given(st.lists(st.integers(0, 15), min_size=31, max_size=31), st.floats(-9, 9, width=16))
def test_what_q4_holds_is_rounded_to_itself(integers: list[int], scale: float) -> None:
    stored = np.array([0, *integers], dtype=np.float32)  # -8 is the first of the largest
    again, found = quantise_q4((stored - np.float32(8)) * np.float32(scale))
    assert float(found) == scale
    assert again.tolist() == (stored.tolist() if scale else [8] * 32)


def test_q4_of_one_block_in_numbers() -> None:
    # m = 1: -1/8. 0.3 / -0.125 = -2.4; 0.9374 lies just short of -7.5.
    integers, scale = quantise_q4(f32(1.0, 0.3, -0.9999, 0.0625, 0.0626, 0.9374, *[0.0] * 26))
    assert float(scale) == -0.125
    assert integers[:7].tolist() == [0, 6, 15, 8, 7, 1, 8]
    # m = -1.1: 0.1375 becomes the f16 0.137451171875; 1 / that = 7.28, -1.1 / that = -8.003.
    integers, scale = quantise_q4(f32(1.0, -1.1, 0.5, *[0.0] * 29))
    assert float(scale) == 0.137451171875
    assert integers[:4].tolist() == [15, 0, 12, 8]


def test_q8_of_one_block_in_numbers() -> None:
    # amax 1: 1/127 = 0.007874016 becomes the f16 0.00787353515625; 0.3 / that = 38.10.
    integers, scale = quantise_q8(f32(1.0, 0.3, -0.9999, 0.004, 0.0039, *[0.0] * 27))
    assert float(scale) == 0.00787353515625
    assert integers[:5].tolist() == [127, 38, -127, 1, 0]
