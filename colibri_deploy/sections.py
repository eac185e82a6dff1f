# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The sections of `model.bin` and their places in the file (docs/FORMAT.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from colibri_deploy.tiles import DType, Layout, item_size, round_up

HEADER_BYTES = 128
ENTRY_BYTES = 128  # of the section table
SECTION_ALIGN = 65536
TILES_ALIGN = 4096
ROWS_ALIGN = 64

ExpertLayout: TypeAlias = Literal["interleaved", "grouped"]


@dataclasses.dataclass(frozen=True)
class SectionSpec:
    """One kind of tensor, before it has a place in the file.

    Sections that name the same `group` may be placed expert by expert (`grouped`).
    """

    name: str
    dtype: DType
    layout: Layout
    n_layers: int
    n_experts: int
    rows: int
    cols: int
    group: str | None = None

    @property
    def item_size(self) -> int:
        """Bytes of one item."""
        return item_size(self.dtype, self.layout, self.rows, self.cols)

    @property
    def align(self) -> int:
        """Bytes to whose multiple every item's offset is a multiple."""
        return TILES_ALIGN if self.layout is Layout.tiles else ROWS_ALIGN


@dataclasses.dataclass(frozen=True)
class Section:
    """One entry of the section table; offsets, strides and sizes in bytes."""

    name: str
    dtype: DType
    layout: Layout
    n_layers: int
    n_experts: int
    rows: int
    cols: int
    offset: int
    layer_stride: int
    expert_stride: int
    item_size: int
    first_crc: int

    @property
    def n_items(self) -> int:
        """Number of items, layers times experts."""
        return self.n_layers * self.n_experts

    @property
    def size(self) -> int:
        """Bytes of all items, without the gaps between them."""
        return self.n_items * self.item_size

    def item_offset(self, layer: int, expert: int) -> int:
        """Offset in the file of the item of `layer` and `expert`."""
        if not (0 <= layer < self.n_layers and 0 <= expert < self.n_experts):
            raise IndexError(f"{self.name} has no layer {layer}, expert {expert}")
        return self.offset + layer * self.layer_stride + expert * self.expert_stride

    def items(self) -> Iterator[tuple[int, int]]:
        """All (layer, expert), in the order of the CRC table."""
        for layer in range(self.n_layers):
            for expert in range(self.n_experts):
                yield layer, expert

    def item_name(self, layer: int, expert: int) -> str:
        """`section gate_weights, layer 3, expert 5`: as much as the section has."""
        text = f"section {self.name}"
        if self.n_layers > 1:
            text += f", layer {layer}"
        if self.n_experts > 1:
            text += f", expert {expert}"
        return text


@dataclasses.dataclass(frozen=True)
class FilePlan:
    """Where everything lies in a file that is to be written."""

    sections: tuple[Section, ...]
    file_size: int

    @property
    def n_items(self) -> int:
        """Entries of the CRC table."""
        return sum(section.n_items for section in self.sections)


def plan_file(specs: Sequence[SectionSpec], expert_layout: ExpertLayout) -> FilePlan:
    """Place `specs` one after another, in their order; groups at the place of their first member.

    `interleaved` keeps every section together. `grouped` puts the items of a group's sections
    side by side for each layer and expert.
    """
    n_items = sum(spec.n_layers * spec.n_experts for spec in specs)
    end = HEADER_BYTES + ENTRY_BYTES * len(specs) + 4 * n_items
    places: dict[str, tuple[int, int]] = {}  # name -> offset, distance between items
    for spec in specs:
        if spec.name in places:
            continue
        offset = round_up(end, SECTION_ALIGN)
        members = [spec]
        single = spec.n_layers == spec.n_experts == 1
        if expert_layout == "grouped" and spec.group is not None and not single:
            members = [other for other in specs if other.group == spec.group]
        starts, cursor = [], 0
        for member in members:
            cursor = round_up(cursor, member.align)
            starts.append(offset + cursor)
            cursor += member.item_size
        stride = round_up(cursor, max(member.align for member in members))
        for member, start in zip(members, starts, strict=True):
            if (member.n_layers, member.n_experts) != (spec.n_layers, spec.n_experts):
                raise ValueError(f"{member.name} and {spec.name} differ in layers or experts")
            places[member.name] = (start, stride)
            last = (member.n_layers * member.n_experts - 1) * stride
            end = max(end, start + last + member.item_size)
    sections, first_crc = [], 0
    for spec in specs:
        offset, stride = places[spec.name]
        section = Section(
            name=spec.name,
            dtype=spec.dtype,
            layout=spec.layout,
            n_layers=spec.n_layers,
            n_experts=spec.n_experts,
            rows=spec.rows,
            cols=spec.cols,
            offset=offset,
            layer_stride=stride * spec.n_experts if spec.n_layers > 1 else 0,
            expert_stride=stride if spec.n_experts > 1 else 0,
            item_size=spec.item_size,
            first_crc=first_crc,
        )
        sections.append(section)
        first_crc += section.n_items
    return FilePlan(tuple(sections), end)
