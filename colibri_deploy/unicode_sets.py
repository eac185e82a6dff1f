# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Sets of characters and the normal form C, as the library `tokenizers` knows them.

They go into the section `tokenizer` of model.bin, so that the engine carries no table of Unicode
and a model's ids do not depend on the engine's version of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from colibri_deploy.unicode_table import CLASSES, COMBINING_CLASSES, DECOMPOSITIONS

# What an expression may call a set, and which classes of unicode_table.py are in it
_PROPERTIES: dict[str, Callable[[str], bool]] = {
    "L": lambda name: name[0] == "L",
    "Lu": lambda name: name == "Lu",
    "Lt": lambda name: name == "Lt",
    "Ll": lambda name: name == "Ll",
    "Lm": lambda name: name == "Lm",
    "Lo": lambda name: name == "Lo",
    "M": lambda name: name == "M",
    "N": lambda name: name[0] == "N",
    "P": lambda name: name[0] == "P",
    "S": lambda name: name[0] == "S",
    "space": lambda name: name == "W",
    "numeric": lambda name: name[0] == "N" or name[-1] == "0",  # Rust's char::is_numeric
    "word": lambda name: name[0] in "LM" or name[-1] == "_",
}


def _runs(text: str) -> Iterator[tuple[int, str]]:
    """The first code point and the value of each run."""
    first = 0
    for word in text.split():
        value, _, count = word.partition(":")
        yield first, value
        first += int(count or 1)


_CLASS_RUNS = tuple(_runs(CLASSES))


@dataclass(frozen=True)
class CharacterSet:
    """Some characters: of ranges, of properties and of other sets; or all but these."""

    ranges: tuple[tuple[int, int], ...] = ()  # first and last code point
    properties: tuple[str, ...] = ()
    sets: tuple[CharacterSet, ...] = ()
    negated: bool = False

    def has(self, code_point: int, class_name: str) -> bool:
        """Whether a code point, of a class of unicode_table.py, is in the set."""
        found = (
            any(low <= code_point <= high for low, high in self.ranges)
            or any(_PROPERTIES[name](class_name) for name in self.properties)
            or any(one.has(code_point, class_name) for one in self.sets)
        )
        return found != self.negated

    def edges(self) -> Iterator[int]:
        """Where membership may change, beside the borders of classes."""
        for low, high in self.ranges:
            yield low
            yield high + 1
        for one in self.sets:
            yield from one.edges()


def is_property(name: str) -> bool:
    """Whether an expression may write a set as `\\p{name}`."""
    return name[0].isupper() and name in _PROPERTIES


def partition(sets: Iterable[CharacterSet]) -> tuple[list[tuple[int, int]], list[frozenset[int]]]:
    """Divides all code points into the fewest parts that tell the sets apart.

    Returns the first code point and the part of each range, and for each part the positions of
    the sets that hold it.
    """
    sets = list(sets)
    runs = dict(_CLASS_RUNS)
    edges = {edge for one in sets for edge in one.edges() if edge < 0x110000}
    parts: dict[frozenset[int], int] = {}
    ranges: list[tuple[int, int]] = []
    class_name = ""
    for first in sorted(edges | runs.keys()):
        class_name = runs.get(first, class_name)
        held = frozenset(n for n, one in enumerate(sets) if one.has(first, class_name))
        part = parts.setdefault(held, len(parts))
        if not ranges or ranges[-1][1] != part:
            ranges.append((first, part))
    return ranges, list(parts)


@cache
def added_token_classes() -> list[tuple[int, int]]:
    """Ranges of word characters (1) and white space (2), which count beside added tokens."""
    sets = [CharacterSet(properties=("word",)), CharacterSet(properties=("space",))]
    ranges, parts = partition(sets)
    return [(first, sum(n + 1 for n in parts[part])) for first, part in ranges]


def combining_classes() -> list[tuple[int, int]]:
    """Ranges of equal canonical combining class."""
    return [(first, int(value)) for first, value in _runs(COMBINING_CLASSES)]


@cache
def decompositions() -> tuple[list[tuple[int, ...]], list[tuple[int, int, int]]]:
    """What the normal form C needs, without Hangul, whose syllables are arithmetic.

    The canonical decompositions (a code point and the 1 to 4 that it becomes), and the
    compositions (two code points and what they become), both sorted.
    """
    rows: list[tuple[int, ...]] = []
    composed: list[tuple[int, ...]] = []
    code_point = 0
    for word in DECOMPOSITIONS.split():
        if word[0] == "@":
            code_point = int(word[1:], 16)
            continue
        row = (code_point, *(int(part, 16) for part in word.replace("-", "+").split("+")))
        rows.append(row)
        if "+" in word:
            composed.append(row)
        code_point += 1
    pairs: dict[tuple[int, int], int] = {}
    for result, first, *others in sorted(composed, key=len):
        for other in others[:-1]:
            first = pairs[first, other]
        pairs[first, others[-1]] = result
    return rows, sorted((*pair, result) for pair, result in pairs.items())
