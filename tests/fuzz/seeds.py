# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The seeds of the fuzzers: small models of every family, the fixtures' tokenizers, and corpus.zip.

corpus.zip holds what reached an edge of its own in a million runs (libFuzzer's -merge=1 with
-use_counters=0), of config.json and of model.bin, up to 4 KB each.

A model's sections are moved together, and what lies in them is left out but for the tokenizer: the
fuzzer fills the file up. The forms of the inputs stand at the top of fuzz_model.c and
fuzz_tokenizer.c.
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from synthetic import Shape, write_checkpoint
from synthetic_families import KINDS, MIXED, write_family

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.tokenizer import build_tokenizer_section
from colibri_deploy.tokenizer_section import pack, unpack

HEADER = ENTRY = 128
SMALL = {"hidden_size": 8, "ffn_size": 8, "head_dim": 4, "vocab_size": 20, "n_heads": 2}
SMALL_MIXTRAL = Shape(
    hidden=8, ffn=8, experts=2, top_k=1, layers=1, heads=2, kv_heads=1, vocab=20
)  # fmt: skip
SMALL_LATENT = {"head_dim": 6, "rope_dim": 2, "kv_rank": 8, "v_dim": 4, "q_rank": 0}
FIXTURES = ("mixtral", "llama", "starcoder_moe", "qwen2_moe", "deepseek_v3", "gpt_oss")
TEXTS = (
    "Hello, world!  12345\n\n\tcan't ",
    "<s> <|endoftext|>  é\u0301 \U0001f469\u200d\U0001f680 한국어 \u2581a\u2581\u2581",
)

# A chunk `chat`: flags, ends of nine strings, one stop, one mark, the strings.
CHAT = 0x80000001
CHAT_FORM = (
    struct.pack("<14I", 0b111111111, 2, 4, 6, 7, 9, 9, 9, 10, 12, 1, 1, 5, 7) + b"<s> S /U A:\n"
)

# Flags of fuzz_model.c, and fillings: zeros, and numbers that are finite in every type.
SEAL, VERIFY, QUANTIZE = 3, 4, 8
FILLINGS = (0, 0x3C)


class Section(NamedTuple):
    """An entry of the section table: its first 56 bytes, and what lies at its first item."""

    name: str
    head: bytes
    n_layers: int
    n_experts: int
    tiles: bool
    item_size: int
    start: bytes


def sections(data: bytes) -> Iterator[Section]:
    """The sections of a model.bin."""
    for at in range(HEADER, HEADER + ENTRY * struct.unpack_from("<I", data, 24)[0], ENTRY):
        layout, layers, experts = struct.unpack_from("<III", data, at + 36)
        offset, item_size = struct.unpack_from("<Q16xQ", data, at + 56)
        name = data[at : at + 32].rstrip(b"\0").decode()
        start = data[offset : offset + item_size]
        yield Section(name, data[at : at + 56], layers, experts, layout == 1, item_size, start)


def compact(data: bytes, kept: str = "tokenizer") -> bytes:
    """A model.bin with its sections close together, cut off behind the section `kept`."""
    found = sorted(sections(data), key=lambda s: (s.name != kept, s.tiles))
    n_items = sum(s.n_layers * s.n_experts for s in found)
    crcs = HEADER + ENTRY * len(found)
    at, first_crc = crcs + 4 * n_items + 256, 0  # so that some sections may be added
    table, kept_bytes = b"", b""
    for section in found:
        align = 4096 if section.tiles else 64
        offset = -(-at // align) * align
        stride = -(-section.item_size // align) * align
        layer_stride = stride * section.n_experts if section.n_layers > 1 else 0
        expert_stride = stride if section.n_experts > 1 else 0
        table += section.head + struct.pack(
            "<QQQQI36x", offset, layer_stride, expert_stride, section.item_size, first_crc
        )
        if section.name == kept:
            kept_bytes = bytes(offset - crcs) + section.start
        n = section.n_layers * section.n_experts
        first_crc += n
        at = offset + stride * (n - 1) + section.item_size
    head = struct.pack(
        "<16s4IQQQ", b"COLIBRIv1", 1, 0x01020304, len(found), n_items, at, HEADER, crcs
    )
    return head.ljust(HEADER, b"\0") + table + kept_bytes


def model_input(config: str, model: bytes, flags: int = SEAL, filling: int = 0) -> bytes:
    """An input of fuzz_model.c."""
    return bytes([flags, filling]) + config.encode() + b"\0" + model


def tokenizer_input(section: bytes, text: str, more_ids: int = 0) -> bytes:
    """An input of fuzz_tokenizer.c."""
    encoded = text.encode()
    return struct.pack("<bH", more_ids, len(encoded)) + encoded + section


def small_models(scratch: Path, shared: Path) -> Iterator[Path]:
    """Small converted models: a Mixtral in each type, one with a tokenizer, one of each family."""
    write_checkpoint(scratch / "checkpoint", SMALL_MIXTRAL)
    for dtype in ("f32", "f16", "q8", "q4", "mxfp4"):
        convert_checkpoint(scratch / "checkpoint", scratch / dtype, dtype)
        yield scratch / dtype
    shutil.copy(shared / "fixtures/mixtral/tokenizer.json", scratch / "checkpoint")
    convert_checkpoint(scratch / "checkpoint", scratch / "tokenizer", "q8")
    yield scratch / "tokenizer"
    for name, kind in KINDS.items():
        listed = kind.config.get("dense_layers", []) + kind.config.get("window_layers", [])
        changes = SMALL | {"n_kv_heads": 1, "n_layers": max(1, *listed) + 1 if listed else 1}
        if "kv_rank" in kind.config:
            changes |= SMALL_LATENT | ({"q_rank": 8} if "q_rank" in kind.config else {})
        elif "rope_dim" in kind.config:
            changes["rope_dim"] = min(4, kind.config["rope_dim"])
        for key in ("dense_ffn_size", "shared_ffn_size"):
            if key in kind.config:
                changes[key] = 8
        write_family(name, MIXED, scratch / name, changes)
        yield scratch / name


def write_seeds(directory: Path, shared: Path) -> None:
    """Write the seeds of each fuzzer into `directory`/TARGET. `shared` holds fixtures/."""
    for target in ("config", "model", "tokenizer"):
        (directory / target).mkdir(parents=True)
    with zipfile.ZipFile(Path(__file__).with_name("corpus.zip")) as corpus:
        corpus.extractall(directory)
    with tempfile.TemporaryDirectory() as scratch:
        for number, model in enumerate(small_models(Path(scratch), shared)):
            config = json.dumps(json.loads((model / "config.json").read_text(encoding="utf-8")))
            (directory / "config" / model.name).write_text(config, encoding="utf-8")
            kv = number % 4 << 4
            flags = SEAL | kv | (VERIFY if number % 3 else 0) | (0 if number % 2 else QUANTIZE)
            data = compact((model / "model.bin").read_bytes())
            seed = model_input(config, data, flags, FILLINGS[number % 2])
            (directory / "model" / model.name).write_bytes(seed)
    for name in FIXTURES:
        section = build_tokenizer_section(shared / "fixtures" / name)
        assert section is not None
        for number, text in enumerate(TEXTS):
            chat = {CHAT: CHAT_FORM} if number else {}
            seed = tokenizer_input(pack(unpack(section) | chat), text, number)
            (directory / "tokenizer" / f"{name}-{number}").write_bytes(seed)
