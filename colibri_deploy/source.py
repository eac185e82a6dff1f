# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What a conversion reads, whatever file it comes from: a config, sections, and tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from colibri_deploy.checkpoint import Raw
from colibri_deploy.families.family import Piece, WeightSection
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.tiles import TILE_ROWS, DType, FloatArray

_CHUNK_VALUES = 1 << 20  # elements of a tensor that are in memory at a time


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

    def raw(self) -> Raw:
        """As stored: the dimensions but the last, then the stored row. Mapped, as long as it lives.

        Raises FileMissingError if the file has changed since its header was read.
        """

    def widen(self, raw: Raw) -> FloatArray:
        """Stored rows to float32 values."""


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
    notes: tuple[str, ...] = ()


def raw_chunks(tensor: StoredTensor, piece: Piece, rows: int, cols: int) -> Iterator[Raw]:
    """An item's rows as stored, in the item's order; columns are not reordered.

    Some rows at a time; all chunks but the last are whole tiles. Every time the tensor is mapped
    anew, so that pages that were read no longer count as this process's memory, however large the
    tensor is.
    """
    step = max(_CHUNK_VALUES // cols // TILE_ROWS, 1) * TILE_ROWS
    order = None if piece.rows is None else piece.rows()
    for start in range(0, rows, step):
        raw = tensor.raw()
        matrix = raw.reshape(rows, -1) if piece.view is None else piece.view(raw)
        part = (
            matrix[start : start + step] if order is None else matrix[order[start : start + step]]
        )
        del raw, matrix
        yield part


def value_chunks(tensor: StoredTensor, piece: Piece, rows: int, cols: int) -> Iterator[FloatArray]:
    """An item's values, float32 [some rows, cols] at a time; all but the last whole tiles."""
    columns = None if piece.columns is None else piece.columns()
    for part in raw_chunks(tensor, piece, rows, cols):
        values = tensor.widen(part)
        yield values if columns is None else np.ascontiguousarray(values[:, columns])
