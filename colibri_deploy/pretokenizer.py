# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles the regular expressions of pre-tokenizers into automata for the engine.

An expression is parsed into the instructions of a backtracking matcher, and those become a
deterministic automaton that finds the very match a backtracking one finds (Cox, "Regular
Expression Matching: the Virtual Machine Approach", 2009): its states are lists of instructions,
the preferred first. A look-ahead is decided by the character that comes next, which a transition
knows; so a transition also says whether a match ends before its character.

The syntax is that of Oniguruma, which the library `tokenizers` uses. What cannot be compiled
exactly is refused: back references, anchors but `$`, lazy and possessive repetition, `\\d`, `\\w`,
scripts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from colibri_deploy.unicode_sets import CharacterSet, is_property, partition

MATCH, STOP = 0x8000, 0x7FFF
_MAX_STATES = 4096
_MAX_REPEATS = 32

# Oniguruma matches these pairs of letters without case by ligatures too.
_LIGATURES = ("ss", "st", "ff", "fi", "fl")
_OTHER_CASE = {"s": 0x17F, "k": 0x212A}
_ESCAPES = {"r": "\r", "n": "\n", "t": "\t", "v": "\v", "f": "\f"}
_SPACE = CharacterSet(properties=("space",))
_NOT_NEWLINE = CharacterSet(ranges=((10, 10),), negated=True)

# `Digits`, in two kinds, and `Metaspace`, before every marker; no checkpoint spells them so.
DIGIT, DIGIT_RUNS = r"\p{char::is_numeric}", r"\p{char::is_numeric}+"
MARKER_SPLIT = "▁[^▁]*|[^▁]+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class ExpressionError(Exception):
    """An expression that cannot be compiled; the message says what stands in the way."""


@dataclass(frozen=True)
class Automaton:
    """Splits text; docs/FORMAT-tokenizer.md says how it is read."""

    ranges: list[tuple[int, int]]  # first code point, symbol
    n_symbols: int
    transitions: list[list[int]]  # [state][symbol]; the last symbol is the end of the text

    @property
    def leaves_nothing(self) -> bool:
        """Whether every character is certain to be in a match."""
        return all(
            entry & STOP != STOP
            and all(follows & MATCH for follows in self.transitions[entry & STOP])
            for entry in self.transitions[0][:-1]
        )


# A part of an expression emits its instructions before those that follow it: it gets the number of
# the first of those, and returns the number of its own first one.
_Emit = Callable[[int], int]


@dataclass
class _Program:
    """Instructions: a set and what follows it, alternatives in order, or a look-ahead."""

    sets: list[CharacterSet] = field(default_factory=list)
    # ("set", set, next), ("if" or "unless", set, next), ("fork", first, second, ...), ("match",)
    code: list[tuple[str, tuple[int, ...]]] = field(default_factory=lambda: [("match", ())])

    def emit(self, kind: str, *operands: int) -> int:
        self.code.append((kind, operands))
        return len(self.code) - 1

    def set_number(self, characters: CharacterSet) -> int:
        if characters not in self.sets:
            self.sets.append(characters)
        return self.sets.index(characters)


@dataclass(frozen=True)
class _Part:
    emit: _Emit
    may_be_empty: bool


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.program = _Program()

    def fail(self, what: str) -> ExpressionError:
        return ExpressionError(f"{what} at character {self.at} of the expression {self.text!r}")

    def peek(self, ahead: str) -> bool:
        return self.text.startswith(ahead, self.at)

    def take(self, ahead: str) -> bool:
        found = self.peek(ahead)
        self.at += len(ahead) if found else 0
        return found

    def next(self) -> str:
        if self.at == len(self.text):
            raise self.fail("an early end")
        self.at += 1
        return self.text[self.at - 1]

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise self.fail(f"no {text!r}")

    def alternatives(self, any_case: bool = False) -> _Part:
        branches = [self.sequence(any_case)]
        while self.take("|"):
            branches.append(self.sequence(any_case))
        if len(branches) == 1:
            return branches[0]
        return _Part(
            lambda following: self.program.emit("fork", *(b.emit(following) for b in branches)),
            any(branch.may_be_empty for branch in branches),
        )

    def sequence(self, any_case: bool) -> _Part:
        parts: list[_Part] = []
        start = self.at
        while self.at < len(self.text) and not self.peek("|") and not self.peek(")"):
            parts.append(self.repeated(any_case))
        if any_case and any(pair in self.text[start : self.at].lower() for pair in _LIGATURES):
            raise self.fail("letters of a ligature without case")

        def emit(following: int) -> int:
            for part in reversed(parts):
                following = part.emit(following)
            return following

        return _Part(emit, all(part.may_be_empty for part in parts))

    def repeated(self, any_case: bool) -> _Part:
        part = self.atom(any_case)
        low, high = self.quantifier()
        if (low, high) == (1, 1):
            return part
        if self.at < len(self.text) and self.text[self.at] in "?*+{":
            raise self.fail("a lazy, possessive or double repetition")
        if part.may_be_empty:
            raise self.fail("a repetition of what may be empty")
        program = self.program

        def emit(following: int) -> int:
            if high is None:
                loop = program.emit("fork")  # completed below: its body follows it
                program.code[loop] = ("fork", (part.emit(loop), following))
                following = loop
            else:
                end = following
                for _ in range(high - low):
                    following = program.emit("fork", part.emit(following), end)
            for _ in range(low):
                following = part.emit(following)
            return following

        return _Part(emit, low == 0)

    def quantifier(self) -> tuple[int, int | None]:
        for sign, bounds in {"*": (0, None), "+": (1, None), "?": (0, 1)}.items():
            if self.take(sign):
                return bounds
        if not self.take("{"):
            return 1, 1
        found = re.compile(r"([0-9]+)(?:(,)([0-9]*))?\}").match(self.text, self.at)
        if not found:
            raise self.fail("an unknown repetition")
        first, comma, last = found.groups()
        low = int(first)
        high = int(last) if last else None if comma else low
        if max(low, high or 0) > _MAX_REPEATS or (high is not None and high < max(low, 1)):
            raise self.fail("an unknown repetition")
        self.at = found.end()
        return low, high

    def atom(self, any_case: bool) -> _Part:
        if self.take("(?i:"):
            return self.closed(self.alternatives(any_case=True))
        if self.take("(?:"):
            return self.closed(self.alternatives(any_case))
        if self.take("(?!"):
            return self.closed(self.one("unless", any_case))
        if self.take("(?="):
            return self.closed(self.one("if", any_case))
        if self.take("$"):
            number = self.program.set_number(_NOT_NEWLINE)
            return _Part(lambda following: self.program.emit("unless", number, following), True)
        if self.peek("(?"):
            raise self.fail("an unknown group")
        if self.take("("):
            return self.closed(self.alternatives(any_case))
        return self.one("set", any_case)

    def one(self, kind: str, any_case: bool) -> _Part:
        """A character, or a look at the next one: the end of the text is in no set."""
        number = self.program.set_number(self.characters(any_case))
        return _Part(lambda following: self.program.emit(kind, number, following), kind != "set")

    def closed(self, part: _Part) -> _Part:
        self.expect(")")
        return part

    def characters(self, any_case: bool) -> CharacterSet:
        """One character, or a class of them."""
        if self.take("["):
            return self.bracket(any_case)
        if self.text[self.at : self.at + 1] in ".^$*+?{":
            raise self.fail(f"{self.text[self.at]!r}")
        return self.member(any_case)

    def member(self, any_case: bool) -> CharacterSet:
        char = self.next()
        if char != "\\":
            return self.literal(char, any_case)
        char = self.next()
        if char == "s":
            return _SPACE
        if char == "S":
            return CharacterSet(sets=(_SPACE,), negated=True)
        if char in "pP":
            return self.property(char == "P", any_case)
        if char.isalnum() and char not in _ESCAPES:
            raise self.fail(f"'\\{char}'")
        return self.literal(_ESCAPES.get(char, char), any_case)

    def literal(self, char: str, any_case: bool) -> CharacterSet:
        points = {ord(char)}
        if any_case:
            if not char.isascii():
                raise self.fail("a character beyond ASCII without case")
            if char.isalpha():
                points = {ord(char.lower()), ord(char.upper())}
                points |= {_OTHER_CASE[c] for c in char.lower() if c in _OTHER_CASE}
        return CharacterSet(ranges=tuple((point, point) for point in sorted(points)))

    def property(self, negated: bool, any_case: bool) -> CharacterSet:
        self.expect("{")
        end = self.text.find("}", self.at)
        name = self.text[self.at : max(end, self.at)]
        if name == "char::is_numeric":
            name = "numeric"
        elif not name or not is_property(name) or any_case:
            raise self.fail(f"the property {name!r}")
        self.at = end + 1
        return CharacterSet(properties=(name,), negated=negated)

    def bracket(self, any_case: bool) -> CharacterSet:
        negated = self.take("^")
        members: list[CharacterSet] = []
        while not self.take("]"):
            if self.peek("[") or self.peek("&&"):
                raise self.fail("a class within a class")
            member = self.member(any_case)
            if self.peek("-") and not self.peek("-]"):
                self.at += 1
                member = self.span(member, self.member(any_case), any_case)
            members.append(member)
        if not members:
            raise self.fail("an empty class")
        simple = [member for member in members if not (member.sets or member.negated)]
        return CharacterSet(
            ranges=tuple(pair for member in simple for pair in member.ranges),
            properties=tuple(name for member in simple for name in member.properties),
            sets=tuple(member for member in members if member not in simple),
            negated=negated,
        )

    def span(self, low: CharacterSet, high: CharacterSet, any_case: bool) -> CharacterSet:
        if len(low.ranges) != 1 or len(high.ranges) != 1 or any_case:
            raise self.fail("a range of something else than characters")
        first, last = low.ranges[0][0], high.ranges[0][0]
        if first > last:
            raise self.fail("a range that runs backwards")
        return CharacterSet(ranges=((first, last),))


def _step(
    program: _Program, state: tuple[int, ...], holds: frozenset[int]
) -> tuple[tuple[int, ...], bool]:
    """What follows a state when the next character is in the sets `holds`.

    Returns the next state, and whether a match ends before the character. Instructions less
    preferred than a match are given up, as a backtracking matcher never comes to them.
    """
    following: list[int] = []
    seen: set[int] = set()
    stack = list(reversed(state))
    while stack:
        number = stack.pop()
        if number in seen:
            continue
        seen.add(number)
        kind, operands = program.code[number]
        if kind == "match":
            return tuple(following), True
        if kind == "fork":
            stack.extend(reversed(operands))
        elif kind == "set":
            if operands[0] in holds and operands[1] not in following:
                following.append(operands[1])
        elif (operands[0] in holds) == (kind == "if"):
            stack.append(operands[1])
    return tuple(following), False


@cache
def compile_expression(text: str) -> Automaton:
    """The automaton of an expression. Raises ExpressionError."""
    parser = _Parser(text)
    whole = parser.alternatives()
    if parser.at < len(text):
        raise parser.fail("an unexpected ')'")
    if whole.may_be_empty:
        raise ExpressionError(f"the expression {text!r} also matches nothing at all")
    program = parser.program
    ranges, parts = partition(program.sets)
    states: list[tuple[int, ...]] = [(whole.emit(0),)]
    numbers = {states[0]: 0}
    transitions: list[list[int]] = []
    for state in states:
        row = []
        for held in [*parts, frozenset[int]()]:
            following, match = _step(program, state, held)
            if following and following not in numbers:
                numbers[following] = len(states)
                states.append(following)
            row.append(numbers.get(following, STOP) | (MATCH if match else 0))
        row[-1] |= STOP
        transitions.append(row)
        if len(states) > _MAX_STATES:
            raise ExpressionError(f"the expression {text!r} needs too many states")
    return Automaton(ranges, len(parts), transitions)
