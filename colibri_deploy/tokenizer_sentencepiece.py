# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the section `tokenizer` of model.bin from SentencePiece's `tokenizer.model`.

The file is a protobuf (`sentencepiece_model.proto`), of which few fields matter here. Its pieces
and scores are what GGUF metadata hold for such a tokenizer, so the section is built from them as
from those. tokenizer_config.json says which tokens go around a text, and which were added.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from colibri_deploy.checkpoint import read_json
from colibri_deploy.errors import ConversionError, FileMissingError
from colibri_deploy.gguf_file import GgufFile
from colibri_deploy.tokenizer_gguf import build_gguf_tokenizer

FILE_NAME = "tokenizer.model"
_BPE = 2
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_CONTROL, _USER_DEFINED = 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types

# Numbers of the fields
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_TEXT, _SCORE, _KIND = 1, 2, 3  # of a piece
_MODEL_TYPE, _SUFFIX, _UNK, _BOS, _EOS = 3, 24, 40, 41, 42  # of the trainer's settings
_CHARSMAP, _PREFIX, _TRIM, _ESCAPE = 2, 3, 4, 5  # of the normalizer's


class _DamagedError(Exception):
    """The file is no protobuf of this kind."""


def build_sentencepiece_section(directory: Path) -> bytes | None:
    """The section's bytes; None if the checkpoint has no tokenizer.model.

    Raises ConversionError for one that is damaged or that the engine does not do.
    """
    path = directory / FILE_NAME
    if not path.is_file():
        return None
    try:
        metadata = _metadata(path, path.read_bytes())
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from None
    except (_DamagedError, UnicodeDecodeError, struct.error) as error:
        raise ConversionError(f"{path} is damaged: {error}; download it again") from None
    settings = directory / "tokenizer_config.json"
    _add_settings(metadata, read_json(settings) if settings.is_file() else {}, path)
    named = {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}
    return build_gguf_tokenizer(GgufFile(path, named, {}))


def _metadata(path: Path, data: bytes) -> dict[str, Any]:
    """Pieces, scores and settings under the names of GGUF's metadata."""
    pieces: list[dict[int, Any]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(data):
        if number == _PIECES:
            pieces.append(dict(_fields(value)))
        elif number == _TRAINER:
            trainer = dict(_fields(value))
        elif number == _NORMALIZER:
            normalizer = dict(_fields(value))
    if not pieces:
        raise _DamagedError("it has no pieces")

    def refuse(what: str) -> ConversionError:
        return ConversionError(
            f"{path}: {what} is not supported; save a tokenizer.json with transformers, or remove "
            f"{FILE_NAME} to give prompts as token ids"
        )

    kind = trainer.get(_MODEL_TYPE, 1)
    if kind != _BPE:
        raise refuse(f"a model of the type {_MODEL_TYPES.get(kind, kind)}")
    if trainer.get(_SUFFIX, 0) or not normalizer.get(_ESCAPE, 1):
        raise refuse("a normalizer that does not put a marker for each space")
    if normalizer.get(_CHARSMAP):
        raise refuse("a normalizer that replaces characters")
    if normalizer.get(_TRIM, 1):
        raise refuse("a normalizer that removes spaces")
    tokens = {"unknown": trainer.get(_UNK, 0), "bos": trainer.get(_BOS, 1)}
    tokens["eos"] = trainer.get(_EOS, 2)
    return {
        "model": "llama",
        "tokens": [_bytes(piece.get(_TEXT, b"")).decode("utf-8") for piece in pieces],
        "scores": [_float(piece.get(_SCORE, bytes(4))) for piece in pieces],
        "token_type": [piece.get(_KIND, 1) for piece in pieces],
        "add_space_prefix": bool(normalizer.get(_PREFIX, 1)),
        # A negative id says that there is no such token.
        **{f"{role}_token_id": number for role, number in tokens.items() if number < len(pieces)},
    }


def _add_settings(metadata: dict[str, Any], settings: dict[str, Any], path: Path) -> None:
    """What tokenizer_config.json says: tokens around a text, and added tokens."""
    for name in ("add_bos_token", "add_eos_token"):
        if isinstance(settings.get(name), bool):
            metadata[name] = settings[name]
    added = settings.get("added_tokens_decoder", {})
    extra: dict[int, tuple[str, int]] = {}
    tokens, types = metadata["tokens"], metadata["token_type"]
    for number, token in added.items() if isinstance(added, dict) else ():
        if not number.isdecimal() or not isinstance(token, dict):
            raise ConversionError(f"{path.parent}/tokenizer_config.json: added_tokens_decoder")
        content = token.get("content")
        for flag in ("lstrip", "rstrip", "single_word"):
            if token.get(flag):
                raise ConversionError(
                    f"{path}: the added token {content!r} with {flag} is not supported; "
                    "save a tokenizer.json with transformers"
                )
        kind = _CONTROL if token.get("special") else _USER_DEFINED
        if int(number) >= len(tokens):
            extra[int(number)] = str(content), kind
        elif tokens[int(number)] != content:
            raise ConversionError(
                f"{path}: token {number} is {tokens[int(number)]!r}, but tokenizer_config.json "
                f"says {content!r}; both must be of one checkpoint"
            )
    if sorted(extra) != list(range(len(tokens), len(tokens) + len(extra))):
        raise ConversionError(f"{path}: added tokens leave gaps behind {len(tokens) - 1}")
    for number in sorted(extra):
        content, kind = extra[number]
        tokens.append(content)
        types.append(kind)
        metadata["scores"].append(0.0)


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Numbers and values of a message's fields: integers, or bytes."""
    data = _bytes(data)
    at = 0

    def varint() -> int:
        nonlocal at
        value: int = 0
        shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise _DamagedError(f"a number ends at byte {at}")
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        number, wire = divmod(varint(), 8)
        if wire == _VARINT:
            yield number, varint()
            continue
        if wire not in (_FIXED64, _BYTES, _FIXED32):
            raise _DamagedError(f"a field of the wire type {wire}")
        size = varint() if wire == _BYTES else 8 if wire == _FIXED64 else 4
        if size > len(data) - at:
            raise _DamagedError(f"a field of {size} bytes at byte {at} of {len(data)}")
        at += size
        yield number, data[at - size : at]


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _DamagedError("a number where a text is expected")
    return value


def _float(value: Any) -> float:
    return float(struct.unpack("<f", _bytes(value))[0])
