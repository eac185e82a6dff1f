# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Targets: kinds of board, each one YAML file of facts, never of addresses or secrets."""

from __future__ import annotations

import difflib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from colibri_deploy.errors import TargetFileError, UnknownTargetError
from colibri_deploy.yaml_file import read_yaml

ARCHITECTURES = ("aarch64", "riscv64", "x86_64")
_ALIASES = {"arm64": "aarch64", "amd64": "x86_64"}  # what some kernels call them


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value  # YAML has lists only


class _Facts(BaseModel):
    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True
    )


class MemoryBandwidth(_Facts):
    """What the board's memory moves by its data sheet; the measured roof is lower."""

    gb_per_s: float = Field(gt=0)
    """1e9 bytes a second."""
    source: str = Field(min_length=1)
    """Where the number comes from, with the arithmetic."""


class TargetFile(_Facts):
    """What targets/<name>.yaml may say."""

    description: str = Field(min_length=1)
    """The board's name, as its maker writes it."""
    arch: Literal["aarch64", "riscv64", "x86_64", "native"]
    """The architecture; native: that of this machine."""
    cpu: str | None = None
    """Cores and their architecture."""
    isas: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = ()
    """ISA levels to build; none: all that the engine has for the architecture. Targets of one
    architecture share a compilation as long as they name the same levels."""
    expected_isa: str | None = None
    """The level that the engine should choose on the board."""
    ram_gib: Annotated[tuple[int, ...], BeforeValidator(_tuple)] = ()
    """The variants that are sold, in GiB."""
    memory_bandwidth: MemoryBandwidth | None = None
    page_bytes: Literal[4096, 16384, 65536] | None = None
    """Page size of the usual kernel, in bytes."""
    kernel: str | None = None
    """Linux versions of the maker's images, as far as known."""
    devicetree: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = ()
    """Strings of the device tree's root `compatible` by which such a board is recognised; those
    of the chip may stand in several files."""
    qemu_cpu: str | None = None
    """Model for qemu-user and qemu-system that stands in for the CPU."""
    sources: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = ()
    """Where the other facts come from."""
    caveats: Annotated[tuple[str, ...], BeforeValidator(_tuple)] = ()
    """What somebody who deploys to such a board should know."""


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
    files = sorted((root / "targets").glob("*.yaml"), key=lambda path: path.stem)
    return {path.stem: load_target(path) for path in files}


def select(targets: dict[str, Target], name: str) -> Target:
    """The target of that name. Raises UnknownTargetError, which names the nearest ones."""
    if name in targets:
        return targets[name]
    close = difflib.get_close_matches(name, targets, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UnknownTargetError(f"no target {name!r}: {hint}targets are {', '.join(targets)}")


def machine_arch(machine: str | None = None) -> str:
    """The architecture of this machine, or of one whose `uname -m` is given, as "x86_64"."""
    name = (machine or platform.machine()).lower()
    return _ALIASES.get(name, name)


def load_target(path: Path) -> Target:
    """Reads one target file. Raises TargetFileError with file, line and field."""
    facts = read_yaml(path, TargetFile, TargetFileError, example="arch: aarch64")
    arch = machine_arch() if facts.arch == "native" else facts.arch
    return Target(path.stem, arch, facts)
