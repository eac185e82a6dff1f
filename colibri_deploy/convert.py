# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Converts a Hugging Face checkpoint to `model.bin` and `config.json`.

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, get_args

import numpy as np

from colibri_deploy.checkpoint import Checkpoint, Tensor, widen
from colibri_deploy.errors import ConversionError
from colibri_deploy.families import family_of
from colibri_deploy.families.family import Family, Kind, Piece, WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.model_dir import (
    CONFIG_NAME,
    MODEL_NAME,
    check_destination,
    new_model_directory,
)
from colibri_deploy.model_file import ModelWriter
from colibri_deploy.sections import ExpertLayout, FilePlan, SectionSpec, plan_file
from colibri_deploy.tiles import (
    TILE_ROWS,
    ByteArray,
    DType,
    FloatArray,
    Layout,
    RangeError,
    is_exact,
    pack_rows,
    pack_tiles,
)
from colibri_deploy.tokenizer import build_tokenizer_section

DTypeChoice: TypeAlias = Literal["keep", "f32", "f16", "bf16", "q8"]
DTYPE_CHOICES: tuple[str, ...] = get_args(DTypeChoice)

_CHUNK_VALUES = 1 << 20  # elements of a tensor that are in memory at a time
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
    tensors: dict[str, Tensor]
    computed: dict[str, FloatArray]
    tokenizer: bytes | None


def plan_conversion(
    source: Path,
    dtype: DTypeChoice = "keep",
    expert_layout: ExpertLayout = "interleaved",
    progress: Progress | None = None,
) -> ConversionPlan:
    """Check a checkpoint and lay out its `model.bin`.

    Reads headers only, except for `keep` with matrices stored as float32 or in several types:
    then every matrix is read to see which type holds it.

    Raises FileMissingError and ConversionError.
    """
    checkpoint = Checkpoint.open(source)
    hub = HubConfig(checkpoint.config, checkpoint.generation_config)
    family = family_of(hub)
    config = family.read_config(hub)
    tied = hub.boolean("tie_word_embeddings", False)
    sections = family.sections(config, tied)
    computed = family.computed(hub, config)
    notes = _check_tensors(checkpoint, family, config, sections, tied)
    for name in ("bos_token_id", "eos_token_id"):
        outside = [token for token in hub.token_ids(name, 0) if not 0 <= token < config.vocab_size]
        if outside:
            notes.append(f"{name} {outside[0]} is left out: it is outside the vocabulary")
    matrices = [section for section in sections if section.kind in (Kind.matrix, Kind.embeddings)]
    if dtype == "keep":
        chosen, note = _choose_dtype(checkpoint, matrices, progress or NoProgress())
        notes.append(note)
    else:
        chosen = DType[dtype]
    tokenizer = build_tokenizer_section(source)
    if not tokenizer:
        notes.append("the checkpoint has no tokenizer: the model takes token ids only")
    specs = [_spec(section, chosen, tied) for section in sections]
    if tokenizer:
        specs.append(SectionSpec("tokenizer", DType.u8, Layout.rows, 1, 1, 1, len(tokenizer)))
    return ConversionPlan(
        source=source,
        config=config,
        dtype=chosen,
        notes=tuple(notes),
        sections=sections,
        specs=tuple(specs),
        file=plan_file(specs, expert_layout),
        tensors=dict(checkpoint.tensors),
        computed=computed,
        tokenizer=tokenizer,
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
) -> ConversionPlan:
    """Plan and write in one: `plan_conversion`, then `write_model`."""
    check_destination(destination, force)
    plan = plan_conversion(source, dtype, expert_layout, progress)
    write_model(plan, destination, force, progress)
    return plan


def _check_tensors(
    checkpoint: Checkpoint,
    family: Family,
    config: ModelConfig,
    sections: Sequence[WeightSection],
    tied: bool,
) -> list[str]:
    """Compare the checkpoint's tensors with those the model has; returns notes.

    Raises ConversionError for tensors that are missing, unknown, or of another shape or type.
    """
    notes, used, missing = [], set(), []
    for section in sections:
        for piece in _pieces(section):
            used.add(piece.tensor)
            tensor = checkpoint.tensors.get(piece.tensor)
            if tensor is None:
                missing.append(piece.tensor)
            elif tensor.shape != piece.shape:
                raise ConversionError(
                    f"{piece.tensor} has shape {list(tensor.shape)}, "
                    f"config.json implies {list(piece.shape)}"
                )
            else:
                _ = tensor.dtype  # refuses types that are no floats
    if missing:
        raise ConversionError(f"tensors are missing: {_some(missing)}")
    leftover = sorted(checkpoint.tensors.keys() - used)
    ignored = [
        name for name in leftover if any(re.fullmatch(rule, name) for rule in family.ignored)
    ]
    if ignored:
        notes.append(f"not used by the model: {_some(ignored)}")
    unknown = [name for name in leftover if name not in ignored]
    if tied and "lm_head.weight" in unknown:
        _check_tied_head(checkpoint, config)
        unknown.remove("lm_head.weight")
        notes.append("lm_head.weight equals model.embed_tokens.weight, it is stored once")
    if unknown:
        raise ConversionError(
            f"tensors that a {family.hub_architecture} does not have: {_some(unknown)}; "
            "the checkpoint is of another architecture or has parts that are not supported"
        )
    return notes


def _check_tied_head(checkpoint: Checkpoint, config: ModelConfig) -> None:
    """A tied checkpoint may store the head too, if it is the same matrix."""
    head = checkpoint.tensors["lm_head.weight"]
    embeddings = checkpoint.tensors["model.embed_tokens.weight"]
    shape = (config.vocab_size, config.hidden_size)
    same = head.shape == shape and all(
        np.array_equal(one.view(np.uint32), other.view(np.uint32))
        for one, other in zip(
            _chunks(head, Piece(head.name, shape), *shape),
            _chunks(embeddings, Piece(embeddings.name, shape), *shape),
            strict=True,
        )
    )
    if not same:
        raise ConversionError(
            "tie_word_embeddings is true, but lm_head.weight differs from "
            "model.embed_tokens.weight; set it to false in config.json if the head is meant"
        )


def _choose_dtype(
    checkpoint: Checkpoint, matrices: Sequence[WeightSection], progress: Progress
) -> tuple[DType, str]:
    """The smallest type that holds every matrix exactly, and a text that says why.

    Of f16 and bf16, equal in size, the one goes first in which more is stored.
    """
    pieces = [(section, piece) for section in matrices for piece in _pieces(section)]
    stored: collections.Counter[DType] = collections.Counter()
    for section, piece in pieces:
        stored[checkpoint.tensors[piece.tensor].dtype] += section.rows * section.cols
    found = ", ".join(sorted(dtype.name for dtype in stored))
    if len(stored) == 1 and DType.f32 not in stored:
        (only,) = stored
        return only, f"the matrices are stored as {found} and stay {only.name}"
    candidates = sorted((DType.f16, DType.bf16), key=lambda dtype: (-stored[dtype], dtype))
    progress.start("checking values", 4 * stored.total())
    for section, piece in pieces:
        tensor = checkpoint.tensors[piece.tensor]
        for values in _chunks(tensor, piece, section.rows, section.cols):
            candidates = [dtype for dtype in candidates if is_exact(values, dtype)]
            progress.advance(4 * values.size)
            if not candidates:
                return DType.f32, f"the matrices are stored as {found}; only f32 holds all values"
    chosen = candidates[0]
    return chosen, f"the matrices are stored as {found}; {chosen.name} holds all values exactly"


def _spec(section: WeightSection, dtype: DType, tied: bool) -> SectionSpec:
    """Type and layout of a section, by its kind (docs/FORMAT.md)."""
    match section.kind:
        case Kind.matrix:
            layout = Layout.tiles
        case Kind.embeddings:
            layout = Layout.tiles if tied or dtype is DType.q8 else Layout.rows
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
    pack = pack_tiles if spec.layout is Layout.tiles else pack_rows

    def packed(label: str, chunks: Iterator[FloatArray]) -> Iterator[ByteArray]:
        for values in chunks:
            if not bool(np.isfinite(values).all()):
                raise ConversionError(
                    f"{label} holds NaN or Inf; the checkpoint is damaged, download it again"
                )
            try:
                data = pack(values, spec.dtype)
            except RangeError as error:
                raise ConversionError(f"{label}: {error}; choose another --dtype") from None
            progress.advance(data.size)
            yield data

    for layer in range(section.n_layers):
        for expert in range(section.n_experts):
            if section.source is None:
                label, chunks = section.name, iter([plan.computed[section.name]])
            else:
                piece = section.source(layer, expert)
                label = piece.tensor
                chunks = _chunks(plan.tensors[label], piece, section.rows, section.cols)
            writer.write_item(section.name, layer, expert, packed(label, chunks))


def _write_config(path: Path, config: ModelConfig) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(config.to_json())
        file.flush()
        os.fsync(file.fileno())


def _chunks(tensor: Tensor, piece: Piece, rows: int, cols: int) -> Iterator[FloatArray]:
    """An item's values, float32 [some rows, cols] at a time; all but the last whole tiles.

    Every time the tensor is mapped anew, so that pages that were read no longer count as this
    process's memory, however large the tensor is.
    """
    step = max(_CHUNK_VALUES // cols // TILE_ROWS, 1) * TILE_ROWS
    for start in range(0, rows, step):
        raw = tensor.raw()
        matrix = raw.reshape(rows, cols) if piece.view is None else piece.view(raw)
        values = widen(matrix[start : start + step], tensor.dtype)
        del raw, matrix
        yield values


def _pieces(section: WeightSection) -> Iterator[Piece]:
    if section.source is not None:
        for layer in range(section.n_layers):
            for expert in range(section.n_experts):
                yield section.source(layer, expert)


def _some(names: Sequence[str]) -> str:
    text = ", ".join(names[:_SHOWN])
    return text if len(names) <= _SHOWN else f"{text} and {len(names) - _SHOWN} more"
