# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers from GGUF metadata against those of an equivalent tokenizer.json.

How the engine follows a tokenizer.json is tested in tests/engine/test_tokenizer_ids.py, so it is
enough here that both give the same section of model.bin, byte by byte.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers.processors import TemplateProcessing

from colibri_deploy.errors import ConversionError
from colibri_deploy.gguf_file import GgufFile
from colibri_deploy.tokenizer import build_tokenizer_section
from colibri_deploy.tokenizer_gguf import build_gguf_tokenizer

Metadata = dict[str, Any]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (  # mistralai/Mistral-Nemo-Instruct-2407
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = [
    "The hummingbird hovers, and the hummingbird hums: its wings beat 80 times a second.",
    "In 2019 they counted 366 species. The birds can't stop; they're always hungry.",
    "Kolibris wiegen weniger als 20 Gramm, die Bienenelfe nur 2 Gramm.\n\n  for i in range(10):",
]


def from_gguf(metadata: Metadata) -> bytes | None:
    named = {f"tokenizer.ggml.{name}": value for name, value in metadata.items()}
    return build_gguf_tokenizer(GgufFile(Path("m.gguf"), named, {}))


def from_json(tokenizer: Tokenizer, directory: Path, **model: Any) -> bytes | None:
    """`model` are changes to the JSON of the BPE."""
    root = json.loads(tokenizer.to_str())
    root["model"] |= model
    (directory / "tokenizer.json").write_text(json.dumps(root))
    return build_tokenizer_section(directory)


def bytewise(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """A byte-level BPE trained on TEXTS: three special tokens, one of the user's, 330 in all."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("<user>", normalized=False)])
    return tokenizer


def metadata_of(tokenizer: Tokenizer, pre: str) -> Metadata:
    """What llama.cpp's converter writes for a byte-level BPE."""
    vocab = tokenizer.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    special = {"<|end|>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": CONTROL}
    kinds = special | {"<user>": USER_DEFINED}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [kinds.get(token, NORMAL) for token in tokens],
        "merges": [" ".join(merge) for merge in merges],
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def plain(**options: Any) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, **options)


def with_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain()])


def splitting(*expressions: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    splits = [pre_tokenizers.Split(Regex(one), "isolated") for one in expressions]
    return lambda: pre_tokenizers.Sequence([*splits, plain(use_regex=False)])


def of_fixture(shared: Path, name: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """A pre-tokenizer as a checkpoint of the family has it."""
    root = json.loads((shared / "fixtures" / name / "tokenizer.json").read_bytes())
    steps = root["pre_tokenizer"]["pretokenizers"]
    return splitting(*(step["pattern"]["Regex"] for step in steps if step["type"] == "Split"))


@pytest.mark.parametrize(
    ("pre", "pre_tokenizer", "ignore_merges", "bos"),
    [
        ("gpt-2", plain, False, False),
        ("smollm", with_digits, False, False),
        ("starcoder", with_digits, False, False),
        ("refact", with_digits, False, False),
        ("llama-bpe", splitting(LLAMA3), True, True),
        ("llama3", splitting(LLAMA3), True, True),
        ("tekken", splitting(TEKKEN), True, False),
    ],
)
def test_a_byte_level_bpe(
    pre: str,
    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer],
    ignore_merges: bool,
    bos: bool,
    tmp_path: Path,
) -> None:
    tokenizer = bytewise(pre_tokenizer())
    metadata = metadata_of(tokenizer, pre)
    # In GGUF the added token is a member of the vocabulary like any other.
    vocab = {token: number for number, token in enumerate(metadata["tokens"])}
    changes = {"vocab": vocab, "ignore_merges": ignore_merges}
    without = from_json(tokenizer, tmp_path, **changes)
    tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    with_bos = from_json(tokenizer, tmp_path, **changes)
    assert with_bos != without
    assert from_gguf(metadata) == (with_bos if bos else without)
    assert from_gguf(metadata | {"add_bos_token": True}) == with_bos
    assert from_gguf(metadata | {"add_bos_token": False}) == without
    tokenizer.post_processor = TemplateProcessing(
        single="$A <|im_end|>", special_tokens=[("<|im_end|>", 2)]
    )
    with_eos = from_json(tokenizer, tmp_path, **changes)
    assert from_gguf(metadata | {"add_bos_token": False, "add_eos_token": True}) == with_eos


@pytest.mark.parametrize(
    ("pre", "fixture", "normal_form", "ignore_merges"),
    [
        ("qwen2", "qwen3_moe", True, False),
        ("gpt-4o", "gpt_oss", False, True),
        ("llama4", "gpt_oss", False, True),
        ("deepseek-v3", "deepseek_v3", False, False),
        ("glm4", "glm4_moe", False, False),
        ("chatglm-bpe", "glm4_moe", False, False),
        ("olmo", None, True, False),
    ],
)
def test_a_byte_level_bpe_of_a_family(
    shared: Path,
    pre: str,
    fixture: str | None,
    normal_form: bool,
    ignore_merges: bool,
    tmp_path: Path,
) -> None:
    tokenizer = bytewise((of_fixture(shared, fixture) if fixture else plain)())
    if normal_form:
        tokenizer.normalizer = normalizers.NFC()
    metadata = metadata_of(tokenizer, pre)
    vocab = {token: number for number, token in enumerate(metadata["tokens"])}
    expected = from_json(tokenizer, tmp_path, vocab=vocab, ignore_merges=ignore_merges)
    assert from_gguf(metadata) == expected


def test_a_space_put_first(tmp_path: Path) -> None:
    tokenizer = bytewise(pre_tokenizers.ByteLevel(add_prefix_space=True))
    metadata = metadata_of(tokenizer, "gpt-2")
    vocab = {token: number for number, token in enumerate(metadata["tokens"])}
    expected = from_json(tokenizer, tmp_path, vocab=vocab)
    assert from_gguf(metadata | {"add_space_prefix": True}) == expected
    assert from_gguf(metadata) != expected


class Pieces:
    """A vocabulary in SentencePiece's style, each piece with its score, and its own encoder."""

    def __init__(self) -> None:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        trainer = trainers.BpeTrainer(vocab_size=260, show_progress=False)
        tokenizer.train_from_iterator(TEXTS, trainer)
        vocab = tokenizer.get_vocab()
        learnt = sorted((token for token in vocab if len(token) > 1), key=vocab.__getitem__)
        characters = sorted(token for token in vocab if len(token) == 1)
        self.tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        self.types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
        self.tokens += [*learnt, *characters]
        self.types += [NORMAL] * (len(learnt) + len(characters))
        self.scores = [0.0] * 259 + [-float(n) for n in range(len(learnt) + len(characters))]
        self.ids = {token: number for number, token in enumerate(self.tokens)}

    @property
    def metadata(self) -> Metadata:
        return {
            "model": "llama",
            "tokens": self.tokens,
            "token_type": self.types,
            "scores": self.scores,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "unknown_token_id": 0,
        }

    def merges(self) -> list[tuple[str, str]]:
        """All pairs that make a piece, the best piece first, then the longest left half."""
        known = set(self.tokens[259:])
        pairs = [(a, b) for a, b in itertools.product(known, known) if a + b in known]
        key = {pair: (self.scores[self.ids["".join(pair)]], len(pair[0])) for pair in pairs}
        return sorted(pairs, key=key.__getitem__, reverse=True)

    def encode(self, text: str) -> list[int]:
        """As SentencePiece does it: join the two neighbours of the best score, leftmost first."""
        parts = list("\u2581" + text.replace(" ", "\u2581"))
        while True:
            joints = [
                (-self.scores[self.ids[a + b]], place)
                for place, (a, b) in enumerate(itertools.pairwise(parts))
                if a + b in self.ids
            ]
            if not joints:
                break
            _, place = min(joints)
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        ids: list[int] = []
        for part in parts:
            known = part in self.ids
            ids += [self.ids[part]] if known else [3 + byte for byte in part.encode()]
        return ids


def sentencepiece(pieces: Pieces, prefix: bool) -> Tokenizer:
    """The tokenizer.json of transformers' LlamaConverter."""
    tokenizer = Tokenizer(
        models.BPE(
            pieces.ids, pieces.merges(), unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    mark = normalizers.Replace(" ", "\u2581")
    first = [normalizers.Prepend("\u2581")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*first, mark])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(prefix: bool, tmp_path: Path) -> None:
    pieces = Pieces()
    expected = from_json(sentencepiece(pieces, prefix), tmp_path)
    assert from_gguf(pieces.metadata | {"add_space_prefix": prefix}) == expected
    if prefix:
        assert from_gguf(pieces.metadata) == expected


def test_merges_by_score_give_the_ids_of_sentencepiece() -> None:
    """The library with the merges that the section has, against SentencePiece's own order."""
    pieces = Pieces()
    tokenizer = sentencepiece(pieces, prefix=True)
    rng = random.Random(1)
    words = " ".join(TEXTS).split()
    for _ in range(300):
        text = " ".join(rng.choices([*words, "1", "xyz", "é", "🐦"], k=rng.randrange(1, 12)))
        assert tokenizer.encode(text, add_special_tokens=False).ids == pieces.encode(text)


def test_a_file_without_a_tokenizer() -> None:
    assert from_gguf({}) is None
    assert from_gguf({"model": "none"}) is None


GPT2 = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab"], "merges": ["a b"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "t5"}, r"the tokenizer 't5' \(tokenizer.ggml.model\) is not supported"),
        ({"pre": "mpt"}, r"the pre-tokenizer 'mpt' \(tokenizer.ggml.pre, known are gpt-2, "),
        ({"pre": None}, "the pre-tokenizer None"),
        ({"pre": "default"}, "the pre-tokenizer 'default'"),
        ({"merges": ["a c"]}, "the merge 'a c' needs 'c'"),
        ({"merges": ["ab"]}, "the merge 'ab' needs ''"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"tokens": ["a", "b", "ab", "a"]}, "the token 'a' is there twice"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type has 1 values for 3 tokens"),
        ({"add_bos_token": True}, "tokenizer.ggml.bos_token_id is None, of 3 tokens"),
        ({"add_bos_token": 1}, "tokenizer.ggml.add_bos_token is 1"),
        ({"add_sep_token": True}, "tokenizer.ggml.add_sep_token is not supported"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces is not supported"),
        ({"precompiled_charsmap": [1, 2]}, "precompiled_charsmap is not supported"),
        ({"model": "llama"}, "the pre-tokenizer 'gpt-2' .* of `llama` is not supported"),
        ({"model": "llama", "pre": None}, "tokenizer.ggml.scores is missing"),
    ],
)
def test_what_the_engine_does_not_do_is_refused_by_name(changes: Metadata, message: str) -> None:
    with pytest.raises(ConversionError, match=message) as caught:
        from_gguf(GPT2 | changes)
    assert caught.value.message.startswith("m.gguf: ")
    assert "\n" not in caught.value.message
