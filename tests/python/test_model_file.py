# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`model.bin` byte by byte, against docs/FORMAT.md; damage and invalid structure by name."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri_deploy.errors import (
    FileMissingError,
    ModelCorruptError,
    ModelFileError,
    ModelFormatError,
    ModelTruncatedError,
)
from colibri_deploy.model_file import ModelFile, ModelWriter
from colibri_deploy.sections import SectionSpec, plan_file
from colibri_deploy.tiles import DType, Layout, pack_tiles

NORM = SectionSpec("norm", DType.f32, Layout.rows, 1, 1, 1, 2)
# Items of 1 x 1088, 2 x 1088 bytes; two layers of three experts.
GATE = SectionSpec("gate_weights", DType.q8, Layout.tiles, 2, 3, 16, 64, "experts")
DOWN = SectionSpec("down_weights", DType.q8, Layout.tiles, 2, 3, 32, 64, "experts")


def write(path: Path, specs: list[SectionSpec], expert_layout: str = "interleaved") -> Path:
    """A file whose item number n, in the order of the CRC table, is full of bytes n + 1."""
    assert expert_layout in ("interleaved", "grouped")
    plan = plan_file(specs, "grouped" if expert_layout == "grouped" else "interleaved")
    with ModelWriter(path, plan) as writer:
        for section in plan.sections:
            for layer, expert in section.items():
                number = section.first_crc + layer * section.n_experts + expert
                writer.write_item(
                    section.name, layer, expert, [bytes([number + 1]) * section.item_size]
                )
        writer.finish()
    return path


def test_a_small_file_byte_by_byte(tmp_path: Path) -> None:
    plan = plan_file([NORM], "interleaved")
    with ModelWriter(tmp_path / "m", plan) as writer:
        writer.write_item("norm", 0, 0, [struct.pack("<f", 1.0), struct.pack("<f", -2.0)])
        writer.finish()
    data = (tmp_path / "m").read_bytes()
    assert len(data) == 65536 + 8
    assert (
        data[:64].hex(" ", 4)
        == (
            "434f4c49 42524976 31000000 00000000"  # COLIBRIv1
            " 01000000 04030201"  # version, byte order
            " 01000000 01000000"  # sections, items
            " 08000100 00000000"  # file size 65,544
            " 80000000 00000000"  # sections at 128
            " 00010000 00000000"  # CRCs at 256
            f" {struct.pack('<I', zlib.crc32(data[128:256])).hex()}"
            f" {struct.pack('<I', zlib.crc32(data[256:260])).hex()}"
        )
    )
    assert data[64:124] == bytes(60)
    assert data[124:128] == struct.pack("<I", zlib.crc32(data[:124]))
    assert data[128:256].hex(" ", 4) == (
        "6e6f726d " + "00000000 " * 7 +  # norm
        "00000000 00000000"  # f32 rows
        " 01000000 01000000"  # 1 layer, 1 expert
        " 01000000 02000000"  # 1 x 2
        " 00000100 00000000"  # offset 65,536
        " 00000000 00000000 00000000 00000000"  # strides
        " 08000000 00000000"  # item size
        " 00000000"  # first CRC
        + " 00000000" * 9
    )  # fmt: skip
    assert data[256:260] == struct.pack("<I", zlib.crc32(bytes.fromhex("0000803f000000c0")))
    assert data[260:65536] == bytes(65536 - 260)
    assert data[65536:].hex() == "0000803f000000c0"


def test_interleaved_keeps_a_matrix_together() -> None:
    gate, down = plan_file([GATE, DOWN], "interleaved").sections
    assert (gate.offset, gate.layer_stride, gate.expert_stride) == (65536, 3 * 4096, 4096)
    assert (down.offset, down.layer_stride, down.expert_stride) == (131072, 3 * 4096, 4096)
    assert (gate.first_crc, down.first_crc) == (0, 6)


def test_grouped_puts_an_experts_matrices_side_by_side(tmp_path: Path) -> None:
    gate, norm, down = plan_file([GATE, NORM, DOWN], "grouped").sections
    assert (gate.offset, gate.layer_stride, gate.expert_stride) == (65536, 3 * 8192, 8192)
    assert (down.offset, down.layer_stride, down.expert_stride) == (65536 + 4096, 3 * 8192, 8192)
    assert norm.offset == 131072
    file = ModelFile.open(write(tmp_path / "m", [GATE, NORM, DOWN], "grouped"))
    assert file.verify() == []
    assert file.item("down_weights", 1, 2).tolist() == [6 + 1 + 6] * 2176


def test_a_dense_layer_has_no_expert_stride() -> None:
    spec = SectionSpec("gate_weights", DType.f16, Layout.tiles, 3, 1, 16, 64, "experts")
    for layout in ("interleaved", "grouped"):
        (section,) = plan_file([spec], "grouped" if layout == "grouped" else "interleaved").sections
        assert (section.layer_stride, section.expert_stride) == (4096, 0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([DType.f32, DType.q8]),
            st.integers(1, 40),
            st.integers(1, 130),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from(["interleaved", "grouped"]),
)
def test_no_two_items_of_a_plan_overlap(
    shapes: list[tuple[DType, int, int, bool]], n_layers: int, n_experts: int, layout: str
) -> None:
    specs = [
        SectionSpec(
            f"s{index}",
            dtype,
            Layout.tiles,
            n_layers,
            n_experts,
            rows,
            cols,
            "g" if grouped else None,
        )
        for index, (dtype, rows, cols, grouped) in enumerate(shapes)
    ]
    plan = plan_file(specs, "grouped" if layout == "grouped" else "interleaved")
    ranges = sorted(
        (section.item_offset(*item), section.item_size)
        for section in plan.sections
        for item in section.items()
    )
    end = 128 + 128 * len(specs) + 4 * len(ranges)
    for offset, size in ranges:
        assert offset >= end
        assert offset % 4096 == 0
        end = offset + size
    assert plan.file_size == end


def test_values_come_back(tmp_path: Path) -> None:
    values = np.arange(40 * 70, dtype=np.float32).reshape(40, 70)
    spec = SectionSpec("w", DType.f32, Layout.tiles, 2, 1, 40, 70)
    with ModelWriter(tmp_path / "m", plan_file([spec], "interleaved")) as writer:
        writer.write_item("w", 1, 0, [pack_tiles(values, DType.f32)])
        writer.write_item("w", 0, 0, [pack_tiles(-values, DType.f32)])
        writer.finish()
    file = ModelFile.open(tmp_path / "m")
    assert np.array_equal(file.matrix("w", 1), values)
    assert np.array_equal(file.matrix("w", 0), -values)
    with pytest.raises(IndexError, match="w has no layer 2, expert 0"):
        file.matrix("w", 2)
    with pytest.raises(ModelFormatError, match="has no section v"):
        file.matrix("v")


def test_a_file_without_its_end_is_no_model(tmp_path: Path) -> None:
    plan = plan_file([NORM], "interleaved")
    with ModelWriter(tmp_path / "m", plan) as writer:
        with pytest.raises(ValueError, match="1 items were not written"):
            writer.finish()
        with pytest.raises(ValueError, match="section norm: 7 bytes instead of 8"):
            writer.write_item("norm", 0, 0, [bytes(7)])
    with pytest.raises(ModelFormatError, match="is not a Colibri model"):
        ModelFile.open(tmp_path / "m")


def repack(data: bytearray) -> bytes:
    """Make all CRCs of the tables right again, so that what they hold is looked at."""
    n_sections, n_items = struct.unpack_from("<II", data, 24)
    end = 128 + 128 * n_sections
    struct.pack_into("<I", data, 56, zlib.crc32(data[128:end]))
    struct.pack_into("<I", data, 60, zlib.crc32(data[end : end + 4 * n_items]))
    struct.pack_into("<I", data, 124, zlib.crc32(data[:124]))
    return bytes(data)


def at(offset: int, code: str, value: int | bytes) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(code, data, offset, value)


# The file of GATE (entry at 128), NORM (at 256), DOWN (at 384).
INVALID: tuple[tuple[Callable[[bytearray], None], str], ...] = (
    (at(0, "9s", b"COLIBRIv2"), "is not a Colibri model: it starts with b'COLIBRIv2"),
    (at(0, "4s", b"GGUF"), "is not a Colibri model: it starts with b'GGUFBRIv1"),
    (at(9, "B", 1), "is not a Colibri model: it starts with"),
    (at(16, "<I", 2), "has format version 2, this version reads up to 1; update"),
    (at(16, "<I", 0), "version is 0"),
    (at(20, "<I", 0x04030201), "byte_order is 0x04030201 instead of 0x01020304"),
    (at(24, "<I", 0), "n_sections is 0, not 1 to 256"),
    (at(28, "<I", 12), "the sections have 13 items, the header says 12"),
    (at(28, "<I", 0xFFFFFFFF), "4294967295 items do not fit a file_size of"),
    (at(40, "<Q", 256), "sections_offset is 256 instead of 128"),
    (at(48, "<Q", 128), "crcs_offset is 128 instead of 512"),
    (at(64, "B", 1), "reserved bytes are not zero"),
    (at(128, "B", 0), r"section 0 \(b'\\x00ate_weights.*its name is not ASCII"),
    (at(128, "32s", b"x" * 32), "its name is not ASCII, padded"),
    (at(128, "B", 0xC3), "its name is not ASCII"),
    (at(128, "B", 0x20), "its name is not ASCII"),
    (at(128, "B", 0x7F), "its name is not ASCII"),
    (at(256, "32s", b"gate_weights"), "two sections are called gate_weights"),
    (at(128 + 32, "<I", 7), "dtype 7, layout 1 is unknown"),
    (at(128 + 32, "<I", 4), "item_size is 1088, but its type and shape imply 576"),
    (at(128 + 32, "<I", 6), "dtype u8 has no layout tiles"),
    (at(256 + 32, "<I", 4), "dtype q4 has no layout rows"),
    (at(128 + 36, "<I", 2), "dtype 3, layout 2 is unknown"),
    (at(256 + 40, "<I", 0), "0 layers x 1 experts of 1 x 2"),
    (at(128 + 40, "<I", 1), "a stride without a second item is not 0"),
    (at(128 + 48, "<I", 17), "item_size is 1088, but its type and shape imply 2176"),
    (at(128 + 56, "<Q", 65536 + 4096), "starts at 69632, not at a multiple of 65536"),
    (at(128 + 56, "<Q", 65536 + 64), "not a multiple of 4096"),
    (at(128 + 56, "<Q", 0), "section gate_weights overlaps the tables"),
    (at(256 + 56, "<Q", 65536), "items overlap: sections"),
    (at(128 + 64, "<Q", 1 << 62), "ends at .* after the end of the file"),
    (at(128 + 72, "<Q", 0), "items overlap: sections gate_weights and gate_weights"),
    (at(384 + 88, "<I", 6), "section down_weights: first_crc is 6 instead of 7"),
    (at(384 + 92, "B", 1), "reserved bytes are not zero"),
)  # fmt: skip


@pytest.mark.parametrize(("change", "message"), INVALID, ids=[text for _, text in INVALID])
def test_an_invalid_structure_is_refused_by_name(
    change: Callable[[bytearray], None], message: str, tmp_path: Path
) -> None:
    data = bytearray(write(tmp_path / "m", [GATE, NORM, DOWN]).read_bytes())
    change(data)
    (tmp_path / "m").write_bytes(repack(data))
    with pytest.raises(ModelFormatError, match=message) as caught:
        ModelFile.open(tmp_path / "m")
    assert caught.value.exit_code == 5
    assert str(tmp_path / "m") in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_file_has_code_3(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(FileMissingError) as caught:
            ModelFile.open(path)
        assert caught.value.exit_code == 3


@pytest.mark.parametrize("size", [65543, 65000, 300, 200, 128, 127, 60, 9, 5, 1, 0])
def test_a_truncated_file_has_code_6(size: int, tmp_path: Path) -> None:
    path = write(tmp_path / "m", [NORM])
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelTruncatedError) as caught:
        ModelFile.open(path)
    assert caught.value.exit_code == 6


def test_a_file_that_is_too_long_has_code_6(tmp_path: Path) -> None:
    path = write(tmp_path / "m", [NORM])
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ModelTruncatedError, match="too long: 65545 bytes, its header says 65544"):
        ModelFile.open(path)


@given(st.integers(0, 128 + 3 * 128 + 13 * 4 - 1), st.integers(0, 7))
def test_every_bit_of_header_and_tables_is_guarded(
    tmp_path_factory: pytest.TempPathFactory, offset: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("bits") / "m"
    data = bytearray(write(path, [GATE, NORM, DOWN]).read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        ModelFile.open(path)
    newer = 16 <= offset < 20 and (offset, bit) != (16, 0)
    assert caught.value.exit_code == (5 if offset < 16 or newer else 7)


@pytest.mark.parametrize(
    ("offset", "what"), [(126, "header is"), (140, "section table"), (530, "CRC table")]
)
def test_damaged_tables_are_named(offset: int, what: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m", [GATE, NORM, DOWN])
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelCorruptError, match=f"the {what}"):
        ModelFile.open(path)


def test_damage_is_named_by_section_layer_and_expert(tmp_path: Path) -> None:
    path = write(tmp_path / "m", [GATE, NORM, DOWN])
    file = ModelFile.open(path)
    read = 0

    def count(n_bytes: int) -> None:
        nonlocal read
        read += n_bytes

    assert file.verify(count) == []
    assert read == path.stat().st_size
    gate, norm, down = file.sections
    data = bytearray(path.read_bytes())
    data[gate.item_offset(1, 2) + 1087] ^= 0x80
    data[norm.item_offset(0, 0)] ^= 1
    data[down.item_offset(0, 1) + 5] ^= 4
    data[gate.item_offset(0, 0) + 2000] = 1  # in the gap behind the item
    path.write_bytes(data)
    damages = file.verify()
    assert [(one.section, one.layer, one.expert) for one in damages] == [
        (None, None, None),
        ("gate_weights", 1, 2),
        ("norm", 0, 0),
        ("down_weights", 0, 1),
    ]
    assert damages[0].text == (
        "3008 bytes after section gate_weights, layer 0, expert 0 are not all zero"
    )
    assert damages[1].text.startswith("section gate_weights, layer 1, expert 2: CRC32 ")
    assert damages[2].text.startswith("section norm: CRC32 ")
    assert (damages[1].offset, damages[1].size) == (65536 + 5 * 4096, 1088)
