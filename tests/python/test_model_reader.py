# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A fault in every field of `model.bin`, as docs/FORMAT.md lists them: the reader that was written
from that document (reference_file.py) names the field; the engine and `verify` refuse it too."""

from __future__ import annotations

import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import reference_file
from synthetic_families import MIXED, write_family

from colibri_deploy.errors import ModelFileError
from colibri_deploy.model import Model
from colibri_deploy.model_file import ModelFile
from colibri_deploy.process import Completed
from colibri_deploy.sections import ExpertLayout

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "FORMAT.md"


class Place(NamedTuple):
    """A row of the document's tables."""

    offset: int
    size: int
    name: str


def rows_of(heading: str) -> list[Place]:
    """The first table of a chapter: offset, size, name of each field; what has none is reserved."""
    chapter = DOCUMENT.read_text(encoding="utf-8").split(f"## {heading}")[1].split("\n## ")[0]
    found = re.findall(r"^\| (\d+) \| (\d+) \| (?:`(\w+)`)? ?\|", chapter, re.MULTILINE)
    return [Place(int(offset), int(size), name or "reserved") for offset, size, name in found]


HEADER = rows_of("Header")
ENTRY = rows_of("Section table")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in grouped layout, with every type of weights."""
    directory = tmp_path_factory.mktemp("reader") / "model"
    write_family("phimoe", MIXED, directory, expert_layout="grouped")
    return directory


@pytest.fixture(scope="module")
def good_bytes(good: Path) -> bytes:
    return (good / "model.bin").read_bytes()


def number(data: bytes | bytearray, place: Place, start: int = 0) -> int:
    """What a field of up to 8 bytes holds."""
    return int.from_bytes(data[start + place.offset :][: place.size], "little")


def field(rows: list[Place], name: str) -> Place:
    return next(place for place in rows if place.name == name)


def entries(data: bytes) -> Iterator[tuple[str, int]]:
    """Name and place of each entry of the section table."""
    for index in range(number(data, field(HEADER, "n_sections"))):
        start = 128 + 128 * index
        yield data[start : start + 32].rstrip(b"\0").decode(), start


def sealed(data: bytearray, kept: str = "") -> bytes:
    """The file with the checksums of its tables as they should be, but for that in `kept`."""
    crcs = 128 + 128 * number(data, field(HEADER, "n_sections"))
    end = crcs + 4 * number(data, field(HEADER, "n_items"))
    for name, span in (
        ("sections_crc", slice(128, crcs)),
        ("crcs_crc", slice(crcs, end)),
        ("header_crc", slice(0, 124)),
    ):
        if name != kept:
            struct.pack_into("<I", data, field(HEADER, name).offset, zlib.crc32(data[span]))
    return bytes(data)


def said_by_reader(good: Path, data: bytes) -> str:
    """What the reader has against a file; "" if nothing."""
    array = np.frombuffer(data, np.uint8)
    config = reference_file.load_config(good / "config.json")
    try:
        sections = reference_file.load_sections(array)
        reference_file.check_sections(config, sections)
        model = reference_file.Model(config, sections, array)
        for one in sections.values():
            for item in range(one.n_layers * one.n_experts):
                model.check_item(one, *divmod(item, one.n_experts))
    except ValueError as error:
        return str(error)
    return ""


def is_refused_by_verify(directory: Path) -> bool:
    try:
        return bool(Model.open(directory).file.verify())
    except ModelFileError:
        return True


def test_the_document_lists_every_byte() -> None:
    for rows in (HEADER, ENTRY):
        ends = [place.offset + place.size for place in rows]
        assert [place.offset for place in rows] == [0, *ends[:-1]]
        assert ends[-1] == 128


def test_the_good_file_is_good(good: Path, good_bytes: bytes) -> None:
    assert said_by_reader(good, good_bytes) == ""
    assert sealed(bytearray(good_bytes)) == good_bytes
    assert not is_refused_by_verify(good)


@pytest.mark.parametrize("place", HEADER, ids=[place.name for place in HEADER])
def test_a_fault_in_a_field_of_the_header_is_named(
    place: Place, good: Path, good_bytes: bytes
) -> None:
    for at in range(place.offset, place.offset + place.size):
        for bit in (0, 7):
            data = bytearray(good_bytes)
            data[at] ^= 1 << bit
            damaged, planted = bytes(data), sealed(data, kept=place.name)
            said = said_by_reader(good, planted)
            assert re.search(rf"\b{place.name}\b", said), (at, bit, said)
            before_crc = place.name == "magic" or (place.name == "version" and (at, bit) != (16, 0))
            first = place.name if before_crc else "header_crc"
            assert said_by_reader(good, damaged).startswith(f"header: {first}")


@pytest.mark.parametrize("place", ENTRY, ids=[place.name for place in ENTRY])
def test_a_fault_in_a_field_of_a_section_is_named(
    place: Place, good: Path, good_bytes: bytes
) -> None:
    places = dict(entries(good_bytes))
    for name in ("embeddings", "attention_norm", "attention_k", "up_weights", "lm_head"):
        start = places[name]
        for at in range(start + place.offset, start + place.offset + place.size):
            data = bytearray(good_bytes)
            data[at] ^= 1 << at % 8
            damaged, planted = bytes(data), sealed(data)
            said = said_by_reader(good, planted)
            assert re.search(rf"\b{place.name}\b", said), (name, at, said)
            assert said_by_reader(good, damaged) == "header: sections_crc"


@pytest.mark.parametrize("place", [*HEADER, *ENTRY], ids=lambda place: place.name)
def test_the_engine_and_verify_refuse_it_too(
    place: Place,
    good: Path,
    good_bytes: bytes,
    tmp_path: Path,
    run_engine: Callable[..., Completed],
) -> None:
    start = 0 if place in HEADER else dict(entries(good_bytes))["up_weights"]
    shutil.copy(good / "config.json", tmp_path)
    data = bytearray(good_bytes)
    data[start + place.offset + place.size - 1] ^= 0x40
    for planted in (bytes(data), sealed(data, kept=place.name)):
        (tmp_path / "model.bin").write_bytes(planted)
        done = run_engine("x86_64", "--model", tmp_path, "--verify")
        assert done.status in (4, 5, 6, 7), done.stderr
        assert is_refused_by_verify(tmp_path)


def test_an_entry_of_the_crc_table_is_named_by_its_item(good: Path, good_bytes: bytes) -> None:
    crcs = number(good_bytes, field(HEADER, "crcs_offset"))
    for name, start in entries(good_bytes):
        layers, experts, first = (
            number(good_bytes, field(ENTRY, key), start)
            for key in ("n_layers", "n_experts", "first_crc")
        )
        for item in range(layers * experts):
            data = bytearray(good_bytes)
            data[crcs + 4 * (first + item) + item % 4] ^= 1
            where = f"{name}: item of layer {item // experts}, expert {item % experts}: CRC32"
            assert said_by_reader(good, sealed(data)).startswith(where)
            data = bytearray(good_bytes)
            data[crcs + 4 * (first + item)] ^= 1
            assert said_by_reader(good, bytes(data)) == "header: crcs_crc"


def test_every_gap_is_zero(good: Path, good_bytes: bytes, tmp_path: Path) -> None:
    """The bytes before and behind each item, where these belong to none."""
    array = np.frombuffer(good_bytes, np.uint8)
    owned = np.zeros(len(array), bool)
    owned[: 128 + 128 * number(good_bytes, field(HEADER, "n_sections"))] = True
    sections = reference_file.load_sections(array).values()
    owned[: min(one.offset for one in sections) - 4096] = True
    for one in sections:
        for item in range(one.n_layers * one.n_experts):
            start = one.start(*divmod(item, one.n_experts))
            owned[start : start + one.item_size] = True
    edges = np.flatnonzero(np.diff(owned.astype(np.int8)))
    places = sorted({int(edge) + 1 for edge in edges if not owned[edge + 1]})
    assert len(places) > 20
    shutil.copy(good / "config.json", tmp_path)
    for place in places:
        data = bytearray(good_bytes)
        data[place] = 1
        assert re.match("the bytes between .* are not zero", said_by_reader(good, bytes(data)))
    (tmp_path / "model.bin").write_bytes(data)
    assert is_refused_by_verify(tmp_path)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8", "q4", "mxfp4"])
def test_padding_within_an_item_and_values_that_are_not_finite_are_named(
    dtype: str, tmp_path: Path
) -> None:
    write_family("olmoe", dtype, tmp_path / "m")
    data = (tmp_path / "m" / "model.bin").read_bytes()
    file = ModelFile.open(tmp_path / "m" / "model.bin")
    section = file.section("up_weights")  # 40 x 72: 48 x 128 with padding
    start = section.item_offset(1, 2)
    size = {"f32": 4, "f16": 2, "bf16": 2}.get(dtype)
    pair = {"q8": 1088, "q4": 576, "mxfp4": 576}.get(dtype, 0)
    faults = {"padding of the columns": section.item_size // 3 - 1, "padding of the rows": 0}
    if size:
        faults["padding of the rows"] = (2 * 16 * 128 + 8) * size + size - 1
        faults["not finite"] = size
    else:
        faults["padding of the rows"] = 2 * 2 * pair + 64 + 4 * 8
        faults["padding of the rows, scale"] = 2 * 2 * pair + 2 * 8
        faults["padding of the columns, scale"] = pair + 32
        faults["a scale is not finite"] = 0
    for words, at in faults.items():
        changed = bytearray(data)
        if words.endswith("finite"):
            nan = {"f32": b"\x00\x00\x80\x7f", "f16": b"\x00\x7c", "q8": b"\x00\x7c"}
            value = nan.get(dtype, b"\x00\x7c" if dtype == "q4" else b"\x80\x7f")
            changed[start + at : start + at + len(value)] = value
        else:
            changed[start + at] ^= 0x10
        item = changed[start : start + section.item_size]
        index = section.first_crc + section.n_experts + 2
        crcs = number(data, field(HEADER, "crcs_offset"))
        struct.pack_into("<I", changed, crcs + 4 * index, zlib.crc32(item))
        said = said_by_reader(tmp_path / "m", sealed(changed))
        assert said.startswith("up_weights: item of layer 1, expert 2, or dtype: "), (words, said)
        assert words in said


@pytest.mark.parametrize("expert_layout", ["interleaved", "grouped"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8", "q4", "mxfp4", MIXED])
def test_both_readers_see_the_same_values(
    dtype: str, expert_layout: ExpertLayout, tmp_path: Path
) -> None:
    write_family("gpt_oss", dtype, tmp_path / "m", expert_layout=expert_layout)
    model = reference_file.load(tmp_path / "m")
    file = ModelFile.open(tmp_path / "m" / "model.bin")
    gate, up = file.section("gate_weights"), file.section("up_weights")
    assert (up.offset < gate.offset + gate.expert_stride) == (expert_layout == "grouped")
    for section in file.sections:
        for layer, expert in section.items():
            expected = file.matrix(section.name, layer, expert)
            found = model.matrix(section.name, layer, expert)
            if isinstance(found, reference_file.Blocks):
                values = found.integers * found.scales[:, :, None]
                found = values.transpose(0, 2, 1).reshape(-1, section.rows)[: section.cols]
            assert np.array_equal(found.T, expected), section.name
