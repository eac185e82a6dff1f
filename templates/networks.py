# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Compare-exchange networks that find the largest of a few values.

A step names two places of an array: `exchange` puts the larger value into the first place and the
smaller one into the second, `keep` only the larger one into the first.
"""

from dataclasses import dataclass

# Sorts in descending order with the fewest exchanges (Knuth, The Art of Computer Programming,
# volume 3, section 5.3.4).
_SORTS: dict[int, tuple[tuple[int, int], ...]] = {
    1: (),
    2: ((0, 1),),
    4: ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2)),
}


@dataclass(frozen=True)
class Step:
    """One step; the places are C expressions."""

    verb: str  # exchange or keep
    first: str
    second: str


def sort(places: list[str]) -> list[Step]:
    """Sorts 1, 2 or 4 places, largest first."""
    return [Step("exchange", places[i], places[j]) for i, j in _SORTS[len(places)]]


def merge(into: list[str], other: list[str]) -> list[Step]:
    """Leaves in `into` the largest of both, sorted; both are sorted, equally long, 1, 2 or 4.

    The first half of Batcher's bitonic merge keeps one of each pair, the rest sorts what is kept.
    """
    steps = [Step("keep", a, b) for a, b in zip(into, reversed(other), strict=True)]
    distance = len(into) // 2
    while distance:
        steps += [
            Step("exchange", into[i], into[i + distance])
            for i in range(len(into))
            if not i & distance
        ]
        distance //= 2
    return steps


def largest(places: list[str], k: int) -> list[Step]:
    """Leaves the k largest in the first k places, sorted; k times a power of two are there."""
    if len(places) == k:
        return sort(places)
    half = len(places) // 2
    left, right = places[:half], places[half:]
    return largest(left, k) + largest(right, k) + merge(left[:k], right[:k])
