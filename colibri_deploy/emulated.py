# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Emulated boards by their names: `sim:TARGET` and `vm:TARGET`, each with options or without."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from colibri_deploy import sim, vm
from colibri_deploy.errors import UnknownBoardError
from colibri_deploy.knobs import format_knobs, parse_knobs
from colibri_deploy.running_board import RunningBoard, running_board, state_directory
from colibri_deploy.sim import Faults, SimBoard
from colibri_deploy.sim_process import SimProcess
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

    def prepare(self, build_dir: Path) -> SimBoard | VmBoard | AbstractContextManager[RunningBoard]:
        """The board, on the network while entered; one that stays on if there is one.

        Raises EmulationError.
        """
        if isinstance(self.options, VmOptions):
            return VmBoard(self.name, self.target, self.options)
        kept = running_board(state_directory("sim") / self.name.removeprefix(sim.PREFIX))
        if kept is not None:
            return contextlib.nullcontext(kept)
        return SimBoard(self.target, build_dir / "sim" / self.target.name, self.options)

    def staying(
        self, build_dir: Path, root: Path, on_step: Callable[[str], None]
    ) -> VmBoard | SimProcess:
        """The board, to be started and stopped; `on_step` is told what takes long.

        `root` is the engine's.
        """
        if isinstance(self.options, VmOptions):
            return VmBoard(self.name, self.target, self.options, on_step=on_step)
        return SimProcess(self.name, build_dir / "sim" / self.target.name, root)


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
