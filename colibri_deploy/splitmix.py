# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Random numbers whose bits are the same on every machine and with every version of numpy.

splitmix64 (https://prng.di.unimi.it/splitmix64.c): output `i` is a function of the state and `i`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from colibri_deploy.tiles import FloatArray

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def stream(seed: int, name: str) -> int:
    """The state at which the numbers called `name` start."""
    digest = hashlib.sha256(name.encode()).digest()
    return (int.from_bytes(digest[:8], "little") + seed * _GAMMA) & _MASK


def numbers(state: int, count: int) -> npt.NDArray[np.uint64]:
    """The first `count` outputs."""
    z = np.uint64(state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def uniform(state: int, count: int) -> FloatArray:
    """`count` values from -1 to 1 (not included): the upper 24 bits, exact in float32."""
    integers = (numbers(state, count) >> np.uint64(40)).astype(np.int32) - np.int32(1 << 23)
    return integers.astype(np.float32) * np.float32(2.0**-23)


def permutation(state: int, count: int) -> npt.NDArray[np.intp]:
    """The numbers 0 to `count` - 1, shuffled (Fisher and Yates, from the last place down).

    A place below `n` is the upper half of the 128-bit product of `n` and an output (Lemire, 2019,
    without the rejection: the bias is below n / 2^64).
    """
    order = list(range(count))
    draws = numbers(state, count).tolist()
    for last in range(count - 1, 0, -1):
        place = draws[last] * (last + 1) >> 64
        order[last], order[place] = order[place], order[last]
    return np.array(order, dtype=np.intp)
