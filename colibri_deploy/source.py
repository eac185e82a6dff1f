# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What a conversion reads, whatever file it comes from: a config, sections, and tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from colibri_deploy.chat_template import ChatTemplate
from colibri_deploy.families.family import Piece, WeightSection
from colibri_deploy.mapped_tensor import Raw, Rows, View
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.tiles import TILE_ROWS, DType, FloatArray

_CHUNK_VALUES = 1 << 18  # elements of a tensor that are read at a time


class StoredTensor(Protocol):
    """A tensor in a file; nothing of it has been read yet."""

    @property
    def name(self) -> str:
        """Its name in the file."""

    @property
    def stored(self) -> str:
        """The file's name of the element type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements of each dimension, the longest stride first."""

    @property
    def dtype(self) -> DType | None:
        """The type of `model.bin` that stores it without loss; None: only its values can tell.

        Raises ConversionError if the element type cannot be read at all.
        """

    def rows(self, view: View | None, rows: Rows, n_rows: int) -> Raw:
        """Some of the `n_rows` rows that `view` makes of the tensor, as stored: [some, stored row].

        They are mapped or copied; without a view the tensor's own rows. Raises FileMissingError if
        the file has changed since its header was read.
        """

    def widen(self, raw: Raw) -> FloatArray:
        """Stored rows to float32 values."""

    def blocks(self, raw: Raw) -> tuple[Raw, Raw]:
        """Stored rows of a `dtype` of blocks: integers [rows, blocks, 32], scales [rows, blocks].

        Both as `tiles` packs them, bit for bit.
        """


@dataclasses.dataclass(frozen=True)
class Source:
    """A model before its conversion. Only headers have been read."""

    path: Path
    kind: str  # for messages: whose tensors these are
    shapes_from: str  # for messages: what implies the shapes of the tensors
    config: ModelConfig
    tied: bool  # the head is the embeddings
    sections: tuple[WeightSection, ...]  # all but `tokenizer`
    computed: Mapping[str, FloatArray]  # sections without a source: [n_layers * rows, cols]
    tensors: Mapping[str, StoredTensor]
    ignored: tuple[str, ...]  # regular expressions of tensors that the model does not use
    tokenizer: bytes | None
    chat_template: ChatTemplate | None = None
    notes: tuple[str, ...] = ()


def section_pieces(section: WeightSection) -> Iterator[Piece]:
    """What the section's items are made of; nothing if they are computed."""
    if section.source is not None:
        for layer in range(section.n_layers):
            for expert in range(section.n_experts):
                yield section.source(layer, expert)


def item_parts(n_rows: int, n_cols: int) -> list[slice]:
    """An item's rows, some at a time; all parts but the last are whole tiles."""
    step = max(_CHUNK_VALUES // n_cols // TILE_ROWS, 1) * TILE_ROWS
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


@dataclasses.dataclass(frozen=True)
class ItemReader:
    """Reads an item's rows, in the item's order, some at a time.

    Every time the tensor is mapped anew, so that pages that were read no longer count as this
    process's memory, however large the tensor is.
    """

    tensor: StoredTensor
    piece: Piece
    n_rows: int
    n_cols: int
    order: npt.NDArray[np.intp] | None
    columns: npt.NDArray[np.intp] | None

    @classmethod
    def open(cls, tensor: StoredTensor, piece: Piece, n_rows: int, n_cols: int) -> Self:
        """Make the orders of rows and columns, which may be long."""
        order = None if piece.rows is None else piece.rows()
        columns = None if piece.columns is None else piece.columns()
        return cls(tensor, piece, n_rows, n_cols, order, columns)

    def raw(self, part: slice) -> Raw:
        """A part as stored; columns are not reordered."""
        rows = part if self.order is None else self.order[part]
        return self.tensor.rows(self.piece.view, rows, self.n_rows)

    def values(self, part: slice) -> FloatArray:
        """A part's values, float32 [rows, cols]."""
        values = self.tensor.widen(self.raw(part))
        if self.columns is None:
            return values
        return np.ascontiguousarray(values[:, self.columns])


def value_chunks(tensor: StoredTensor, piece: Piece, rows: int, cols: int) -> Iterator[FloatArray]:
    """An item's values, float32 [some rows, cols] at a time; all but the last whole tiles."""
    reader = ItemReader.open(tensor, piece, rows, cols)
    for part in item_parts(rows, cols):
        yield reader.values(part)
