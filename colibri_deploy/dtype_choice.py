# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Which type each kind of matrix is stored in: what the user says, and what `keep` finds."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, cast, get_args

from colibri_deploy.errors import ConversionError
from colibri_deploy.families.family import Kind, Piece, WeightSection
from colibri_deploy.progress import Progress
from colibri_deploy.source import Source, StoredTensor, section_pieces, value_chunks
from colibri_deploy.tiles import BLOCK_DTYPES, DType, is_exact

DTypeChoice: TypeAlias = Literal["keep", "f32", "f16", "bf16", "q8", "q4", "mxfp4"]
DTYPE_CHOICES: tuple[str, ...] = get_args(DTypeChoice)
TensorKind: TypeAlias = Literal["attn", "ffn", "embed", "head"]
TENSOR_KINDS: tuple[TensorKind, ...] = get_args(TensorKind)
# One type for all matrices, or one for each kind; kinds that are not named are kept.
DTypeChoices: TypeAlias = DTypeChoice | Mapping[TensorKind, DTypeChoice]


def parse_dtypes(text: str) -> DTypeChoices:
    """`q8`, or `ffn=q4,attn=q8`. Raises ValueError."""
    if "=" not in text:
        return _choice(text)
    chosen: dict[TensorKind, DTypeChoice] = {}
    for part in text.split(","):
        kind, _, dtype = part.partition("=")
        if kind not in TENSOR_KINDS:
            raise ValueError(f"{kind!r} is no kind of matrix; they are {', '.join(TENSOR_KINDS)}")
        if kind in chosen:
            raise ValueError(f"{kind} is there twice")
        chosen[kind] = _choice(dtype)
    return chosen


def _choice(text: str) -> DTypeChoice:
    if text not in DTYPE_CHOICES:
        raise ValueError(f"{text!r} is no type; they are {', '.join(DTYPE_CHOICES)}")
    return cast(DTypeChoice, text)


def tensor_kind(section: WeightSection) -> TensorKind | None:
    """The kind of a section's matrices; None for what is f32 whatever the user says."""
    if section.kind is Kind.embeddings:
        return "embed"
    if section.kind is not Kind.matrix:
        return None
    if section.name == "lm_head":
        return "head"
    return "attn" if section.name.startswith("attention_") else "ffn"


def choose_dtypes(
    source: Source, choices: DTypeChoices, progress: Progress
) -> tuple[dict[TensorKind, DType], list[str]]:
    """The type of each kind that the model has, and notes that say why.

    Raises ConversionError for a kind that the model does not have.
    """
    matrices: dict[TensorKind, list[WeightSection]] = {}
    for section in source.sections:
        kind = tensor_kind(section)
        if kind is not None:
            matrices.setdefault(kind, []).append(section)
    wanted: Mapping[TensorKind, DTypeChoice]
    wanted = dict.fromkeys(matrices, choices) if isinstance(choices, str) else choices
    for kind in wanted.keys() - matrices.keys():
        why = "its head is its embeddings: say embed" if kind == "head" else "there are none"
        raise ConversionError(f"--dtype {kind}={wanted[kind]}: the model has no {kind}; {why}")
    dtypes: dict[TensorKind, DType] = {}
    kept: dict[DType, list[TensorKind]] = {}
    for kind, sections in matrices.items():
        choice = wanted.get(kind, "keep")
        if choice == "keep":
            dtypes[kind] = _keep(source, sections, progress)
            kept.setdefault(dtypes[kind], []).append(kind)
        else:
            dtypes[kind] = DType[choice]
    notes: list[str] = []
    for dtype, kinds in kept.items():
        whose = "the matrices" if len(kinds) == len(matrices) else ", ".join(kinds)
        sections = [section for kind in kinds for section in matrices[kind]]
        notes += _notes_on_kept(source, whose, sections, dtype)
    said = [kind for kind in matrices if wanted.get(kind, "keep") != "keep"]
    for dtype in sorted({dtypes[kind] for kind in said}):
        sections = [one for kind in said if dtypes[kind] is dtype for one in matrices[kind]]
        notes += _note_on_transcoded(source, sections, dtype)
    return dtypes, notes


def is_transcoded(tensor: StoredTensor, piece: Piece, dtype: DType) -> bool:
    """Whether an item's blocks are stored as they are, without rounding anew."""
    return dtype in BLOCK_DTYPES and tensor.dtype is dtype and piece.columns is None


def _keep(source: Source, sections: Sequence[WeightSection], progress: Progress) -> DType:
    """The smallest type that holds every matrix without loss.

    q8 if all are stored as Q8_0, q4 if all are as Q4_0, mxfp4 if all are as MXFP4, and none has its
    columns reordered, for then integers and scales stay what they are. Otherwise it is a float
    type. Of f16 and bf16, equal in size, the one goes first in which more is stored.
    """
    pieces = [(section, piece) for section in sections for piece in section_pieces(section)]
    stored: collections.Counter[DType | None] = collections.Counter()
    for section, piece in pieces:
        stored[source.tensors[piece.tensor].dtype] += section.rows * section.cols
    if len(stored) == 1:
        (only,) = stored
        whole = only not in BLOCK_DTYPES or all(piece.columns is None for _, piece in pieces)
        if only is not None and only is not DType.f32 and whole:
            return only
    candidates = sorted((DType.f16, DType.bf16), key=lambda dtype: (-stored[dtype], dtype))
    progress.start("checking values", 4 * stored.total())
    for section, piece in pieces:
        tensor = source.tensors[piece.tensor]
        for values in value_chunks(tensor, piece, section.rows, section.cols):
            candidates = [dtype for dtype in candidates if is_exact(values, dtype)]
            progress.advance(4 * values.size)
            if not candidates:
                return DType.f32
    return candidates[0]


def _notes_on_kept(
    source: Source, whose: str, sections: Sequence[WeightSection], dtype: DType
) -> Iterator[str]:
    tensors = [source.tensors[piece.tensor] for one in sections for piece in section_pieces(one)]
    stored = sorted({tensor.stored.lower() for tensor in tensors})
    found = f"{whose} are stored as {', '.join(stored)}"
    if dtype is not DType.f32 and all(tensor.dtype is dtype for tensor in tensors):
        yield f"{found} and stay {dtype.name}"
    elif dtype is DType.f32:
        yield f"{found}; only f32 holds all values"
    else:
        yield f"{found}; {dtype.name} holds all values exactly"
    if dtype is DType.f32 and "f8_e4m3" in stored:
        yield (
            "FP8 values times their scales: --dtype bf16 rounds each by at most 1/512, half the "
            "size; q8 by at most 1/254 of the largest of its 32, about the size of the checkpoint"
        )


def _note_on_transcoded(
    source: Source, sections: Sequence[WeightSection], dtype: DType
) -> Iterator[str]:
    """How many of the matrices keep their integers and scales, where any do."""
    pieces = [piece for section in sections for piece in section_pieces(section)]
    n_kept = sum(is_transcoded(source.tensors[piece.tensor], piece, dtype) for piece in pieces)
    if n_kept:
        stored = dtype.name if dtype is DType.mxfp4 else f"{dtype.name}_0"
        yield f"{n_kept} of {len(pieces)} matrices are stored as {stored} and stay as they are"
