# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What a model's weights tell about its routers, and what would send every token to one expert.

A norm stands before every router, so its inputs have a known size: each element is one of root
mean square 1 times the norm's weight. For inputs whose directions are all alike, an expert's logit
then deviates by the length of its row times those weights. Real inputs are not all alike, but near
enough to tell a router that works from one that cannot.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from colibri_deploy.item_part import unpack_part
from colibri_deploy.model import Model
from colibri_deploy.source import item_parts
from colibri_deploy.tiles import FloatArray

_FLAT = 1e-3  # logits that differ by less choose by the last bits
_HOT = 100.0  # logits that differ by so much leave one expert all the weight
_ONE_CHANNEL = 0.5  # share of what one element of the input contributes
_SURE = 6.0  # standard deviations: a bias beyond them decides alone
_SHOWN = 8  # experts in a text
_SAME = 1e-6  # distance of two rows, relative


@dataclasses.dataclass(frozen=True)
class LayerHealth:
    """One router."""

    layer: int  # of the model
    logit_scale: float  # how far an expert's logit deviates from the mean of all experts'
    smallest_row: float  # length of an expert's row times the norm's weights
    largest_row: float
    channel: int  # the element of the input that contributes most to the logits' differences
    channel_share: float  # of the variance, 0 to 1
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class EmbeddingHealth:
    """Root mean squares of the embeddings' rows, after `embedding_scale`."""

    smallest: float
    median: float
    largest: float
    lost: tuple[int, ...]  # tokens whose rows the first norm cannot scale up
    warnings: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class RouterHealth:
    """All routers of a model, and the embeddings."""

    layers: tuple[LayerHealth, ...]
    embeddings: EmbeddingHealth

    @property
    def warnings(self) -> list[str]:
        """What is wrong, and what to do about it."""
        found = [one for layer in self.layers for one in layer.warnings]
        return [*found, *self.embeddings.warnings]


def router_health(model: Model) -> RouterHealth | None:
    """Reads routers, norms and embeddings, some rows at a time; None for a dense model."""
    config, file = model.config, model.file
    if not config.n_experts:
        return None

    def vector(name: str, index: int, size: int) -> FloatArray:
        if not file.has_section(name):
            return np.zeros(size, np.float32)
        return file.matrix(name, index).reshape(-1)

    layers = []
    for index, layer in enumerate(config.expert_layers):
        rows = file.matrix("router", index) * file.matrix("ffn_norm", layer)
        bias = vector("router_bias", index, config.n_experts)
        correction = vector("router_correction", index, config.n_experts)
        layers.append(_layer_health(layer, rows, bias, correction, config.top_k))
    return RouterHealth(tuple(layers), _embedding_health(model))


def _layer_health(
    layer: int, rows: FloatArray, bias: FloatArray, correction: FloatArray, top_k: int
) -> LayerHealth:
    """`rows` [experts, hidden] are the router's times the norm's weights."""
    wide = rows.astype(np.float64)
    lengths = np.sqrt((wide * wide).sum(axis=1))
    apart = wide - wide.mean(axis=0)  # what all experts have in common chooses none of them
    by_channel = (apart * apart).sum(axis=0) / len(rows)
    scale = float(np.sqrt(by_channel.sum()))
    channel = int(by_channel.argmax())
    share = float(by_channel[channel] / by_channel.sum()) if scale > 0 else 0.0
    where = f"layer {layer}: "
    warnings = []
    chosen = _chosen_by_bias(bias, top_k, _SURE * scale) or _chosen_by_bias(correction, top_k, 1.0)
    if chosen:
        warnings.append(
            f"{where}a bias sends every token to the experts {_some(chosen)}; "
            "look for a damaged or misplaced bias in the checkpoint"
        )
    elif scale < _FLAT and len(rows) > 1:
        warnings.append(
            f"{where}the router's logits differ by {scale:.2g} only, so that every token goes to "
            f"the experts of the lowest numbers; the router was not trained or not saved"
        )
    elif scale > _HOT:
        warnings.append(
            f"{where}the router's logits differ by {scale:.3g}, so that one expert has nearly all "
            "the weight; look for a router or a norm that was scaled twice"
        )
    elif share > _ONE_CHANNEL:
        warnings.append(
            f"{where}element {channel} of the input makes {share:.0%} of the logits' differences: "
            "if it has one sign, every token goes to the same experts; look at that element of "
            "the norm before the router"
        )
    twins = _twins(wide, lengths)
    if twins:
        warnings.append(
            f"{where}the router's rows {_some(twins)} equal an earlier one: of equal logits the "
            "lower expert is taken; a model whose experts were copied must be trained on first"
        )
    return LayerHealth(
        layer,
        scale,
        float(lengths.min()),
        float(lengths.max()),
        channel,
        share,
        tuple(warnings),
    )


def _chosen_by_bias(bias: FloatArray, top_k: int, margin: float) -> list[int]:
    """The experts that a bias chooses whatever the input is; none if the input has a say."""
    order = np.argsort(-bias, kind="stable")
    if len(order) <= top_k or bias[order[top_k - 1]] - bias[order[top_k]] <= margin:
        return []
    return sorted(int(expert) for expert in order[:top_k])


def _twins(rows: npt.NDArray[np.float64], lengths: npt.NDArray[np.float64]) -> list[int]:
    """Rows that equal an earlier one, other than zero."""
    found = []
    for expert in range(1, len(rows)):
        distances = np.sqrt(((rows[:expert] - rows[expert]) ** 2).sum(axis=1))
        if lengths[expert] > 0 and distances.min() <= _SAME * lengths[expert]:
            found.append(expert)
    return found


def _embedding_health(model: Model) -> EmbeddingHealth:
    scale = model.config.embedding_scale
    parts = [np.square(rows.astype(np.float64)).mean(axis=1) for rows in _embedding_rows(model)]
    squares = np.concatenate(parts) * scale * scale
    norms = np.sqrt(squares)
    lost = [int(token) for token in np.flatnonzero(squares < model.config.norm_eps)]
    warnings = []
    if 2 * len(lost) > len(norms):
        warnings.append(
            f"{len(lost):,} of {len(norms):,} embeddings are too small for the norms to scale up "
            f"(root mean square {float(np.median(norms)):.2g}, epsilon "
            f"{model.config.norm_eps:.2g}): their tokens all look alike to the routers; "
            "look for a missing factor of the embeddings or for another epsilon"
        )
    return EmbeddingHealth(
        float(norms.min()),
        float(np.median(norms)),
        float(norms.max()),
        tuple(lost),
        tuple(warnings),
    )


def _embedding_rows(model: Model) -> Iterator[FloatArray]:
    """The embeddings, float32 [some rows, hidden] at a time."""
    section, item = model.file.section("embeddings"), model.file.item("embeddings")
    for part in item_parts(section.rows, section.cols):
        yield unpack_part(item, section, part)


def _some(experts: list[int]) -> str:
    shown = ", ".join(map(str, experts[:_SHOWN]))
    return shown if len(experts) <= _SHOWN else f"{shown} and {len(experts) - _SHOWN} more"
