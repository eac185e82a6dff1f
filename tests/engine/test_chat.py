# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Chats: the ids of a turn are the library's for the text that the form writes. Nothing that is
said is taken for a part of the form.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizer_fixtures import (
    ERROR_FORMAT,
    ERROR_INPUT,
    HAND,
    EngineTokenizer,
    Json,
    added,
    bytewise,
    damage,
    load,
    section_of,
    texts,
    variant,
    with_added,
)
from tokenizers import Tokenizer

from colibri_deploy.chat_form import ChatForm, Conversation, Strings, Trims, put_form
from colibri_deploy.tokenizer_section import CHAT, pack, unpack

BYTES = bytewise()

# Forms in special tokens that the fixtures have.
IM, EOT, EOS = "<|im_end|>\n", "<|eot_id|>", "<|endoftext|>"
D_BOS, D_EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
D_USER, D_ANSWER = "User: ", "\n\nAssistant:"
HEAD = "<|start_header_id|>{}<|end_header_id|>\n\n".format
FORMS = {
    "mixtral": Strings(
        "<s>[INST] ", "<s>[INST] <<SYS>>\n", "\n<</SYS>>\n\n", " [/INST]", "", " ", " ", "</s>",
        "<s>[INST] ",
    ),
    "qwen3_moe": Strings(
        "<|im_start|>user\n", "<|im_start|>system\n", IM + "<|im_start|>user\n", IM,
        "<|im_start|>assistant\n", "", "", IM, "<|im_start|>user\n",
    ),
    "llama": Strings(
        "<|begin_of_text|>" + HEAD("user"), "<|begin_of_text|>" + HEAD("system"),
        EOT + HEAD("user"), EOT, HEAD("assistant"), "", "", EOT, HEAD("user"),
    ),
    "deepseek_v3": Strings(
        D_BOS + D_USER, D_BOS, "\n\n" + D_USER, "", D_ANSWER,
        " ", "", D_EOS, D_USER,
    ),
    "gpt_oss": Strings(
        "<|start|>user<|message|>", "<|start|>developer<|message|># Instructions\n\n",
        "\n\n<|end|><|start|>user<|message|>", "<|end|>", "<|start|>assistant", "", "", "<|end|>",
        "<|start|>user<|message|>",
    ),
    "granitemoe": Strings(
        "<|user|>\n", "<|system|>\n", EOS + "\n<|user|>\n", EOS + "\n", "<|assistant|>\n", "", "",
        EOS, "\n<|user|>\n",
    ),
    "starcoder_moe": Strings(
        "Question: ", "", EOS + "Question: ", "\n\n", "Answer:", "", "", EOS, "Question: ",
    ),
}  # fmt: skip


class Talk:
    """A tokenizer with a form, in the engine and in the library."""

    def __init__(
        self, tokenizer: EngineTokenizer, root: Json, form: ChatForm, tmp_path: Path
    ) -> None:
        self.tokenizer, self.form = tokenizer, form
        self.reference = Tokenizer.from_str(json.dumps(root))
        self.numbers = {t["content"]: t["id"] for t in root["added_tokens"] if t["special"]}
        self.special = list(self.numbers)
        tokenizer.open(put_form(section_of(root, tmp_path), form), 1100)

    def turn(self, text: str, system: str | None = None, later: bool = False) -> list[int]:
        data = bytes([later, system is not None])
        answer = self.tokenizer.result("c", data + f"{system or ''}\0{text}\0".encode())
        return list(struct.unpack(f"<{len(answer) // 4}i", answer))

    def written(self, text: str, system: str | None = None, later: bool = False) -> str:
        if later:
            first = self.form.render(Conversation(["u"], ["a"]), True)
            both = self.form.render(Conversation(["u", text], ["a"]), True)
            assert both.startswith(first)
            return self.form.strings.end + both.removeprefix(first)
        return self.form.render(Conversation([text], [], system), True)

    def ids(self, text: str) -> list[int]:
        """The library's."""
        return list(self.reference.encode(text, add_special_tokens=False).ids)


@pytest.fixture
def talk(
    tokenizer: EngineTokenizer,
    shared: Path,
    tmp_path: Path,
) -> Callable[..., Talk]:
    """`talk(fixture)` opens its tokenizer with its form; or with other ones."""

    def open_it(
        name: str, root: Json | None = None, strings: Strings | None = None, marks: Marks = ()
    ) -> Talk:
        form = ChatForm(strings or FORMS[name], Trims(), True, (), marks)
        return Talk(tokenizer, root or load(shared, name), form, tmp_path)

    return open_it


Marks = tuple[int, ...]
WAYS: tuple[Json, ...] = ({}, {"system": "Be brief. "}, {"system": "\n <b>é"}, {"later": True})


@pytest.mark.parametrize("name", FORMS)
def test_a_turn_has_the_ids_of_the_text_that_the_form_writes(
    talk: Callable[..., Talk], name: str
) -> None:
    """Words are cut, and merged, across the seams between the form and what is said."""
    one = talk(name)
    compared = 0
    for index, text in enumerate(texts(5, 1200, [])):
        way = WAYS[index % len(WAYS)]
        if "\0" not in text and not any(token in text for token in one.special):
            assert one.turn(text, **way) == one.ids(one.written(text, **way)), (text, way)
            compared += 1
    assert compared > 1000


def said_ids(one: Talk, text: str, way: Json) -> list[int]:
    """What the library gives if special tokens are recognised in the form only."""
    shown: Json = {name: "\ue001" if name == "system" else value for name, value in way.items()}
    ids: list[int] = []
    for part in re.split(
        f"({'|'.join(map(re.escape, one.special))})", one.written("\ue000", **shown)
    ):
        one.reference.encode_special_tokens = part not in one.special
        if part:
            ids += one.ids(part.replace("\ue000", text).replace("\ue001", way.get("system", "")))
    return ids


@pytest.mark.parametrize("name", FORMS)
def test_special_tokens_in_what_is_said_are_plain_text(
    talk: Callable[..., Talk], name: str
) -> None:
    one = talk(name)
    rng = random.Random(7)
    plain = texts(6, 400, [])[-150:]
    for special in one.special * 3:
        words = [special, special[:-1], special[1:], " ", "x", *rng.sample(plain, 2)]
        text = "".join(rng.choices(words, k=4)).replace("\0", "") + special
        for way in (*WAYS[:2], {"system": f"a{special}"}, WAYS[3]):
            assert one.turn(text, **way) == said_ids(one, text, way), (text, way)
        number = one.numbers[special]
        assert one.turn(text).count(number) == one.written("").count(special), text


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_tokens_of_the_form_that_are_not_special_are_no_less_safe(
    talk: Callable[..., Talk], shared: Path, name: str, normalized: bool
) -> None:
    """They are marks. `normalized` ones are looked for after the normaliser."""
    flags = {"normalized": normalized}
    extra = [added(text, 0, **flags) for text in ("<turn>", "<more>")]
    extra.append(added("<sp>", 0, special=True, **flags))
    root = with_added(load(shared, name), extra)
    turn, more, special = (token["id"] for token in root["added_tokens"][-3:])
    strings = Strings("<turn>e\u0301: ", "<sp>", "<turn>", "<sp>", "a:", "", "", "<turn>", " u: ")
    one = talk(name, root, strings, (turn,))
    for way in (WAYS[0], {"system": " é<turn> <sp>"}, WAYS[3]):
        clean = way | {"system": " é"} if "system" in way else way
        for text in ("plain  e\u0301 text", " x"):
            assert one.turn(text, **clean) == one.ids(one.written(text, **clean)), (text, way)
        form = one.ids(one.written("x", **clean))
        for text in (
            "e\u0301 <turn>  u <sp> <more> é <turn>",
            " <more> <turn>x",
            "e\u0301 <sp>x <more>",
        ):
            ids = one.turn(text, **way)
            assert (ids.count(turn), ids.count(special)) == (form.count(turn), form.count(special))
            assert ids.count(more) == 1, (text, way)  # it is no part of the form


@pytest.mark.parametrize(
    ("trim", "written"), [(0, "[\u3000 x\n]"), (1, "[x\n]"), (2, "[\u3000 x]"), (3, "[x]")]
)
def test_blanks_are_dropped_as_the_form_says(
    tokenizer: EngineTokenizer,
    tmp_path: Path,
    trim: int,
    written: str,
) -> None:
    form = ChatForm(Strings("[", "(", ")", "]", "", "", "", "", "["), Trims(user=trim), True)
    one = Talk(tokenizer, HAND, form, tmp_path)
    tokenizer.open(put_form(section_of(BYTES, tmp_path), form), 1100)
    assert tokenizer.decode(one.turn("\u3000 x\n")) == written
    assert tokenizer.decode(one.turn("\u3000 x\n", later=True)) == written
    assert tokenizer.decode(one.turn(" \x1f\x85\u2028 ")) == (
        "[ \x1f\x85\u2028 ]" if not trim else "[]"
    )
    assert tokenizer.decode(one.turn(" x ", system=" y ")) == "( y ) x ]"


def test_a_form_that_takes_no_system_text_says_so(
    tokenizer: EngineTokenizer,
    tmp_path: Path,
) -> None:
    form = ChatForm(Strings(*"ababababa"), Trims(), False)
    tokenizer.open(put_form(section_of(HAND, tmp_path), form), 10)
    assert tokenizer.ask("c", b"\0\1b\0a\0") == (ERROR_INPUT, b"the model takes no --system")
    tokenizer.open(section_of(HAND, tmp_path), 10)
    code, message = tokenizer.ask("c", b"\0\0\0a\0")
    assert (code, message[:27]) == (ERROR_INPUT, b"the model has no chat form;")


CHUNK = ChatForm(Strings(*"abaébabab"), Trims(1, 2, 3, 0), True, (9, 1), (2,)).to_bytes()


@pytest.mark.parametrize(
    "chunk",
    [
        b"",
        CHUNK[:47],
        CHUNK[:-1],
        CHUNK + bytes(1 << 16),
        b"\0\2" + CHUNK[2:],  # an unknown flag
        CHUNK[:4] + b"\xff" + CHUNK[5:],  # a string that ends behind the next one
        CHUNK[:16] + b"\4" + CHUNK[17:],  # a string that ends within a character
        CHUNK[:40] + b"\xff" + CHUNK[41:],  # ids that are not there
        CHUNK[:44] + b"\xff\xff\xff\xff" + CHUNK[48:],
        CHUNK[:48] + b"\x0a" + CHUNK[49:],  # ids that the model lacks
        CHUNK[:56] + b"\x0a" + CHUNK[57:],
        CHUNK[:-1] + b"\xff",
    ],
)
def test_a_damaged_form_is_refused(
    tokenizer: EngineTokenizer, tmp_path: Path, chunk: bytes
) -> None:
    def opened(chunk: bytes) -> tuple[int, bytes]:
        section = pack({**unpack(section_of(HAND, tmp_path)), CHAT: chunk})
        return tokenizer.ask("o", struct.pack("<I", 10) + section)

    assert opened(CHUNK) == (0, b"")
    message = b"section tokenizer: the chunk chat is damaged; convert the checkpoint again"
    assert opened(chunk) == (ERROR_FORMAT, message)


def test_a_form_damaged_anywhere_is_refused_or_harmless(
    tokenizer: EngineTokenizer,
    tmp_path: Path,
) -> None:
    root = variant(HAND, {"added_tokens": [added("é x", 10, normalized=True)]})
    section = pack({**unpack(section_of(root, tmp_path)), CHAT: CHUNK})
    opened, refused = damage(tokenizer, section, 3)
    assert opened + refused == 9 * -(-len(section) // 3)
    assert min(opened, refused) > 50
