# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Makes a Mixture of Experts out of a dense model: real weights, and a known answer.

Every expert is the dense FFN with its intermediate neurons in another order, so all compute the
same function, up to the rounding of sums and of quantised blocks. As the router's weights add up to
1, the model computes what the dense one does whichever experts are chosen; the bits of the logits,
and with them their hash, depend on the choice.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Self

import numpy as np
import numpy.typing as npt

from colibri_deploy import splitmix
from colibri_deploy.errors import ConfigError, ConversionError
from colibri_deploy.families.family import Kind, Order, Piece, WeightSection
from colibri_deploy.source import Source, value_chunks
from colibri_deploy.tiles import FloatArray

# Standard deviation of a router logit for an input whose directions are all alike. Real ones are
# not, but near enough: over 282 tokens of English the router logits of SmolLM2-135M (4x2) deviate
# by 0.9 to 1.6, the first expert weighs 0.70 on average, the least used of any layer serves 23.
_ROUTER_SPREAD = 2.0
_ROWS = ("gate_weights", "up_weights")  # sections of an FFN whose rows are its neurons
_COLUMNS = ("down_weights", "gate_bias", "up_bias")  # and whose columns are
_FFN = (*_ROWS, *_COLUMNS, "down_bias")


@dataclasses.dataclass(frozen=True)
class Upcycling:
    """How many experts, how many of them for each token, and the seed of everything random."""

    n_experts: int
    top_k: int
    seed: int = 1

    @classmethod
    def parse(cls, text: str, seed: int = 1) -> Self:
        """`4x2`: four experts, two for each token. Raises ValueError."""
        match = re.fullmatch(r"([0-9]{1,4})x([0-9]{1,4})", text)
        if match is None:
            raise ValueError(f"{text!r} is not EXPERTSxTOP_K, such as 4x2")
        return cls(int(match[1]), int(match[2]), seed)


def upcycle(source: Source, upcycling: Upcycling) -> Source:
    """The Mixtral that computes what the dense `source`, whose tensors have been checked, does.

    Raises ConversionError if it has experts already, or for numbers that no model can have.
    """
    if source.config.n_experts:
        raise ConversionError(f"{source.path} has experts already; --upcycle takes a dense model")
    experts, seed = upcycling.n_experts, upcycling.seed
    if experts < 1:
        raise ConversionError("--upcycle: there must be one expert at least")
    try:
        config = dataclasses.replace(
            source.config, architecture="mixtral", n_experts=experts, top_k=upcycling.top_k
        )
    except ConfigError as error:
        raise ConversionError(f"--upcycle: {error.message}") from None
    sections = []
    for section in source.sections:
        if section.name == "gate_weights":
            rows, cols = experts, config.hidden_size
            sections.append(
                WeightSection("router", Kind.exact_matrix, config.n_layers, 1, rows, cols, None)
            )
        is_ffn = section.name in _FFN
        sections.append(_with_experts(section, experts, seed) if is_ffn else section)
    routers = [
        router(seed, layer, experts, norm) for layer, norm in enumerate(_norms_before_ffn(source))
    ]
    return dataclasses.replace(
        source,
        config=config,
        sections=tuple(sections),
        computed={**source.computed, "router": np.concatenate(routers)},
        notes=(
            *source.notes,
            f"upcycled to {experts} experts, {upcycling.top_k} for each token, seed {seed}: "
            "each is the dense FFN, its neurons in another order "
            "(q8, q4, mxfp4: down_weights rounded anew)",
        ),
    )


def router(seed: int, layer: int, n_experts: int, norm: FloatArray) -> FloatArray:
    """The router of a layer, float32 [n_experts, hidden], for the weights [hidden] of its norm.

    The larger the norm's weights the larger what it lets through, and the smaller the router's.
    """
    size = math.sqrt(math.fsum(weight * weight for weight in norm.tolist()))
    spread = np.float32(_ROUTER_SPREAD * math.sqrt(3) / size if size > 0 else 0)
    values = splitmix.uniform(splitmix.stream(seed, f"router.{layer}"), n_experts * norm.size)
    return (values * spread).reshape(n_experts, norm.size)


def _norms_before_ffn(source: Source) -> Iterator[FloatArray]:
    """The weights of each layer's norm, float32 [hidden]."""
    (section,) = (section for section in source.sections if section.name == "ffn_norm")
    assert section.source is not None  # norms are stored
    for layer in range(section.n_layers):
        piece = section.source(layer, 0)
        chunks = value_chunks(source.tensors[piece.tensor], piece, 1, section.cols)
        yield next(chunks).reshape(-1)


def neuron_order(seed: int, layer: int, expert: int, ffn_size: int) -> npt.NDArray[np.intp]:
    """Neuron `i` of an expert is this neuron of the dense FFN."""
    return splitmix.permutation(splitmix.stream(seed, f"neurons.{layer}.{expert}"), ffn_size)


def _with_experts(section: WeightSection, n_experts: int, seed: int) -> WeightSection:
    """A section of the FFN once for each expert, whose neurons have another order."""
    dense = section.source
    assert dense is not None  # all of an FFN is stored
    size = section.rows if section.name in _ROWS else section.cols

    def source(layer: int, expert: int) -> Piece:
        def order() -> npt.NDArray[np.intp]:
            return neuron_order(seed, layer, expert, size)

        return _reordered(dense(layer, 0), order, section.name)

    return dataclasses.replace(section, n_experts=n_experts, source=source)


def _reordered(piece: Piece, order: Order, name: str) -> Piece:
    """No source reorders the neurons of a dense FFN itself, so there is nothing to combine."""
    if name in _ROWS:
        return dataclasses.replace(piece, rows=order)
    return dataclasses.replace(piece, columns=order) if name in _COLUMNS else piece
