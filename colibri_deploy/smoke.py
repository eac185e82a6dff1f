# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The smoke test: what was pushed runs on the board, is undamaged, and computes the right numbers.

The steps run on the board, with the engine that is current there. The last two compare tokens, text
and the hash of all logits: of the golden model with literals, of the model that was pushed with
those of this machine's own engine. Where a step fails, the release before is made the current one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from colibri_deploy.board_shell import VERB_SECONDS, BoardShell, ending
from colibri_deploy.coverage import Coverage
from colibri_deploy.errors import (
    BoardBusyError,
    BoardError,
    BoardFullError,
    ReleaseError,
    SmokeError,
    TransferError,
)
from colibri_deploy.file_hash import file_sha256
from colibri_deploy.golden import Generation, Prompt, golden_generation
from colibri_deploy.golden_files import bring_golden_model, golden_arguments, remove_damaged
from colibri_deploy.golden_model import SHA256, golden_coverage, load_goldens
from colibri_deploy.model_dir import MODEL_NAME
from colibri_deploy.push import Progress, check_arch
from colibri_deploy.releases import plan_rollback, roll_back
from colibri_deploy.results import Step
from colibri_deploy.ssh import Answer, Connection
from colibri_deploy.store import BoardState, Store
from colibri_deploy.targets import Target

_LONG_SECONDS = 3600.0  # for what reads the whole model, or computes
_USAGE = 2  # status of the engine where it does not know an option

# What a board has to say is the result of a step.
_BOARD_ERRORS = (BoardBusyError, BoardError, BoardFullError, ReleaseError, TransferError)


@dataclass(frozen=True)
class Reference:
    """What boards are compared with."""

    prompt: Prompt
    model: Path  # the directory that was pushed
    model_sha256: str
    golden: Generation
    coverage: Coverage | None  # experts that the golden hash proves; None: the model is dense

    @classmethod
    def compute(cls, engine: Path, model: Path, prompt: Prompt) -> Reference:
        """What this machine's engine makes of the prompt. Raises as `golden_generation`."""
        golden, coverage = golden_generation(engine, model, prompt)
        return cls(prompt, model, file_sha256(model / MODEL_NAME), golden, coverage)


@dataclass(frozen=True)
class Smoke:
    """The result of a smoke test."""

    release: str
    steps: tuple[Step, ...]
    golden: Generation | None  # what this machine makes of the pushed model's prompt
    generated: Generation | None  # what the board makes of it
    excused: tuple[str, ...] = ()  # steps that say nothing of the release if they fail

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Step, ...]:
        """The steps that failed."""
        return tuple(step for step in self.steps if step.outcome == "failed")

    @property
    def is_unfit(self) -> bool:
        """Whether the release is at fault."""
        return any(step.name not in self.excused for step in self.failed)


class _FailedStepError(Exception):
    """A step found something."""


class _SkippedStepError(Exception):
    """A step has nothing to test."""


class OnStep(Protocol):
    """Told where a test is."""

    def begin(self, name: str) -> None:
        """A step begins."""

    def end(self, step: Step) -> None:
        """The step has ended."""


def smoke(
    connection: Connection,
    target: Target,
    reference: Reference | None,
    on_step: OnStep,
    progress: Progress,
) -> Smoke:
    """Tests what is current on a board, and sends the golden model first where that is not there.

    A failed step is part of the result. Raises BoardArchError, SmokeError where nothing was pushed,
    and BoardConnectionError.
    """
    on_step.begin("version")
    shell = BoardShell(connection)
    state = Store(shell).probe()
    check_arch(connection, target, state)
    if state.current is None:
        raise SmokeError(
            f"nothing was pushed to {connection.board.name}: there is no release under {state.root}"
        )
    test = _Test(shell, target, state, reference, progress)
    steps: list[Step] = []
    for name, run in test.steps():
        on_step.begin(name)
        steps.append(replace(_timed(name, run), figures=test.figures.get(name, {})))
        on_step.end(steps[-1])
        if name == "version" and steps[-1].outcome == "failed":
            break  # nothing else can run
    golden = reference.golden if reference and test.generated else None
    return Smoke(state.current, tuple(steps), golden, test.generated, tuple(test.excused))


def roll_back_from(
    connection: Connection, tested: Smoke, to: str | None, on_step: OnStep
) -> Step | None:
    """Goes back from a release that is unfit; None where nothing is to go back to.

    `to` is the release to go back to; None: the one that was current before. Whether that worked
    is part of the step. Raises BoardConnectionError.
    """
    if not tested.is_unfit:
        return None
    state = Store(BoardShell(connection)).probe()
    if state.current != tested.release or not state.previous:
        return None
    on_step.begin("rollback")

    def run() -> str:
        plan = plan_rollback(connection, to)
        roll_back(connection, plan, is_unfit=True)
        return f"release {plan.release} is current again, in place of {tested.release}"

    step = _timed("rollback", run)
    on_step.end(step)
    return step


def _timed(name: str, run: Callable[[], str]) -> Step:
    started = time.monotonic()
    outcome: Literal["passed", "failed", "skipped"] = "passed"
    try:
        detail = run()
    except (_FailedStepError, *_BOARD_ERRORS) as error:
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
    progress: Progress
    generated: Generation | None = None
    figures: dict[str, dict[str, float | None]] = field(default_factory=dict)  # by step
    excused: set[str] = field(default_factory=set)  # see Smoke

    def steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        yield "version", self.version
        yield "sha256", self.sha256
        yield "verify", self.verify
        yield "selftest", self.selftest
        yield "golden", self.golden
        yield "model", self.model

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
        damaged = self._damaged(self.state.files, lambda name: self._path("current", name))
        if damaged:
            raise _FailedStepError(f"{damaged}; push again")
        return ", ".join(f"{name} {sha[:12]}" for name, sha in self.state.files.items())

    def verify(self) -> str:
        """Every checksum in the model matches."""
        self._need_model()
        return self._run("--verify", "--model", self._path("current")).strip()

    def selftest(self) -> str:
        """Every kernel computes what it should, on this very CPU."""
        answer = self.shell.attempt("run", "--selftest", timeout_s=_LONG_SECONDS)
        if answer.status == _USAGE and b"unknown option --selftest" in answer.stderr:
            raise _SkippedStepError("the engine on the board has none: push again")
        lines = answer.stdout.decode(errors="replace").splitlines()
        wrong = [line for line in lines if line.startswith("kernel ")]
        if wrong:
            more = f"; {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise _FailedStepError(f"{wrong[0]}{more}")
        lines = self._output(answer).splitlines()
        levels = [line.split(":")[0] for line in lines if line.endswith(" kernels, 0 wrong")]
        if not levels or lines[-1] != "selftest: ok":
            raise _FailedStepError(f"the engine prints {lines[-1:]!r} as the end of its selftest")
        return f"every kernel of {', '.join(levels)}"

    def golden(self) -> str:
        """The golden model gives its literals, which all of its experts bear on."""
        if not self.state.is_consistent:
            raise _SkippedStepError("the manifest is damaged: what is the engine?")
        self.excused.add("golden")  # until the golden model is there and whole
        sent = bring_golden_model(self.shell, self.progress)
        damaged = self._damaged(SHA256, lambda name: self._path("store", SHA256[name]))
        if damaged:
            remove_damaged(self.shell, self.state, self.progress)
            raise _FailedStepError(
                f"the golden model on the board is damaged: {damaged}; what has damaged it? It was "
                "removed, and smoke sends it again"
            )
        self.excused.remove("golden")
        files = golden_arguments(self.state.root)
        self._run(*files, "--verify")
        goldens = load_goldens()
        for number, golden in enumerate(goldens, 1):
            found = self._generate(*files, *golden.prompt.arguments())
            self.figures["golden"] = found.figures
            difference = found.difference(golden)
            if difference:
                raise _FailedStepError(f"prompt {number}: {difference}")
        n_tokens = sum(len(golden.ids) for golden in goldens)
        detail = (
            f"{n_tokens} tokens, text and logits hashes of {len(goldens)} prompts; "
            f"they prove {golden_coverage(goldens)}"
        )
        return f"{detail}; {sent:,} bytes sent" if sent else detail

    def model(self) -> str:
        """The model that was pushed gives what it gives here."""
        self._need_model()
        if self.reference is None:
            raise _SkippedStepError("no model here to compare with: give --model DIR")
        if self.reference.model_sha256 != self.state.files[MODEL_NAME]:
            self.excused.add("model")
            raise _FailedStepError(
                f"the model on the board is not the one in {self.reference.model}: push"
            )
        golden, coverage = self.reference.golden, self.reference.coverage
        model = self._path("current")
        generated = self._generate("--model", model, *self.reference.prompt.arguments())
        self.generated, self.figures["model"] = generated, generated.figures
        difference = generated.difference(golden)
        if difference:
            raise _FailedStepError(difference)
        return (
            f"{len(golden.ids)} tokens and logits_hash {golden.logits_hash} "
            f"kv:{golden.kv} as computed here" + (f"; proves {coverage}" if coverage else "")
        )

    def _need_model(self) -> None:
        if MODEL_NAME not in self.state.files:
            raise _SkippedStepError("no model was pushed")

    def _damaged(self, wanted: Mapping[str, str], path_of: Callable[[str], str]) -> str:
        """Which files on the board have not the SHA-256 that they should; "": all have it."""
        damaged = []
        for name, sha256 in wanted.items():
            found, *_ = self._run("--sha256", path_of(name)).split() or [""]
            if found != sha256:
                damaged.append(f"{name} is damaged: SHA-256 {found[:12]} for {sha256[:12]}")
        return "; ".join(damaged)

    def _path(self, *names: str) -> str:
        return "/".join((self.state.root, *names))

    def _generate(self, *arguments: str) -> Generation:
        options = self.shell.connection.board.limits.engine_options
        return Generation.parse(self._run(*arguments, *options))

    def _run(self, *arguments: str, timeout_s: float = _LONG_SECONDS) -> str:
        return self._output(self.shell.attempt("run", *arguments, timeout_s=timeout_s))

    def _output(self, answer: Answer) -> str:
        """What the engine prints, if it ends well."""
        if answer.status != 0:
            said = answer.stderr.decode(errors="replace").strip().splitlines()
            words = said[-1] if said else "silent"
            raise _FailedStepError(f"the engine fails with {ending(answer.status)}: {words}")
        return answer.stdout.decode(errors="replace")
