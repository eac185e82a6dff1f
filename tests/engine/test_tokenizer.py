# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The engine's tokenizers against the library `tokenizers`, id by id and byte by byte.

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
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_smollm2 import reference_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.normalizers import NFC, NFD
from tokenizers.pre_tokenizers import ByteLevel, Digits, Split

from colibri_deploy.demo_model import obtain_demo_model
from colibri_deploy.errors import ConversionError, DownloadError
from colibri_deploy.gguf_file import GgufFile
from colibri_deploy.tokenizer import build_tokenizer_section
from colibri_deploy.tokenizer_gguf import build_gguf_tokenizer

FIXTURES = (
    "deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", "granitemoe", "llama", "mixtral", "olmoe",
    "phimoe", "qwen2_moe", "qwen3_moe", "starcoder_moe",
)  # fmt: skip
BYTE_LEVEL_KINDS = (
    "deepseek_v3", "gpt_oss", "granitemoe", "llama", "qwen3_moe", "starcoder_moe",
)  # fmt: skip
KINDS = ("mixtral", *BYTE_LEVEL_KINDS)  # one fixture of each kind of tokenizer
FIRST_KINDS = ("mixtral", "starcoder_moe", "llama")
SOURCES = (
    "bpe", "chat", "decoder", "encoder", "error", "normalizer", "pretokenizer", "tokenizer",
    "unicode",
)  # fmt: skip
OK, ERROR_FORMAT, ERROR_INPUT = 0, 5, 11
MARKER = "\u2581"
Json = dict[str, Any]


class Engine:
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
def driver(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def engine(driver: Path) -> Iterator[Engine]:
    engine = Engine(driver)
    yield engine
    assert engine.process.stdin is not None
    assert engine.process.stdout is not None
    engine.process.stdin.close()
    engine.process.stdout.close()
    assert engine.process.wait(60) == 0, "the driver ended with an error: see its output"


# --- texts ---

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


# --- comparing ---


def section_of(root: Json, tmp_path: Path) -> bytes:
    (tmp_path / "tokenizer.json").write_text(json.dumps(root), encoding="utf-8")
    section = build_tokenizer_section(tmp_path)
    assert section is not None
    return section


def compare(engine: Engine, root: Json, tmp_path: Path, number: int, seed: int = 1) -> None:
    """Opens the tokenizer in both, and compares `number` texts and id lists."""
    library = Tokenizer.from_str(json.dumps(root))
    n_ids = max(library.get_vocab().values()) + 1
    engine.open(section_of(root, tmp_path), n_ids + 8)
    added = [t["content"] for t in root["added_tokens"]]
    # tokenizers 0.23 decodes an added token of the normalised kind to what the normalizer makes
    # of it, and then does not know that it is special; earlier versions and the engine do.
    odd = {t["id"] for t in root["added_tokens"] if library.id_to_token(t["id"]) != t["content"]}
    for text in texts(seed, number, added):
        expected = library.encode(text).ids
        assert engine.encode(text) == expected, f"{text!r}: {library.encode(text).tokens}"
        if odd.isdisjoint(expected):
            decoded = library.decode(expected, skip_special_tokens=True)
            assert engine.decode(expected) == decoded, repr(text)
            assert engine.stream(expected) == decoded, repr(text)
    for ids in id_lists(seed, number // 2, n_ids + 8):
        ids = [number for number in ids if number not in odd]
        decoded = library.decode(ids, skip_special_tokens=True)
        assert engine.decode(ids) == decoded, ids
        assert engine.stream(ids) == decoded, ids


def load(shared: Path, name: str) -> Json:
    root: Json = json.loads((shared / "fixtures" / name / "tokenizer.json").read_bytes())
    return root


# --- Unicode ---


def words(engine: Engine, text: str) -> list[str]:
    data = text.encode()
    ends = [end for (end,) in struct.iter_unpack("<I", engine.result("w", data))]
    return [data[a:b].decode() for a, b in pairwise([0, *ends])]


def bytewise(*steps: Json, **changes: Any) -> Json:
    """A byte-level tokenizer without merges, so that its ids tell the bytes."""
    vocab = {char: number for number, char in enumerate(sorted(ByteLevel.alphabet()))}
    root: Json = json.loads(Tokenizer(models.BPE(vocab=vocab, merges=[])).to_str())
    root["pre_tokenizer"] = sequence("pretokenizers", *steps, byte_level(regex=False))
    root["decoder"] = byte_level(prefix=True)
    return root | changes


def split(expression: str, behavior: str = "Isolated", invert: bool = False) -> Json:
    pattern = {"Regex": expression}
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


EVERY_CODE_POINT = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
PROPERTIES = ("Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S")


def test_every_code_point_is_of_the_library_s_class(engine: Engine, tmp_path: Path) -> None:
    """Neighbours of different classes are parted; an A parts those of the same, but Lu."""
    expression = "|".join([r"\s+", *(rf"\p{{{name}}}+" for name in PROPERTIES)])
    engine.open(section_of(bytewise(split(expression)), tmp_path), 256)
    library = Split(Regex(expression), "isolated")
    for text in ("".join(EVERY_CODE_POINT), "A".join(EVERY_CODE_POINT[:0x3000])):
        assert words(engine, text) == [piece for piece, _ in library.pre_tokenize_str(text)]


def test_every_digit_is_one_of_the_library_s(engine: Engine, tmp_path: Path) -> None:
    step = {"type": "Digits", "individual_digits": True}
    engine.open(section_of(bytewise(step), tmp_path), 256)
    text = "".join(EVERY_CODE_POINT)
    assert words(engine, text) == [piece for piece, _ in Digits(True).pre_tokenize_str(text)]


@pytest.mark.parametrize("flags", [{"single_word": True}, {"lstrip": True, "rstrip": True}])
def test_every_code_point_beside_an_added_token(
    engine: Engine, tmp_path: Path, flags: dict[str, bool]
) -> None:
    root = bytewise(added_tokens=[added("@@", 256, **flags)])
    engine.open(section_of(root, tmp_path), 257)
    library = Tokenizer.from_str(json.dumps(root))
    text = "".join(f"{c}@@" for c in EVERY_CODE_POINT[:0x30000])
    assert engine.encode(text) == library.encode(text).ids


# Expressions of real tokenizers that no fixture has, and what else the compiler knows.
EXPRESSIONS = {
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "marks in words": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek lines": r"[\r\n]",
    "deepseek words": r"\s?\p{L}+",
    "contractions": r"(?i:'[sdmt]|ll|ve|re)|'(?:k|xy)?",
    "preference": r"a|ab|abc|(?:b|bc)d|x{2}|x{3,}y|e{1,2}(?=f)|(0|01)(2|12)",
    "sets": r"[^a-z\-\]\S]+|[\P{L}]{2,3}|[\SA]",
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_cut_as_in_the_library(engine: Engine, tmp_path: Path, name: str) -> None:
    library = Split(Regex(EXPRESSIONS[name]), "isolated")
    engine.open(section_of(bytewise(split(EXPRESSIONS[name])), tmp_path), 256)
    rng = random.Random(1)
    few = ["".join(rng.choices("ab'cdxyef012sS kK\n-]", k=12)) for _ in range(1500)]
    for text in texts(2, 700, []) + few:
        assert words(engine, text) == [piece for piece, _ in library.pre_tokenize_str(text)], text


def test_the_normal_form_of_every_character(engine: Engine, tmp_path: Path) -> None:
    root = bytewise(normalizer={"type": "NFC"})
    engine.open(section_of(root, tmp_path), 256)
    library = NFC()

    def normal(text: str) -> str:
        return engine.decode(engine.encode(text))

    points = "".join(EVERY_CODE_POINT[:0x20000] + EVERY_CODE_POINT[0x2F000:0x2FFFF])
    for text in (points, NFD().normalize_str(points)):
        assert normal(text) == library.normalize_str(text)
    for around in ("a{}\u0323\u0301", "{}\u0345\u0334\u0301", "a\u0301{}"):
        text = "".join(around.format(c) for c in points[0xA0:0x3100] + points[-0x1700:])
        assert normal(text) == library.normalize_str(text)
    rng = random.Random(1)
    marks = [c for c in points if NFD().normalize_str("a\u0345" + c)[1] != "\u0345"]
    marks += ["\u0301", "\u0323", "\u0345", "\u0334"] * 50
    jamo = ["\u1100", "\u1112", "\u1161", "\u1175", "\u11a7", "\u11a8", "\u11c2", "가", "각", "힣"]
    indic = ["\u09c7", "\u09be", "\u09d7", "\u0b47", "\u0b57", "\u1025", "\u102e", "\u0f71"]
    for _ in range(1500):
        base = rng.choice(["", "a", "é", "ệ", *jamo, *indic, rng.choice(points)])
        text = base + "".join(rng.choices(rng.choice([marks, jamo, indic]), k=rng.randrange(8)))
        assert normal(text) == library.normalize_str(text), ascii(text)


# --- the fixtures ---


@pytest.mark.parametrize("name", FIXTURES)
def test_golden_prompts(engine: Engine, shared: Path, name: str) -> None:
    golden = json.loads((shared / "fixtures" / name / "golden.json").read_bytes())
    engine.open(build_tokenizer_section(shared / "fixtures" / name), golden["vocab_size"])
    compared = 0
    for prompt in golden["prompts"]:
        if "skipped" in prompt:
            continue
        assert engine.encode(prompt["text"]) == prompt["input_ids"], prompt["name"]
        text = engine.decode(prompt["generated_ids"])
        assert text == prompt["generated_text_skip_special"], prompt["name"]
        full = engine.decode(prompt["input_ids"] + prompt["generated_ids"])
        assert full == prompt["full_text_skip_special"], prompt["name"]
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize("name", KINDS)
def test_fixture_equals_the_library(
    engine: Engine, shared: Path, tmp_path: Path, name: str
) -> None:
    compare(engine, load(shared, name), tmp_path, 3000)


@pytest.mark.parametrize("name", BYTE_LEVEL_KINDS)
def test_byte_level_gives_every_text_back(
    engine: Engine, shared: Path, tmp_path: Path, name: str
) -> None:
    root = load(shared, name)
    engine.open(section_of(root, tmp_path), 1000)
    normalize = NFC().normalize_str if root["normalizer"] else str

    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.text())
    def gives_back(text: str) -> None:
        if not any(token["content"] in text for token in root["added_tokens"]):
            assert engine.decode(engine.encode(text)) == normalize(text)

    gives_back()


def test_smollm2_s_gguf_equals_the_library(
    engine: Engine, require: Callable[[bool, str], None]
) -> None:
    try:
        source = obtain_demo_model()
    except DownloadError as error:
        require(False, f"no SmolLM2: {error.message}\n{error.details}")
        raise
    library = reference_tokenizer(source)
    engine.open(build_gguf_tokenizer(GgufFile.open(source)), 49152)
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>"]
    for text in texts(3, 2500, special):
        expected = library.encode(text, add_special_tokens=False).ids
        assert engine.encode(text) == expected, repr(text)
        assert engine.decode(expected) == library.decode(expected, skip_special_tokens=True)


# --- variants ---

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


def added(content: str, number: int, **flags: bool) -> Json:
    base = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": number, "content": content, **base, **flags}


MARKED: dict[str, Json] = {
    "replace only": {"normalizer": REPLACE},
    "prepend only": {"normalizer": PREPEND},
    "no strip": {"decoder": sequence("decoders", UNREPLACE, FALLBACK, FUSE)},
    "no normalizer": {"normalizer": None},
    "merge pairs": {"merges": "pairs"},
    "no byte fallback": {"model": {"byte_fallback": False}},
    "unknown not fused": {"model": {"byte_fallback": False, "fuse_unk": False}},
    "unknown dropped": {"model": {"byte_fallback": False, "unk_token": None}},
    "ignore merges": {"model": {"ignore_merges": True}},
    "digits": {"pre_tokenizer": {"type": "Digits", "individual_digits": True}},
    "no post-processor": {"post_processor": None},
    "plain decoder": {"decoder": sequence("decoders", FUSE)},
}
MARKED |= {
    f"metaspace {scheme} {split}{' strip' if strip else ''}": {
        "normalizer": None,
        "pre_tokenizer": metaspace(scheme, split),
        "decoder": sequence("decoders", UNREPLACE, FALLBACK, FUSE, STRIP)
        if strip
        else metaspace(scheme, split),
    }
    for scheme in ("always", "first", "never")
    for split in (True, False)
    for strip in (True, False)
}


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


@pytest.mark.parametrize("name", MARKED)
def test_variants_with_markers(engine: Engine, shared: Path, tmp_path: Path, name: str) -> None:
    compare(engine, variant(load(shared, "mixtral"), MARKED[name]), tmp_path, 700)


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
RUNS = {"type": "Digits", "individual_digits": False}
BYTEWISE: dict[str, Json] = {
    "gpt2": {"pre_tokenizer": byte_level()},
    "gpt2 with a space before": {"pre_tokenizer": byte_level(prefix=True)},
    "gpt2 as split": {
        "pre_tokenizer": sequence(
            "pretokenizers",
            {"type": "Split", "pattern": {"Regex": GPT2}, "behavior": "Removed", "invert": True},
            byte_level(regex=False),
        )
    },
    "no words": {"pre_tokenizer": byte_level(regex=False)},
    "runs of digits": {"pre_tokenizer": sequence("pretokenizers", RUNS, byte_level())},
    "merges first": {"model": {"ignore_merges": False}},
    "suffix": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "x", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {"x": {"id": "x", "ids": [5, 6], "tokens": ["a", "b"]}},
        }
    },
}


@pytest.mark.parametrize("name", BYTEWISE)
def test_variants_of_bytes(engine: Engine, shared: Path, tmp_path: Path, name: str) -> None:
    compare(engine, variant(load(shared, "llama"), BYTEWISE[name]), tmp_path, 700)


def test_bytes_without_a_token(engine: Engine, shared: Path, tmp_path: Path) -> None:
    root = load(shared, "llama")
    for token in ("é", "Ł", "z"):  # stand for bytes; é and Ł are in many UTF-8 texts
        number = root["model"]["vocab"].pop(token)
        root["model"]["vocab"][f"unused{number}"] = number
    used = root["model"]["vocab"]
    root["model"]["merges"] = [
        m for m in root["model"]["merges"] if m[0] in used and m[1] in used and "".join(m) in used
    ]
    compare(engine, root, tmp_path, 500)
    root["model"]["unk_token"] = "!"
    compare(engine, root, tmp_path, 500)
    root["model"]["fuse_unk"] = True
    compare(engine, root, tmp_path, 500)


ADDED = [
    added("<l>", 0, lstrip=True), added("<r>", 0, rstrip=True), added("<lr>", 0, lstrip=True,
    rstrip=True, special=True), added("<w>", 0, single_word=True), added("def", 0),
    added("definition", 0), added("  ", 0), added("\n\n", 0), added("é", 0), added("世界", 0),
    added("word", 0, single_word=True), added("<n>", 0, normalized=True),
    added("<n> x", 0, normalized=True), added("<nl>", 0, normalized=True, lstrip=True),
    added("<nr>", 0, normalized=True, rstrip=True, special=True),
    added("nw", 0, normalized=True, single_word=True),
]  # fmt: skip


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


@pytest.mark.parametrize("name", [*FIRST_KINDS, "qwen3_moe"])
@pytest.mark.parametrize("count", [3, 9, 11, len(ADDED)])
def test_added_tokens(engine: Engine, shared: Path, tmp_path: Path, name: str, count: int) -> None:
    compare(engine, with_added(load(shared, name), ADDED[:count]), tmp_path, 1500)


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_added_tokens_with_metaspace(
    engine: Engine, shared: Path, tmp_path: Path, scheme: str
) -> None:
    root = variant(load(shared, "mixtral"), MARKED[f"metaspace {scheme} True"])
    compare(engine, with_added(root, ADDED), tmp_path, 1500)


# --- a tokenizer made here, without any fixture ---

SAMPLE = ["low lower lowest new newer newest wide wider widest", "the low road 1234, the new road"]


@pytest.fixture
def tiny() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SAMPLE, trainer)
    return tokenizer


def test_tiny_tokenizer_equals_the_library(engine: Engine, tiny: Tokenizer, tmp_path: Path) -> None:
    compare(engine, json.loads(tiny.to_str()), tmp_path, 1000)


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


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", [0]),
        ("ab", [0, 5]),
        (" ab", [0, 3, 5]),
        ("abab", [0, 5, 4]),  # "a b" twice, then the marker with the first
        ("ba", [0, 3, 2, 1]),
        ("é", [0, 3, 6, 7]),
        ("x", [0, 3, 0]),  # 0x78 has no byte token
        ("xyab", [0, 3, 0, 4]),  # unknowns fuse
        ("xé", [0, 3, 6, 7, 0]),  # an unknown waits for the next known character
        ("a<end>ab", [0, 3, 1, 9, 5]),
        ("<end", [0, 3, 0]),
    ],
)
def test_ids_worked_out_by_hand(engine: Engine, tmp_path: Path, text: str, ids: list[int]) -> None:
    engine.open(section_of(HAND, tmp_path), 10)
    assert engine.encode(text) == ids


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([], ""),
        ([0, 5, 3, 1, 9], "ab a"),
        ([0, 3, 3, 1], " a"),  # one space goes, not two
        ([3, 6, 7, 1], "éa"),
        ([6, 1], "\ufffda"),
        ([6, 7, 6, 1], "\ufffd\ufffd\ufffda"),  # a run that spells nothing is lost as a whole
        ([6, 0, 7], "é"),  # special tokens do not part a run
    ],
)
def test_text_worked_out_by_hand(engine: Engine, tmp_path: Path, ids: list[int], text: str) -> None:
    engine.open(section_of(HAND, tmp_path), 10)
    assert engine.decode(ids) == text
    assert engine.stream(ids) == text


def test_normalised_special_tokens_are_left_out_too(engine: Engine, tmp_path: Path) -> None:
    extra = [added("<t>", 10, special=True, normalized=True), added("<u>", 11, normalized=True)]
    engine.open(section_of(variant(HAND, {"added_tokens": extra}), tmp_path), 12)
    assert engine.encode("<t>ab<end><u>") == [0, 10, 4, 9, 11]  # the marker went to <t>
    assert engine.decode([0, 10, 5, 9, 11]) == "ab<u>"


# --- errors ---


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        (b"\xff", 0), (b"ab\x80", 2), (b"caf\xc3", 3), (b"a\xed\xa0\x80", 1), (b"\xc0\xaf", 0),
        (b"\xf4\x90\x80\x80", 0), ("世界".encode() + b"\xe4\xb8", 6), (b"x\xf0\x9f\x98", 1),
    ],
)  # fmt: skip
def test_invalid_utf8_names_the_byte(
    engine: Engine, tmp_path: Path, text: bytes, offset: int
) -> None:
    engine.open(section_of(HAND, tmp_path), 10)
    code, message = engine.ask("e", text)
    assert code == ERROR_INPUT
    assert f"at byte {offset} (0x{text[offset]:02X})" in message.decode()


def test_ids_outside_the_model_are_errors(engine: Engine, tmp_path: Path) -> None:
    engine.open(section_of(HAND, tmp_path), 9)  # the model lacks <end>, 9
    assert engine.encode("ab") == [0, 5]
    code, message = engine.ask("e", b"ab<end>")
    assert (code, b"token 9" in message) == (ERROR_INPUT, True)
    for number in (-1, 9, 1 << 30):
        code, message = engine.ask("d", struct.pack("<i", number))
        assert (code, str(number).encode() in message) == (ERROR_INPUT, True)


HOSTILE_TEXT = f"abé x ab <s> {MARKER} ab<end>abababab 12 é x'll  a e\u0323\u0301\u1112\u1161"
NO_MARKERS: Json = {
    "normalizer": None,
    "decoder": {"type": "ByteLevel"},
    "model": {"byte_fallback": False, "ignore_merges": True},
}


def damage(engine: Engine, section: bytes, stride: int) -> tuple[int, int]:
    """How many damaged sections opened (and were used) and how many were refused."""
    text = HOSTILE_TEXT.encode()
    answer = engine.result("m", struct.pack("<II", len(text), stride) + text + section)
    opened, refused = struct.unpack("<II", answer)
    return opened, refused


def test_damaged_sections_are_refused_or_harmless(engine: Engine, tmp_path: Path) -> None:
    few = sequence("pretokenizers", split("[a-z]+|[ ']a?(?!b)"), byte_level(regex=False))
    for json_root in (
        variant(HAND, {"added_tokens": [added("é x", 10, normalized=True)]}),
        variant(HAND, NO_MARKERS | {"pre_tokenizer": few}),
    ):
        section = section_of(json_root, tmp_path)
        opened, refused = damage(engine, section, 1)
        assert opened + refused == 256 * len(section)
        assert refused > 200 * len(section)  # most of it is tables of small numbers


@pytest.mark.parametrize(
    "changes",
    [
        {"added_tokens": [added("é x", 10, normalized=True, lstrip=True)]},
        NO_MARKERS | {"pre_tokenizer": byte_level()},
        NO_MARKERS | {"pre_tokenizer": byte_level(), "normalizer": {"type": "NFC"}},
    ],
)
def test_damaged_tables_of_characters_are_refused_or_harmless(
    engine: Engine, tmp_path: Path, changes: Json
) -> None:
    section = section_of(variant(HAND, changes), tmp_path)
    stride = len(section) // 150  # every place of a row of 4, 12 or 20 bytes comes up
    stride += 1 - stride % 2
    opened, refused = damage(engine, section, stride)
    assert opened + refused == 9 * -(-len(section) // stride)
    assert min(opened, refused) > 100


def test_an_automaton_that_takes_too_long_is_an_error(engine: Engine, tmp_path: Path) -> None:
    """`a+b|a` looks ahead to the end of the text at each a; no real tokenizer does so."""
    engine.open(section_of(bytewise(split("a+b|a")), tmp_path), 256)
    assert len(engine.encode("a" * 60 + "b" + "a" * 60)) == 121
    code, message = engine.ask("e", b"a" * 100000)
    assert (code, b"convert the checkpoint again" in message) == (ERROR_FORMAT, True)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, 0, "CLBT"),
        (4, 3, "version 3 is not known; use a newer"),
        (4, 1, "older than this colibri reads"),
        (8, 1 << 30, "table of chunks"),
        (16, 77, "chunk 77"),
    ],
)
def test_a_refused_section_says_why(
    engine: Engine, tmp_path: Path, offset: int, value: int, message: str
) -> None:
    section = bytearray(section_of(HAND, tmp_path))
    section[offset : offset + 4] = struct.pack("<I", value)
    code, answer = engine.ask("o", struct.pack("<I", 10) + section)
    assert code == ERROR_FORMAT
    assert message in answer.decode()


def test_a_pattern_that_would_cut_a_character_is_refused(engine: Engine, tmp_path: Path) -> None:
    before, pattern, after = section_of(HAND, tmp_path).rpartition(b"<end>")  # pieces come first
    section = before + pattern.replace(b"<", b"\xa9") + after
    code, answer = engine.ask("o", struct.pack("<I", 10) + section)
    assert (code, b"not UTF-8" in answer) == (ERROR_FORMAT, True)


def test_a_piece_that_is_put_as_it_is_must_be_text(engine: Engine, tmp_path: Path) -> None:
    section = section_of(HAND, tmp_path).replace(b"<end>", b"\xa9end>", 1)
    code, answer = engine.ask("o", struct.pack("<I", 10) + section)
    assert (code, b"the piece of id" in answer) == (ERROR_FORMAT, True)


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


# --- time ---

SLOW = {
    "prose": "The mixture of experts layer keeps 64 blocks, and picks a few. ",
    "one word": "a",
    "letters": "etaoin",
    "spaces": " ",
    "lines": " \n",
    "punctuation": "<",
    "almost added": "<|begin_of_text|<s",
    "bytes": "é\u0378",
}
MORE_SLOW = {"marks": "\u0301\u0323\u0334", "cases": "AAAAAAAAAAaaaaa"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in FIRST_KINDS for kind in SLOW),
        ("qwen3_moe", "prose"),
        ("qwen3_moe", "marks"),
        ("gpt_oss", "prose"),
        ("gpt_oss", "cases"),
        ("deepseek_v3", "prose"),
        ("deepseek_v3", "lines"),
    ],
)
def test_a_megabyte_gives_the_ids_of_the_library(
    engine: Engine, shared: Path, name: str, kind: str
) -> None:
    """Quadratic work would take hours here: it would not pass unseen."""
    directory = shared / "fixtures" / name
    engine.open(build_tokenizer_section(directory), 1000)
    text = ((SLOW | MORE_SLOW)[kind] * (1 << 20)).encode()[: 1 << 20].decode(errors="ignore")
    library = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert engine.encode(text) == library.encode(text).ids
