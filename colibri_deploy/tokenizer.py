# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the section `tokenizer` of model.bin from a checkpoint's tokenizer.json.

docs/FORMAT-tokenizer.md describes the section. The ids follow tokenizer.json to the letter, as
the library `tokenizers` reads it; what the engine could not do exactly so is refused by name.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from colibri_deploy.errors import ConversionError

NO_ID = 0xFFFFFFFF
MARKER = "\u2581"  # what SentencePiece writes for a space
MAX_PROBES = 32
MAX_IDS = 1 << 24
MAX_ADDED_BYTES = 1024
MAX_STEPS = 8

# Tags of the chunks
INFO, PIECE_ENDS, PIECE_FLAGS, PIECE_BYTES, SLOTS, BYTE_IDS, MERGE_STARTS = range(1, 8)
MERGES, ADDED, ADDED_BYTES, PREFIX_IDS, SUFFIX_IDS, STEPS = range(8, 14)

# info.flags
TEXT_BYTES, BYTE_FALLBACK, FUSE_UNK, IGNORE_MERGES, MARK_SPACES, PREPEND, MARK_PIECES = (
    1 << bit for bit in range(7)
)
# info.lead
LEAD_NONE, LEAD_MARKER, LEAD_FIRST, LEAD_SPACE = range(4)
# info.decoder
DECODE_BYTES, DECODE_MARKERS, DECODE_FALLBACK, DECODE_STRIP, DECODE_FIRST = (
    1 << bit for bit in range(5)
)
# flags of pieces and of added tokens
PIECE_SPECIAL, PIECE_BYTE, PIECE_ABSENT = 1, 2, 4
ADDED_FLAGS = {"special": 1, "lstrip": 2, "rstrip": 4, "single_word": 8, "normalized": 16}

STEP_MARKER, STEP_GPT2, STEP_LLAMA3, STEP_DIGIT, STEP_DIGIT_RUNS = range(1, 6)

# The expressions of `Split` pre-tokenizers that the engine has functions for
EXPRESSIONS = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": STEP_GPT2,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+": STEP_LLAMA3,
}

Json = Mapping[str, Any]


def _damaged(what: str) -> ConversionError:
    return ConversionError(f"tokenizer.json: {what}; fetch the checkpoint again")


def _unsupported(what: str) -> ConversionError:
    return ConversionError(
        f"tokenizer.json: {what} is not supported; update colibri-deploy, or remove tokenizer.json "
        "to convert without a tokenizer and give prompts as token ids"
    )


def _object(value: Any, where: str) -> Json:
    if not isinstance(value, dict):
        raise _damaged(f"{where} is no object")
    return value


def _flatten(value: Any, where: str, key: str) -> list[Json]:
    """The members of a (possibly nested) Sequence; a single object is a sequence of one."""
    if value is None:
        return []
    node = _object(value, where)
    if node.get("type") != "Sequence":
        return [node]
    members = node.get(key)
    if not isinstance(members, list):
        raise _damaged(f"{where} is a Sequence without {key}")
    return [leaf for member in members for leaf in _flatten(member, where, key)]


def _byte_characters() -> dict[str, int]:
    """The characters that stand for the 256 bytes in the vocabulary of a byte-level BPE.

    Bytes that print as Latin-1 stand for themselves, the others follow from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_CHARACTERS = _byte_characters()


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _damaged(f"{text!r} is no Unicode text") from None


def _unbyte(token: str) -> bytes | None:
    """The bytes that a token of a byte-level BPE stands for; None if it stands for none."""
    if all(char in BYTE_CHARACTERS for char in token):
        return bytes(BYTE_CHARACTERS[char] for char in token)
    return None


@dataclass
class _Pipeline:
    """What happens to a text before its words are merged, and to the tokens after."""

    flags: int = 0
    lead: int = LEAD_NONE
    steps: list[int] = field(default_factory=list)
    decoder: int = 0

    @property
    def bytewise(self) -> bool:
        return bool(self.flags & TEXT_BYTES)

    def normalize(self, text: str) -> str:
        if self.flags & PREPEND:
            text = MARKER + text
        return text.replace(" ", MARKER) if self.flags & MARK_SPACES else text


def _is_replace(node: Json, pattern: str, content: str) -> bool:
    return node.get("pattern") == {"String": pattern} and node.get("content") == content


def _read_normalizer(value: Any, pipeline: _Pipeline) -> None:
    for node in _flatten(value, "normalizer", "normalizers"):
        if node.get("type") == "Prepend" and node.get("prepend") == MARKER:
            flag = PREPEND
        elif node.get("type") == "Replace" and _is_replace(node, " ", MARKER):
            flag = MARK_SPACES
        else:
            raise _unsupported(f"the normalizer {json.dumps(node, ensure_ascii=False)}")
        if flag & pipeline.flags:
            raise _unsupported(f"the normalizer {node['type']!r} twice")
        pipeline.flags |= flag


def _prepend_scheme(node: Json) -> str:
    """Metaspace's `prepend_scheme`, also in its older form `add_prefix_space`."""
    if node.get("replacement") != MARKER:
        raise _unsupported(f"Metaspace with the replacement {node.get('replacement')!r}")
    scheme = node.get("prepend_scheme")
    if scheme is None:
        scheme = "always" if node.get("add_prefix_space", True) else "never"
    if scheme not in ("always", "first", "never"):
        raise _unsupported(f"Metaspace with the prepend_scheme {scheme!r}")
    return str(scheme)


def _split_step(node: Json) -> int:
    pattern = _object(node.get("pattern"), "the pattern of Split")
    step = EXPRESSIONS.get(str(pattern.get("Regex")))
    # The expressions match all of any text, so these two keep the same pieces.
    kept = (node.get("behavior"), bool(node.get("invert", False)))
    if step is None or kept not in (("Isolated", False), ("Isolated", True), ("Removed", True)):
        raise _unsupported(f"the pre-tokenizer {json.dumps(node, ensure_ascii=False)}")
    return step


def _read_pre_tokenizer(value: Any, pipeline: _Pipeline) -> None:
    nodes = _flatten(value, "pre_tokenizer", "pretokenizers")
    for index, node in enumerate(nodes):
        kind = node.get("type")
        if pipeline.bytewise:
            raise _unsupported(f"the pre-tokenizer {kind!r} after ByteLevel")
        if kind == "ByteLevel":
            if node.get("add_prefix_space", True):
                if index:
                    raise _unsupported(f"ByteLevel with add_prefix_space after {nodes[0]['type']}")
                pipeline.lead = LEAD_SPACE
            if node.get("use_regex", True):
                pipeline.steps.append(STEP_GPT2)
            pipeline.flags |= TEXT_BYTES
        elif kind == "Metaspace" and len(nodes) == 1:
            schemes = {"always": LEAD_MARKER, "first": LEAD_FIRST, "never": LEAD_NONE}
            pipeline.lead = schemes[_prepend_scheme(node)]
            pipeline.flags |= MARK_PIECES
            if node.get("split", True):
                pipeline.steps.append(STEP_MARKER)
        elif kind == "Digits":
            pipeline.steps.append(STEP_DIGIT if node.get("individual_digits") else STEP_DIGIT_RUNS)
        elif kind == "Split":
            pipeline.steps.append(_split_step(node))
        else:
            raise _unsupported(f"the pre-tokenizer {kind!r} in {[n.get('type') for n in nodes]}")
    if len(pipeline.steps) > MAX_STEPS:
        raise _unsupported(f"a pre-tokenizer of {len(pipeline.steps)} steps")
    if pipeline.bytewise and pipeline.flags & (MARK_SPACES | PREPEND):
        raise _unsupported("a normalizer before the pre-tokenizer ByteLevel")


def _read_decoder(value: Any, pipeline: _Pipeline) -> None:
    nodes = _flatten(value, "decoder", "decoders")
    kinds = [str(node.get("type")) for node in nodes]
    if kinds == ["ByteLevel"]:
        pipeline.decoder = DECODE_BYTES
    elif kinds == ["Metaspace"]:
        never = _prepend_scheme(nodes[0]) == "never"
        pipeline.decoder = DECODE_MARKERS | (0 if never else DECODE_FIRST)
    elif "Fuse" in kinds:
        order = ["Replace", "ByteFallback", "Fuse", "Strip"]
        if kinds != [kind for kind in order if kind in kinds]:
            raise _unsupported(f"the decoder {kinds}")
        for node, kind in zip(nodes, kinds, strict=True):
            if kind == "Replace" and _is_replace(node, MARKER, " "):
                pipeline.decoder |= DECODE_MARKERS
            elif kind == "ByteFallback":
                pipeline.decoder |= DECODE_FALLBACK
            elif kind == "Strip" and (node.get("start"), node.get("stop")) in ((0, 0), (1, 0)):
                if node.get("content") != " ":
                    raise _unsupported(f"the decoder Strip of {node.get('content')!r}")
                pipeline.decoder |= DECODE_STRIP if node["start"] else 0
            elif kind != "Fuse":
                raise _unsupported(f"the decoder {json.dumps(node, ensure_ascii=False)}")
    else:
        raise _unsupported(f"the decoder {kinds or None}")
    if pipeline.bytewise != bool(pipeline.decoder & DECODE_BYTES):
        raise _unsupported(f"the decoder {kinds} with this pre-tokenizer")


def _read_post_processor(value: Any) -> tuple[list[int], list[int]]:
    """The ids that are put before and after a text."""
    around: tuple[list[int], list[int]] = ([], [])
    templates = 0
    for node in _flatten(value, "post_processor", "processors"):
        kind = node.get("type")
        if kind == "ByteLevel":  # moves offsets only
            continue
        templates += 1
        if kind != "TemplateProcessing" or templates > 1:
            raise _unsupported(f"the post-processor {kind!r}")
        tokens = _object(node.get("special_tokens"), "special_tokens of the post-processor")
        seen_text = 0
        for entry in node.get("single") or []:
            part = _object(entry, "a part of the post-processor's template")
            name = _object(next(iter(part.values()), None), "a part of the template").get("id")
            if "Sequence" in part and name == "A":
                seen_text += 1
            elif "SpecialToken" in part:
                token = _object(tokens.get(str(name)), f"the template's token {name!r}")
                around[min(seen_text, 1)].extend(token.get("ids") or [])
            else:
                raise _unsupported(f"the template part {json.dumps(part)}")
        if seen_text != 1:
            raise _unsupported(f"a template that has the text {seen_text} times")
    return around


@dataclass
class _Model:
    """The BPE itself."""

    vocab: dict[str, int]
    merges: list[tuple[int, int, int]]  # left, right, result; in order of rank
    unk_id: int
    flags: int


def _pair(merge: Any) -> tuple[str, str]:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(p, str) for p in parts):
        raise _damaged(f"the merge {merge!r} is no pair")
    return parts[0], parts[1]


def _read_model(value: Any) -> _Model:
    node = _object(value, "model")
    kind = node.get("type", "BPE" if "merges" in node else None)
    if kind != "BPE":
        raise _unsupported(f"the model {kind!r}")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if node.get(name):
            raise _unsupported(f"a BPE with {name} {node[name]!r}")
    vocab = dict(_object(node.get("vocab"), "the vocabulary"))
    for token, number in vocab.items():
        if type(number) is not int or not 0 <= number < MAX_IDS:
            raise _damaged(f"the token {token!r} has the id {number!r}")
    if len(set(vocab.values())) != len(vocab):
        raise _damaged("two tokens of the vocabulary have the same id")
    merges = []
    for merge in node.get("merges") or []:
        if isinstance(merge, str) and merge.startswith("#version"):
            continue
        left, right = _pair(merge)
        for token in (left, right, left + right):
            if token not in vocab:
                raise _damaged(f"the merge {merge!r} needs {token!r}, which is no token")
        merges.append((vocab[left], vocab[right], vocab[left + right]))
    unk = node.get("unk_token")
    if unk is not None and unk not in vocab:
        raise _damaged(f"the unknown token {unk!r} is not in the vocabulary")
    flags = {
        "byte_fallback": BYTE_FALLBACK,
        "fuse_unk": FUSE_UNK,
        "ignore_merges": IGNORE_MERGES,
    }
    return _Model(
        vocab=vocab,
        merges=merges,
        unk_id=NO_ID if unk is None else vocab[unk],
        flags=sum(flag for name, flag in flags.items() if node.get(name)),
    )


@dataclass(frozen=True)
class _Added:
    """An added token; `pattern` is what is looked for."""

    content: str
    number: int
    flags: int
    pattern: bytes

    @property
    def normalized(self) -> bool:
        return bool(self.flags & ADDED_FLAGS["normalized"])


def _read_added(value: Any, vocab: Mapping[str, int], pipeline: _Pipeline) -> list[_Added]:
    """The added tokens, raw ones first, each kind in the order of its bytes.

    The library numbers tokens itself when they are not in the vocabulary: one after the other.
    A file that says otherwise would mean different ids to different readers.
    """
    found: dict[str, _Added] = {}
    following = len(vocab)
    for entry in value or []:
        node = _object(entry, "an added token")
        content, number = node.get("content"), node.get("id")
        if not isinstance(content, str) or type(number) is not int:
            raise _damaged(f"the added token {json.dumps(entry)} has no content or id")
        if not content:
            continue
        flags = sum(bit for name, bit in ADDED_FLAGS.items() if node.get(name))
        normalized = flags & ADDED_FLAGS["normalized"]
        pattern = _utf8(pipeline.normalize(content) if normalized else content)
        token = _Added(content, number, flags, pattern)
        if found.get(content, token) != token:
            raise _damaged(f"the added token {content!r} is there twice, with different flags")
        if content not in found:
            expected = vocab.get(content, following)
            if number != expected:
                raise _unsupported(f"the id {number} of the added token {content!r} ({expected}?)")
            if content not in vocab:
                following += 1
        if len(pattern) > MAX_ADDED_BYTES:
            raise _unsupported(f"an added token of {len(pattern)} bytes ({content[:20]!r}...)")
        found[content] = token
    tokens = sorted(found.values(), key=lambda token: (token.normalized, token.pattern))
    for a, b in pairwise(tokens):
        if (a.normalized, a.pattern) == (b.normalized, b.pattern):
            raise _unsupported(f"added tokens that look the same ({a.content!r}, {b.content!r})")
    return tokens


def _hash(key: bytes) -> int:
    """FNV-1a, 32 bits."""
    value = 2166136261
    for byte in key:
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value


def _slots(keys: Mapping[bytes, int]) -> list[int]:
    """An open-addressed table in which every key is at most MAX_PROBES - 1 slots from home."""
    hashes = [(_hash(key), number) for key, number in sorted(keys.items(), key=lambda kv: kv[1])]
    size = 1
    while size < 2 * len(keys):
        size *= 2
    while True:
        slots = [NO_ID] * size
        for value, number in hashes:
            probes = ((value + probe) % size for probe in range(min(MAX_PROBES, size)))
            free = next((slot for slot in probes if slots[slot] == NO_ID), None)
            if free is None:
                break
            slots[free] = number
        else:
            return slots
        size *= 2


def _u32(numbers: Iterable[int]) -> bytes:
    values = list(numbers)
    return struct.pack(f"<{len(values)}I", *values)


def _piece_chunks(
    model: _Model, added: Sequence[_Added], pipeline: _Pipeline
) -> tuple[int, dict[int, bytes]]:
    """The number of ids, and the chunks about single tokens."""
    tokens: dict[int, str] = {number: token for token, number in model.vocab.items()}
    for extra in added:
        if tokens.setdefault(extra.number, extra.content) != extra.content:
            raise _damaged(f"the id {extra.number} belongs to two tokens")
    special = {token.number for token in added if token.flags & ADDED_FLAGS["special"]}
    n_ids = max(tokens, default=-1) + 1
    flags = bytearray([PIECE_ABSENT] * n_ids)
    pieces = [b""] * n_ids
    for number, token in tokens.items():
        raw = _utf8(token)
        unbyte = _unbyte(token) if pipeline.bytewise else None
        pieces[number] = raw if unbyte is None else unbyte
        spelled = len(raw) == 6 and raw[:3] == b"<0x" and raw[5:] == b">"
        is_byte = spelled and all(c in b"0123456789abcdefABCDEF" for c in raw[3:5])
        flags[number] = (PIECE_SPECIAL if number in special else 0) | (
            PIECE_BYTE if is_byte and not pipeline.bytewise else 0
        )
    # What the engine looks up: whole words, and (characters of) words that are no bytes.
    whole = bool(model.flags & IGNORE_MERGES)
    keys = {
        pieces[number]: number
        for token, number in model.vocab.items()
        if (_unbyte(token) is not None and whole if pipeline.bytewise else whole or len(token) == 1)
    }
    names: Callable[[int], str]
    if pipeline.bytewise:
        characters = {byte: char for char, byte in BYTE_CHARACTERS.items()}
        names = characters.__getitem__
    else:
        names = "<0x{:02X}>".format
    byte_ids = [model.vocab.get(names(byte), NO_ID) for byte in range(256)]
    if pipeline.bytewise and model.flags & BYTE_FALLBACK and NO_ID in byte_ids:
        raise _unsupported("byte_fallback in a byte-level BPE that lacks bytes")
    ends, end = [], 0
    for piece in pieces:
        end += len(piece)
        ends.append(end)
    return n_ids, {
        PIECE_ENDS: _u32(ends),
        PIECE_FLAGS: bytes(flags),
        PIECE_BYTES: b"".join(pieces),
        SLOTS: _u32(_slots(keys)),
        BYTE_IDS: _u32(byte_ids),
    }


def _merge_chunks(model: _Model, n_ids: int) -> dict[int, bytes]:
    # A pair that is there twice has its last rank, as in the library.
    ranks = {(left, right): (rank, to) for rank, (left, right, to) in enumerate(model.merges)}
    starts = [0] * (n_ids + 1)
    for left, _ in ranks:
        starts[left + 1] += 1
    for index in range(n_ids):
        starts[index + 1] += starts[index]
    rows = ((right, *ranks[left, right]) for left, right in sorted(ranks))
    return {MERGE_STARTS: _u32(starts), MERGES: _u32(n for row in rows for n in row)}


def _added_chunks(added: Sequence[_Added]) -> dict[int, bytes]:
    rows, pool = [], bytearray()
    for token in added:
        rows += [token.number, token.flags, len(pool), len(token.pattern)]
        pool += token.pattern
    return {ADDED: _u32(rows), ADDED_BYTES: bytes(pool)}


def _pack(chunks: Mapping[int, bytes]) -> bytes:
    table, body = [], bytearray()
    start = 16 + 12 * len(chunks)
    for tag, data in sorted(chunks.items()):
        table += [tag, start + len(body), len(data)]
        body += data + bytes(-len(data) % 4)
    if start + len(body) >= 1 << 32:
        raise _unsupported("a tokenizer of more than 4 GiB")
    return b"CLBT" + _u32([1, len(chunks), 0, *table]) + bytes(body)


def _section(root: Json) -> bytes:
    pipeline = _Pipeline()
    _read_normalizer(root.get("normalizer"), pipeline)
    _read_pre_tokenizer(root.get("pre_tokenizer"), pipeline)
    _read_decoder(root.get("decoder"), pipeline)
    prefix, suffix = _read_post_processor(root.get("post_processor"))
    model = _read_model(root.get("model"))
    added = _read_added(root.get("added_tokens"), model.vocab, pipeline)
    n_ids, pieces = _piece_chunks(model, added, pipeline)
    for number in prefix + suffix:
        if type(number) is not int or not 0 <= number < n_ids:
            raise _damaged(f"the post-processor adds the id {number!r}, which is no token")
    n_raw = sum(not token.normalized for token in added)
    flags = pipeline.flags | model.flags
    info = [n_ids, flags, model.unk_id, pipeline.lead, pipeline.decoder, n_raw, 0, 0]
    return _pack(
        {
            INFO: _u32(info),
            **pieces,
            **_merge_chunks(model, n_ids),
            **_added_chunks(added),
            PREFIX_IDS: _u32(prefix),
            SUFFIX_IDS: _u32(suffix),
            STEPS: _u32(pipeline.steps),
        }
    )


def build_tokenizer_section(checkpoint_dir: Path) -> bytes | None:
    """The section's bytes; None if the checkpoint has no tokenizer.json.

    `truncation` and `padding` of the file are left out: they are settings of a training run.

    Raises:
        ConversionError: the file is damaged, or has something that the engine does not do.
    """
    path = checkpoint_dir / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        root = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConversionError(f"{path} cannot be read: {error}; fetch it again") from error
    return _section(_object(root, "the file"))
