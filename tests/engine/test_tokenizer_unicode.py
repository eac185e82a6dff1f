# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Where the engine cuts words, and its normal forms, against the library `tokenizers`."""

from __future__ import annotations

import json
import random
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizer_fixtures import EngineTokenizer, added, bytewise, section_of, split, texts
from tokenizers import Regex, Tokenizer
from tokenizers.normalizers import NFC, NFD
from tokenizers.pre_tokenizers import Digits, Split


def words(tokenizer: EngineTokenizer, text: str) -> list[str]:
    data = text.encode()
    ends = [end for (end,) in struct.iter_unpack("<I", tokenizer.result("w", data))]
    return [data[a:b].decode() for a, b in pairwise([0, *ends])]


EVERY_CODE_POINT = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
PROPERTIES = ("Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S")


def test_every_code_point_is_of_the_library_s_class(
    tokenizer: EngineTokenizer, tmp_path: Path
) -> None:
    """Neighbours of different classes are parted; an A parts those of the same, but Lu."""
    expression = "|".join([r"\s+", *(rf"\p{{{name}}}+" for name in PROPERTIES)])
    tokenizer.open(section_of(bytewise(split(expression)), tmp_path), 256)
    library = Split(Regex(expression), "isolated")
    for text in ("".join(EVERY_CODE_POINT), "A".join(EVERY_CODE_POINT[:0x3000])):
        assert words(tokenizer, text) == [piece for piece, _ in library.pre_tokenize_str(text)]


def test_every_digit_is_one_of_the_library_s(tokenizer: EngineTokenizer, tmp_path: Path) -> None:
    step = {"type": "Digits", "individual_digits": True}
    tokenizer.open(section_of(bytewise(step), tmp_path), 256)
    text = "".join(EVERY_CODE_POINT)
    assert words(tokenizer, text) == [piece for piece, _ in Digits(True).pre_tokenize_str(text)]


@pytest.mark.parametrize("flags", [{"single_word": True}, {"lstrip": True, "rstrip": True}])
def test_every_code_point_beside_an_added_token(
    tokenizer: EngineTokenizer, tmp_path: Path, flags: dict[str, bool]
) -> None:
    root = bytewise(added_tokens=[added("@@", 256, **flags)])
    tokenizer.open(section_of(root, tmp_path), 257)
    library = Tokenizer.from_str(json.dumps(root))
    text = "".join(f"{c}@@" for c in EVERY_CODE_POINT[:0x30000])
    assert tokenizer.encode(text) == library.encode(text).ids


# Expressions of real tokenizers that no fixture has, and what else the compiler knows.
EXPRESSIONS = {
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "marks in words": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek lines": r"[\r\n]",
    "deepseek words": r"\s?\p{L}+",
    "contractions": r"(?i:'[sdmt]|ll|ve|re)|'(?:k|xy)?",
    "preference": r"a|ab|abc|(?:b|bc)d|x{2}|x{3,}y|e{1,2}(?=f)|(0|01)(2|12)",
    "sets": r"[^a-z\-\]\S]+|[\P{L}]{2,3}|[\SA]",
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_cut_as_in_the_library(
    tokenizer: EngineTokenizer, tmp_path: Path, name: str
) -> None:
    library = Split(Regex(EXPRESSIONS[name]), "isolated")
    tokenizer.open(section_of(bytewise(split(EXPRESSIONS[name])), tmp_path), 256)
    rng = random.Random(1)
    few = ["".join(rng.choices("ab'cdxyef012sS kK\n-]", k=12)) for _ in range(1500)]
    for text in texts(2, 700, []) + few:
        assert words(tokenizer, text) == [piece for piece, _ in library.pre_tokenize_str(text)], (
            text
        )


def test_the_normal_form_of_every_character(tokenizer: EngineTokenizer, tmp_path: Path) -> None:
    root = bytewise(normalizer={"type": "NFC"})
    tokenizer.open(section_of(root, tmp_path), 256)
    library = NFC()

    def normal(text: str) -> str:
        return tokenizer.decode(tokenizer.encode(text))

    points = "".join(EVERY_CODE_POINT[:0x20000] + EVERY_CODE_POINT[0x2F000:0x2FFFF])
    for text in (points, NFD().normalize_str(points)):
        assert normal(text) == library.normalize_str(text)
    for around in ("a{}\u0323\u0301", "{}\u0345\u0334\u0301", "a\u0301{}"):
        text = "".join(around.format(c) for c in points[0xA0:0x3100] + points[-0x1700:])
        assert normal(text) == library.normalize_str(text)
    rng = random.Random(1)
    marks = [c for c in points if NFD().normalize_str("a\u0345" + c)[1] != "\u0345"]
    marks += ["\u0301", "\u0323", "\u0345", "\u0334"] * 50
    jamo = ["\u1100", "\u1112", "\u1161", "\u1175", "\u11a7", "\u11a8", "\u11c2", "가", "각", "힣"]
    indic = ["\u09c7", "\u09be", "\u09d7", "\u0b47", "\u0b57", "\u1025", "\u102e", "\u0f71"]
    for _ in range(1500):
        base = rng.choice(["", "a", "é", "ệ", *jamo, *indic, rng.choice(points)])
        text = base + "".join(rng.choices(rng.choice([marks, jamo, indic]), k=rng.randrange(8)))
        assert normal(text) == library.normalize_str(text), ascii(text)
