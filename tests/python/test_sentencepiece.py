# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""SentencePiece's tokenizer.model against an equivalent tokenizer.json: the same section."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from test_gguf_tokenizer import Pieces, from_json, sentencepiece
from tokenizers import AddedToken

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.errors import ConversionError
from colibri_deploy.model import Model
from colibri_deploy.tokenizer_sentencepiece import build_sentencepiece_section

UNIGRAM, BPE = 1, 2


def varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data += bytes([value & 127 | 128])
        value >>= 7
    return data + bytes([value])


def field(number: int, value: int | float | str | bytes) -> bytes:
    match value:
        case int():
            return varint(number << 3) + varint(value)
        case float():
            return varint(number << 3 | 5) + struct.pack("<f", value)
        case str():
            return field(number, value.encode())
    return varint(number << 3 | 2) + varint(len(value)) + value


def message(fields: Iterable[tuple[int, Any]]) -> bytes:
    return b"".join(field(number, value) for number, value in fields)


def write_model(
    directory: Path,
    pieces: Pieces,
    trainer: dict[int, Any] | None = None,
    normalizer: dict[int, Any] | None = None,
) -> Path:
    """sentencepiece_model.proto, as `spm_train` of Llama's settings fills it."""
    parts = [
        (1, message([(1, token), (2, score), *([(3, kind)] if kind != 1 else [])]))
        for token, score, kind in zip(pieces.tokens, pieces.scores, pieces.types, strict=True)
    ]
    settings = {1: "text.txt", 3: BPE, 4: len(pieces.tokens), 35: 1} | (trainer or {})
    rules = {1: "identity", 2: b"", 3: 1, 4: 0, 5: 1} | (normalizer or {})
    parts += [(2, message(settings.items())), (3, message(rules.items()))]
    (directory / "tokenizer.model").write_bytes(message(parts))
    return directory


@pytest.mark.parametrize("prefix", [True, False])
def test_the_section_is_that_of_the_tokenizer_json(prefix: bool, tmp_path: Path) -> None:
    pieces = Pieces()
    expected = from_json(sentencepiece(pieces, prefix), tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    write_model(tmp_path, pieces, normalizer={3: int(prefix)})
    assert expected is not None
    assert build_sentencepiece_section(tmp_path) == expected


def test_added_tokens_and_those_around_a_text(tmp_path: Path) -> None:
    pieces = Pieces()
    tokenizer = sentencepiece(pieces, prefix=True)
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", normalized=False)])
    tokenizer.add_tokens([AddedToken("<user>", normalized=False)])
    tokenizer.post_processor = None
    expected = from_json(tokenizer, tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    write_model(tmp_path, pieces)
    count = len(pieces.tokens)
    settings = {
        "add_bos_token": False,
        "added_tokens_decoder": {
            "1": {"content": "<s>", "special": True},
            str(count): {"content": "<|im_end|>", "special": True},
            str(count + 1): {"content": "<user>", "special": False},
        },
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert build_sentencepiece_section(tmp_path) == expected


def test_a_checkpoint_with_a_tokenizer_model_converts(checkpoint: Path, tmp_path: Path) -> None:
    write_model(checkpoint, Pieces())
    convert_checkpoint(checkpoint, tmp_path / "m")
    found = bytes(Model.open(tmp_path / "m").file.item("tokenizer"))
    assert found == build_sentencepiece_section(checkpoint)


@pytest.mark.parametrize(
    ("trainer", "normalizer", "message"),
    [
        ({3: UNIGRAM}, {}, "a model of the type unigram is not supported"),
        ({24: 1}, {}, "a normalizer that does not put a marker for each space"),
        ({}, {5: 0}, "a normalizer that does not put a marker for each space"),
        ({}, {2: b"abc"}, "a normalizer that replaces characters"),
        ({}, {4: 1}, "a normalizer that removes spaces"),
    ],
)
def test_what_the_engine_does_not_do_is_refused_by_name(
    trainer: dict[int, Any], normalizer: dict[int, Any], message: str, tmp_path: Path
) -> None:
    write_model(tmp_path, Pieces(), trainer, normalizer)
    with pytest.raises(ConversionError, match=message):
        build_sentencepiece_section(tmp_path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path, Pieces()) / "tokenizer.model"
    data = path.read_bytes()
    for content in (b"", data[:-1], data[:100], b"\xff" * 20, b"\x0b", b"\x08\x01", b"{}"):
        path.write_bytes(content)
        with pytest.raises(ConversionError, match=r"tokenizer\.model"):
            build_sentencepiece_section(tmp_path)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"1": {"content": "<x>"}}, "token 1 is '<s>', but tokenizer_config.json says '<x>'"),
        ({"9000": {"content": "<x>"}}, "added tokens leave gaps"),
        ({"2": {"content": "</s>", "rstrip": True}}, "the added token '</s>' with rstrip"),
    ],
)
def test_added_tokens_that_do_not_fit_are_refused(
    added: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_model(tmp_path, Pieces())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    with pytest.raises(ConversionError, match=message):
        build_sentencepiece_section(tmp_path)
