# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Rounding to each type, against values written out by hand and exact fractions."""

from __future__ import annotations

from fractions import Fraction

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri_deploy.tiles import (
    DType,
    RangeError,
    is_exact,
    pack_mxfp4_blocks,
    pack_q4_blocks,
    pack_q8_blocks,
    pack_tiles,
    quantise_mxfp4,
    quantise_q4,
    quantise_q8,
    round_bf16,
    round_f16,
    unpack_tiles,
    widen_bf16,
)


def f32(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


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
