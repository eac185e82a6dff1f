# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that the converter refuses, by name: those that the engine would not follow."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizer_fixtures import (
    HAND,
    PREPEND,
    Json,
    added,
    byte_level,
    section_of,
    sequence,
    split,
    variant,
)

from colibri_deploy.errors import ConversionError
from colibri_deploy.tokenizer import build_tokenizer_section


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"normalizer": {"type": "NFKC"}}, "NFKC"),
        ({"normalizer": sequence("normalizers", PREPEND, {"type": "NFC"})}, "NFC"),
        ({"normalizer": {"type": "Prepend", "prepend": "x"}}, "Prepend"),
        ({"pre_tokenizer": {"type": "BertPreTokenizer"}}, "BertPreTokenizer"),
        *(
            ({"pre_tokenizer": split(expression)}, expression)
            for expression in (
                "a*?",
                "a++",
                "(a|b*)+",
                "a*",
                "(?i:st)",
                "(?i:é)",
                "(?<a)",
                "(?i:[a-z])",
                "[^]",
                "a)",
                "(a",
                "{",
                "^a",
                "a$*",
                "[a&&b]",
                "[[a]]",
                "[z-a]",
                "a{2,1}",
                "a{99}",
                "é{",
            )
        ),
        *(
            ({"pre_tokenizer": split(expression)}, part)
            for expression, part in {
                r"\d": r"'\\d'",
                r"\p{Han}": "'Han'",
                r"\bx": "b'",
                r"(?i:\p{L})": "'L'",
                r"\p{numeric}": "'numeric'",
                "x\\": "early end",
                r"\p{L": "property",
            }.items()
        ),
        ({"pre_tokenizer": split("a", "Removed")}, "drops or joins"),
        ({"pre_tokenizer": split(r"\p{L}+", "Removed", invert=True)}, "drops or joins"),
        ({"pre_tokenizer": split("a", "MergedWithNext")}, "drops or joins"),
        ({"pre_tokenizer": split("a") | {"pattern": {"String": "a"}}}, '"String"'),
        ({"pre_tokenizer": byte_level()}, "before the pre-tokenizer ByteLevel"),
        ({"decoder": {"type": "WordPiece"}}, "WordPiece"),
        ({"decoder": None}, "decoder None"),
        ({"decoder": {"type": "ByteLevel"}}, "ByteLevel"),
        ({"post_processor": {"type": "BertProcessing"}}, "BertProcessing"),
        ({"model": {"type": "Unigram"}}, "Unigram"),
        ({"model": {"dropout": 0.1}}, "dropout"),
        ({"model": {"end_of_word_suffix": "</w>"}}, "end_of_word_suffix"),
        ({"model": {"merges": ["a z"]}}, "'z'"),
        ({"model": {"unk_token": "?"}}, "'?'"),
        ({"added_tokens": [added("x", 77)]}, "id 77"),
        ({"added_tokens": [added("y" * 2000, 10)]}, "2000 bytes"),
    ],
)
def test_conversion_refuses_by_name(tmp_path: Path, changes: Json, names: str) -> None:
    with pytest.raises(ConversionError) as caught:
        section_of(variant(HAND, changes), tmp_path)
    assert names in str(caught.value)


def test_no_tokenizer_json_is_no_section(tmp_path: Path) -> None:
    assert build_tokenizer_section(tmp_path) is None


def test_a_broken_tokenizer_json_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConversionError, match=r"tokenizer\.json"):
        build_tokenizer_section(tmp_path)
