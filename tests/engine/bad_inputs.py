# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Bad inputs, each with the exit code and the exact line that `colibri` ends with.

Each breaks one rule in a model that is good otherwise. Where a rule of model.bin itself is broken,
the checksums are made right again, so that only the rule can refuse the file. The table is the data
of test_bad_inputs.py and, printed by this program, docs/bad-inputs.md:

    python tests/engine/bad_inputs.py > docs/bad-inputs.md
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from synthetic import Shape, write_checkpoint

from colibri_deploy.convert import DTypeChoice, convert_checkpoint

U64 = 1 << 64
SHAPE = Shape(hidden=32, ffn=40, experts=3, top_k=2, layers=3, heads=4, kv_heads=2, vocab=50)
FREE = 32768  # a place between the tables and the first item
PLACE = "MODEL"  # stands for the model's directory in a line

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

    def start(self, section: str) -> int:
        """Where the first item of a section is."""
        return self.get("offset", section)

    def seal(self, section: str) -> None:
        """Makes the checksum of a section's first item right."""
        size = self.get("item_size", section)
        crc = zlib.crc32(self.data[self.start(section) :][:size])
        at = self.get("crcs_offset") + 4 * self.get("first_crc", section)
        struct.pack_into("<I", self.data, at, crc)

    def chunk(self, tag: int) -> int:
        """Where a chunk of the tokenizer is."""
        start = self.start("tokenizer")
        for at in range(start + 16, start + 16 + 12 * 17, 12):
            found, offset = struct.unpack_from("<II", self.data, at)
            if found == tag:
                return start + int(offset)
        raise AssertionError(tag)

    def sealed(self) -> bytes:
        """The file, with the checksums of header and tables as they should be."""
        n_sections, n_items = self.get("n_sections"), self.get("n_items")
        end = 128 + 128 * n_sections
        struct.pack_into("<I", self.data, 56, zlib.crc32(self.data[128:end]))
        struct.pack_into("<I", self.data, 60, zlib.crc32(self.data[end : end + 4 * n_items]))
        struct.pack_into("<I", self.data, 124, zlib.crc32(self.data[:124]))
        return bytes(self.data)


class Scene:
    """A model to be damaged: a directory with config.json and model.bin."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.model = directory / "model.bin"
        self.config = directory / "config.json"

    def change(self, change: Callable[[File], object]) -> None:
        """Changes model.bin, and makes the checksums of its header and tables right."""
        file = File(self.model.read_bytes())
        change(file)
        self.model.write_bytes(file.sealed())

    def set(self, **values: object) -> None:
        """Changes keys of config.json; None takes one away."""
        old = json.loads(self.config.read_text(encoding="utf-8"))
        new = {key: value for key, value in (old | values).items() if value is not None}
        self.config.write_text(json.dumps(new), encoding="utf-8")

    def spell(self, key: str, text: str) -> None:
        """Spells the value of a key in config.json; each key has a line of its own."""
        config = json.loads(self.config.read_text(encoding="utf-8"))
        lines = [
            f'"{name}": {text if name == key else json.dumps(config[name])}' for name in config
        ]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        self.config.write_text(text, encoding="utf-8", errors="surrogateescape")


class Bad(NamedTuple):
    """A change to a good model, and how the engine must end. Without `line` nothing was refused."""

    name: str
    change: Callable[[Scene], object]
    code: int
    line: str
    arguments: tuple[str, ...] = ("--tokens", "1", "--num_tokens", "0", "--format", "ids")
    dtype: DTypeChoice = "f32"


PROMPT = ("--prompt", "a b", "--num_tokens", "0")


def whole(path: str, data: bytes) -> Callable[[Scene], object]:
    """A file of the model is something else."""
    return lambda scene: (scene.directory / path).write_bytes(data)


def link(path: str, target: str) -> Callable[[Scene], object]:
    """A file of the model is a link."""

    def change(scene: Scene) -> None:
        (scene.directory / path).unlink()
        (scene.directory / path).symlink_to(target)

    return change


def special(path: str, make: Callable[[Path], object]) -> Callable[[Scene], object]:
    """A file of the model is gone, and `make` puts something in its place."""

    def change(scene: Scene) -> None:
        (scene.directory / path).unlink()
        make(scene.directory / path)

    return change


def bits(offset: int) -> Callable[[Scene], object]:
    """A bit of model.bin is flipped, and no checksum is made right."""

    def change(scene: Scene) -> None:
        data = bytearray(scene.model.read_bytes())
        data[offset] ^= 0x10
        scene.model.write_bytes(data)

    return change


def file(change: Callable[[File], object]) -> Callable[[Scene], object]:
    """A change to model.bin."""
    return lambda scene: scene.change(change)


def header(field: str, value: int | bytes) -> Callable[[Scene], object]:
    """A field of the header becomes `value`."""
    return file(lambda f: f.put(field, value))


def entry(section: str, **fields: int | bytes) -> Callable[[Scene], object]:
    """Fields of a section's entry change."""

    def change(f: File) -> None:
        for field, value in reversed(fields.items()):  # the name last
            f.put(field, value, section)

    return file(change)


def moved(section: str, field: str, by: int) -> Callable[[Scene], object]:
    """A field of a section's entry grows by `by`."""
    return file(lambda f: f.put(field, f.get(field, section) + by, section))


def copied(field: str, source: str, target: str, plus: int = 0) -> Callable[[Scene], object]:
    """A field of one section becomes that of another, and some."""
    return file(lambda f: f.put(field, f.get(field, source) + plus, target))


def value(section: str, at: int, code: str, number: float) -> Callable[[Scene], object]:
    """A number in the first item of a section changes; the item's checksum is made right."""

    def change(f: File) -> None:
        struct.pack_into("<" + code, f.data, f.start(section) + at, number)
        f.seal(section)

    return file(change)


def chunk(tag: int, at: int, number: int) -> Callable[[Scene], object]:
    """A number in a chunk of the tokenizer changes, `at` bytes from its start."""

    def change(f: File) -> None:
        struct.pack_into("<I", f.data, f.chunk(tag) + at, number)
        f.seal("tokenizer")

    return file(change)


def sets(**values: object) -> Callable[[Scene], object]:
    """Keys of config.json change."""
    return lambda scene: scene.set(**values)


def spelled(key: str, text: str) -> Callable[[Scene], object]:
    """A key of config.json has a value that is spelled so."""
    return lambda scene: scene.spell(key, text)


def nothing(scene: Scene) -> None:
    """The model is good; what is asked of it is not."""


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


def many_items(file: File) -> None:
    """One item more than there may be, and room for its checksum."""
    file.put("n_items", (1 << 22) + 1)
    file.data += bytes(17 << 20)
    file.put("file_size", len(file.data))


def into_the_tables(file: File) -> None:
    """An item starts in the last 64 bytes of the tables."""
    end = file.get("crcs_offset") + 4 * file.get("n_items")
    file.put("offset", (end - 1) // 64 * 64, "final_norm")


TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [
        {"id": 9, "content": "<end>", "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    ],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": {
        "type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
        ],
    },
    "model": {
        "type": "BPE", "dropout": None, "unk_token": "u", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
        "vocab": {"u": 0, "a": 1, "b": 2, " ": 3, "ab": 4, "<0xC3>": 5, "<0xA9>": 6, "aba": 7,
                  " a": 8},
        "merges": [["a", "b"], ["ab", "a"], [" ", "a"]],
    },
}  # fmt: skip


def write_good_model(directory: Path, dtype: DTypeChoice) -> None:
    """Write the model, with a tokenizer, that nothing is wrong with."""
    checkpoint = directory.parent / f"{directory.name}-checkpoint"
    write_checkpoint(checkpoint, SHAPE)
    (checkpoint / "tokenizer.json").write_text(json.dumps(TOKENIZER), encoding="utf-8")
    convert_checkpoint(checkpoint, directory, dtype)


def truncated(scene: Scene, size: int) -> None:
    """model.bin ends after so many bytes."""
    os.truncate(scene.model, size)


def huge(scene: Scene) -> None:
    """config.json is larger than it may be."""
    scene.config.write_text("{" + " " * (1 << 20) + "}", encoding="utf-8")


def tokenizer_of(data: bytes) -> Callable[[Scene], object]:
    """The first bytes of the tokenizer change."""

    def change(f: File) -> None:
        start = f.start("tokenizer")
        f.data[start : start + len(data)] = data
        f.seal("tokenizer")

    return file(change)


def floats(scene: Scene) -> None:
    """The tokenizer is of 16 floats."""

    def change(f: File) -> None:
        for field, number in (("dtype", 0), ("cols", 16), ("item_size", 64)):
            f.put(field, number, "tokenizer")
        f.put("file_size", f.start("tokenizer") + 64)
        del f.data[f.start("tokenizer") + 64 :]
        f.seal("tokenizer")

    scene.change(change)


# fmt: off
TABLE: dict[str, list[Bad]] = {
    "The two files": [
        Bad("no directory", link("config.json", "nowhere"), 3, 'MODEL/config.json cannot be opened: No such file or directory; check its path'),
        Bad("model.bin is not there", special("model.bin", lambda path: None), 3, 'MODEL/model.bin cannot be opened: No such file or directory; check its path'),
        Bad("model.bin has 0 bytes", whole("model.bin", b""), 6, 'MODEL/model.bin has 0 bytes: copy or convert it again'),
        Bad("model.bin has 1 byte", whole("model.bin", b"C"), 6, 'MODEL/model.bin has 1 bytes, less than a header: copy or convert it again'),
        Bad("model.bin ends within its header", lambda s: truncated(s, 127), 6, 'MODEL/model.bin has 127 bytes, less than a header: copy or convert it again'),
        Bad("model.bin is a header alone", lambda s: truncated(s, 128), 6, 'MODEL/model.bin has 128 bytes, its header says 1181140: copy it again'),
        Bad("model.bin lacks its last byte", lambda s: truncated(s, s.model.stat().st_size - 1), 6, 'MODEL/model.bin has 1181139 bytes, its header says 1181140: copy it again'),
        Bad("model.bin has a byte too many", lambda s: os.truncate(s.model, s.model.stat().st_size + 1), 6, 'MODEL/model.bin has 1181141 bytes, its header says 1181140: copy it again'),
        Bad("model.bin is a directory", special("model.bin", Path.mkdir), 3, 'MODEL/model.bin is not a regular file; name a file'),
        Bad("model.bin is a FIFO", special("model.bin", os.mkfifo), 3, 'MODEL/model.bin is not a regular file; name a file'),
        Bad("model.bin is /dev/zero", link("model.bin", "/dev/zero"), 3, 'MODEL/model.bin is not a regular file; name a file'),
        Bad("model.bin is a link to itself", link("model.bin", "model.bin"), 3, 'MODEL/model.bin cannot be opened: Symbolic link loop; check its path'),
        Bad("model.bin is text", whole("model.bin", b"#!/bin/sh\n" * 99), 5, 'MODEL/model.bin is no Colibri model: it does not start with COLIBRIv1; make one with colibri-deploy convert'),
        Bad("model.bin is a GGUF", header("magic", b"GGUF\3\0\0\0"), 5, 'MODEL/model.bin is no Colibri model: it does not start with COLIBRIv1; make one with colibri-deploy convert'),
        Bad("config.json is not there", special("config.json", lambda path: None), 3, 'MODEL/config.json cannot be opened: No such file or directory; check its path'),
        Bad("config.json is a directory", special("config.json", Path.mkdir), 3, 'MODEL/config.json is not a regular file; name a file'),
        Bad("config.json is a FIFO", special("config.json", os.mkfifo), 3, 'MODEL/config.json is not a regular file; name a file'),
        Bad("config.json is /dev/zero", link("config.json", "/dev/zero"), 3, 'MODEL/config.json is not a regular file; name a file'),
        Bad("config.json has more than 1 MiB", huge, 3, 'MODEL/config.json has 1048578 bytes, more than the 1048576 allowed; shorten it'),
    ],
    "The header of model.bin": [
        Bad("a magic with another number", header("magic", b"COLIBRIv2"), 5, 'MODEL/model.bin is no Colibri model: it does not start with COLIBRIv1; make one with colibri-deploy convert'),
        Bad("a byte behind the magic", file(lambda f: f.byte(15, 1)), 5, 'MODEL/model.bin is no Colibri model: it does not start with COLIBRIv1; make one with colibri-deploy convert'),
        Bad("a newer version", header("version", 2), 5, 'MODEL/model.bin has format version 2, this Colibri reads 1: a newer one is needed'),
        Bad("the newest version that there can be", header("version", 0xFFFFFFFF), 5, 'MODEL/model.bin has format version 4294967295, this Colibri reads 1: a newer one is needed'),
        Bad("version 0", header("version", 0), 5, 'MODEL/model.bin: version, byte order or a reserved field is not valid; convert the model again'),
        Bad("big-endian", header("byte_order", 0x04030201), 5, 'MODEL/model.bin: version, byte order or a reserved field is not valid; convert the model again'),
        Bad("the first reserved byte", file(lambda f: f.byte(64, 1)), 5, 'MODEL/model.bin: version, byte order or a reserved field is not valid; convert the model again'),
        Bad("the last reserved byte", file(lambda f: f.byte(123, 1)), 5, 'MODEL/model.bin: version, byte order or a reserved field is not valid; convert the model again'),
        Bad("no sections", file(no_sections), 5, 'MODEL/model.bin: the tables do not fit into the file; convert the model again'),
        Bad("257 sections", file(many_sections), 5, 'MODEL/model.bin: the tables do not fit into the file; convert the model again'),
        Bad("an offset of the section table", header("sections_offset", 256), 5, 'MODEL/model.bin: the tables do not fit into the file; convert the model again'),
        Bad("an offset of the CRC table", header("crcs_offset", 128), 5, 'MODEL/model.bin: the tables do not fit into the file; convert the model again'),
        Bad("more items than the file has bytes", header("n_items", 0xFFFFFFFF), 5, 'MODEL/model.bin: the tables do not fit into the file; convert the model again'),
        Bad("more items than there may be", file(many_items), 5, "MODEL/model.bin: the tables do not fit into the file; convert the model again"),
        Bad("a larger file size", header("file_size", 1 << 40), 6, 'MODEL/model.bin has 1181140 bytes, its header says 1099511627776: copy it again'),
        Bad("a flipped bit in the header", bits(40), 7, 'MODEL/model.bin: the header does not match its checksum: the file is damaged, copy or convert it again'),
        Bad("a flipped bit in the section table", bits(130), 7, 'MODEL/model.bin: the section table does not match its checksum: the file is damaged, copy or convert it again'),
        Bad("a flipped bit in the CRC table", bits(128 + 128 * 15), 7, 'MODEL/model.bin: the CRC table does not match its checksum: the file is damaged, copy or convert it again'),
    ],
    "The section table of model.bin": [
        Bad("a name of no bytes", entry("rope", name=b""), 5, 'MODEL/model.bin: entry 13 of the section table () is not valid; convert the model again'),
        Bad("a name that begins with a zero", entry("rope", name=b"\0ope"), 5, 'MODEL/model.bin: entry 13 of the section table () is not valid; convert the model again'),
        Bad("a name without an end", entry("rope", name=b"r" * 32), 5, 'MODEL/model.bin: entry 13 of the section table (rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr) is not valid; convert the model again'),
        Bad("bytes behind the end of a name", entry("rope", name=b"rope\0x"), 5, 'MODEL/model.bin: entry 13 of the section table (rope) is not valid; convert the model again'),
        Bad("a last byte behind the end of a name", entry("rope", name=b"rope".ljust(31, b"\0") + b"x"), 5, 'MODEL/model.bin: entry 13 of the section table (rope) is not valid; convert the model again'),
        Bad("a name that moves the cursor", entry("rope", name=b"a\n\x1b[2J"), 5, 'MODEL/model.bin: entry 13 of the section table (a) is not valid; convert the model again'),
        Bad("two sections of a name", file(lambda f: f.add(b"rope")), 5, 'MODEL/model.bin: two sections are named rope; convert the model again'),
        Bad("a section that nothing uses", file(lambda f: f.add(b"attention_bias")), 5, 'MODEL/model.bin: the section attention_bias is not part of a model with this config.json, as far as this Colibri knows: a newer one is needed, or the two files do not belong together'),
        Bad("a section that is missing", entry("final_norm", name=b"norm"), 5, 'MODEL/model.bin has no section final_norm; convert the model again'),
        Bad("a head that is missing", entry("lm_head", name=b"head"), 5, 'MODEL/model.bin: section embeddings is stored as f32 rows, which this Colibri does not read there; convert the model again'),
        Bad("dtype 7", entry("attention_q", dtype=7), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("dtype 4294967295", entry("attention_q", dtype=0xFFFFFFFF), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("a dtype of another size", entry("attention_q", dtype=1), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("a dtype of blocks", entry("attention_q", dtype=5), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("tiles of bytes", entry("attention_q", dtype=6, item_size=2048), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("rows of blocks", entry("final_norm", dtype=3, item_size=1088), 5, 'MODEL/model.bin: entry 11 of the section table (final_norm) is not valid; convert the model again'),
        Bad("layout 2", entry("attention_q", layout=2, item_size=4 * 32 * 32), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("no layers", entry("attention_q", n_layers=0, layer_stride=0), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("no experts", entry("attention_q", n_experts=0), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("no rows", entry("attention_q", rows=0, item_size=0), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("no columns", entry("attention_q", cols=0, item_size=0), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("rows * columns that is 0 in 64 bits", entry("attention_q", rows=1 << 31, cols=1 << 31, item_size=0), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("the most rows", entry("attention_q", rows=0xFFFFFFFF), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("the most columns", entry("attention_q", cols=0xFFFFFFFF), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("tiles at an offset of 64", moved("lm_head", "offset", 64), 5, 'MODEL/model.bin: entry 12 of the section table (lm_head) is not valid; convert the model again'),
        Bad("rows at an offset of 4", moved("rope", "offset", 4), 5, 'MODEL/model.bin: entry 13 of the section table (rope) is not valid; convert the model again'),
        Bad("tiles of layers 64 bytes further", moved("attention_q", "layer_stride", 64), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("rows of layers 4 bytes further", moved("attention_norm", "layer_stride", 4), 5, 'MODEL/model.bin: entry 1 of the section table (attention_norm) is not valid; convert the model again'),
        Bad("experts 64 bytes further", moved("gate_weights", "expert_stride", 64), 5, 'MODEL/model.bin: entry 8 of the section table (gate_weights) is not valid; convert the model again'),
        Bad("a stride of one layer", entry("lm_head", layer_stride=4096), 5, 'MODEL/model.bin: entry 12 of the section table (lm_head) is not valid; convert the model again'),
        Bad("a stride of one expert", entry("attention_q", expert_stride=4096), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("an item size below", moved("attention_q", "item_size", -1), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("an item size above", moved("attention_q", "item_size", 1), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("layers * stride beyond 64 bits", entry("attention_q", layer_stride=1 << 63), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("experts * stride beyond 64 bits", entry("gate_weights", expert_stride=1 << 63), 5, 'MODEL/model.bin: entry 8 of the section table (gate_weights) is not valid; convert the model again'),
        Bad("both strides, beyond 64 bits in sum", entry("gate_weights", layer_stride=(1 << 62) + 4096, expert_stride=1 << 62), 5, 'MODEL/model.bin: entry 8 of the section table (gate_weights) is not valid; convert the model again'),
        Bad("an offset beyond 64 bits with the strides", entry("attention_q", offset=U64 - 4096), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("an offset beyond 64 bits with the size", entry("lm_head", offset=U64 - 4096), 5, 'MODEL/model.bin: entry 12 of the section table (lm_head) is not valid; convert the model again'),
        Bad("an offset of 2^62", entry("attention_q", offset=1 << 62), 5, 'MODEL/model.bin: entry 2 of the section table (attention_q) is not valid; convert the model again'),
        Bad("a last item that ends behind the file", file(cut_last_byte), 5, 'MODEL/model.bin: entry 14 of the section table (tokenizer) is not valid; convert the model again'),
        Bad("a last item that begins behind the file", file(behind_the_end), 5, 'MODEL/model.bin: entry 14 of the section table (tokenizer) is not valid; convert the model again'),
        Bad("two checksums exchanged", file(exchange_crcs), 5, 'MODEL/model.bin: the checksums of section attention_k are not where they belong; convert the model again'),
        Bad("a first checksum one further", moved("rope", "first_crc", 1), 5, 'MODEL/model.bin: the checksums of section rope are not where they belong; convert the model again'),
        Bad("the first reserved byte of an entry", file(lambda f: f.byte(f.entry("rope") + 92, 1)), 5, 'MODEL/model.bin: entry 13 of the section table (rope) is not valid; convert the model again'),
        Bad("the last reserved byte of an entry", file(lambda f: f.byte(f.entry("rope") + 127, 1)), 5, 'MODEL/model.bin: entry 13 of the section table (rope) is not valid; convert the model again'),
        Bad("an item too many", file(lambda f: f.put("n_items", f.get("n_items") + 1)), 5, 'MODEL/model.bin: the section table counts more or fewer items than the header; convert the model again'),
        Bad("an item too few", file(lambda f: f.put("n_items", f.get("n_items") - 1)), 5, 'MODEL/model.bin: the section table counts more or fewer items than the header; convert the model again'),
    ],
    "Where the items of model.bin lie": [
        Bad("two sections in one place", copied("offset", "attention_k", "attention_v"), 5, 'MODEL/model.bin: two items overlap; convert the model again'),
        Bad("a section within another", copied("offset", "ffn_norm", "final_norm", 320), 5, 'MODEL/model.bin: two items overlap; convert the model again'),
        Bad("two layers in one place", entry("attention_k", layer_stride=0), 5, 'MODEL/model.bin: two items overlap; convert the model again'),
        Bad("two experts in one place", entry("gate_weights", expert_stride=0), 5, 'MODEL/model.bin: two items overlap; convert the model again'),
        Bad("layers that overlap", entry("ffn_norm", layer_stride=64), 5, 'MODEL/model.bin: two items overlap; convert the model again'),
        Bad("an item in the header", entry("final_norm", offset=0), 5, 'MODEL/model.bin: two items overlap; convert the model again'),
        Bad("an item in the section table", entry("final_norm", offset=128), 5, 'MODEL/model.bin: two items overlap; convert the model again'),
        Bad("an item in the CRC table", file(into_the_tables), 5, 'MODEL/model.bin: two items overlap; convert the model again'),
        Bad("a flipped bit in an item", lambda s: bits(File(s.model.read_bytes()).start("router"))(s), 7, 'MODEL/model.bin: section router, layer 0, expert 0 does not match its checksum: the file is damaged, copy or convert it again'),
    ],
    "Two files that do not belong together": [
        Bad("another hidden_size", sets(hidden_size=48), 4, 'MODEL/model.bin: section embeddings has 1 layers, 1 experts, 50 x 32 values; config.json implies 1, 1, 50 x 48; the two files do not belong together'),
        Bad("another vocab_size", sets(vocab_size=49), 4, 'MODEL/model.bin: section embeddings has 1 layers, 1 experts, 50 x 32 values; config.json implies 1, 1, 49 x 32; the two files do not belong together'),
        Bad("another number of experts", sets(n_experts=4), 4, 'MODEL/model.bin: section gate_weights has 3 layers, 3 experts, 40 x 32 values; config.json implies 3, 4, 40 x 32; the two files do not belong together'),
        Bad("another number of layers", sets(n_layers=2), 4, 'MODEL/model.bin: section attention_norm has 3 layers, 1 experts, 1 x 32 values; config.json implies 2, 1, 1 x 32; the two files do not belong together'),
        Bad("the largest sizes", sets(hidden_size=1 << 20, n_layers=1024, vocab_size=1 << 24), 4, 'MODEL/model.bin: section embeddings has 1 layers, 1 experts, 50 x 32 values; config.json implies 1, 1, 16777216 x 1048576; the two files do not belong together'),
        Bad("no rotation, but frequencies", sets(rope_dim=0), 5, 'MODEL/model.bin: the section rope is not part of a model with this config.json, as far as this Colibri knows: a newer one is needed, or the two files do not belong together'),
        Bad("a shared expert that is not there", sets(shared_ffn_size=64), 5, 'MODEL/model.bin has no section shared_up_weights; convert the model again'),
        Bad("a dense model, and a router", sets(n_experts=0, top_k=0), 4, 'MODEL/model.bin: section gate_weights has 3 layers, 3 experts, 40 x 32 values; config.json implies 3, 1, 40 x 32; the two files do not belong together'),
        Bad("a norm in f16", entry("final_norm", dtype=1, item_size=64), 5, 'MODEL/model.bin: section final_norm is stored as f16 rows, which this Colibri does not read there; convert the model again'),
        Bad("a router in mxfp4", entry("router", dtype=5, item_size=576), 5, 'MODEL/model.bin: section router is stored as mxfp4 tiles, which this Colibri does not read there; convert the model again'),
        Bad("a head in rows", entry("lm_head", layout=0, item_size=6400), 5, 'MODEL/model.bin: section lm_head is stored as f32 rows, which this Colibri does not read there; convert the model again'),
        Bad("embeddings of bytes", entry("embeddings", dtype=6, item_size=1600), 5, 'MODEL/model.bin: section embeddings is stored as u8 rows, which this Colibri does not read there; convert the model again'),
        Bad("an FFN without gate", file(lambda f: f.put("name", b"up_bias", "gate_weights")), 4, 'MODEL/model.bin: section up_bias has 3 layers, 3 experts, 40 x 32 values; config.json implies 3, 3, 1 x 40; the two files do not belong together'),
    ],
    "config.json": [
        Bad("0 bytes", whole("config.json", b""), 4, 'MODEL/config.json line 1: expected { at the start, found the end of the file'),
        Bad("not JSON", whole("config.json", b"\x7fELF\2\1\1"), 4, 'MODEL/config.json line 1: expected { at the start, found ?ELF???'),
        Bad("a zero byte", whole("config.json", b'{"config_version": 1\0}'), 4, 'MODEL/config.json holds a zero byte: it is no JSON; convert the model again'),
        Bad("not UTF-8", spelled("architecture", '"\udcff\udcfe"'), 4, 'MODEL/config.json line 3: the string at ??" is not closed, holds an escape or is too long'),
        Bad("cut off", whole("config.json", b'{"config_version": 1, "archi'), 4, 'MODEL/config.json line 1: the string at archi is not closed, holds an escape or is too long'),
        Bad("an array", whole("config.json", b"[1]"), 4, 'MODEL/config.json line 1: expected { at the start, found [1'),
        Bad("a million opening brackets", whole("config.json", b'{"eos_ids": ' + b"[" * 1000000), 4, 'MODEL/config.json line 1: "eos_ids" is [[[[[[[[[[[[[[[[[[[[[[[[..., expected an integer (digits without quotes)'),
        Bad("an object in an object", spelled("n_layers", "{}"), 4, 'MODEL/config.json line 4: "n_layers" is {, expected an integer (digits without quotes)'),
        Bad("no comma", spelled("n_layers", '3 "x": 1'), 4, 'MODEL/config.json line 4: expected , or } after the value of "n_layers", found "x": 1'),
        Bad("no colon", whole("config.json", b'{"config_version" 1}'), 4, 'MODEL/config.json line 1: expected : after "config_version", found 1'),
        Bad("text behind the end", whole("config.json", b"{} {}"), 4, 'MODEL/config.json line 1: text after the closing }: {'),
        Bad("a key twice", spelled("n_layers", '3, "n_layers": 3'), 4, 'MODEL/config.json line 4: "n_layers" stands there twice; leave one out'),
        Bad("a key that nobody knows", sets(gate_scale=2), 4, 'MODEL/config.json line 1: unknown key "gate_scale": it may change what the model computes, so a newer Colibri is needed'),
        Bad("a key that is missing", sets(rope_scale=None), 4, 'MODEL/config.json: the key "rope_scale" is missing; convert the model again'),
        Bad("a newer version", sets(config_version=2), 4, 'MODEL/config.json line 1: "config_version" is 2, this Colibri reads 1: a newer one is needed'),
        Bad("a number as a string", spelled("n_experts", '"8 "'), 4, 'MODEL/config.json line 11: "n_experts" is "8 ", expected an integer (digits without quotes)'),
        Bad("a fraction of experts", spelled("n_experts", "3.0"), 4, 'MODEL/config.json line 11: "n_experts" is 3.0, expected an integer (digits without quotes)'),
        Bad("too many experts", spelled("n_experts", "513"), 4, 'MODEL/config.json line 11: "n_experts" is 513, expected 0 to 512'),
        Bad("20 digits", spelled("n_experts", "18446744073709551616"), 4, 'MODEL/config.json line 11: "n_experts" is 18446744073709551616, expected an integer (digits without quotes)'),
        Bad("an exponent for an integer", spelled("top_k", "1e400"), 4, 'MODEL/config.json line 12: "top_k" is 1e400, expected an integer (digits without quotes)'),
        Bad("1e400", spelled("norm_eps", "1e400"), 4, 'MODEL/config.json line 15: "norm_eps" is 1e400: more than 15 digits, or beyond 1e-22 to 1e22'),
        Bad("an epsilon of 0", spelled("norm_eps", "0.0"), 4, 'MODEL/config.json line 15: "norm_eps" is 0, expected a positive float'),
        Bad("16 digits", spelled("norm_eps", "0.1000000000000001"), 4, 'MODEL/config.json line 15: "norm_eps" is 0.1000000000000001: more than 15 digits, or beyond 1e-22 to 1e22'),
        Bad("NaN", spelled("norm_eps", "NaN"), 4, 'MODEL/config.json line 15: "norm_eps" is NaN, expected a number (without quotes)'),
        Bad("a negative number", spelled("norm_eps", "-1e-5"), 4, 'MODEL/config.json line 15: "norm_eps" is -1e-05, expected a positive float'),
        Bad("1e30", spelled("norm_eps", "999999999999999e15"), 4, 'MODEL/config.json line 15: "norm_eps" is 1e+30, expected a positive float'),
        Bad("null in an array", spelled("eos_ids", "[1, null]"), 4, 'MODEL/config.json line 19: "eos_ids" is null, expected an integer (digits without quotes)'),
        Bad("17 ends of sequence", spelled("eos_ids", str([1] * 17)), 4, 'MODEL/config.json line 19: "eos_ids" has more than 16 entries'),
        Bad("no bracket at the end", spelled("eos_ids", "[1, 2"), 4, 'MODEL/config.json line 20: expected , or ] in "eos_ids", found }'),
        Bad("a control character", spelled("architecture", '"a\x1b[31m"'), 4, 'MODEL/config.json line 3: the string at a?[31m" is not closed, holds an escape or is too long'),
        Bad("an escape", spelled("architecture", '"\\u0061"'), 4, 'MODEL/config.json line 3: the string at \\u0061" is not closed, holds an escape or is too long'),
        Bad("a long name", spelled("architecture", f'"{"a" * 32}"'), 4, 'MODEL/config.json line 3: the string at aaaaaaaaaaaaaaaaaaaaaaaa... is not closed, holds an escape or is too long'),
        Bad("an unknown kind of rotation", sets(rope_kind="thirds"), 4, 'MODEL/config.json line 1: "rope_kind" is "thirds", expected one of: half pairs'),
        Bad("a kind that is cut off", sets(rope_kind="hal"), 4, 'MODEL/config.json line 1: "rope_kind" is "hal", expected one of: half pairs'),
    ],
    "Keys of config.json that contradict each other": [
        Bad("no architecture", sets(architecture=""), 4, 'MODEL/config.json: architecture is empty; convert the model again'),
        Bad("top_k above n_experts", sets(top_k=4), 4, 'MODEL/config.json: top_k is larger than n_experts; convert the model again'),
        Bad("top_k of 0 with experts", sets(top_k=0), 4, 'MODEL/config.json: n_experts and top_k must both be 0 (dense) or both be positive; convert the model again'),
        Bad("heads that do not divide", sets(n_kv_heads=3), 4, 'MODEL/config.json: n_heads is no multiple of n_kv_heads; convert the model again'),
        Bad("an odd head_dim", sets(head_dim=7), 4, 'MODEL/config.json: head_dim is odd; convert the model again'),
        Bad("an odd rope_dim", sets(rope_dim=5), 4, 'MODEL/config.json: rope_dim is odd or larger than head_dim; convert the model again'),
        Bad("a rope_dim above head_dim", sets(rope_dim=4096), 4, 'MODEL/config.json: rope_dim is odd or larger than head_dim; convert the model again'),
        Bad("bos_id of vocab_size", sets(bos_id=50), 4, 'MODEL/config.json: bos_id is not below vocab_size; convert the model again'),
        Bad("bos_id of -2", sets(bos_id=-2), 4, 'MODEL/config.json line 1: "bos_id" is -2, expected -1 to 16777216'),
        Bad("an eos_id of vocab_size", sets(eos_ids=[1, 50, 2]), 4, 'MODEL/config.json: an entry of eos_ids is not below vocab_size; convert the model again'),
        Bad("an eos_id of -1", sets(eos_ids=[-1]), 4, 'MODEL/config.json line 1: "eos_ids" is -1, expected 0 to 16777216'),
        Bad("groups that do not divide", sets(n_groups=2), 4, 'MODEL/config.json: n_groups and top_groups do not fit n_experts and top_k; convert the model again'),
        Bad("top_groups above n_groups", sets(top_groups=2), 4, 'MODEL/config.json: top_groups is larger than n_groups; convert the model again'),
        Bad("a limit without its activation", sets(activation="swiglu_oai"), 4, 'MODEL/config.json: activation_limit and swiglu_oai go together; convert the model again'),
        Bad("sparsemixer without router_jitter", sets(router_score="sparsemixer"), 4, 'MODEL/config.json: router_jitter and sparsemixer go together; convert the model again'),
        Bad("router_jitter without sparsemixer", sets(router_jitter=0.01), 4, 'MODEL/config.json: router_jitter and sparsemixer go together; convert the model again'),
        Bad("sparsemixer with groups", sets(router_score="sparsemixer", router_jitter=0.01, n_experts=4, n_groups=2), 4, 'MODEL/config.json: sparsemixer needs a top_k of 2 and no groups; convert the model again'),
        Bad("a layer twice", sets(window_layers=[1, 1]), 4, 'MODEL/config.json: window_layers or dense_layers are not layers in ascending order; convert the model again'),
        Bad("a layer that is not there", sets(window_layers=[7]), 4, 'MODEL/config.json: window_layers or dense_layers are not layers in ascending order; convert the model again'),
        Bad("dense_layers without a size", sets(dense_layers=[0]), 4, 'MODEL/config.json: dense_layers and dense_ffn_size do not fit each other or n_experts; convert the model again'),
        Bad("a size without dense_layers", sets(dense_ffn_size=64), 4, 'MODEL/config.json: dense_layers and dense_ffn_size do not fit each other or n_experts; convert the model again'),
        Bad("a shared expert in a dense model", sets(n_experts=0, top_k=0, shared_ffn_size=8), 4, 'MODEL/config.json: shared_ffn_size is for a model with experts; convert the model again'),
        Bad("kv_rank alone", sets(kv_rank=32), 4, 'MODEL/config.json: kv_rank, q_rank, v_dim and latent_norm_eps do not fit each other; convert the model again'),
        Bad("q_rank alone", sets(q_rank=32), 4, 'MODEL/config.json: kv_rank, q_rank, v_dim and latent_norm_eps do not fit each other; convert the model again'),
        Bad("latent_norm_eps alone", sets(latent_norm_eps=1e-6), 4, 'MODEL/config.json: kv_rank, q_rank, v_dim and latent_norm_eps do not fit each other; convert the model again'),
        Bad("kv_rank with two key/value heads", sets(kv_rank=32, v_dim=8, latent_norm_eps=1e-6), 4, 'MODEL/config.json: kv_rank needs n_kv_heads of 1 and a rope_dim below head_dim; convert the model again'),
        Bad("kv_rank with qk_clip", sets(kv_rank=32, v_dim=8, latent_norm_eps=1e-6, n_kv_heads=1, rope_dim=4, qk_clip=1), 4, 'MODEL/config.json: qk_clip does not go with kv_rank; convert the model again'),
    ],
    "The section tokenizer of model.bin": [
        Bad("it is of floats", floats, 5, 'MODEL/model.bin: the section tokenizer has a wrong shape; convert the model again'),
        Bad("no magic", tokenizer_of(b"CLBX"), 5, 'section tokenizer: it does not begin with CLBT; convert the checkpoint again'),
        Bad("an older version", tokenizer_of(b"CLBT\1"), 5, 'section tokenizer: its version is older than this colibri reads; convert the checkpoint again'),
        Bad("a newer version", tokenizer_of(b"CLBT\3"), 5, 'section tokenizer: version 3 is not known; use a newer colibri'),
        Bad("2^30 chunks", tokenizer_of(b"CLBT\2\0\0\0\0\0\0\x40"), 5, 'section tokenizer: its size does not fit its table of chunks; convert the checkpoint again'),
        Bad("a chunk too few", tokenizer_of(b"CLBT\2\0\0\0\x10"), 5, 'section tokenizer: a chunk is missing; convert the checkpoint again'),
        Bad("an unknown chunk", tokenizer_of(b"CLBT\2\0\0\0\x11\0\0\0\0\0\0\0\x4d"), 5, 'section tokenizer: chunk 77 is not known; use a newer colibri'),
        Bad("a chunk twice", tokenizer_of(b"CLBT\2\0\0\0\x11\0\0\0\0\0\0\0\2"), 5, 'section tokenizer: a chunk is there twice; convert the checkpoint again'),
        Bad("a chunk outside", tokenizer_of(b"CLBT\2\0\0\0\x11\0\0\0\0\0\0\0\1\0\0\0\0\0\0\x40"), 5, 'section tokenizer: a chunk lies outside of it; convert the checkpoint again'),
        Bad("unknown flags", chunk(1, 4, 1 << 20), 5, 'section tokenizer: the chunk info asks for something unknown; convert the checkpoint again'),
        Bad("an unknown token that is none", chunk(1, 8, 10), 5, 'section tokenizer: the unknown token is none of its tokens; convert the checkpoint again'),
        Bad("fewer ids than pieces", chunk(1, 0, 9), 5, 'section tokenizer: a table of pieces does not have one entry for each id; convert the checkpoint again'),
        Bad("a piece that ends before it begins", chunk(2, 4, 0), 5, 'section tokenizer: the piece of id 1 is damaged; convert the checkpoint again'),
        Bad("a piece that ends outside", chunk(2, 36, 1 << 20), 5, 'section tokenizer: the piece of id 9 is damaged; convert the checkpoint again'),
        Bad("a piece that is not UTF-8", chunk(4, 0, 0xFFFFFFFF), 5, 'section tokenizer: the piece of id 0 is damaged; convert the checkpoint again'),
        Bad("a slot of an id that is none", chunk(5, 0, 10), 5, 'section tokenizer: a slot holds no id; convert the checkpoint again'),
        Bad("a byte of an id that is none", chunk(6, 0, 10), 5, 'section tokenizer: the id of a byte is none; convert the checkpoint again'),
        Bad("merges that go back", chunk(7, 4, 9), 5, 'section tokenizer: the merges are not in order; convert the checkpoint again'),
        Bad("a merge of an id that is none", chunk(8, 0, 10), 5, 'section tokenizer: a merge is not in order or has no id; convert the checkpoint again'),
        Bad("a merge into an id that is none", chunk(8, 8, 1 << 31), 5, 'section tokenizer: a merge is not in order or has no id; convert the checkpoint again'),
        Bad("an added token of no bytes", chunk(9, 12, 0), 5, 'section tokenizer: an added token is damaged; convert the checkpoint again'),
        Bad("an added token of an id that is none", chunk(9, 0, 10), 5, 'section tokenizer: an added token is damaged; convert the checkpoint again'),
        Bad("an added token that is not UTF-8", chunk(10, 0, 0x80808080), 5, 'section tokenizer: an added token is not UTF-8; convert the checkpoint again'),
    ],
    "Numbers": [
        Bad("a frequency that is NaN", value("rope", 4, "f", float("nan")), 5, 'MODEL/model.bin: value 1 of the section rope, nan, gives no angle that can be computed for 4096 positions; convert the model again'),
        Bad("an infinite frequency", value("rope", 4, "f", float("inf")), 5, 'MODEL/model.bin: value 1 of the section rope, inf, gives no angle that can be computed for 4096 positions; convert the model again'),
        Bad("a negative frequency", value("rope", 4, "f", -1.0), 5, 'MODEL/model.bin: value 1 of the section rope, -1, gives no angle that can be computed for 4096 positions; convert the model again'),
        Bad("a frequency of 1e30", value("rope", 4, "f", 1e30), 5, 'MODEL/model.bin: value 1 of the section rope, 1e+30, gives no angle that can be computed for 4096 positions; convert the model again'),
        Bad("an infinite weight", value("final_norm", 0, "f", float("inf")), 10, 'NaN or Inf in the logits at position 0: the weights are damaged or overflow; check the model with --verify'),
        Bad("a router's weight that is NaN", value("router", 0, "f", float("nan")), 10, 'NaN or Inf in the router of layer 0 at position 0: the weights are damaged or overflow; check the model with --verify'),
        Bad("a scale of q8 that is NaN", value("attention_q", 0, "H", 0x7E00), 10, 'NaN or Inf in the router of layer 0 at position 0: the weights are damaged or overflow; check the model with --verify, or try --kv f32', dtype="q8"),
        Bad("an infinite scale of q4", value("attention_q", 0, "H", 0x7C00), 10, 'NaN or Inf in the router of layer 0 at position 0: the weights are damaged or overflow; check the model with --verify, or try --kv f32', dtype="q4"),
        Bad("an infinite scale of q8, verified", value("down_weights", 0, "H", 0xFC00), 5, 'MODEL/model.bin: section down_weights, layer 0, expert 0 holds NaN or Inf; convert the model again', ("--verify",), "q8"),
        Bad("a scale of mxfp4 that is NaN, verified", value("up_weights", 62, "H", 0x7F81), 5, 'MODEL/model.bin: section up_weights, layer 0, expert 0 holds NaN or Inf; convert the model again', ("--verify",), "mxfp4"),
        Bad("an infinite weight in f16, verified", value("attention_v", 2046, "H", 0x7C00), 5, 'MODEL/model.bin: section attention_v, layer 0, expert 0 holds NaN or Inf; convert the model again', ("--verify",), "f16"),
        Bad("an infinite weight in f32, verified", value("lm_head", 4, "f", float("-inf")), 5, 'MODEL/model.bin: section lm_head, layer 0, expert 0 holds NaN or Inf; convert the model again', ("--verify",)),
        Bad("a NaN to be quantized", value("attention_q", 0, "f", float("nan")), 10, 'attention_q of layer 0, expert 0 holds values that int8 with an f16 scale cannot hold; leave it as it is', ("--tokens", "1", "--quantize", "q:int8")),
    ],
    "What is asked of a good model": [
        Bad("a token that is none", nothing, 11, 'token 1 of the prompt is 50; the model has the ids 0 to 49', ("--tokens", "1,50")),
        Bad("a token that is no number", nothing, 11, '"x" is no list of token ids like 1,2,3', ("--tokens", "1,x")),
        Bad("a negative token", nothing, 11, '"-1" is no list of token ids like 1,2,3', ("--tokens", "-1")),
        Bad("no tokens", nothing, 11, 'the prompt has no tokens; give at least one, for instance the BOS id', ("--tokens", "")),
        Bad("text that is not UTF-8", nothing, 11, 'the text is not UTF-8 at byte 1 (0xFF); convert it to UTF-8', ("--prompt", "a\udcff")),
        Bad("more tokens than positions", sets(max_positions=8), 11, '4 prompt tokens and 5 new ones are more than the 8 positions of the model; shorten the prompt or ask for fewer', ("--tokens", "1,2,3,4", "--num_tokens", "5")),
        Bad("a chat with a model that has no chat form", nothing, 11, "the model has no chat form; give it a text to continue, or convert it again with a chat template that has one", ("--chat", "--prompt", "a")),
        Bad("a matrix to be quantized that is none", nothing, 2, 'quantize: MODEL/model.bin has no matrix of floats that is called middle; see colibri-deploy inspect', ("--tokens", "1", "--quantize", "middle:int8")),
        Bad("a type that nothing is quantized to", nothing, 2, 'quantize: "up:int5" is no list like up:int8,down:int8', ("--tokens", "1", "--quantize", "up:int5")),
    ],
}
# fmt: on


def outcome(status: int, stderr: str, directory: Path) -> tuple[int, str]:
    """Code and line as in the table."""
    line = stderr.removeprefix("colibri: error: ").rstrip("\n")
    return status, line.replace(str(directory), PLACE)


def document() -> str:
    """docs/bad-inputs.md."""
    head = f"""# Bad inputs, and what they give

`colibri` ends with one line, which says what is wrong, where, and what to do, and an exit code of its own for each kind
of error (`src/colibri.h`). These {sum(map(len, TABLE.values()))} inputs are tests: `tests/engine/bad_inputs.py` makes each from a good model, runs the program and
compares code and line; it also writes this page. `{PLACE}` is the model's directory; `colibri: error: ` stands before each line.
Where a rule of the format itself is broken, the checksums fit, so that only the rule can refuse the file.

A change may break several rules; the line names the first. What fuzzing found is in [testing.md](testing.md).
"""
    parts = [head]
    for title, rows in TABLE.items():
        parts.append(f"\n## {title}\n\n| input | exit | line |\n| --- | --- | --- |\n")
        parts += [f"| {row.name} | {row.code} | `{row.line}` |\n" for row in rows]
    return "".join(parts)


if __name__ == "__main__":
    print(document(), end="")
