# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A model directory: `model.bin` and `config.json` together, checked against each other."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from colibri_deploy.chat_form import ChatForm, get_form
from colibri_deploy.errors import ConfigError, FileMissingError, ModelFormatError
from colibri_deploy.families.family import Kind
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.model_dir import CONFIG_NAME, MODEL_NAME
from colibri_deploy.model_file import ModelFile
from colibri_deploy.model_sections import Expected, Shape, expected_sections
from colibri_deploy.sections import Section
from colibri_deploy.tiles import BLOCK_DTYPES, DType, Layout

TOKENIZER = "tokenizer"

_FLOATS = (DType.f32, DType.f16, DType.bf16)
_ANY = (*_FLOATS, *BLOCK_DTYPES)


@dataclasses.dataclass(frozen=True)
class Model:
    """A model whose structure is valid; the items' CRCs are not checked (`ModelFile.verify`)."""

    directory: Path
    config: ModelConfig
    file: ModelFile

    @classmethod
    def open(cls, directory: Path) -> Model:
        """Open and check a directory, as the engine does.

        Raises FileMissingError, ConfigError, and the ModelFileErrors.
        """
        if not directory.is_dir():
            raise FileMissingError(
                f"{directory} is not a directory; give the one that `convert` wrote"
            )
        config = ModelConfig.read(directory / CONFIG_NAME)
        file = ModelFile.open(directory / MODEL_NAME)
        _check(file, config)
        return cls(directory, config, file)

    @property
    def chat_form(self) -> ChatForm | None:
        """How its chat is written, if it has a form. Raises ModelFormatError."""
        if not self.file.has_section(TOKENIZER):
            return None
        return get_form(self.file.item(TOKENIZER).tobytes())


def _check(file: ModelFile, config: ModelConfig) -> None:
    """Raise unless the file has the sections that the config calls for, and no unknown ones."""
    tied = not file.has_section("lm_head")
    expected = expected_sections(config, tied)
    for section in file.sections:
        if section.name == TOKENIZER:
            _check_tokenizer(file, section)
        elif section.name not in expected:
            raise ModelFormatError(
                f"{file.path} has a section {section.name}, which a model of this config.json "
                "does not have"
            )
    for name, wanted in expected.items():
        if file.has_section(name):
            _check_section(file, file.section(name), wanted, tied)
        elif wanted.required:
            raise ModelFormatError(f"{file.path} lacks the section {name}")


def _check_section(file: ModelFile, section: Section, wanted: Expected, tied: bool) -> None:
    found = (section.n_layers, section.n_experts, section.rows, section.cols)
    if found not in wanted.shapes:
        shapes = " or ".join(_shown(shape) for shape in wanted.shapes)
        raise ConfigError(
            f"{file.path}: section {section.name} holds {_shown(found)}, "
            f"config.json implies {shapes}"
        )
    dtypes: tuple[DType, ...] = _ANY
    layout = Layout.tiles
    match wanted.kind:
        case Kind.embeddings if not tied and section.dtype not in BLOCK_DTYPES:
            layout = Layout.rows
        case Kind.exact_matrix:
            dtypes = (DType.f32,)
        case Kind.vector:
            dtypes, layout = (DType.f32,), Layout.rows
        case _:
            pass
    if section.dtype not in dtypes or section.layout is not layout:
        raise ModelFormatError(
            f"{file.path}: section {section.name} is stored as {section.dtype.name} "
            f"{section.layout.name}, expected {'/'.join(d.name for d in dtypes)} {layout.name}"
        )


def _check_tokenizer(file: ModelFile, section: Section) -> None:
    single = (section.n_layers, section.n_experts, section.rows) == (1, 1, 1)
    if not single or section.dtype is not DType.u8:
        raise ModelFormatError(f"{file.path}: section {TOKENIZER} is not one row of bytes")


def _shown(shape: Shape) -> str:
    n_layers, n_experts, rows, cols = shape
    return f"{n_layers} x {n_experts} of {rows} x {cols}"
