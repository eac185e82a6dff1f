# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`colibri-deploy header`: every field of docs/FORMAT.md in its place, also of a damaged file."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from test_model_reader import ENTRY, HEADER, Place, sealed

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.errors import ModelFileError
from colibri_deploy.model_file import ModelFile
from colibri_deploy.model_header import dump_header
from colibri_deploy.process import Completed, run


def deploy(*args: str | Path) -> Completed:
    """Runs colibri-deploy with `args`, any status."""
    return run([sys.executable, "-m", "colibri_deploy", *args], check=False)


@pytest.fixture
def model(checkpoint: Path, tmp_path: Path) -> Path:
    """A model of 14 sections and 36 items."""
    convert_checkpoint(checkpoint, tmp_path / "m", "q8")
    return tmp_path / "m" / "model.bin"


def test_the_fields_are_those_of_the_document(model: Path) -> None:
    done = deploy("header", model.parent, "--json")
    assert (done.status, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert (record["file"], record["bytes"]) == (str(model), model.stat().st_size)
    assert (record["problems"], len(record["sections"])) == (0, 14)
    for start, rows, fields in (
        (0, HEADER, record["header"]),
        *((128 + 128 * index, ENTRY, entry) for index, entry in enumerate(record["sections"])),
    ):
        places = [Place(int(one["offset"], 16) - start, one["size"], one["name"]) for one in fields]
        assert places == rows
        assert all(one["problem"] is None for one in fields)
    data = model.read_bytes()
    header = {one["name"]: one["value"] for one in record["header"]}
    assert header == {
        "magic": "COLIBRIv1", "version": 1, "byte_order": 0x01020304, "n_sections": 14,
        "n_items": 36, "file_size": len(data), "sections_offset": 128, "crcs_offset": 128 * 15,
        "sections_crc": zlib.crc32(data[128 : 128 * 15]),
        "crcs_crc": zlib.crc32(data[128 * 15 : 128 * 15 + 36 * 4]), "reserved": "0",
        "header_crc": zlib.crc32(data[:124]),
    }  # fmt: skip
    first = {one["name"]: one["value"] for one in record["sections"][0]}
    (embeddings,) = (one for one in ModelFile.open(model).sections if one.name == "embeddings")
    assert (first["name"], first["rows"], first["cols"]) == ("embeddings", 50, 32)
    assert first["offset"] == embeddings.offset == struct.unpack_from("<Q", data, 128 + 56)[0]
    meanings = {one["name"]: one["meaning"] for one in record["sections"][0]}
    assert (meanings["dtype"], meanings["layout"]) == ("q8", "tiles")


def test_people_read_a_table(model: Path) -> None:
    done = deploy("header", model)  # the file itself
    assert (done.status, done.stderr) == (0, "")
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "0x0010 4 version 1 of the format" in rows
    assert "0x0018 4 n_sections 14 entries of the section table" in rows
    assert "0x00a0 4 dtype 3 q8" in rows
    assert "WRONG" not in done.stdout


@pytest.mark.parametrize(
    ("offset", "byte", "seal", "status", "row"),
    [
        (0, 0x58, False, 5, "0x0000 16 magic XOLIBRIv1 WRONG: it starts with b'XOLIBRIv1"),
        (16, 2, True, 5, "0x0010 4 version 2 WRONG: it is 2, this version reads up to 1"),
        (20, 5, True, 5, "0x0014 4 byte_order 01020305 WRONG: byte_order is 0x01020305 instead"),
        (25, 1, True, 5, "0x0018 4 n_sections 270 WRONG: n_sections is 270, not 1 to 256"),
        (39, 1, True, 6, "0x0020 8 file_size"),
        (
            100,
            1,
            True,
            5,
            "0x0040 60 reserved not zero WRONG: reserved bytes are not zero",
        ),
        (125, 0xFF, False, 7, "0x007c 4 header_crc"),
        (128 + 36, 9, True, 5, "0x00a4 4 layout 9 WRONG: dtype 3, layout 9 is unknown"),
        (128 + 36, 9, False, 7, "0x0038 4 sections_crc"),
        (256 + 88, 7, True, 5, "0x0158 4 first_crc 7 WRONG: section attention_norm: first_crc is"),
        (128 * 15 + 5, 7, False, 7, "0x003c 4 crcs_crc"),
    ],
)
def test_a_damaged_file_is_shown_and_what_is_wrong_is_marked(
    offset: int, byte: int, seal: bool, status: int, row: str, model: Path
) -> None:
    data = bytearray(model.read_bytes())
    data[offset] = byte
    model.write_bytes(sealed(data) if seal else data)
    done = deploy("header", model.parent)
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    wrong = [line for line in rows if "WRONG" in line]
    assert any(line.startswith(row) for line in wrong), wrong
    with pytest.raises(ModelFileError) as caught:  # what `inspect` would say
        ModelFile.open(model)
    assert (done.status, done.stderr) == (status, f"error: {caught.value.message}\n")
    assert caught.value.exit_code == status
    shown = "0x0080 32 name embeddings of the section" in rows
    assert shown == (offset not in (0, 25))  # no sections of what is no model, or has not so many


def test_a_file_that_ends_early_is_shown_up_to_its_end(model: Path) -> None:
    data = model.read_bytes()
    for size in (0, 15, 20, 127, 128, 200, 128 * 15, 128 * 15 + 10, len(data) - 1):
        model.write_bytes(data[:size])
        dump = dump_header(model)
        fields = [*dump.header, *(field for entry in dump.sections for field in entry)]
        whole = [field for field in fields if field.offset + field.size <= size]
        marked = {field.name for field in whole if field.problem is not None}
        assert marked <= {"file_size", "offset"}  # of the section that is cut
        ends = {f"the file ends after {size} bytes"} if size < 128 * 15 and size != 128 else set()
        assert {field.problem for field in fields if field not in whole} == ends
        assert dump.problems >= 1
    done = deploy("header", model.parent)
    assert done.status == 6
    assert f"WRONG: the file has {len(data) - 1} bytes, its header says {len(data)}" in done.stdout
    assert deploy("header", model.parent / "none").status == 3


def test_header_marks_a_fault_wherever_a_reader_refuses(model: Path) -> None:
    good = model.read_bytes()
    for start, rows in ((0, HEADER), (128, ENTRY), (128 * 9, ENTRY)):
        for place in rows:
            for at in {place.offset, place.offset + place.size - 1}:
                data = bytearray(good)
                data[start + at] ^= 0x11
                for planted in (bytes(data), sealed(data, kept=place.name)):
                    model.write_bytes(planted)
                    assert bool(dump_header(model).problems) == is_refused(model), (place, at)


def is_refused(path: Path) -> bool:
    try:
        ModelFile.open(path)
    except ModelFileError:
        return True
    return False


def test_a_file_of_huge_numbers_takes_no_memory(model: Path) -> None:
    """2^32 items that a header promises are not looked for."""
    data = bytearray(model.read_bytes())
    struct.pack_into("<I", data, 28, 0xFFFFFFFF)
    struct.pack_into("<Q", data, 32, 1 << 60)
    for start in range(128, 128 * 15, 128):
        struct.pack_into("<II", data, start + 40, 65536, 65535)
        struct.pack_into("<QQ", data, start + 64, 0, 0)
    model.write_bytes(sealed(data))
    found: dict[str, Any] = {field.name: field.problem for field in dump_header(model).header}
    assert found["file_size"] is not None
    assert found["n_sections"] is None
