# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Converts a checkpoint, or a GGUF file, to `model.bin` and `config.json`.

First everything is planned and checked from the headers alone, then one tensor after another is
read, a few megabytes at a time, and written. What cannot be converted exactly as the model means
it is refused by name.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np

from colibri_deploy.checkpoint import Raw
from colibri_deploy.errors import ConversionError
from colibri_deploy.families.family import Kind, Piece, WeightSection
from colibri_deploy.gguf_file import split_mxfp4, split_q4_0, split_q8_0
from colibri_deploy.gguf_source import is_gguf, open_gguf_source
from colibri_deploy.hub_source import open_hub_source
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.model_dir import (
    CONFIG_NAME,
    MODEL_NAME,
    check_destination,
    new_model_directory,
)
from colibri_deploy.model_file import ModelWriter
from colibri_deploy.sections import ExpertLayout, FilePlan, SectionSpec, plan_file
from colibri_deploy.source import Source, StoredTensor, raw_chunks, value_chunks
from colibri_deploy.tiles import (
    BLOCK_DTYPES,
    ByteArray,
    DType,
    FloatArray,
    Layout,
    RangeError,
    is_exact,
    pack_mxfp4_blocks,
    pack_q4_blocks,
    pack_q8_blocks,
    pack_rows,
    pack_tiles,
)
from colibri_deploy.upcycle import Upcycling, upcycle

DTypeChoice: TypeAlias = Literal["keep", "f32", "f16", "bf16", "q8", "q4", "mxfp4"]
DTYPE_CHOICES: tuple[str, ...] = get_args(DTypeChoice)

_SHOWN = 5  # names in an error text


class Progress(Protocol):
    """Told how far a long step is."""

    def start(self, what: str, total: int) -> None:
        """A step begins that will read or write `total` bytes."""

    def advance(self, n_bytes: int) -> None:
        """`n_bytes` more are done."""


class NoProgress:
    """Ignores everything."""

    def start(self, what: str, total: int) -> None:
        """See `Progress`."""

    def advance(self, n_bytes: int) -> None:
        """See `Progress`."""


@dataclasses.dataclass(frozen=True)
class ConversionPlan:
    """A conversion that has been checked as far as that needs no weights."""

    source: Path
    config: ModelConfig
    dtype: DType  # of the matrices
    notes: tuple[str, ...]  # choices that the user should know of
    sections: tuple[WeightSection, ...]
    specs: tuple[SectionSpec, ...]
    file: FilePlan
    tensors: Mapping[str, StoredTensor]
    computed: Mapping[str, FloatArray]
    tokenizer: bytes | None


def plan_conversion(
    source: Path,
    dtype: DTypeChoice = "keep",
    expert_layout: ExpertLayout = "interleaved",
    progress: Progress | None = None,
    upcycling: Upcycling | None = None,
) -> ConversionPlan:
    """Check a checkpoint's directory or a GGUF file, and lay out its `model.bin`.

    Reads headers only, except for `keep` with matrices whose types do not tell which one holds
    them all (`_choose_dtype`): then every matrix is read.

    Raises FileMissingError and ConversionError.
    """
    model = open_gguf_source(source) if is_gguf(source) else open_hub_source(source)
    notes = _check_tensors(model)
    if upcycling is not None:
        model = upcycle(model, upcycling)
    notes += model.notes
    matrices = [
        section for section in model.sections if section.kind in (Kind.matrix, Kind.embeddings)
    ]
    if dtype == "keep":
        chosen, note = _choose_dtype(model, matrices, progress or NoProgress())
        notes.append(note)
    else:
        chosen = DType[dtype]
        notes += _transcoding_note(model, matrices, chosen)
    if not model.tokenizer:
        notes.append("the checkpoint has no tokenizer: the model takes token ids only")
    specs = [_spec(section, chosen, model.tied) for section in model.sections]
    if model.tokenizer:
        specs.append(SectionSpec("tokenizer", DType.u8, Layout.rows, 1, 1, 1, len(model.tokenizer)))
    return ConversionPlan(
        source=source,
        config=model.config,
        dtype=chosen,
        notes=tuple(notes),
        sections=model.sections,
        specs=tuple(specs),
        file=plan_file(specs, expert_layout),
        tensors=model.tensors,
        computed=model.computed,
        tokenizer=model.tokenizer,
    )


def write_model(
    plan: ConversionPlan, destination: Path, force: bool = False, progress: Progress | None = None
) -> None:
    """Carry out a plan. The destination appears when everything is on the disk, or not at all.

    Raises ConversionError, naming the tensor, for values that cannot be stored, and if the
    destination may not be replaced (see `new_model_directory`) or the disk is too small.
    """
    progress = progress or NoProgress()
    check_destination(destination, force)
    try:
        with new_model_directory(destination, force) as directory:
            free = shutil.disk_usage(directory).free
            if free < plan.file.file_size:
                raise ConversionError(
                    f"{destination} needs {plan.file.file_size:,} bytes, "
                    f"its disk has {free:,} left; free some or choose another place"
                )
            _write_config(directory / CONFIG_NAME, plan.config)
            progress.start("writing", sum(section.size for section in plan.file.sections))
            with ModelWriter(directory / MODEL_NAME, plan.file) as writer:
                for section, spec in zip(plan.sections, plan.specs, strict=False):
                    _write_section(writer, plan, section, spec, progress)
                if plan.tokenizer:
                    writer.write_item("tokenizer", 0, 0, [plan.tokenizer])
                    progress.advance(len(plan.tokenizer))
                writer.finish()
    except OSError as error:
        raise ConversionError(
            f"{destination} cannot be written: {error.strerror or error}"
        ) from error


def convert_checkpoint(
    source: Path,
    destination: Path,
    dtype: DTypeChoice = "keep",
    *,
    expert_layout: ExpertLayout = "interleaved",
    force: bool = False,
    progress: Progress | None = None,
    upcycling: Upcycling | None = None,
) -> ConversionPlan:
    """Plan and write in one: `plan_conversion`, then `write_model`."""
    check_destination(destination, force)
    plan = plan_conversion(source, dtype, expert_layout, progress, upcycling)
    write_model(plan, destination, force, progress)
    return plan


def _check_tensors(source: Source) -> list[str]:
    """Compare the tensors with those the model has; returns notes.

    Raises ConversionError for tensors that are missing, unknown, or of another shape or type.
    """
    notes, used, missing = [], set(), []
    for piece in (piece for section in source.sections for piece in _pieces(section)):
        if piece.tensor in used:
            continue
        used.add(piece.tensor)
        tensor = source.tensors.get(piece.tensor)
        if tensor is None:
            missing.append(piece.tensor)
        elif tensor.shape != piece.shape:
            raise ConversionError(
                f"{piece.tensor} has shape {list(tensor.shape)}, "
                f"{source.shapes_from} implies {list(piece.shape)}"
            )
        else:
            _ = tensor.dtype  # refuses types that cannot be read
    if missing:
        raise ConversionError(f"tensors are missing: {_some(missing)}")
    leftover = sorted(source.tensors.keys() - used)
    ignored = [
        name for name in leftover if any(re.fullmatch(rule, name) for rule in source.ignored)
    ]
    if ignored:
        notes.append(f"not used by the model: {_some(ignored)}")
    unknown = [name for name in leftover if name not in ignored]
    if unknown:
        raise ConversionError(
            f"tensors that {source.kind} does not have: {_some(unknown)}; "
            "the checkpoint is of another architecture or has parts that are not supported"
        )
    return notes


def _choose_dtype(
    source: Source, matrices: Sequence[WeightSection], progress: Progress
) -> tuple[DType, str]:
    """The smallest type that holds every matrix without loss, and a text that says why.

    q8 if all are stored as Q8_0, q4 if all are as Q4_0, mxfp4 if all are as MXFP4, and none has its
    columns reordered, for then integers and scales stay what they are. Otherwise it is a float
    type. Of f16 and bf16, equal in size, the one goes first in which more is stored.
    """
    pieces = [(section, piece) for section in matrices for piece in _pieces(section)]
    stored: collections.Counter[DType | None] = collections.Counter()
    names = set()
    for section, piece in pieces:
        tensor = source.tensors[piece.tensor]
        stored[tensor.dtype] += section.rows * section.cols
        names.add(tensor.stored.lower())
    found = ", ".join(sorted(names))
    if len(stored) == 1:
        (only,) = stored
        whole = only not in BLOCK_DTYPES or all(piece.columns is None for _, piece in pieces)
        if only is not None and only is not DType.f32 and whole:
            return only, f"the matrices are stored as {found} and stay {only.name}"
    candidates = sorted((DType.f16, DType.bf16), key=lambda dtype: (-stored[dtype], dtype))
    progress.start("checking values", 4 * stored.total())
    for section, piece in pieces:
        tensor = source.tensors[piece.tensor]
        for values in value_chunks(tensor, piece, section.rows, section.cols):
            candidates = [dtype for dtype in candidates if is_exact(values, dtype)]
            progress.advance(4 * values.size)
            if not candidates:
                return DType.f32, f"the matrices are stored as {found}; only f32 holds all values"
    chosen = candidates[0]
    return chosen, f"the matrices are stored as {found}; {chosen.name} holds all values exactly"


def _transcoding_note(
    source: Source, matrices: Sequence[WeightSection], chosen: DType
) -> Iterator[str]:
    """How many of the matrices keep their integers and scales, where any do."""
    pieces = [piece for section in matrices for piece in _pieces(section)]
    n_kept = sum(_is_transcoded(source.tensors[piece.tensor], piece, chosen) for piece in pieces)
    if n_kept:
        stored = chosen.name if chosen is DType.mxfp4 else f"{chosen.name}_0"
        yield f"{n_kept} of {len(pieces)} matrices are stored as {stored} and stay as they are"


def _is_transcoded(tensor: StoredTensor, piece: Piece, dtype: DType) -> bool:
    """Whether an item's blocks are stored as they are, without rounding anew."""
    return dtype in BLOCK_DTYPES and tensor.dtype is dtype and piece.columns is None


def _spec(section: WeightSection, dtype: DType, tied: bool) -> SectionSpec:
    """Type and layout of a section, by its kind (docs/FORMAT.md)."""
    match section.kind:
        case Kind.matrix:
            layout = Layout.tiles
        case Kind.embeddings:
            layout = Layout.tiles if tied or dtype in BLOCK_DTYPES else Layout.rows
        case Kind.exact_matrix:
            dtype, layout = DType.f32, Layout.tiles
        case Kind.vector:
            dtype, layout = DType.f32, Layout.rows
    return SectionSpec(
        section.name,
        dtype,
        layout,
        section.n_layers,
        section.n_experts,
        section.rows,
        section.cols,
        section.group,
    )


def _write_section(
    writer: ModelWriter,
    plan: ConversionPlan,
    section: WeightSection,
    spec: SectionSpec,
    progress: Progress,
) -> None:
    for layer in range(section.n_layers):
        for expert in range(section.n_experts):
            chunks: Iterator[ByteArray]
            if section.source is None:
                label = section.name
                values = plan.computed[label].reshape(section.n_layers, section.rows, section.cols)
                chunks = _packed_values(label, iter([values[layer]]), spec)
            else:
                piece = section.source(layer, expert)
                label, tensor = piece.tensor, plan.tensors[piece.tensor]
                shape = (section.rows, section.cols)
                if _is_transcoded(tensor, piece, spec.dtype):
                    chunks = _packed_blocks(raw_chunks(tensor, piece, *shape), spec.dtype)
                else:
                    chunks = _packed_values(label, value_chunks(tensor, piece, *shape), spec)
            writer.write_item(section.name, layer, expert, _told(label, chunks, progress))


def _packed_blocks(chunks: Iterator[Raw], dtype: DType) -> Iterator[ByteArray]:
    """Stored blocks of Q8_0, Q4_0 or MXFP4 in tiles, the same integers and scales."""
    for raw in chunks:
        if dtype is DType.mxfp4:
            yield pack_mxfp4_blocks(*split_mxfp4(raw))
        elif dtype is DType.q4:
            yield pack_q4_blocks(*split_q4_0(raw))
        else:
            yield pack_q8_blocks(*split_q8_0(raw))


def _packed_values(
    label: str, chunks: Iterator[FloatArray], spec: SectionSpec
) -> Iterator[ByteArray]:
    """Values in the section's type and layout."""
    pack = pack_tiles if spec.layout is Layout.tiles else pack_rows
    for values in chunks:
        if not bool(np.isfinite(values).all()):
            raise ConversionError(
                f"{label} holds NaN or Inf; the checkpoint is damaged, download it again"
            )
        yield pack(values, spec.dtype)


def _told(label: str, chunks: Iterator[ByteArray], progress: Progress) -> Iterator[ByteArray]:
    """Passes the chunks on; a value out of range becomes an error with the tensor's name."""
    try:
        for data in chunks:
            progress.advance(data.size)
            yield data
    except RangeError as error:
        raise ConversionError(f"{label}: {error}; choose another --dtype") from None


def _write_config(path: Path, config: ModelConfig) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(config.to_json())
        file.flush()
        os.fsync(file.fileno())


def _pieces(section: WeightSection) -> Iterator[Piece]:
    if section.source is not None:
        for layer in range(section.n_layers):
            for expert in range(section.n_experts):
                yield section.source(layer, expert)


def _some(names: Sequence[str]) -> str:
    text = ", ".join(names[:_SHOWN])
    return text if len(names) <= _SHOWN else f"{text} and {len(names) - _SHOWN} more"
