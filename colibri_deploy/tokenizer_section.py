# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The section `tokenizer` of model.bin (docs/FORMAT-tokenizer.md)."""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from colibri_deploy.errors import ConversionError, ModelFormatError
from colibri_deploy.pretokenizer import ExpressionError, compile_expression
from colibri_deploy.unicode_sets import added_token_classes, combining_classes, decompositions

NO_ID = 0xFFFFFFFF
MARKER = "\u2581"  # what SentencePiece writes for a space
MAX_PROBES = 32
VERSION = 2
MAX_IDS = 1 << 24
MAX_ADDED_BYTES = 1024
MAX_STEPS = 8

# Tags of the chunks
INFO, PIECE_ENDS, PIECE_FLAGS, PIECE_BYTES, SLOTS, BYTE_IDS, MERGE_STARTS = range(1, 8)
MERGES, ADDED, ADDED_BYTES, PREFIX_IDS, SUFFIX_IDS, STEPS = range(8, 14)
RANGES, TRANSITIONS, DECOMPOSITIONS, COMPOSITIONS = range(14, 18)
CHAT = 0x80000001  # the top bit: it changes no ids, and may be absent

# info.flags
TEXT_BYTES, BYTE_FALLBACK, FUSE_UNK, IGNORE_MERGES, MARK_SPACES, PREPEND, MARK_PIECES, NFC = (
    1 << bit for bit in range(8)
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


class TokenizerError(ConversionError):
    """What is wrong with a tokenizer; who reads it says where, and what to do."""

    def __init__(self, what: str, damaged: bool) -> None:
        super().__init__(what)
        self.damaged = damaged  # otherwise it is not supported


def damaged(what: str) -> TokenizerError:
    """An error about a file that contradicts itself, to be raised."""
    return TokenizerError(what, damaged=True)


def unsupported(what: str) -> TokenizerError:
    """An error about something that the engine does not do, to be raised."""
    return TokenizerError(f"{what} is not supported", damaged=False)


def _byte_characters() -> dict[str, int]:
    """The characters that stand for the 256 bytes in the vocabulary of a byte-level BPE.

    Bytes that print as Latin-1 stand for themselves, the others follow from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return table | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTE_CHARACTERS = _byte_characters()


def utf8(text: str) -> bytes:
    """UTF-8. Raises TokenizerError for half a surrogate pair, which JSON can spell."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise damaged(f"{text!r} is no Unicode text") from None


def unbyte(token: str) -> bytes | None:
    """The bytes that a token of a byte-level BPE stands for; None if it stands for none."""
    if all(char in BYTE_CHARACTERS for char in token):
        return bytes(BYTE_CHARACTERS[char] for char in token)
    return None


@dataclass
class Pipeline:
    """What happens to a text before its words are merged, and to the tokens after."""

    flags: int = 0
    lead: int = LEAD_NONE
    steps: list[str] = field(default_factory=list)  # expressions
    decoder: int = 0

    @property
    def bytewise(self) -> bool:
        """Whether the symbols are bytes."""
        return bool(self.flags & TEXT_BYTES)

    def normalize(self, text: str) -> str:
        """What the normaliser makes of a text."""
        if self.flags & NFC:
            text = unicodedata.normalize("NFC", text)
        if self.flags & PREPEND:
            text = MARKER + text
        return text.replace(" ", MARKER) if self.flags & MARK_SPACES else text


@dataclass
class Model:
    """The BPE itself."""

    vocab: dict[str, int]
    merges: list[tuple[int, int, int]]  # left, right, result; in order of rank
    unk_id: int
    flags: int


@dataclass(frozen=True)
class Added:
    """An added token; `pattern` is what is looked for."""

    content: str
    number: int
    flags: int
    pattern: bytes

    @property
    def normalized(self) -> bool:
        """Whether it is looked for in what the normaliser made of the text."""
        return bool(self.flags & ADDED_FLAGS["normalized"])


def sort_added(found: Iterable[Added]) -> list[Added]:
    """The added tokens, raw ones first, each kind in the order of its bytes."""
    tokens = sorted(found, key=lambda token: (token.normalized, token.pattern))
    for token in tokens:
        if len(token.pattern) > MAX_ADDED_BYTES:
            size, start = len(token.pattern), token.content[:20]
            raise unsupported(f"an added token of {size} bytes ({start!r}...)")
    for a, b in pairwise(tokens):
        if (a.normalized, a.pattern) == (b.normalized, b.pattern):
            raise unsupported(f"added tokens that look the same ({a.content!r}, {b.content!r})")
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
    model: Model, added: Sequence[Added], pipeline: Pipeline
) -> tuple[int, dict[int, bytes]]:
    """The number of ids, and the chunks about single tokens."""
    tokens: dict[int, str] = {number: token for token, number in model.vocab.items()}
    for extra in added:
        if tokens.setdefault(extra.number, extra.content) != extra.content:
            raise damaged(f"the id {extra.number} belongs to two tokens")
    special = {token.number for token in added if token.flags & ADDED_FLAGS["special"]}
    n_ids = max(tokens, default=-1) + 1
    flags = bytearray([PIECE_ABSENT] * n_ids)
    pieces = [b""] * n_ids
    for number, token in tokens.items():
        raw = utf8(token)
        stands_for = unbyte(token) if pipeline.bytewise else None
        pieces[number] = raw if stands_for is None else stands_for
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
        if (unbyte(token) is not None and whole if pipeline.bytewise else whole or len(token) == 1)
    }
    names: Callable[[int], str]
    if pipeline.bytewise:
        characters = {byte: char for char, byte in BYTE_CHARACTERS.items()}
        names = characters.__getitem__
    else:
        names = "<0x{:02X}>".format
    byte_ids = [model.vocab.get(names(byte), NO_ID) for byte in range(256)]
    if pipeline.bytewise and model.flags & BYTE_FALLBACK and NO_ID in byte_ids:
        raise unsupported("byte_fallback in a byte-level BPE that lacks bytes")
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


def _merge_chunks(model: Model, n_ids: int) -> dict[int, bytes]:
    # A pair that is there twice has its last rank, as in the library.
    ranks = {(left, right): (rank, to) for rank, (left, right, to) in enumerate(model.merges)}
    starts = [0] * (n_ids + 1)
    for left, _ in ranks:
        starts[left + 1] += 1
    for index in range(n_ids):
        starts[index + 1] += starts[index]
    rows = ((right, *ranks[left, right]) for left, right in sorted(ranks))
    return {MERGE_STARTS: _u32(starts), MERGES: _u32(n for row in rows for n in row)}


def _added_chunks(added: Sequence[Added]) -> dict[int, bytes]:
    rows, pool = [], bytearray()
    for token in added:
        rows += [token.number, token.flags, len(pool), len(token.pattern)]
        pool += token.pattern
    return {ADDED: _u32(rows), ADDED_BYTES: bytes(pool)}


def _ranges(ranges: Iterable[tuple[int, int]]) -> list[int]:
    return [first << 8 | value for first, value in ranges]


def _text_chunks(pipeline: Pipeline, added: Sequence[Added]) -> tuple[list[int], dict[int, bytes]]:
    """What is known about characters, and the last two numbers of `info` about it."""
    beside = ADDED_FLAGS["lstrip"] | ADDED_FLAGS["rstrip"] | ADDED_FLAGS["single_word"]
    classes: list[int] = []
    if any(token.flags & beside for token in added):
        classes = _ranges(added_token_classes())
    combining: list[int] = []
    rows: list[tuple[int, ...]] = []
    pairs: list[tuple[int, int, int]] = []
    if pipeline.flags & NFC:
        combining = _ranges(combining_classes())
        rows, pairs = decompositions()
    steps: list[int] = []
    ranges = [*classes, *combining]
    transitions: list[int] = []
    for text in pipeline.steps:
        try:
            automaton = compile_expression(text)
        except ExpressionError as error:
            raise unsupported(f"the pre-tokenizer's expression ({error})") from None
        ranges += _ranges(automaton.ranges)
        steps += [len(automaton.ranges), automaton.n_symbols, len(automaton.transitions)]
        transitions += [entry for row in automaton.transitions for entry in row]
    return [len(classes), len(combining)], {
        STEPS: _u32(steps),
        RANGES: _u32(ranges),
        TRANSITIONS: struct.pack(f"<{len(transitions)}H", *transitions),
        DECOMPOSITIONS: _u32(n for row in rows for n in (*row, *[0] * (5 - len(row)))),
        COMPOSITIONS: _u32(n for pair in pairs for n in pair),
    }


def pack(chunks: Mapping[int, bytes]) -> bytes:
    """A section of these chunks, by their tags."""
    table, body = [], bytearray()
    start = 16 + 12 * len(chunks)
    for tag, data in sorted(chunks.items()):
        table += [tag, start + len(body), len(data)]
        body += data + bytes(-len(data) % 4)
    if start + len(body) >= 1 << 32:
        raise unsupported("a tokenizer of more than 4 GiB")
    return b"CLBT" + _u32([VERSION, len(chunks), 0, *table]) + bytes(body)


def unpack(section: bytes) -> dict[int, bytes]:
    """The chunks of a section, by their tags. Raises ModelFormatError."""
    try:
        magic, version, n_chunks, _ = struct.unpack_from("<4s3I", section)
        table = [struct.unpack_from("<3I", section, 16 + 12 * index) for index in range(n_chunks)]
    except struct.error:
        raise ModelFormatError("the section tokenizer is shorter than its table") from None
    if (magic, version) != (b"CLBT", VERSION):
        raise ModelFormatError(f"the section tokenizer is not one of version {VERSION}")
    return {tag: section[offset : offset + size] for tag, offset, size in table}


def read_added(section: bytes) -> dict[int, tuple[str, int]]:
    """The added tokens of a section, by their ids: each one's text and flags."""
    chunks = unpack(section)
    ends = (0, *(end for (end,) in struct.iter_unpack("<I", chunks[PIECE_ENDS])))
    pieces = chunks[PIECE_BYTES]
    return {
        number: (pieces[ends[number] : ends[number + 1]].decode(errors="replace"), flags)
        for number, flags, _, _ in struct.iter_unpack("<4I", chunks[ADDED])
    }


def section_bytes(
    pipeline: Pipeline,
    model: Model,
    added: Sequence[Added],
    prefix: Sequence[int],
    suffix: Sequence[int],
) -> bytes:
    """The whole section; `prefix` and `suffix` are the ids around every text.

    Raises TokenizerError.
    """
    n_ids, pieces = _piece_chunks(model, added, pipeline)
    for number in (*prefix, *suffix):
        if type(number) is not int or not 0 <= number < n_ids:
            raise damaged(f"the post-processor adds the id {number!r}, which is no token")
    n_raw = sum(not token.normalized for token in added)
    flags = pipeline.flags | model.flags
    counts, text_chunks = _text_chunks(pipeline, added)
    info = [n_ids, flags, model.unk_id, pipeline.lead, pipeline.decoder, n_raw, *counts]
    return pack(
        {
            INFO: _u32(info),
            **pieces,
            **_merge_chunks(model, n_ids),
            **_added_chunks(added),
            PREFIX_IDS: _u32(prefix),
            SUFFIX_IDS: _u32(suffix),
            **text_chunks,
        }
    )
