# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of tokenizers share: the engine's, texts to compare with the library, and
tokenizer.json in parts.

A small C driver (tokenizer_driver.c) is compiled here with the sanitizers, so that the tests
need no build of the engine.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel

from colibri_deploy.tokenizer import build_tokenizer_section

FIRST_KINDS = ("mixtral", "starcoder_moe", "llama")
SOURCES = (
    "bpe", "chat", "decimal", "decoder", "encoder", "error", "normalizer", "pretokenizer", "print",
    "tokenizer", "unicode",
)  # fmt: skip
OK, ERROR_FORMAT, ERROR_INPUT = 0, 5, 11
MARKER = "\u2581"
Json = dict[str, Any]


class EngineTokenizer:
    """The driver: one process, many requests."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, letter: str, data: bytes = b"") -> tuple[int, bytes]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(letter.encode() + struct.pack("<I", len(data)) + data)
        self.process.stdin.flush()
        head = self.process.stdout.read(8)
        assert len(head) == 8, f"the driver ended on request {letter!r} of {len(data)} bytes"
        code, n = struct.unpack("<II", head)
        return code, self.process.stdout.read(n)

    def result(self, letter: str, data: bytes = b"") -> bytes:
        code, answer = self.ask(letter, data)
        assert code == OK, answer.decode()
        return answer

    def open(self, section: bytes | None, vocab_size: int) -> None:
        assert section is not None
        self.result("o", struct.pack("<I", vocab_size) + section)

    def encode(self, text: str | bytes) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        answer = self.result("e", data)
        return list(struct.unpack(f"<{len(answer) // 4}i", answer))

    def decode(self, ids: list[int]) -> str:
        return self.result("d", struct.pack(f"<{len(ids)}i", *ids)).decode()

    def stream(self, ids: list[int]) -> str:
        return self.result("s", struct.pack(f"<{len(ids)}i", *ids)).decode()


def compilers() -> Iterator[list[str]]:
    """Commands that compile C with the sanitizers, the best first."""
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            yield [name, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    yield [sys.executable, "-m", "ziglang", "cc", "-fsanitize=undefined"]


@pytest.fixture(scope="session")
def tokenizer_driver(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("driver") / "tokenizer_driver"
    sources = [root / "src" / f"{name}.c" for name in SOURCES]
    sources.append(root / "tests" / "engine" / "tokenizer_driver.c")
    for compiler in compilers():
        flags = ["-std=c17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o", str(program)]
        done = subprocess.run([*compiler, *flags, *sources], capture_output=True, text=True)
        if done.returncode == 0:
            return program
    pytest.fail(f"the driver does not compile: {done.stderr}")


@pytest.fixture
def tokenizer(tokenizer_driver: Path) -> Iterator[EngineTokenizer]:
    """The engine's tokenizers; none is open yet."""
    tokenizer = EngineTokenizer(tokenizer_driver)
    yield tokenizer
    assert tokenizer.process.stdin is not None
    assert tokenizer.process.stdout is not None
    tokenizer.process.stdin.close()
    tokenizer.process.stdout.close()
    assert tokenizer.process.wait(60) == 0, "the driver ended with an error: see its output"


SCRIPTS = (
    (0x20, 0x7F), (0xA0, 0x100), (0x100, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x500),
    (0x530, 0x590), (0x590, 0x600), (0x600, 0x700), (0x900, 0x980), (0x980, 0xA00),
    (0xB80, 0xC00), (0xE00, 0xE80), (0x1000, 0x10A0), (0x10A0, 0x1100), (0x1200, 0x1380),
    (0x13A0, 0x1400), (0x1780, 0x1800), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x20D0),
    (0x2100, 0x2190), (0x2460, 0x2500), (0x2580, 0x2600), (0x3000, 0x3100), (0x3400, 0x3500),
    (0x4E00, 0x9FFF), (0xAC00, 0xD7A0), (0xE000, 0xE010), (0xF900, 0xFB50), (0xFE00, 0xFF00),
    (0xFF00, 0xFFF0), (0x10000, 0x10400), (0x1D400, 0x1D800), (0x1F300, 0x1FB00),
    (0x20000, 0x20100), (0xE0100, 0xE01F0),
)  # fmt: skip
SPACES = [*" \t\n\r\v\f", "\r\n", "  ", "    ", "\x85", "\xa0", "\u2003", "\u2028", "\u3000"]
DIGITS = [
    "0", "7", "42", "123", "1234", "1234567", "\u0663\u0664", "\u096b\u096c\u096d\u096e", "²³¹",
    "½", "Ⅷ", "①②", "\uff11\uff12", "𝟘𝟙", "\U00011de0\U00011de5", "\u3007", "৹", "3.14", "1e-5",
]  # fmt: skip
EMOJI = [
    "👋", "🌍", "👨\u200d👩\u200d👧", "👍🏽", "🇫🇷", "❤\ufe0f", "🏴\U000e0067\U000e007f",
    "1\ufe0f\u20e3",
]  # fmt: skip
QUOTES = [
    "'s", "'S", "'t", "'re", "'RE", "'Ve", "'m", "'ll", "'LL", "'lL", "'d", "'\u017f", "'x", "''s",
    "'", "don't", "I'LL", "we've", "x'said", "’s", "'l", "'r", "'st",
]  # fmt: skip
CODE = [
    "def f(x):\n    return x + 1\n", "if (a && b) {\n\t++i;\r\n}", "// a  comment\n\n\n", "a->b[c]",
    "<html>\n  <b>x</b>\n</html>", "#include <x.h>\n", "SELECT * FROM t;", "$x=~s/\\s+/ /g;",
    "===", "!=", "::", "/*", "*/", "...", "\n\n", "\\n", "x\u0000y", "\x01\x02\x7f", "\ufeff",
]  # fmt: skip
WORDS = [
    "the", "The", "mixture", "of", "experts", "router", "token", "layer", "naïve", "Straße",
    "世界", "人工智能", "こんにちは", "привет", "مرحبا", "שלום", "नमस्ते", "สวัสดี", "한국어",
    "e\u0301", "Ǆ", "ﬁ", "İ", "ſ", "\u212a", "<0x41>", "<0xE4>", MARKER, MARKER + MARKER, "_",
    "__x", "e\u0323\u0301", "\u1112\u1161\u11ab", "\u09c7\u09be", "\u212b", "a\u0345\u0334\u0301",
]  # fmt: skip


def texts(seed: int, number: int, special: list[str]) -> list[str]:
    rng = random.Random(seed)
    broken = [s[:-1] for s in special] + [s[1:] for s in special]

    def any_character() -> str:
        while True:
            c = rng.randrange(0x110000)
            if not 0xD800 <= c < 0xE000:
                return chr(c)

    def script_run() -> str:
        low, high = rng.choice(SCRIPTS)
        return "".join(chr(rng.randrange(low, high)) for _ in range(rng.randrange(1, 12)))

    parts: list[Callable[[], str]] = [
        lambda: rng.choice(WORDS), lambda: rng.choice(WORDS) + " ", lambda: " ",
        lambda: "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 8))),
        lambda: rng.choice(DIGITS), lambda: rng.choice(EMOJI), lambda: rng.choice(QUOTES),
        lambda: rng.choice(CODE), script_run, script_run, any_character,
        lambda: rng.choice(special or [" "]), lambda: rng.choice(broken or [" "]),
        lambda: rng.choice("aZ=- \n<é世") * rng.randrange(1, 40),
        lambda: "".join(rng.choice("etaoins") for _ in range(rng.randrange(1, 60))),
    ]  # fmt: skip
    out = ["", " ", "  ", "\n", "a", MARKER, *special, *WORDS, *DIGITS, *EMOJI, *QUOTES, *CODE]
    out += [a + b + c for a in " a\n." for b in SPACES for c in "xé1. "]
    out += [a + s + b for s in special for a in ("", "x", "x ", " ") for b in ("", "y", " y", " ")]
    while len(out) < number:
        out.append("".join(rng.choice(parts)() for _ in range(rng.randrange(1, 10))))
    return out


def id_lists(seed: int, number: int, n_ids: int) -> list[list[int]]:
    rng = random.Random(seed)
    edge = [[], [0], [1], [2], [3], [n_ids - 1]]
    return edge + [
        [rng.randrange(n_ids) for _ in range(rng.randrange(1, 40))] for _ in range(number)
    ]


def section_of(root: Json, tmp_path: Path) -> bytes:
    (tmp_path / "tokenizer.json").write_text(json.dumps(root), encoding="utf-8")
    section = build_tokenizer_section(tmp_path)
    assert section is not None
    return section


def compare(
    tokenizer: EngineTokenizer, root: Json, tmp_path: Path, number: int, seed: int = 1
) -> None:
    """Opens the tokenizer in both, and compares `number` texts and id lists."""
    library = Tokenizer.from_str(json.dumps(root))
    n_ids = max(library.get_vocab().values()) + 1
    tokenizer.open(section_of(root, tmp_path), n_ids + 8)
    added = [t["content"] for t in root["added_tokens"]]
    # tokenizers 0.23 decodes an added token of the normalised kind to what the normalizer makes
    # of it, and then does not know that it is special; earlier versions and the engine do.
    odd = {t["id"] for t in root["added_tokens"] if library.id_to_token(t["id"]) != t["content"]}
    for text in texts(seed, number, added):
        expected = library.encode(text).ids
        assert tokenizer.encode(text) == expected, f"{text!r}: {library.encode(text).tokens}"
        if odd.isdisjoint(expected):
            decoded = library.decode(expected, skip_special_tokens=True)
            assert tokenizer.decode(expected) == decoded, repr(text)
            assert tokenizer.stream(expected) == decoded, repr(text)
    for ids in id_lists(seed, number // 2, n_ids + 8):
        ids = [number for number in ids if number not in odd]
        decoded = library.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids) == decoded, ids
        assert tokenizer.stream(ids) == decoded, ids


def load(shared: Path, name: str) -> Json:
    root: Json = json.loads((shared / "fixtures" / name / "tokenizer.json").read_bytes())
    return root


# --- tokenizer.json ---

PREPEND = {"type": "Prepend", "prepend": MARKER}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": MARKER}
UNREPLACE = {"type": "Replace", "pattern": {"String": MARKER}, "content": " "}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def metaspace(scheme: str, split: bool) -> Json:
    return {"type": "Metaspace", "replacement": MARKER, "prepend_scheme": scheme, "split": split}


def sequence(key: str, *members: Json) -> Json:
    return {"type": "Sequence", key: list(members)}


def byte_level(prefix: bool = False, regex: bool = True) -> Json:
    return {
        "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex,
    }  # fmt: skip


def split(expression: str, behavior: str = "Isolated", invert: bool = False) -> Json:
    pattern = {"Regex": expression}
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def bytewise(*steps: Json, **changes: Any) -> Json:
    """A byte-level tokenizer without merges, so that its ids tell the bytes."""
    vocab = {char: number for number, char in enumerate(sorted(ByteLevel.alphabet()))}
    root: Json = json.loads(Tokenizer(models.BPE(vocab=vocab, merges=[])).to_str())
    root["pre_tokenizer"] = sequence("pretokenizers", *steps, byte_level(regex=False))
    root["decoder"] = byte_level(prefix=True)
    return root | changes


def added(content: str, number: int, **flags: bool) -> Json:
    base = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": number, "content": content, **base, **flags}


def variant(root: Json, changes: Json) -> Json:
    root = copy.deepcopy(root)
    for key, value in changes.items():
        if key == "model":
            root["model"].update(value)
        elif key == "merges":
            root["model"]["merges"] = [m.split(" ") for m in root["model"]["merges"]]
        elif key == "added_tokens":
            root[key] += value
        else:
            root[key] = value
    return root


def with_added(root: Json, tokens: list[Json]) -> Json:
    """The tokenizer with more added tokens, numbered as the library numbers them."""
    vocab = root["model"]["vocab"]
    following = len(vocab) + sum(t["content"] not in vocab for t in root["added_tokens"])
    numbered = []
    for token in tokens:
        number = vocab.get(token["content"])
        if number is None:
            number, following = following, following + 1
        numbered.append(token | {"id": number})
    return variant(root, {"added_tokens": numbered})


# Few tokens, so that the ids can be worked out by hand.
HAND: Json = {
    "version": "1.0",
    "added_tokens": [added("<s>", 0, special=True), added("<end>", 9, special=True)],
    "normalizer": sequence("normalizers", PREPEND, REPLACE),
    "pre_tokenizer": None,
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
    },
    "decoder": sequence("decoders", UNREPLACE, FALLBACK, FUSE, STRIP),
    "model": {
        "type": "BPE", "dropout": None, "unk_token": "<s>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
        "vocab": {
            "<s>": 0, "a": 1, "b": 2, MARKER: 3, "ab": 4, MARKER + "ab": 5, "<0xC3>": 6,
            "<0xA9>": 7, "aba": 8,
        },
        "merges": ["a b", f"{MARKER} ab", "ab a"],
    },
}  # fmt: skip


NO_MARKERS: Json = {
    "normalizer": None,
    "decoder": {"type": "ByteLevel"},
    "model": {"byte_fallback": False, "ignore_merges": True},
}


HOSTILE_TEXT = f"abé x ab <s> {MARKER} ab<end>abababab 12 é x'll  a e\u0323\u0301\u1112\u1161"


def damage(tokenizer: EngineTokenizer, section: bytes, stride: int) -> tuple[int, int]:
    """How many damaged sections opened (and were used) and how many were refused."""
    text = HOSTILE_TEXT.encode()
    answer = tokenizer.result("m", struct.pack("<II", len(text), stride) + text + section)
    opened, refused = struct.unpack("<II", answer)
    return opened, refused
