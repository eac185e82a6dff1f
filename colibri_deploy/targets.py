# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Targets: kinds of board, each one YAML file of facts, never of addresses or secrets."""

from __future__ import annotations

import difflib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from colibri_deploy.errors import TargetFileError, UnknownTargetError

ARCHITECTURES = ("aarch64", "riscv64", "x86_64")
_ALIASES = {"arm64": "aarch64", "amd64": "x86_64"}  # what some kernels call them


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value  # YAML has lists only


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class MemoryBandwidth(_Facts):
    """What the board's memory moves by its data sheet; the measured roof is lower."""

    gb_per_s: float = Field(gt=0)  # 1e9 bytes a second
    source: str = Field(min_length=1)


class TargetFile(_Facts):
    """What targets/<name>.yaml may say."""

    description: str = Field(min_length=1)
    arch: Literal["aarch64", "riscv64", "x86_64", "native"]  # native: that of this machine
    cpu: str | None = None
    # ISA levels to build; empty: all that the engine has for the architecture. Targets of one
    # architecture share a compilation as long as they name the same levels.
    isas: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = ()
    expected_isa: str | None = None  # the level that the engine should choose on the board
    ram_gib: Annotated[tuple[int, ...], BeforeValidator(_tuple)] = ()  # the variants sold
    memory_bandwidth: MemoryBandwidth | None = None
    page_bytes: Literal[4096, 16384, 65536] | None = None
    qemu_cpu: str | None = None  # model for qemu-user and qemu-system that stands in for it
    caveats: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = ()


@dataclass(frozen=True)
class Target:
    """A kind of board: its name, its architecture on this machine, and the facts of its file."""

    name: str
    arch: str  # one of ARCHITECTURES
    facts: TargetFile


def load_targets(root: Path) -> dict[str, Target]:
    """All targets under `root`/targets, by name, sorted.

    Raises TargetFileError for the first file that is not valid.
    """
    files = sorted((root / "targets").glob("*.yaml"))
    return {path.stem: load_target(path) for path in files}


def select(targets: dict[str, Target], name: str) -> Target:
    """The target of that name. Raises UnknownTargetError, which names the nearest ones."""
    if name in targets:
        return targets[name]
    close = difflib.get_close_matches(name, targets, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UnknownTargetError(f"no target {name!r}: {hint}targets are {', '.join(targets)}")


def machine_arch() -> str:
    """The architecture of this machine, as cross files spell it ("x86_64")."""
    machine = platform.machine().lower()
    return _ALIASES.get(machine, machine)


def load_target(path: Path) -> Target:
    """Reads one target file. Raises TargetFileError with file, line and field."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TargetFileError(f"{path} cannot be read: {error}") from error
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
        data: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise TargetFileError(
            f"{path}, line {mark.line + 1 if mark else 1}: not valid YAML: {problem}"
        ) from error
    if not isinstance(document, yaml.MappingNode):
        raise TargetFileError(f"{path}, line 1: expected fields like 'arch: aarch64'")
    _refuse_duplicates(path, document)
    try:
        facts = TargetFile.model_validate(data)
    except ValidationError as error:
        problems = [
            f"{path}, line {_line(document, problem['loc'])}, "
            f"field {_dotted(problem['loc'])}: {_explain(problem)}"
            for problem in error.errors()
        ]
        raise TargetFileError(problems[0], details="\n".join(problems[1:])) from error
    arch = machine_arch() if facts.arch == "native" else facts.arch
    return Target(path.stem, arch, facts)


def _explain(problem: ErrorDetails) -> str:
    if problem["type"] == "extra_forbidden":
        model = TargetFile if len(problem["loc"]) == 1 else MemoryBandwidth
        return f"no such field; fields are {', '.join(model.model_fields)}"
    if problem["type"] == "missing":
        return "missing"
    return problem["msg"][0].lower() + problem["msg"][1:]


def _dotted(loc: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in loc)


def _line(node: yaml.Node, loc: tuple[int | str, ...]) -> int:
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


def _refuse_duplicates(path: Path, mapping: yaml.MappingNode) -> None:
    seen: dict[str, int] = {}
    for key, value in mapping.value:
        line = key.start_mark.line + 1
        if key.value in seen:
            raise TargetFileError(
                f"{path}, line {line}, field {key.value}: already given in line {seen[key.value]}"
            )
        seen[key.value] = line
        if isinstance(value, yaml.MappingNode):
            _refuse_duplicates(path, value)
