# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The engine's tokenizers against the library `tokenizers`, id by id and byte by byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_smollm2 import reference_tokenizer
from tokenizer_fixtures import (
    FALLBACK,
    FIRST_KINDS,
    FUSE,
    HAND,
    PREPEND,
    REPLACE,
    STRIP,
    UNREPLACE,
    EngineTokenizer,
    Json,
    added,
    byte_level,
    compare,
    load,
    metaspace,
    section_of,
    sequence,
    texts,
    variant,
    with_added,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.normalizers import NFC

from colibri_deploy.demo_model import obtain_demo_model
from colibri_deploy.errors import DownloadError
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


@pytest.mark.parametrize("name", FIXTURES)
def test_golden_prompts(tokenizer: EngineTokenizer, shared: Path, name: str) -> None:
    golden = json.loads((shared / "fixtures" / name / "golden.json").read_bytes())
    tokenizer.open(build_tokenizer_section(shared / "fixtures" / name), golden["vocab_size"])
    compared = 0
    for prompt in golden["prompts"]:
        if "skipped" in prompt:
            continue
        assert tokenizer.encode(prompt["text"]) == prompt["input_ids"], prompt["name"]
        text = tokenizer.decode(prompt["generated_ids"])
        assert text == prompt["generated_text_skip_special"], prompt["name"]
        full = tokenizer.decode(prompt["input_ids"] + prompt["generated_ids"])
        assert full == prompt["full_text_skip_special"], prompt["name"]
        compared += 1
    assert compared >= 10


@pytest.mark.parametrize("name", KINDS)
def test_fixture_equals_the_library(
    tokenizer: EngineTokenizer, shared: Path, tmp_path: Path, name: str
) -> None:
    compare(tokenizer, load(shared, name), tmp_path, 3000)


@pytest.mark.parametrize("name", BYTE_LEVEL_KINDS)
def test_byte_level_gives_every_text_back(
    tokenizer: EngineTokenizer, shared: Path, tmp_path: Path, name: str
) -> None:
    root = load(shared, name)
    tokenizer.open(section_of(root, tmp_path), 1000)
    normalize = NFC().normalize_str if root["normalizer"] else str

    @settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.text())
    def gives_back(text: str) -> None:
        if not any(token["content"] in text for token in root["added_tokens"]):
            assert tokenizer.decode(tokenizer.encode(text)) == normalize(text)

    gives_back()


def test_smollm2_s_gguf_equals_the_library(
    tokenizer: EngineTokenizer, require: Callable[[bool, str], None]
) -> None:
    try:
        source = obtain_demo_model()
    except DownloadError as error:
        require(False, f"no SmolLM2: {error.message}\n{error.details}")
        raise
    library = reference_tokenizer(source)
    tokenizer.open(build_gguf_tokenizer(GgufFile.open(source)), 49152)
    special = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>"]
    for text in texts(3, 2500, special):
        expected = library.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == expected, repr(text)
        assert tokenizer.decode(expected) == library.decode(expected, skip_special_tokens=True)


# --- variants ---

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


@pytest.mark.parametrize("name", MARKED)
def test_variants_with_markers(
    tokenizer: EngineTokenizer, shared: Path, tmp_path: Path, name: str
) -> None:
    compare(tokenizer, variant(load(shared, "mixtral"), MARKED[name]), tmp_path, 700)


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
def test_variants_of_bytes(
    tokenizer: EngineTokenizer, shared: Path, tmp_path: Path, name: str
) -> None:
    compare(tokenizer, variant(load(shared, "llama"), BYTEWISE[name]), tmp_path, 700)


def test_bytes_without_a_token(tokenizer: EngineTokenizer, shared: Path, tmp_path: Path) -> None:
    root = load(shared, "llama")
    for token in ("é", "Ł", "z"):  # stand for bytes; é and Ł are in many UTF-8 texts
        number = root["model"]["vocab"].pop(token)
        root["model"]["vocab"][f"unused{number}"] = number
    used = root["model"]["vocab"]
    root["model"]["merges"] = [
        m for m in root["model"]["merges"] if m[0] in used and m[1] in used and "".join(m) in used
    ]
    compare(tokenizer, root, tmp_path, 500)
    root["model"]["unk_token"] = "!"
    compare(tokenizer, root, tmp_path, 500)
    root["model"]["fuse_unk"] = True
    compare(tokenizer, root, tmp_path, 500)


ADDED = [
    added("<l>", 0, lstrip=True), added("<r>", 0, rstrip=True), added("<lr>", 0, lstrip=True,
    rstrip=True, special=True), added("<w>", 0, single_word=True), added("def", 0),
    added("definition", 0), added("  ", 0), added("\n\n", 0), added("é", 0), added("世界", 0),
    added("word", 0, single_word=True), added("<n>", 0, normalized=True),
    added("<n> x", 0, normalized=True), added("<nl>", 0, normalized=True, lstrip=True),
    added("<nr>", 0, normalized=True, rstrip=True, special=True),
    added("nw", 0, normalized=True, single_word=True),
]  # fmt: skip


@pytest.mark.parametrize("name", [*FIRST_KINDS, "qwen3_moe"])
@pytest.mark.parametrize("count", [3, 9, 11, len(ADDED)])
def test_added_tokens(
    tokenizer: EngineTokenizer, shared: Path, tmp_path: Path, name: str, count: int
) -> None:
    compare(tokenizer, with_added(load(shared, name), ADDED[:count]), tmp_path, 1500)


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_added_tokens_with_metaspace(
    tokenizer: EngineTokenizer, shared: Path, tmp_path: Path, scheme: str
) -> None:
    root = variant(load(shared, "mixtral"), MARKED[f"metaspace {scheme} True"])
    compare(tokenizer, with_added(root, ADDED), tmp_path, 1500)


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


def test_tiny_tokenizer_equals_the_library(
    tokenizer: EngineTokenizer, tiny: Tokenizer, tmp_path: Path
) -> None:
    compare(tokenizer, json.loads(tiny.to_str()), tmp_path, 1000)


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
def test_ids_worked_out_by_hand(
    tokenizer: EngineTokenizer, tmp_path: Path, text: str, ids: list[int]
) -> None:
    tokenizer.open(section_of(HAND, tmp_path), 10)
    assert tokenizer.encode(text) == ids


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
def test_text_worked_out_by_hand(
    tokenizer: EngineTokenizer, tmp_path: Path, ids: list[int], text: str
) -> None:
    tokenizer.open(section_of(HAND, tmp_path), 10)
    assert tokenizer.decode(ids) == text
    assert tokenizer.stream(ids) == text


def test_normalised_special_tokens_are_left_out_too(
    tokenizer: EngineTokenizer, tmp_path: Path
) -> None:
    extra = [added("<t>", 10, special=True, normalized=True), added("<u>", 11, normalized=True)]
    tokenizer.open(section_of(variant(HAND, {"added_tokens": extra}), tmp_path), 12)
    assert tokenizer.encode("<t>ab<end><u>") == [0, 10, 4, 9, 11]  # the marker went to <t>
    assert tokenizer.decode([0, 10, 5, 9, 11]) == "ab<u>"


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
    tokenizer: EngineTokenizer, shared: Path, name: str, kind: str
) -> None:
    """Quadratic work would take hours here: it would not pass unseen."""
    directory = shared / "fixtures" / name
    tokenizer.open(build_tokenizer_section(directory), 1000)
    text = ((SLOW | MORE_SLOW)[kind] * (1 << 20)).encode()[: 1 << 20].decode(errors="ignore")
    library = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert tokenizer.encode(text) == library.encode(text).ids
