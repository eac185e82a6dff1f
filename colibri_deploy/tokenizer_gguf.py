# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the section `tokenizer` of model.bin from a GGUF file's metadata.

Two kinds are known: `gpt2`, a byte-level BPE with its merges, and `llama`, SentencePiece's BPE,
whose merges follow from the scores. The ids are those of the checkpoint's tokenizer.json where the
metadata tell as much: they have no `lstrip`, `rstrip` or `single_word` of added tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from colibri_deploy.errors import ConversionError
from colibri_deploy.gguf_file import GgufFile
from colibri_deploy.pretokenizer import DIGIT, GPT2
from colibri_deploy.tokenizer_section import (
    ADDED_FLAGS,
    BYTE_FALLBACK,
    DECODE_BYTES,
    DECODE_FALLBACK,
    DECODE_MARKERS,
    DECODE_STRIP,
    FUSE_UNK,
    IGNORE_MERGES,
    LEAD_NONE,
    LEAD_SPACE,
    MARK_SPACES,
    NFC,
    NO_ID,
    PREPEND,
    TEXT_BYTES,
    Added,
    Model,
    Pipeline,
    TokenizerError,
    damaged,
    section_bytes,
    sort_added,
    unsupported,
    utf8,
)

_PREFIX = "tokenizer.ggml."
_NONE = ("none", "no_vocab")

# Types of tokens (llama.cpp's llama_token_type)
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)

# Expressions as in the checkpoints' tokenizer.json
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_LLAMA3 = _WORDS + r"|\p{N}{1,3}" + _OTHERS
_QWEN2 = _WORDS + r"|\p{N}" + _OTHERS
_START, _UPPER, _LOWER = (
    r"[^\r\n\p{L}\p{N}]?",
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
)
_O200K = (
    f"{_START}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_START}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_TEKKEN = (
    f"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
)


@dataclass(frozen=True)
class _Kind:
    """What the name of a pre-tokenizer stands for."""

    steps: tuple[str, ...]
    normal_form: int = 0
    whole_words: int = 0  # IGNORE_MERGES
    bos: bool = False  # by default


# Pre-tokenizers of `gpt2` (llama.cpp's llama-vocab.cpp), with the normaliser of their checkpoints.
_KINDS = {
    "gpt-2": _Kind((GPT2,)),
    "olmo": _Kind((GPT2,), NFC),
    **dict.fromkeys(("smollm", "starcoder", "refact"), _Kind((DIGIT, GPT2))),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3"), _Kind((_LLAMA3,), whole_words=IGNORE_MERGES, bos=True)
    ),
    **dict.fromkeys(("glm4", "chatglm-bpe"), _Kind((_LLAMA3,))),
    "qwen2": _Kind((_QWEN2,), NFC),
    **dict.fromkeys(("gpt-4o", "llama4"), _Kind((_O200K,), whole_words=IGNORE_MERGES)),
    "tekken": _Kind((_TEKKEN,), whole_words=IGNORE_MERGES),
    "deepseek-v3": _Kind(_DEEPSEEK_V3),
}


def build_gguf_tokenizer(file: GgufFile) -> bytes | None:
    """The section's bytes; None if the file has no tokenizer.

    Raises ConversionError for one that is damaged or that the engine does not do.
    """
    kind = file.metadata.get(_PREFIX + "model")
    if kind is None or kind in _NONE:
        return None
    try:
        return _section(_Metadata(file.metadata), kind)
    except TokenizerError as error:
        hint = "download the file again" if error.damaged else "update colibri-deploy"
        raise ConversionError(f"{file.path}: {error.message}; {hint}") from None


class _Metadata:
    """Typed access to the keys `tokenizer.ggml.*`."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata

    def value(self, name: str) -> Any:
        return self._metadata.get(_PREFIX + name)

    def flag(self, name: str, default: bool) -> bool:
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise damaged(f"{_PREFIX}{name} is {value!r}")
        return value

    def values(self, name: str, kind: type, count: int | None = None) -> list[Any]:
        """A list of `kind`; of `count` values, if that is given."""
        found = self.value(name)
        if not isinstance(found, list) or not all(type(one) is kind for one in found):
            raise damaged(f"{_PREFIX}{name} is missing or no list of {kind.__name__}")
        if count is not None and len(found) != count:
            raise damaged(f"{_PREFIX}{name} has {len(found)} values for {count} tokens")
        return found

    def token(self, name: str, count: int, default: int | None = None) -> int:
        """The id of a token with a role."""
        value = self.value(f"{name}_token_id")
        if value is None and default is not None:
            value = default
        if type(value) is not int or not 0 <= value < count:
            raise damaged(f"{_PREFIX}{name}_token_id is {value!r}, of {count} tokens")
        return value


def _section(metadata: _Metadata, kind: Any) -> bytes:
    tokens: list[str] = metadata.values("tokens", str)
    vocab = {token: number for number, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for number, token in enumerate(tokens) if vocab[token] != number)
        raise damaged(f"the token {twice!r} is there twice")
    types: list[int] = [_NORMAL] * len(tokens)
    if metadata.value("token_type") is not None:
        types = metadata.values("token_type", int, len(tokens))
    _refuse_unknown(metadata)
    if kind == "gpt2":
        pipeline, model, add_bos = _read_gpt2(metadata, vocab)
    elif kind == "llama":
        pipeline, model, add_bos = _read_llama(metadata, vocab, types)
    else:
        raise unsupported(f"the tokenizer {kind!r} ({_PREFIX}model)")
    prefix = [metadata.token("bos", len(tokens))] if metadata.flag("add_bos_token", add_bos) else []
    suffix = [metadata.token("eos", len(tokens))] if metadata.flag("add_eos_token", False) else []
    return section_bytes(pipeline, model, _added(tokens, types), prefix, suffix)


def _refuse_unknown(metadata: _Metadata) -> None:
    """What other kinds of tokenizers have, and would change the ids."""
    for name in ("add_sep_token", "remove_extra_whitespaces"):
        if metadata.flag(name, False):
            raise unsupported(f"{_PREFIX}{name}")
    if metadata.value("precompiled_charsmap"):
        raise unsupported(f"{_PREFIX}precompiled_charsmap")


def _read_gpt2(metadata: _Metadata, vocab: dict[str, int]) -> tuple[Pipeline, Model, bool]:
    """A byte-level BPE, and whether it puts BOS first by default.

    A byte without a token is dropped, as by llama.cpp, whatever `unknown_token_id` says.
    """
    name = metadata.value("pre")
    if name not in _KINDS:
        known = ", ".join(_KINDS)
        raise unsupported(f"the pre-tokenizer {name!r} ({_PREFIX}pre, known are {known})")
    kind = _KINDS[name]
    merges = []
    for merge in metadata.values("merges", str):
        cut = merge.find(" ", 1)
        left, right = merge[: max(cut, 0)], merge[cut + 1 :]
        for token in (left, right, left + right):
            if token not in vocab:
                raise damaged(f"the merge {merge!r} needs {token!r}, which is no token")
        merges.append((vocab[left], vocab[right], vocab[left + right]))
    pipeline = Pipeline(
        flags=TEXT_BYTES | kind.normal_form,
        lead=LEAD_SPACE if metadata.flag("add_space_prefix", False) else LEAD_NONE,
        steps=list(kind.steps),
        decoder=DECODE_BYTES,
    )
    return pipeline, Model(vocab, merges, NO_ID, kind.whole_words), kind.bos


def _read_llama(
    metadata: _Metadata, vocab: dict[str, int], types: list[int]
) -> tuple[Pipeline, Model, bool]:
    """SentencePiece's BPE, and that it puts BOS first by default."""
    if metadata.value("pre") not in (None, "default"):
        raise unsupported(f"the pre-tokenizer {metadata.value('pre')!r} ({_PREFIX}pre) of `llama`")
    scores: list[float] = metadata.values("scores", float, len(vocab))
    prefix = metadata.flag("add_space_prefix", True)
    pipeline = Pipeline(
        flags=MARK_SPACES | (PREPEND if prefix else 0),
        decoder=DECODE_MARKERS | DECODE_FALLBACK | (DECODE_STRIP if prefix else 0),
    )
    model = Model(
        vocab,
        _merges_of_scores(vocab, types, scores),
        metadata.token("unknown", len(vocab), default=0),
        BYTE_FALLBACK | FUSE_UNK,
    )
    return pipeline, model, True


def _merges_of_scores(
    vocab: dict[str, int], types: list[int], scores: list[float]
) -> list[tuple[int, int, int]]:
    """All pairs of tokens that make a token, the highest score of the result first.

    Among the pairs of one token, the longer left half goes first, as transformers has it
    (`generate_merges` in convert_slow_tokenizer.py).
    """
    parts = {
        token: number
        for token, number in vocab.items()
        if types[number] not in (_UNKNOWN, _CONTROL, _BYTE)
    }
    found = []
    for token, number in parts.items():
        for cut in range(1, len(token)):
            left, right = parts.get(token[:cut]), parts.get(token[cut:])
            if left is not None and right is not None:
                found.append((-scores[number], -cut, cut - len(token), left, right, number))
    # Equal scores of different tokens of the same lengths: in the order of the tokens, as there.
    found.sort(key=lambda entry: entry[:3])
    return [entry[3:] for entry in found]


def _added(tokens: list[str], types: list[int]) -> list[Added]:
    """Tokens that are cut out of the text: control tokens, the unknown one, the user's own."""
    flags = {_CONTROL: ADDED_FLAGS["special"], _UNKNOWN: ADDED_FLAGS["special"], _USER_DEFINED: 0}
    return sort_added(
        Added(token, number, flags[kind], utf8(token))
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in flags and token
    )
