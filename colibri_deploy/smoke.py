# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The smoke test: what was pushed runs on the board, is undamaged, and computes the right numbers.

The steps run on the board, with the engine that is current there. The last one compares token ids
and the hash of all logits with those of this machine's own engine.
"""

from __future__ import annotations

import hashlib
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from colibri_deploy.board_shell import VERB_SECONDS, BoardShell
from colibri_deploy.errors import BoardError, FileMissingError, SmokeError
from colibri_deploy.golden import Generation, Prompt, golden_generation
from colibri_deploy.model_dir import MODEL_NAME
from colibri_deploy.push import check_arch
from colibri_deploy.ssh import Connection
from colibri_deploy.store import BoardState, Store
from colibri_deploy.targets import Target

_LONG_SECONDS = 3600.0  # for what reads the whole model, or computes


@dataclass(frozen=True)
class Reference:
    """What the board is compared with."""

    engine: Path  # for this machine
    model: Path  # the directory that was pushed
    prompt: Prompt


@dataclass(frozen=True)
class Step:
    """One step of the test."""

    name: str
    outcome: Literal["passed", "failed", "skipped"]
    detail: str
    seconds: float


@dataclass(frozen=True)
class Smoke:
    """The result of a smoke test."""

    release: str
    steps: tuple[Step, ...]
    golden: Generation | None  # this machine's
    generated: Generation | None  # the board's

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return all(step.outcome != "failed" for step in self.steps)


class _FailedStepError(Exception):
    """A step found something."""


class _SkippedStepError(Exception):
    """A step has nothing to test."""


def smoke(
    connection: Connection,
    target: Target,
    reference: Reference | None,
    on_step: Callable[[str], None] = lambda name: None,
) -> Smoke:
    """Tests what is current on a board.

    A failed step is part of the result. Raises BoardArchError, SmokeError where nothing was pushed,
    BoardConnectionError, and ProcessError if the reference engine fails.
    """
    shell = BoardShell(connection)
    state = Store(shell).probe()
    check_arch(connection, target, state)
    if state.current is None:
        raise SmokeError(
            f"nothing was pushed to {connection.board.name}: there is no release under {state.root}"
        )
    test = _Test(shell, target, state, reference)
    steps = []
    for name, run in test.steps():
        on_step(name)
        step = _timed(name, run)
        steps.append(step)
        if name == "version" and step.outcome == "failed":
            break  # nothing else can run
    return Smoke(state.current, tuple(steps), test.golden, test.generated)


def _timed(name: str, run: Callable[[], str]) -> Step:
    started = time.monotonic()
    outcome: Literal["passed", "failed", "skipped"] = "passed"
    try:
        detail = run()
    except (_FailedStepError, BoardError) as error:
        outcome, detail = "failed", str(error)
    except _SkippedStepError as error:
        outcome, detail = "skipped", str(error)
    return Step(name, outcome, detail, time.monotonic() - started)


@dataclass
class _Test:
    shell: BoardShell
    target: Target
    state: BoardState
    reference: Reference | None
    golden: Generation | None = None
    generated: Generation | None = None

    def steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        yield "version", self.version
        yield "sha256", self.sha256
        yield "verify", self.verify
        yield "golden", self.compare

    def version(self) -> str:
        """The engine starts, and says what it found."""
        first, *others = self._run("--version", timeout_s=VERB_SECONDS).splitlines() or [""]
        chosen = [line.removeprefix("isa chosen: ") for line in others if "isa chosen" in line]
        if not first.startswith("colibri ") or len(chosen) != 1:
            raise _FailedStepError(f"the engine prints {first!r} as its version")
        expected = self.target.facts.expected_isa
        isa = chosen[0]
        if expected not in (None, isa):
            isa += f", where the target expects {expected}"
        return f"{first}, ISA {isa}"

    def sha256(self) -> str:
        """Every file of the release is what was pushed."""
        if not self.state.is_consistent:
            raise _FailedStepError("the manifest is damaged; push again with --model")
        damaged = []
        for name, wanted in self.state.files.items():
            found, *_ = self._run("--sha256", self._path(name)).split() or [""]
            if found != wanted:
                damaged.append(f"{name} is damaged: SHA-256 {found[:12]} for {wanted[:12]}")
        if damaged:
            raise _FailedStepError("; ".join((*damaged, "push again")))
        return ", ".join(f"{name} {sha[:12]}" for name, sha in self.state.files.items())

    def verify(self) -> str:
        """Every checksum in the model matches."""
        self._need_model()
        return self._run("--verify", "--model", self._path()).strip()

    def compare(self) -> str:
        """The golden prompt gives the golden numbers."""
        self._need_model()
        if self.reference is None:
            raise _SkippedStepError("no model here to compare with: give --model DIR")
        local = self.reference.model / MODEL_NAME
        if _sha256(local) != self.state.files[MODEL_NAME]:
            raise _FailedStepError(f"the model on the board is not the one in {local.parent}: push")
        prompt = self.reference.prompt
        self.golden = golden_generation(self.reference.engine, self.reference.model, prompt)
        self.generated = Generation.parse(self._run(*prompt.arguments(self._path())))
        difference = self.generated.difference(self.golden)
        if difference:
            raise _FailedStepError(difference)
        return (
            f"{len(self.golden.ids)} tokens and logits_hash {self.golden.logits_hash} "
            f"kv:{self.golden.kv} as computed here"
        )

    def _need_model(self) -> None:
        if MODEL_NAME not in self.state.files:
            raise _SkippedStepError("no model was pushed")

    def _path(self, name: str = "") -> str:
        return f"{self.state.root}/current" + (f"/{name}" if name else "")

    def _run(self, *arguments: str, timeout_s: float = _LONG_SECONDS) -> str:
        answer = self.shell.attempt("run", *arguments, timeout_s=timeout_s)
        if answer.status != 0:
            said = answer.stderr.decode(errors="replace").strip().splitlines()
            how = f"status {answer.status}"
            if answer.status > 128:
                with suppress(ValueError):
                    how += f", {signal.Signals(answer.status - 128).name}"
            raise _FailedStepError(f"the engine fails with {how}: {said[-1] if said else 'silent'}")
        return answer.stdout.decode(errors="replace")


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from error
