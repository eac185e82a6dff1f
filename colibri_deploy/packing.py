# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Turns what a source stores into what `model.bin` stores, a part of an item at a time.

Parts do not depend on each other, so that several are packed at once, on as many threads as there
are cores (numpy computes without Python's lock). Their results are taken in order, and only a few
are begun before that: memory does not grow with the model.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from colibri_deploy.dtype_choice import is_transcoded
from colibri_deploy.errors import ConversionError
from colibri_deploy.families.family import WeightSection
from colibri_deploy.mapped_tensor import Raw
from colibri_deploy.rounding import RoundingError, measure
from colibri_deploy.sections import SectionSpec
from colibri_deploy.source import ItemReader, StoredTensor, item_parts
from colibri_deploy.tiles import (
    ByteArray,
    DType,
    FloatArray,
    Layout,
    RangeError,
    pack_mxfp4_blocks,
    pack_q4_blocks,
    pack_q8_blocks,
    pack_rows,
    pack_tiles,
    unpack_rows,
    unpack_tiles,
)

_MAX_THREADS = 16
_Result = TypeVar("_Result")

_PACK_BLOCKS: dict[DType, Callable[[Raw, Raw], ByteArray]] = {
    DType.q8: pack_q8_blocks,
    DType.q4: pack_q4_blocks,
    DType.mxfp4: pack_mxfp4_blocks,
}


@dataclasses.dataclass(frozen=True)
class Item:
    """One layer's and expert's matrix or vector of a section."""

    section: WeightSection
    spec: SectionSpec
    layer: int
    expert: int

    def parts(self) -> list[slice]:
        """The rows that are packed at a time."""
        if self.section.source is None:
            return [slice(0, self.spec.rows)]
        return item_parts(self.spec.rows, self.spec.cols)

    def open(
        self, tensors: Mapping[str, StoredTensor], computed: Mapping[str, FloatArray]
    ) -> OpenItem:
        """The item with its values at hand."""
        if self.section.source is None:
            name = self.section.name
            shape = (self.section.n_layers, self.section.rows, self.section.cols)
            return OpenItem(name, self.spec, None, computed[name].reshape(shape)[self.layer])
        piece = self.section.source(self.layer, self.expert)
        tensor = tensors[piece.tensor]
        reader = ItemReader.open(tensor, piece, self.spec.rows, self.spec.cols)
        return OpenItem(piece.tensor, self.spec, reader, None)


@dataclasses.dataclass(frozen=True)
class OpenItem:
    """An item and where its values come from."""

    label: str  # for messages: the tensor
    spec: SectionSpec
    reader: ItemReader | None
    computed: FloatArray | None

    @property
    def is_transcoded(self) -> bool:
        """Whether its integers and scales are stored as they are."""
        reader = self.reader
        return reader is not None and is_transcoded(reader.tensor, reader.piece, self.spec.dtype)

    @property
    def is_exact(self) -> bool:
        """Whether its type tells that no value is rounded."""
        stored = None if self.reader is None else self.reader.tensor.dtype
        same = stored is self.spec.dtype and stored in (DType.f16, DType.bf16)
        return same or self.spec.dtype is DType.f32 or self.is_transcoded

    def values(self, part: slice) -> FloatArray:
        """Float32 [rows, cols]. Raises ConversionError for NaN and Inf."""
        if self.reader is None:
            assert self.computed is not None
            values = self.computed[part]
        else:
            values = self.reader.values(part)
        if not bool(np.isfinite(values).all()):
            raise ConversionError(
                f"{self.label} holds NaN or Inf; the checkpoint is damaged, download it again"
            )
        return values

    def pack(self, part: slice) -> Packed:
        """A part as it is stored. Raises ConversionError for values that do not fit."""
        try:
            if self.is_transcoded:
                assert self.reader is not None
                blocks = self.reader.tensor.blocks(self.reader.raw(part))
                return Packed(_PACK_BLOCKS[self.spec.dtype](*blocks), RoundingError())
            values = self.values(part)
            pack = pack_tiles if self.spec.layout is Layout.tiles else pack_rows
            data = pack(values, self.spec.dtype)
        except RangeError as error:
            raise ConversionError(f"{self.label}: {error}; choose another --dtype") from None
        if self.is_exact:
            return Packed(data, RoundingError())
        return Packed(data, measure(values, self.unpack(data, part)))

    def unpack(self, data: ByteArray, part: slice) -> FloatArray:
        """The values of what `pack` made of a part, float32 [rows, cols]."""
        unpack = unpack_tiles if self.spec.layout is Layout.tiles else unpack_rows
        return unpack(data, self.spec.dtype, part.stop - part.start, self.spec.cols)


@dataclasses.dataclass(frozen=True)
class Packed:
    """A part of an item as it is stored, and what that did to its values."""

    data: ByteArray
    error: RoundingError


def pack_items(
    items: Sequence[Item],
    tensors: Mapping[str, StoredTensor],
    computed: Mapping[str, FloatArray],
) -> Iterator[tuple[Item, Iterator[Packed]]]:
    """Each item with its parts, all of which must be taken before the next item is."""

    def tasks() -> Iterator[Callable[[], Packed]]:
        for item in items:
            opened = item.open(tensors, computed)
            for part in item.parts():
                yield functools.partial(opened.pack, part)

    with in_parallel(tasks()) as results:
        for item in items:
            yield item, itertools.islice(results, len(item.parts()))


@contextlib.contextmanager
def in_parallel(tasks: Iterator[Callable[[], _Result]]) -> Iterator[Iterator[_Result]]:
    """The results of tasks, in their order; the tasks run on as many threads as there are cores."""
    n_threads = min(os.cpu_count() or 1, _MAX_THREADS)

    def results(pool: ThreadPoolExecutor) -> Iterator[_Result]:
        begun: collections.deque[Future[_Result]] = collections.deque()
        for task in tasks:
            begun.append(pool.submit(task))
            if len(begun) > 2 * n_threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()

    with ThreadPoolExecutor(n_threads) as pool:
        yield results(pool)
