# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What a model family has to say: its config, its sections, and where their values come from."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.mapped_tensor import Raw
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.tiles import FloatArray


class Kind(enum.Enum):
    """What a section holds; decides its dtype and layout (docs/FORMAT.md)."""

    matrix = "matrix"  # tiles of any dtype
    embeddings = "embeddings"  # rows of floats; tiles if tied to the head or quantised
    exact_matrix = "exact_matrix"  # tiles of f32, whatever the other matrices are
    vector = "vector"  # one row of f32


Order: TypeAlias = Callable[[], npt.NDArray[np.intp]]  # made when it is needed, it may be long


@dataclasses.dataclass(frozen=True)
class Piece:
    """The tensor behind an item.

    `view` turns the tensor, as stored and mapped, into the item's [rows, stored row]: slices,
    transpositions and reshapes read nothing. None: the tensor is the item (a vector is one row).
    Row `i` of the item is row `rows()[i]` of that, and column `j` its column `columns()[j]`.
    """

    tensor: str
    shape: tuple[int, ...]  # of the whole tensor
    view: Callable[[Raw], Raw] | None = None
    rows: Order | None = None
    columns: Order | None = None


@dataclasses.dataclass(frozen=True)
class WeightSection:
    """One section of `model.bin` and the source of each of its items.

    `source` maps (layer, expert) to the tensor; None: the values are computed (`Family.computed`).
    """

    name: str
    kind: Kind
    n_layers: int
    n_experts: int
    rows: int
    cols: int
    source: Callable[[int, int], Piece] | None
    group: str | None = None  # sections that may be placed expert by expert


class Family(Protocol):
    """A model family. Implementations are stateless."""

    architecture: str  # in our config.json
    hub_architecture: str  # in the checkpoint's config.json

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """Translate a checkpoint's config.

        Raises ConversionError, with the key's name, for everything that the engine does not do.
        """

    def sections(
        self, hub: HubConfig, config: ModelConfig, tied: bool
    ) -> tuple[WeightSection, ...]:
        """All sections but `tokenizer`, in the order of the file; no `lm_head` if `tied`."""

    def computed(self, hub: HubConfig, config: ModelConfig) -> dict[str, FloatArray]:
        """Values of the sections without a source: name -> [n_layers * rows, cols]."""

    def ignored(self, hub: HubConfig, config: ModelConfig) -> tuple[str, ...]:
        """Regular expressions of tensors that the model does not use."""
