# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a `model.bin` that was just written, and compares it with what it was made of."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from colibri_deploy.errors import ModelCorruptError
from colibri_deploy.item_part import unpack_part
from colibri_deploy.model_file import ModelFile
from colibri_deploy.packing import Item, OpenItem, in_parallel
from colibri_deploy.progress import Progress
from colibri_deploy.rounding import is_rounded
from colibri_deploy.source import StoredTensor
from colibri_deploy.tiles import FloatArray


def read_back(
    path: Path,
    items: Sequence[Item],
    tensors: Mapping[str, StoredTensor],
    computed: Mapping[str, FloatArray],
    progress: Progress,
) -> None:
    """Compare the whole file with its checksums, and every value with its source.

    A value must be the source's own where its type holds that, and otherwise within what rounding
    to the type may do. Each byte of the file is told to `progress` twice. Raises ModelCorruptError.
    """
    _forget_cached(path)
    file = ModelFile.open(path)
    damages = file.verify(progress.advance)
    if damages:
        raise _differs(damages[0].text)

    def tasks() -> Iterator[Callable[[], bool]]:
        for item in items:
            opened = item.open(tensors, computed)
            for part in item.parts():
                yield functools.partial(_is_same, file, item, opened, part)

    with in_parallel(tasks()) as results:
        for item in items:
            name = item.section.name
            if not all(itertools.islice(results, len(item.parts()))):
                raise _differs(file.section(name).item_name(item.layer, item.expert))
            progress.advance(item.spec.item_size)


def _is_same(file: ModelFile, item: Item, opened: OpenItem, part: slice) -> bool:
    """Whether the rows of a part are those of the source."""
    spec = item.spec
    data = file.item(spec.name, item.layer, item.expert)
    stored = unpack_part(data, spec, part)
    values = opened.values(part)
    if opened.is_exact:
        return bool(np.array_equal(stored, values))
    return is_rounded(values, stored, spec.dtype)


def _forget_cached(path: Path) -> None:
    """What is read next comes from the disk, not from memory, as far as the system complies."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _differs(what: str) -> ModelCorruptError:
    return ModelCorruptError(
        f"what was read back is not what was written ({what}); "
        "the disk or the memory is faulty: check both, then convert again"
    )
