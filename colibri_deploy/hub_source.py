# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face checkpoint directory as the source of a conversion."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from colibri_deploy.chat_template import hub_template
from colibri_deploy.checkpoint import Checkpoint
from colibri_deploy.errors import ConversionError
from colibri_deploy.families import family_of
from colibri_deploy.families.family import Piece
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.hub_quantised import dequantised
from colibri_deploy.source import Source, StoredTensor, value_chunks
from colibri_deploy.tokenizer import build_tokenizer_section
from colibri_deploy.tokenizer_sentencepiece import build_sentencepiece_section

_HEAD, _EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


def open_hub_source(directory: Path) -> Source:
    """Read a checkpoint's headers and JSON files, and what its family makes of them.

    Raises FileMissingError and ConversionError.
    """
    checkpoint = Checkpoint.open(directory)
    plain_config, tensors = dequantised(checkpoint.config, checkpoint.tensors)
    hub = HubConfig(plain_config, checkpoint.generation_config)
    family = family_of(hub)
    config = family.read_config(hub)
    tied = hub.boolean("tie_word_embeddings", False)
    sections = family.sections(hub, config, tied)
    computed = family.computed(hub, config)
    notes = []
    if tied and _drop_tied_head(tensors, (config.vocab_size, config.hidden_size)):
        notes.append(f"{_HEAD} equals {_EMBEDDINGS}, it is stored once")
    longest = hub.integer("max_position_embeddings", config.max_positions)
    if config.max_positions < longest:
        notes.append(
            f"sequences are at most {config.max_positions:,} tokens, not {longest:,}: "
            "beyond, RoPE's long factors would be needed, which are not supported"
        )
    for name in ("bos_token_id", "eos_token_id"):
        outside = [token for token in hub.token_ids(name, 0) if not 0 <= token < config.vocab_size]
        if outside:
            notes.append(f"{name} {outside[0]} is left out: it is outside the vocabulary")
    return Source(
        path=directory,
        kind=f"a {family.hub_architecture}",
        shapes_from="config.json",
        config=config,
        tied=tied,
        sections=sections,
        computed=computed,
        tensors=tensors,
        ignored=family.ignored(hub, config),
        tokenizer=build_tokenizer_section(directory) or build_sentencepiece_section(directory),
        chat_template=hub_template(directory),
        notes=tuple(notes),
    )


def _drop_tied_head(tensors: dict[str, StoredTensor], shape: tuple[int, int]) -> bool:
    """A tied checkpoint may store the head too, if it is the same matrix; whether it did."""
    head, embeddings = tensors.get(_HEAD), tensors.get(_EMBEDDINGS)
    if head is None or embeddings is None or embeddings.shape != shape:
        return False  # a wrong shape is reported with all others
    same = head.shape == shape and all(
        np.array_equal(one.view(np.uint32), other.view(np.uint32))
        for one, other in zip(
            value_chunks(head, Piece(head.name, shape), *shape),
            value_chunks(embeddings, Piece(embeddings.name, shape), *shape),
            strict=True,
        )
    )
    if not same:
        raise ConversionError(
            f"tie_word_embeddings is true, but {_HEAD} differs from {_EMBEDDINGS}; "
            "set it to false in config.json if the head is meant"
        )
    del tensors[_HEAD]
    return True
