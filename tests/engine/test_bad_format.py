# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Every rule of docs/FORMAT.md, broken one at a time in a model that is good otherwise.

All checksums are made right again, so that only the rule itself can refuse the file.
"""

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from synthetic import Shape, write_checkpoint

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.process import Completed

Run = Callable[..., Completed]

U64 = 1 << 64
SHAPE = Shape(hidden=32, ffn=40, experts=3, top_k=2, layers=3, heads=4, kv_heads=2, vocab=50)
FREE = 32768  # a place between the tables and the first item

# Offset and type of the fields of the header, and of an entry of the section table.
HEADER = {
    "magic": (0, "16s"),
    "version": (16, "I"),
    "byte_order": (20, "I"),
    "n_sections": (24, "I"),
    "n_items": (28, "I"),
    "file_size": (32, "Q"),
    "sections_offset": (40, "Q"),
    "crcs_offset": (48, "Q"),
}
ENTRY = {
    "name": (0, "32s"),
    "dtype": (32, "I"),
    "layout": (36, "I"),
    "n_layers": (40, "I"),
    "n_experts": (44, "I"),
    "rows": (48, "I"),
    "cols": (52, "I"),
    "offset": (56, "Q"),
    "layer_stride": (64, "Q"),
    "expert_stride": (72, "Q"),
    "item_size": (80, "Q"),
    "first_crc": (88, "I"),
}


class File:
    """The bytes of a model, and its fields by name."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)

    def entry(self, section: str) -> int:
        """Where the entry of a section starts."""
        for at in range(128, 128 + 128 * self.get("n_sections"), 128):
            if self.data[at : at + 32].rstrip(b"\0") == section.encode():
                return at
        raise AssertionError(section)

    def place(self, field: str, section: str) -> tuple[int, str]:
        """Where a field is, and its type."""
        offset, code = ENTRY[field] if section else HEADER[field]
        return offset + (self.entry(section) if section else 0), "<" + code

    def get(self, field: str, section: str = "") -> int:
        """A field of the header, or of a section's entry."""
        offset, code = self.place(field, section)
        value: int = struct.unpack_from(code, self.data, offset)[0]
        return value

    def put(self, field: str, value: int | bytes, section: str = "") -> None:
        """Changes a field."""
        offset, code = self.place(field, section)
        struct.pack_into(code, self.data, offset, value)

    def byte(self, offset: int, value: int) -> None:
        """Changes a byte."""
        self.data[offset] = value

    def add(self, name: bytes, cols: int = 16, dtype: int = 0, offset: int = FREE) -> None:
        """Appends a section of one row, of zeros."""
        n_sections, n_items = self.get("n_sections"), self.get("n_items")
        crcs = self.get("crcs_offset")
        table = self.data[crcs : crcs + 4 * n_items]
        size = cols * (1 if dtype == 6 else 4)
        fields = (name, dtype, 0, 1, 1, 1, cols, offset, 0, 0, size, n_items)
        entry = struct.pack("<32s6I4QI36x", *fields)
        crc = struct.pack("<I", zlib.crc32(bytes(size)))
        self.data[crcs : crcs + 128 + len(table) + 4] = entry + table + crc
        self.put("n_sections", n_sections + 1)
        self.put("n_items", n_items + 1)
        self.put("crcs_offset", crcs + 128)

    def sealed(self) -> bytes:
        """The file, with the checksums of header and tables as they should be."""
        n_sections, n_items = self.get("n_sections"), self.get("n_items")
        end = 128 + 128 * n_sections
        struct.pack_into("<I", self.data, 56, zlib.crc32(self.data[128:end]))
        struct.pack_into("<I", self.data, 60, zlib.crc32(self.data[end : end + 4 * n_items]))
        struct.pack_into("<I", self.data, 124, zlib.crc32(self.data[:124]))
        return bytes(self.data)


class Damage(NamedTuple):
    """A change, the exit code it gives, and words of the line that says so."""

    change: Callable[[File], None]
    code: int
    words: str


def header(field: str, value: int | bytes, words: str, code: int = 5) -> Damage:
    """A field of the header becomes `value`."""
    return Damage(lambda file: file.put(field, value), code, words)


def entry(section: str, words: str = "", **fields: int | bytes) -> Damage:
    """Fields of a section's entry change."""

    def change(file: File) -> None:
        for field, value in reversed(fields.items()):  # the name last
            file.put(field, value, section)

    return Damage(change, 5, words or f"({section}) is not valid")


def moved(section: str, field: str, by: int, words: str = "") -> Damage:
    """A field of a section's entry grows by `by`."""

    def change(file: File) -> None:
        file.put(field, file.get(field, section) + by, section)

    return Damage(change, 5, words or f"({section}) is not valid")


def copied(field: str, source: str, target: str, words: str, plus: int = 0) -> Damage:
    """A field of one section becomes that of another, and some."""

    def change(file: File) -> None:
        file.put(field, file.get(field, source) + plus, target)

    return Damage(change, 5, words)


def exchange_crcs(file: File) -> None:
    """Keys and values have as many items: their checksums change places."""
    one, other = file.get("first_crc", "attention_k"), file.get("first_crc", "attention_v")
    file.put("first_crc", other, "attention_k")
    file.put("first_crc", one, "attention_v")


def last_section(file: File) -> str:
    """The section whose items come last in the file."""
    at = max(
        range(128, 128 + 128 * file.get("n_sections"), 128),
        key=lambda at: int(struct.unpack_from("<Q", file.data, at + 56)[0]),
    )
    return file.data[at : at + 32].rstrip(b"\0").decode()


def cut_off(file: File) -> None:
    """The file is one byte shorter than it says."""
    del file.data[-1]


def cut_last_byte(file: File) -> None:
    """The file is one byte shorter, and says so; the last item is not."""
    del file.data[-1]
    file.put("file_size", len(file.data))


def behind_the_end(file: File) -> None:
    """The last section starts where the file ends."""
    file.put("offset", (len(file.data) + 4095) // 4096 * 4096, last_section(file))


def no_sections(file: File) -> None:
    """A file of no sections, and no items."""
    file.put("n_sections", 0)
    file.put("n_items", 0)
    file.put("crcs_offset", 128)


def many_sections(file: File) -> None:
    """One section more than there may be; the table of checksums moves with them."""
    file.put("n_sections", 257)
    file.put("crcs_offset", 128 + 128 * 257)


def into_the_tables(file: File) -> None:
    """An item starts in the last 64 bytes of the tables."""
    end = file.get("crcs_offset") + 4 * file.get("n_items")
    file.put("offset", (end - 1) // 64 * 64, "final_norm")


INVALID: dict[str, Damage] = {
    # the header
    "magic": header("magic", b"COLIBRIv2", "does not start with COLIBRIv1"),
    "other format": header("magic", b"GGUF", "does not start with COLIBRIv1"),
    "padding of the magic": Damage(lambda f: f.byte(15, 1), 5, "does not start with COLIBRIv1"),
    "newer version": header("version", 2, "format version 2, this Colibri reads 1"),
    "version 0": header("version", 0, "version, byte order or a reserved field"),
    "byte order": header("byte_order", 0x04030201, "version, byte order or a reserved field"),
    "first reserved byte": Damage(lambda f: f.byte(64, 1), 5, "a reserved field is not valid"),
    "last reserved byte": Damage(lambda f: f.byte(123, 1), 5, "a reserved field is not valid"),
    "no sections": Damage(no_sections, 5, "the tables do not fit"),
    "257 sections": Damage(many_sections, 5, "the tables do not fit"),
    "sections offset": header("sections_offset", 256, "the tables do not fit"),
    "crcs offset": header("crcs_offset", 128, "the tables do not fit"),
    "items beyond the end": header("n_items", 0xFFFFFFFF, "the tables do not fit"),
    "one byte more": Damage(lambda f: f.data.append(0), 6, "its header says"),
    "one byte less": Damage(cut_off, 6, "its header says"),
    "larger file size": header("file_size", 1 << 40, f"its header says {1 << 40}", 6),
    # the section table
    "no name": entry("rope", "() is not valid", name=b""),
    "name behind a zero": entry("rope", "() is not valid", name=b"\0ope"),
    "name without end": entry("rope", "entry", name=b"r" * 32),
    "bytes behind the name": entry("rope", name=b"rope\0x"),
    "last byte of the name": entry("rope", name=b"rope".ljust(31, b"\0") + b"x"),
    "two of a name": Damage(lambda f: f.add(b"rope"), 5, "two sections are named rope"),
    "section unknown": Damage(lambda f: f.add(b"attention_bias"), 5, "attention_bias is not part"),
    "section missing": entry("lm_head", "not", name=b"head"),
    "dtype 7": entry("attention_q", dtype=7),
    "dtype 2^32 - 1": entry("attention_q", dtype=0xFFFFFFFF),
    "dtype that is reserved": entry("attention_q", dtype=5),
    "dtype of other size": entry("attention_q", dtype=1),
    "tiles of bytes": entry("attention_q", dtype=6, item_size=2048),
    "rows of blocks": entry("final_norm", dtype=3, item_size=1088),
    "layout 2": entry("attention_q", layout=2, item_size=4 * 32 * 32),
    "no layers": entry("attention_q", n_layers=0, layer_stride=0),
    "no experts": entry("attention_q", n_experts=0),
    "no rows": entry("attention_q", rows=0, item_size=0),
    "no columns": entry("attention_q", cols=0, item_size=0),
    "size that overflows to 0": entry("attention_q", rows=1 << 31, cols=1 << 31, item_size=0),
    "most rows": entry("attention_q", rows=0xFFFFFFFF),
    "most columns": entry("attention_q", cols=0xFFFFFFFF),
    "offset of tiles": moved("lm_head", "offset", 64),
    "offset of rows": moved("rope", "offset", 4),
    "layer stride of tiles": moved("attention_q", "layer_stride", 64),
    "layer stride of rows": moved("attention_norm", "layer_stride", 4),
    "expert stride of tiles": moved("gate_weights", "expert_stride", 64),
    "layer stride of one layer": entry("lm_head", layer_stride=4096),
    "expert stride of one expert": entry("attention_q", expert_stride=4096),
    "item size below": moved("attention_q", "item_size", -1),
    "item size above": moved("attention_q", "item_size", 1),
    "layer stride that overflows": entry("attention_q", layer_stride=1 << 63),
    "expert stride that overflows": entry("gate_weights", expert_stride=1 << 63),
    "sum of strides that overflows": entry(
        "gate_weights", layer_stride=(1 << 62) + 4096, expert_stride=1 << 62
    ),
    "offset that overflows": entry("attention_q", offset=U64 - 4096),
    "size that overflows": entry("lm_head", offset=U64 - 4096),
    "large offset": entry("attention_q", offset=1 << 62),
    "last item ends behind the file": Damage(cut_last_byte, 5, "is not valid"),
    "last item starts behind the file": Damage(behind_the_end, 5, "is not valid"),
    "checksums exchanged": Damage(exchange_crcs, 5, "section attention_k are not where"),
    "first checksum": moved("rope", "first_crc", 1, "section rope are not where"),
    "reserved byte": Damage(
        lambda f: f.byte(f.entry("rope") + 92, 1), 5, "(rope) is not valid"
    ),
    "last reserved byte of an entry": Damage(
        lambda f: f.byte(f.entry("rope") + 127, 1), 5, "(rope) is not valid"
    ),
    "item too many": Damage(
        lambda f: f.put("n_items", f.get("n_items") + 1), 5, "more or fewer items"
    ),
    "item too few": Damage(
        lambda f: f.put("n_items", f.get("n_items") - 1), 5, "more or fewer items"
    ),
    # items
    "one place for two sections": copied("offset", "attention_k", "attention_v", "items overlap"),
    "overlap of the last bytes": copied("offset", "ffn_norm", "final_norm", "items overlap", 320),
    "one place for two layers": entry("attention_k", "items overlap", layer_stride=0),
    "one place for two experts": entry("gate_weights", "items overlap", expert_stride=0),
    "layers that overlap": entry("ffn_norm", "items overlap", layer_stride=64),
    "item in the header": entry("final_norm", "items overlap", offset=0),
    "item in the section table": entry("final_norm", "items overlap", offset=128),
    "item in the checksums": Damage(into_the_tables, 5, "items overlap"),
    # what the architecture wants
    "tokenizer of floats": Damage(lambda f: f.add(b"tokenizer"), 5, "tokenizer has a wrong shape"),
    "tokenizer that is none": Damage(lambda f: f.add(b"tokenizer", dtype=6), 5, "CLBT"),
}  # fmt: skip


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that nothing is wrong with, not to be changed."""
    directory = tmp_path_factory.mktemp("good")
    write_checkpoint(directory / "checkpoint", SHAPE)
    convert_checkpoint(directory / "checkpoint", directory / "model", "f32")
    return directory / "model"


@pytest.fixture
def outcome(good: Path, tmp_path: Path, run_engine: Run) -> Callable[[bytes], Completed]:
    """A function that runs the engine on the good model with another model.bin."""

    def run_it(data: bytes) -> Completed:
        (tmp_path / "model.bin").write_bytes(data)
        named = ("--model", tmp_path / "model.bin", "--config", good / "config.json")
        return run_engine("x86_64", *named, "--tokens", "1,2", "--num_tokens=0", "--format=ids")

    return run_it


def says(result: Completed, code: int, words: str) -> None:
    """The engine ended with the code and one line that holds the words."""
    assert (result.status, result.stdout) == (code, ""), result.stderr
    assert result.stderr.startswith("colibri: error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


@pytest.mark.parametrize("name", INVALID)
def test_a_broken_rule_is_named(
    name: str, good: Path, outcome: Callable[[bytes], Completed]
) -> None:
    file = File((good / "model.bin").read_bytes())
    INVALID[name].change(file)
    says(outcome(file.sealed()), INVALID[name].code, INVALID[name].words)


def test_what_no_rule_forbids_is_read(good: Path, outcome: Callable[[bytes], Completed]) -> None:
    data = (good / "model.bin").read_bytes()
    assert outcome(data).status == 0
    assert outcome(File(data).sealed()).status == 0
    # right behind the tables, and right behind the item before
    file = File(data)
    ends = file.get("crcs_offset") + 4 * file.get("n_items"), FREE + 128
    for place in (-(-ends[0] // 64) * 64, ends[1]):
        start = file.get("offset", "final_norm")
        file.data[place : place + 128] = file.data[start : start + 128]
        file.put("offset", place, "final_norm")
        result = outcome(file.sealed())
        assert (result.status, result.stderr) == (0, "")


@pytest.mark.parametrize("name", ["final_norm", "attention_k", "gate_weights", "lm_head"])
def test_each_item_has_a_checksum_of_its_own(
    name: str, good: Path, outcome: Callable[[bytes], Completed]
) -> None:
    data = (good / "model.bin").read_bytes()
    whole = File(data)
    size = whole.get("item_size", name)
    for layer in range(whole.get("n_layers", name)):
        for expert in range(whole.get("n_experts", name)):
            start = whole.get("offset", name) + layer * whole.get("layer_stride", name)
            start += expert * whole.get("expert_stride", name)
            for offset in (start, start + size - 1):
                file = File(data)
                file.data[offset] ^= 0x80
                says(outcome(file.sealed()), 7, f"{name}, layer {layer}, expert {expert} does")


@pytest.mark.parametrize(
    ("offset", "what"),
    [
        *((offset, "the header") for offset in (20, 24, 36, 60, 64, 123, 124, 127)),
        *((offset, "the section table") for offset in (128, 255, 128 + 92)),
        *((128 + 128 * 14 + offset, "the CRC table") for offset in (0, 3, 4)),
    ],
)
def test_a_flipped_bit_in_a_table_is_named(
    offset: int, what: str, good: Path, outcome: Callable[[bytes], Completed]
) -> None:
    data = bytearray((good / "model.bin").read_bytes())
    assert struct.unpack_from("<I", data, 24) == (14,)
    data[offset] ^= 0x10
    says(outcome(bytes(data)), 7, f"{what} does not match its checksum")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"bos_id": 50}, "bos_id is not below vocab_size"),
        ({"bos_id": -2}, '"bos_id" is -2'),
        ({"eos_ids": [50]}, "an entry of eos_ids is not below vocab_size"),
        ({"eos_ids": [1, 50, 2]}, "an entry of eos_ids is not below vocab_size"),
        ({"eos_ids": [-1]}, '"eos_ids" is -1'),
        ({"head_dim": 7}, "head_dim is odd"),
        ({"top_k": 0}, "n_experts and top_k must both be 0 (dense) or both be positive"),
    ],
)
def test_a_configuration_that_makes_no_sense(
    values: dict[str, object], words: str, good: Path, tmp_path: Path, run_engine: Run
) -> None:
    config = json.loads((good / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | values), encoding="utf-8")
    named = ("--model", good / "model.bin", "--config", tmp_path / "config.json")
    says(run_engine("x86_64", *named, "--tokens", "1"), 4, words)


def test_the_last_ids_of_the_vocabulary_are_fine(
    good: Path, tmp_path: Path, run_engine: Run
) -> None:
    config = json.loads((good / "config.json").read_text(encoding="utf-8"))
    config |= {"bos_id": 49, "eos_ids": [49, 0]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    named = ("--model", good / "model.bin", "--config", tmp_path / "config.json")
    result = run_engine("x86_64", *named, "--tokens", "49", "--format", "ids")
    assert (result.status, result.stderr) == (0, "")


@pytest.mark.parametrize(("option", "limit"), [("batch", 4096), ("threads", 1024)])
def test_more_than_the_largest_number(option: str, limit: int, good: Path, run_engine: Run) -> None:
    asked = ("--model", good, "--tokens", "1", "--format", "ids", f"--{option}")
    says(run_engine("x86_64", *asked, str(limit + 1)), 2, str(limit))
    says(run_engine("x86_64", *asked, str(2**31)), 2, f"--{option} is {2**31}")
    result = run_engine("x86_64", *asked, str(limit), "--num_tokens", "0")
    assert (result.status, result.stderr) == (0, "")
