# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""YAML files that people write: a problem is told by file, line and field."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from colibri_deploy.errors import ColibriDeployError

ModelT = TypeVar("ModelT", bound=BaseModel)
Loc = tuple[int | str, ...]  # the keys that lead to a field


def read_yaml(
    path: Path, model: type[ModelT], raises: type[ColibriDeployError], example: str
) -> ModelT:
    """The content of a file as a `model`.

    `example` is a line that such a file may hold. Raises `raises` for the first problem, with the
    others as details.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise raises(f"{path} cannot be read: {error}") from error
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
        data: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise raises(
            f"{path}, line {mark.line + 1 if mark else 1}: not valid YAML: {problem}"
        ) from error
    if not isinstance(document, yaml.MappingNode):
        raise raises(f"{path}, line 1: expected fields like '{example}'")
    duplicate = _duplicate(document)
    if duplicate:
        raise raises(f"{path}, {duplicate}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [
            f"{path}, line {_line(document, problem['loc'])}, "
            f"field {_dotted(problem['loc'])}: {_explain(problem, model)}"
            for problem in error.errors()
        ]
        raise raises(problems[0], details="\n".join(problems[1:])) from error


def line_of(path: Path, loc: Loc) -> int:
    """The line (from 1) at which a file that `read_yaml` has read gives the field at `loc`."""
    document = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    assert document is not None  # an empty file was not read
    return _line(document, loc)


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of the files that `read_yaml` reads as a `model`, for editors."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **model.model_json_schema()}


def _explain(problem: ErrorDetails, model: type[BaseModel]) -> str:
    if problem["type"] == "extra_forbidden":
        fields = _model_at(model, problem["loc"]).model_fields
        return f"no such field; fields are {', '.join(fields)}"
    if problem["type"] == "missing":
        return "missing"
    text = problem["msg"].removeprefix("Value error, ")
    return text[0].lower() + text[1:]


def _model_at(model: type[BaseModel], loc: Loc) -> type[BaseModel]:
    """The model that should have the field at `loc`."""
    for part in loc[:-1]:
        field = model.model_fields.get(str(part))
        model = (_model_inside(field.annotation) if field else None) or model
    return model


def _model_inside(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation like `dict[str, Model] | None` speaks of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inside = (_model_inside(part) for part in typing.get_args(annotation))
    return next((model for model in inside if model), None)


def _dotted(loc: Loc) -> str:
    return ".".join(str(part) for part in loc)


def _line(node: yaml.Node, loc: Loc) -> int:
    """The line (from 1) of the field at `loc`, or of the nearest mapping around it."""
    line = node.start_mark.line + 1
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, node = key.start_mark.line + 1, value
                    break
            else:
                return line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


def _duplicate(mapping: yaml.MappingNode) -> str | None:
    """The first key that a mapping gives twice, as "line 8, field arch: ..."."""
    seen: dict[str, int] = {}
    for key, value in mapping.value:
        line = key.start_mark.line + 1
        if key.value in seen:
            return f"line {line}, field {key.value}: already given in line {seen[key.value]}"
        seen[key.value] = line
        inside = _duplicate(value) if isinstance(value, yaml.MappingNode) else None
        if inside:
            return inside
    return None
