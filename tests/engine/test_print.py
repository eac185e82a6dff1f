# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Formatted text (src/print.c), next to that of Python's %, which rounds exactly as well."""

import ctypes
import math
import random
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.process import run

Format = Callable[..., str]


@pytest.fixture(scope="module")
def formatted(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Format:
    """clb_format, as a function of a format and its values."""
    library = tmp_path_factory.mktemp("print") / "print.so"
    sources = [root / "src/print.c", root / "src/decimal.c"]
    flags = ["-std=c17", "-D_DEFAULT_SOURCE", "-O1", "-fPIC", "-shared", "-Wall", "-Werror"]
    run([sys.executable, "-m", "ziglang", "cc", *flags, *sources, "-o", library])
    clb_format = ctypes.CDLL(str(library)).clb_format

    def call(text: str, *values: object, size: int = 1000) -> str:
        out = ctypes.create_string_buffer(size)
        arguments = [
            ctypes.c_double(value)
            if isinstance(value, float)
            else ctypes.c_int64(value)
            if isinstance(value, int)
            else value
            for value in values
        ]
        length = clb_format(out, ctypes.c_size_t(size), text.encode(), *arguments)
        assert length >= len(out.value)
        return out.value.decode()

    return call


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("plain, 100 %%", ()),
        ("%s and %s", (b"one", b"")),
        ("[%-8s] [%8s] [%.2s] [%.0s] [%-6.3s]", (b"abc", b"abc", b"abc", b"abc", b"abcdef")),
        ("%c%d%u", (ord("x"), -2147483648, 7)),
        ("%ld %lld %lu %zu", (-(2**63), 2**63 - 1, 2**63 - 1, 0)),
        ("%x %#x %02X %04x %08lx", (255, 255, 10, 31, 2**40 + 1)),
        ("%5d|%-5d|%05d|%1d", (-42, -42, -42, -42)),
        ("%f %.3f %10.1f|%-10.2f|%6.1f", (1.5, 2.0005, -3.25, 1e20, 123456789.0)),
        ("%g %.9g %10.6g", (100000.0, 1e6, 1e-5)),
    ],
)
def test_conversions(formatted: Format, text: str, values: tuple[object, ...]) -> None:
    decoded = [value.decode() if isinstance(value, bytes) else value for value in values]
    without_sizes = re.sub(r"(l|ll|z)(?=[dux])", "", text)
    assert formatted(text, *values) == without_sizes % tuple(decoded)


def test_precision_from_an_argument(formatted: Format) -> None:
    assert formatted("%.*s|%.*g", 2, b"abc", 3, 2 / 3) == "ab|0.667"


def test_a_text_that_is_too_long_is_cut(formatted: Format) -> None:
    assert formatted("%s%d", b"abcdef", 123, size=8) == "abcdef1"


SPECIAL = [
    0.0, -0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, math.inf, -math.inf,
    math.nan, 0.5, 1.5, 2.5, 0.125, 0.375, 9.5, 99.95, 9.9999999995, 999999.5, 1e15, 1e16, 1e-4,
    9.9999995e-5, 0.00099999, 1e22, 1e23, 2.0**-149, 3.4028234663852886e38,
]  # fmt: skip


def test_floats_are_rounded_exactly(formatted: Format) -> None:
    """Any f64, any f32, and halves of powers of ten, whose ties go to even."""
    numbers = random.Random(1)
    values = list(SPECIAL)
    for _ in range(500):
        values += [struct.unpack("<d", numbers.randbytes(8))[0], numbers.uniform(-1000, 1000)]
        values += [struct.unpack("<f", numbers.randbytes(4))[0]]
        values += [(numbers.randrange(100_000) + 0.5) * 2.0 ** -numbers.randrange(12)]
    for value in values:
        for text in ("%g", "%.9g", "%.2g", "%.1g", "%.17g", "%f", "%.3f", "%.0f"):
            said = formatted(text, value).removeprefix("-" if math.isnan(value) else "")
            assert said == text % value, (text, value.hex())
