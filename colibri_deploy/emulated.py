# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Emulated boards by their names: `sim:TARGET` and `vm:TARGET`, each with options or without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from colibri_deploy import sim, vm
from colibri_deploy.errors import UnknownBoardError
from colibri_deploy.knobs import format_knobs, parse_knobs
from colibri_deploy.sim import Faults, SimBoard
from colibri_deploy.targets import Target, select
from colibri_deploy.vm import VmBoard, VmOptions

PREFIXES = (sim.PREFIX, vm.PREFIX)


@dataclass(frozen=True)
class Emulated:
    """An emulated board that is not running yet."""

    target: Target
    options: Faults | VmOptions

    @property
    def name(self) -> str:
        """What it is called: options in their order, those with their defaults left out."""
        prefix = vm.PREFIX if isinstance(self.options, VmOptions) else sim.PREFIX
        return prefix + self.target.name + format_knobs(self.options)

    def prepare(
        self, build_dir: Path, on_step: Callable[[str], None] = lambda step: None
    ) -> SimBoard | VmBoard:
        """The board, to be entered; `on_step` is told what takes long. Raises EmulationError."""
        if isinstance(self.options, VmOptions):
            return VmBoard(self.name, self.target, self.options, on_step=on_step)
        return SimBoard(self.target, build_dir / "sim" / self.target.name, self.options)


def parse_emulated(name: str, targets: Mapping[str, Target]) -> Emulated:
    """The board of a name that begins with one of PREFIXES.

    Raises UnknownTargetError, and UnknownBoardError for an option that cannot be.
    """
    prefix, colon, rest = name.partition(":")
    if prefix + colon not in PREFIXES:
        names = " or ".join(f"{one}TARGET" for one in PREFIXES)
        raise UnknownBoardError(f"{name} is no emulated board: write {names}")
    kind, *words = rest.split(",")
    target = select(dict(targets), kind)
    board = f"{prefix}:{kind}"
    if prefix + colon == vm.PREFIX:
        return Emulated(target, parse_knobs(words, VmOptions, board))
    return Emulated(target, parse_knobs(words, Faults, board))
