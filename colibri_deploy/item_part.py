# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Some rows of an item of `model.bin`, without the rest."""

from __future__ import annotations

from colibri_deploy.sections import Section, SectionSpec
from colibri_deploy.tiles import (
    TILE_ROWS,
    ByteArray,
    FloatArray,
    Layout,
    round_up,
    unpack_rows,
    unpack_tiles,
)


def unpack_part(item: ByteArray, section: Section | SectionSpec, part: slice) -> FloatArray:
    """Rows `part` of an item's bytes, float32 [rows, cols]; of tiles it starts with a whole one."""
    is_tiles = section.layout is Layout.tiles
    unit = TILE_ROWS if is_tiles else 1  # rows that lie together
    unit_bytes = section.item_size * unit // round_up(section.rows, unit)
    data = item[part.start // unit * unit_bytes : -(-part.stop // unit) * unit_bytes]
    unpack = unpack_tiles if is_tiles else unpack_rows
    return unpack(data, section.dtype, part.stop - part.start, section.cols)
