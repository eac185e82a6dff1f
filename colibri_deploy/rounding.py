# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What storing values in fewer bits does to them: how far they move, and how far they may."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from colibri_deploy.tiles import BLOCK_COLS, DType, FloatArray, round_up

# Of each type of blocks: the integer of the largest magnitude, and by how many steps of the scale
# a value may move. An integer 8 of q4 becomes 7 on the side of the sign that the largest does not
# have; of mxfp4 the largest is 4 to 8 times a power of two, and what is beyond 6 becomes 6.
_BLOCKS = {DType.q8: (127, 0.5), DType.q4: (8, 1.0), DType.mxfp4: (4, 1.0)}
_SCALE = 2.0**-11  # how far rounding to f16 moves a scale, relative
_TINY = 2.0**-25  # the same where f16 is subnormal
_FLOATS = {DType.f16: (2.0**-11, 2.0**-25), DType.bf16: (2.0**-8, 0.0)}


@dataclasses.dataclass(frozen=True)
class RoundingError:
    """Sums over values and over how far they were moved."""

    values: float = 0.0  # squares
    errors: float = 0.0  # squares
    max_relative: float = 0.0  # the largest error of a row over its largest magnitude

    @property
    def rms_relative(self) -> float:
        """The errors' root mean square over that of the values; 0 if all values are 0."""
        return math.sqrt(self.errors / self.values) if self.values > 0 else 0.0

    def __add__(self, other: RoundingError) -> RoundingError:
        return RoundingError(
            self.values + other.values,
            self.errors + other.errors,
            max(self.max_relative, other.max_relative),
        )


def measure(values: FloatArray, stored: FloatArray) -> RoundingError:
    """The errors of `stored` against `values`, both float32 [rows, cols]."""
    errors = np.abs(stored - values)
    largest = np.abs(values).max(axis=1)
    relative = np.divide(errors.max(axis=1), largest, out=np.zeros_like(largest), where=largest > 0)
    return RoundingError(_squares(values), _squares(errors), float(relative.max(initial=0)))


def _squares(values: FloatArray) -> float:
    return float(np.square(values, dtype=np.float64).sum())


def is_rounded(values: FloatArray, stored: FloatArray, dtype: DType) -> bool:
    """Whether every stored value is within what rounding to `dtype` may do; [rows, cols]."""
    errors = np.abs(stored.astype(np.float64) - values)
    magnitudes = np.abs(values).astype(np.float64)
    if dtype in _BLOCKS:
        rows, cols = values.shape
        padded = np.zeros((rows, round_up(cols, BLOCK_COLS)))
        padded[:, :cols] = magnitudes
        amax = padded.reshape(rows, -1, BLOCK_COLS).max(axis=2)
        largest, steps = _BLOCKS[dtype]
        limits = amax / largest * (steps + largest * _SCALE) + (largest + steps) * _TINY
        return bool((errors <= np.repeat(limits, BLOCK_COLS, axis=1)[:, :cols]).all())
    relative, tiny = _FLOATS.get(dtype, (0.0, 0.0))
    return bool((errors <= magnitudes * relative + tiny).all())
