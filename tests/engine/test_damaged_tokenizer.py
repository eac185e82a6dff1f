# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Text, ids and sections that the engine's tokenizers refuse, or that must do no harm."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tokenizer_fixtures import (
    ERROR_FORMAT,
    ERROR_INPUT,
    HAND,
    NO_MARKERS,
    EngineTokenizer,
    Json,
    added,
    byte_level,
    bytewise,
    damage,
    section_of,
    sequence,
    split,
    variant,
)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        (b"\xff", 0), (b"ab\x80", 2), (b"caf\xc3", 3), (b"a\xed\xa0\x80", 1), (b"\xc0\xaf", 0),
        (b"\xf4\x90\x80\x80", 0), ("世界".encode() + b"\xe4\xb8", 6), (b"x\xf0\x9f\x98", 1),
    ],
)  # fmt: skip
def test_invalid_utf8_names_the_byte(
    tokenizer: EngineTokenizer, tmp_path: Path, text: bytes, offset: int
) -> None:
    tokenizer.open(section_of(HAND, tmp_path), 10)
    code, message = tokenizer.ask("e", text)
    assert code == ERROR_INPUT
    assert f"at byte {offset} (0x{text[offset]:02X})" in message.decode()


def test_ids_outside_the_model_are_errors(tokenizer: EngineTokenizer, tmp_path: Path) -> None:
    tokenizer.open(section_of(HAND, tmp_path), 9)  # the model lacks <end>, 9
    assert tokenizer.encode("ab") == [0, 5]
    code, message = tokenizer.ask("e", b"ab<end>")
    assert (code, b"token 9" in message) == (ERROR_INPUT, True)
    for number in (-1, 9, 1 << 30):
        code, message = tokenizer.ask("d", struct.pack("<i", number))
        assert (code, str(number).encode() in message) == (ERROR_INPUT, True)


def test_damaged_sections_are_refused_or_harmless(
    tokenizer: EngineTokenizer, tmp_path: Path
) -> None:
    few = sequence("pretokenizers", split("[a-z]+|[ ']a?(?!b)"), byte_level(regex=False))
    for json_root in (
        variant(HAND, {"added_tokens": [added("é x", 10, normalized=True)]}),
        variant(HAND, NO_MARKERS | {"pre_tokenizer": few}),
    ):
        section = section_of(json_root, tmp_path)
        opened, refused = damage(tokenizer, section, 1)
        assert opened + refused == 256 * len(section)
        assert refused > 200 * len(section)  # most of it is tables of small numbers


@pytest.mark.parametrize(
    "changes",
    [
        {"added_tokens": [added("é x", 10, normalized=True, lstrip=True)]},
        NO_MARKERS | {"pre_tokenizer": byte_level()},
        NO_MARKERS | {"pre_tokenizer": byte_level(), "normalizer": {"type": "NFC"}},
    ],
)
def test_damaged_tables_of_characters_are_refused_or_harmless(
    tokenizer: EngineTokenizer, tmp_path: Path, changes: Json
) -> None:
    section = section_of(variant(HAND, changes), tmp_path)
    stride = len(section) // 150  # every place of a row of 4, 12 or 20 bytes comes up
    stride += 1 - stride % 2
    opened, refused = damage(tokenizer, section, stride)
    assert opened + refused == 9 * -(-len(section) // stride)
    assert min(opened, refused) > 100


def test_an_automaton_that_takes_too_long_is_an_error(
    tokenizer: EngineTokenizer, tmp_path: Path
) -> None:
    """`a+b|a` looks ahead to the end of the text at each a; no real tokenizer does so."""
    tokenizer.open(section_of(bytewise(split("a+b|a")), tmp_path), 256)
    assert len(tokenizer.encode("a" * 60 + "b" + "a" * 60)) == 121
    code, message = tokenizer.ask("e", b"a" * 100000)
    assert (code, b"convert the checkpoint again" in message) == (ERROR_FORMAT, True)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, 0, "CLBT"),
        (4, 3, "version 3 is not known; use a newer"),
        (4, 1, "older than this colibri reads"),
        (8, 1 << 30, "table of chunks"),
        (16, 77, "chunk 77"),
    ],
)
def test_a_refused_section_says_why(
    tokenizer: EngineTokenizer, tmp_path: Path, offset: int, value: int, message: str
) -> None:
    section = bytearray(section_of(HAND, tmp_path))
    section[offset : offset + 4] = struct.pack("<I", value)
    code, answer = tokenizer.ask("o", struct.pack("<I", 10) + section)
    assert code == ERROR_FORMAT
    assert message in answer.decode()


def test_a_pattern_that_would_cut_a_character_is_refused(
    tokenizer: EngineTokenizer, tmp_path: Path
) -> None:
    before, pattern, after = section_of(HAND, tmp_path).rpartition(b"<end>")  # pieces come first
    section = before + pattern.replace(b"<", b"\xa9") + after
    code, answer = tokenizer.ask("o", struct.pack("<I", 10) + section)
    assert (code, b"not UTF-8" in answer) == (ERROR_FORMAT, True)


def test_a_piece_that_is_put_as_it_is_must_be_text(
    tokenizer: EngineTokenizer, tmp_path: Path
) -> None:
    section = section_of(HAND, tmp_path).replace(b"<end>", b"\xa9end>", 1)
    code, answer = tokenizer.ask("o", struct.pack("<I", 10) + section)
    assert (code, b"the piece of id" in answer) == (ERROR_FORMAT, True)
