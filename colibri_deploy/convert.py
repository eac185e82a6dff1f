# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Converts a checkpoint, or a GGUF file, to `model.bin` and `config.json`.

First everything is planned and checked from the headers alone, then one tensor after another is
read, a few megabytes at a time, and written. What cannot be converted exactly as the model means
it is refused by name.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from colibri_deploy.chat_template import add_chat_form
from colibri_deploy.deepspeed_source import deepspeed_directory, open_deepspeed_source
from colibri_deploy.dtype_choice import (
    DTYPE_CHOICES as DTYPE_CHOICES,
)
from colibri_deploy.dtype_choice import (
    DTypeChoice as DTypeChoice,
)
from colibri_deploy.dtype_choice import DTypeChoices, TensorKind, choose_dtypes, tensor_kind
from colibri_deploy.errors import ConversionError
from colibri_deploy.families.family import Kind, WeightSection
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
from colibri_deploy.packing import Item, Packed, pack_items
from colibri_deploy.progress import NoProgress
from colibri_deploy.progress import Progress as Progress
from colibri_deploy.read_back import read_back
from colibri_deploy.rounding import RoundingError
from colibri_deploy.sections import ExpertLayout, FilePlan, SectionSpec, plan_file
from colibri_deploy.source import Source, StoredTensor, section_pieces
from colibri_deploy.tiles import BLOCK_DTYPES, ByteArray, DType, FloatArray, Layout
from colibri_deploy.upcycle import Upcycling, upcycle

_SHOWN = 5  # names in an error text


@dataclasses.dataclass(frozen=True)
class ConversionPlan:
    """A conversion that has been checked as far as that needs no weights."""

    source: Path
    config: ModelConfig
    dtypes: Mapping[TensorKind, DType]  # of the matrices, by their kind
    notes: tuple[str, ...]  # choices that the user should know of
    sections: tuple[WeightSection, ...]
    specs: tuple[SectionSpec, ...]
    file: FilePlan
    tensors: Mapping[str, StoredTensor]
    computed: Mapping[str, FloatArray]
    tokenizer: bytes | None

    @property
    def dtype(self) -> DType | None:
        """The type of all matrices; None if they differ."""
        first, *others = set(self.dtypes.values())
        return None if others else first

    @property
    def items(self) -> list[Item]:
        """All items but the tokenizer, in the order of the file's sections."""
        return [
            Item(section, spec, layer, expert)
            for section, spec in zip(self.sections, self.specs, strict=False)
            for layer in range(section.n_layers)
            for expert in range(section.n_experts)
        ]

    def kind_bytes(self, kind: TensorKind) -> int:
        """Bytes of all matrices of a kind in `model.bin`."""
        names = {section.name for section in self.sections if tensor_kind(section) == kind}
        return sum(section.size for section in self.file.sections if section.name in names)


def plan_conversion(
    source: Path,
    dtype: DTypeChoices = "keep",
    expert_layout: ExpertLayout = "interleaved",
    progress: Progress | None = None,
    upcycling: Upcycling | None = None,
) -> ConversionPlan:
    """Check a checkpoint's directory or a GGUF file, and lay out its `model.bin`.

    Reads headers only, except for `keep` with matrices whose types do not tell which one holds
    them all (`choose_dtypes`): then these are read.

    Raises FileMissingError and ConversionError.
    """
    model = _open(source)
    notes = _check_tensors(model)
    if upcycling is not None:
        model = upcycle(model, upcycling)
    notes += model.notes
    dtypes, reasons = choose_dtypes(model, dtype, progress or NoProgress())
    notes += reasons
    tokenizer = model.tokenizer
    if tokenizer:
        vocab_size = model.config.vocab_size
        tokenizer, chat_notes = add_chat_form(tokenizer, model.chat_template, vocab_size)
        notes += chat_notes
    else:
        notes.append("the checkpoint has no tokenizer: the model takes token ids only")
    specs = []
    for section in model.sections:
        kind = tensor_kind(section)
        specs.append(_spec(section, DType.f32 if kind is None else dtypes[kind], model.tied))
    if tokenizer:
        specs.append(SectionSpec("tokenizer", DType.u8, Layout.rows, 1, 1, 1, len(tokenizer)))
    return ConversionPlan(
        source=source,
        config=model.config,
        dtypes=dtypes,
        notes=tuple(notes),
        sections=model.sections,
        specs=tuple(specs),
        file=plan_file(specs, expert_layout),
        tensors=model.tensors,
        computed=model.computed,
        tokenizer=tokenizer,
    )


def write_model(
    plan: ConversionPlan,
    destination: Path,
    force: bool = False,
    progress: Progress | None = None,
    verify: bool = False,
) -> dict[str, RoundingError]:
    """Carry out a plan. The destination appears when everything is on the disk, or not at all.

    With `verify` the file is read again before that, and compared with the source. Returns what
    rounding did to each section, in the order of the file.

    Raises ConversionError, naming the tensor, for values that cannot be stored, and if the
    destination may not be replaced (see `new_model_directory`) or the disk is too small;
    ModelCorruptError if what is read is not what was written.
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
            errors = _write_sections(directory / MODEL_NAME, plan, progress)
            if verify:
                progress.start("reading back", 2 * plan.file.file_size)
                read_back(directory / MODEL_NAME, plan.items, plan.tensors, plan.computed, progress)
    except OSError as error:
        raise ConversionError(
            f"{destination} cannot be written: {error.strerror or error}"
        ) from error
    return errors


def convert_checkpoint(
    source: Path,
    destination: Path,
    dtype: DTypeChoices = "keep",
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


def _open(path: Path) -> Source:
    if is_gguf(path):
        return open_gguf_source(path)
    directory = deepspeed_directory(path)
    return open_deepspeed_source(path, directory) if directory else open_hub_source(path)


def _check_tensors(source: Source) -> list[str]:
    """Compare the tensors with those the model has; returns notes.

    Raises ConversionError for tensors that are missing, unknown, or of another shape or type.
    """
    notes, used, missing = [], set(), []
    for piece in (piece for section in source.sections for piece in section_pieces(section)):
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


def _write_sections(
    path: Path, plan: ConversionPlan, progress: Progress
) -> dict[str, RoundingError]:
    """Write and close `model.bin`."""
    errors = {section.name: RoundingError() for section in plan.sections}
    progress.start("writing", sum(section.size for section in plan.file.sections))

    def told(section: str, parts: Iterator[Packed]) -> Iterator[ByteArray]:
        for packed in parts:
            errors[section] += packed.error
            progress.advance(packed.data.size)
            yield packed.data

    with ModelWriter(path, plan.file) as writer:
        for item, parts in pack_items(plan.items, plan.tensors, plan.computed):
            name = item.section.name
            writer.write_item(name, item.layer, item.expert, told(name, parts))
        if plan.tokenizer:
            writer.write_item("tokenizer", 0, 0, [plan.tokenizer])
            progress.advance(len(plan.tokenizer))
        writer.finish()
    return errors


def _write_config(path: Path, config: ModelConfig) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(config.to_json())
        file.flush()
        os.fsync(file.fileno())


def _some(names: Sequence[str]) -> str:
    text = ", ".join(names[:_SHOWN])
    return text if len(names) <= _SHOWN else f"{text} and {len(names) - _SHOWN} more"
