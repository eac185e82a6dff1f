# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""How a model's chat writes what is said: the chunk `chat` of the section `tokenizer`.

docs/FORMAT-tokenizer.md describes it. A form is strings that stand around what is said; the
engine needs no template engine for it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields

from colibri_deploy.errors import ModelFormatError
from colibri_deploy.tokenizer_section import CHAT, pack, unpack

MAX_BYTES = 1 << 16
TRIM_LEFT, TRIM_RIGHT = 1, 2
_TAKES_SYSTEM = 1
_HEAD = struct.Struct("<12I")


@dataclass(frozen=True)
class Conversation:
    """What is said: an answer after each user's text, but perhaps not after the last one."""

    users: Sequence[str]
    answers: Sequence[str]
    system: str | None = None


@dataclass(frozen=True)
class Strings:
    """What stands around what is said, in the order of the chunk."""

    plain: str  # before the first user's text, without a system text
    system: str  # before the system text
    system_end: str  # between the system text and the first user's
    user_end: str  # after a user's text
    generation: str  # then, where an answer begins
    lead: str  # then, before a past answer: what a model generates itself
    tail: str  # between a past answer and what ends it
    end: str  # what ends an answer
    user: str  # then, before the next user's text


@dataclass(frozen=True)
class Trims:
    """Where blanks around what is said are dropped: TRIM_LEFT, TRIM_RIGHT, both or neither."""

    system: int = 0
    user: int = 0
    user_after_system: int = 0
    answer: int = 0


@dataclass(frozen=True)
class ChatForm:
    """The form of a chat."""

    strings: Strings
    trims: Trims
    takes_system: bool
    stops: tuple[int, ...] = ()  # tokens that end an answer, beside the model's eos_ids
    marks: tuple[int, ...] = ()  # tokens of the strings that are plain text in what is said

    def render(self, said: Conversation, generate: bool) -> str:
        """The conversation as text; with `generate` up to where the next answer begins."""
        strings, trims = self.strings, self.trims
        out, trim = strings.plain, trims.user
        if said.system is not None:
            out = strings.system + _trimmed(said.system, trims.system) + strings.system_end
            trim = trims.user_after_system
        for index, user in enumerate(said.users):
            if index:
                out += strings.end + strings.user
                trim = trims.user
            out += _trimmed(user, trim) + strings.user_end
            if index < len(said.answers):
                answer = _trimmed(said.answers[index], trims.answer)
                out += strings.generation + strings.lead + answer + strings.tail
        if len(said.answers) == len(said.users):
            return out + strings.end
        return out + strings.generation if generate else out

    def to_bytes(self) -> bytes:
        """The chunk."""
        texts = [getattr(self.strings, field.name).encode() for field in fields(self.strings)]
        trims = self.trims
        flags = _TAKES_SYSTEM * self.takes_system + 2 * (
            trims.system | trims.user << 2 | trims.user_after_system << 4 | trims.answer << 6
        )
        ends = [sum(map(len, texts[: index + 1])) for index in range(len(texts))]
        head = _HEAD.pack(flags, *ends, len(self.stops), len(self.marks))
        ids = struct.pack(f"<{len(self.stops) + len(self.marks)}I", *self.stops, *self.marks)
        return head + ids + b"".join(texts)

    @classmethod
    def from_bytes(cls, chunk: bytes) -> ChatForm:
        """Raises ModelFormatError."""
        try:
            flags, *ends, n_stops, n_marks = _HEAD.unpack_from(chunk)
            ids = struct.unpack_from(f"<{n_stops + n_marks}I", chunk, _HEAD.size)
            text = chunk[_HEAD.size + 4 * len(ids) :]
            starts = [0, *ends[:-1]]
            if sorted(ends) != ends or ends[-1] > len(text) or flags >> 9:
                raise ValueError
            texts = [text[a:b].decode() for a, b in zip(starts, ends, strict=True)]
        except (struct.error, ValueError):
            raise ModelFormatError(
                "the chunk chat of the section tokenizer is damaged; convert the checkpoint again"
            ) from None
        trims = Trims(*(flags >> shift & 3 for shift in (1, 3, 5, 7)))
        takes_system = bool(flags & _TAKES_SYSTEM)
        return cls(Strings(*texts), trims, takes_system, ids[:n_stops], ids[n_stops:])


def _trimmed(text: str, trim: int) -> str:
    if trim & TRIM_LEFT:
        text = text.lstrip()
    return text.rstrip() if trim & TRIM_RIGHT else text


def put_form(section: bytes, form: ChatForm) -> bytes:
    """The section `tokenizer` with a form in it."""
    return pack({**unpack(section), CHAT: form.to_bytes()})


def get_form(section: bytes) -> ChatForm | None:
    """The form in a section `tokenizer`, if it has one. Raises ModelFormatError."""
    chunk = unpack(section).get(CHAT)
    return None if chunk is None else ChatForm.from_bytes(chunk)
