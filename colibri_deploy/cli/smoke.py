# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `smoke`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from colibri_deploy import golden
from colibri_deploy import smoke as library
from colibri_deploy.build import plan
from colibri_deploy.cli.board_choice import BoardChoice, boards_options
from colibri_deploy.cli.build import build_with_progress
from colibri_deploy.cli.byte_progress import ByteProgress
from colibri_deploy.cli.console import stdout_console
from colibri_deploy.cli.many import Many, many_options
from colibri_deploy.errors import SmokeError
from colibri_deploy.many import BoardRun
from colibri_deploy.model import Model
from colibri_deploy.resources import engine_root
from colibri_deploy.results import Step
from colibri_deploy.ssh import Connection
from colibri_deploy.targets import load_targets, select
from colibri_deploy.toolchain import find_toolchain

HOST = "host"  # the target that is this machine
_ENGINE_ONLY = "the engine is verified; no model was compared"


@dataclass(frozen=True)
class PromptChoice:
    """What the command line says of the golden prompt."""

    text: str | None
    ids: str | None
    n_tokens: int

    def prompt(self, model: Path) -> golden.Prompt:
        """The prompt to generate from; one that fits the model where none was given."""
        if self.text is not None:
            return golden.Prompt("prompt", self.text, self.n_tokens)
        if self.ids is not None:
            return golden.Prompt("tokens", self.ids, self.n_tokens)
        return golden.Prompt.fitting(Model.open(model), self.n_tokens)


def prompt_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Gives a verb the options of the golden prompt; it receives them as `prompt`."""

    @functools.wraps(verb)
    def with_prompt(prompt: str | None, tokens: str | None, num_tokens: int, **others: Any) -> None:
        if prompt is not None and tokens is not None:
            raise click.UsageError("give one of --prompt and --tokens")
        verb(prompt=PromptChoice(prompt, tokens, num_tokens), **others)

    for option in reversed(_OPTIONS):
        with_prompt = option(with_prompt)
    return with_prompt


_OPTIONS = (
    click.option("--prompt", metavar="TEXT", help="The golden prompt."),
    click.option("--tokens", metavar="IDS", help="The golden prompt as token ids: 1,2,3."),
    click.option(
        "--num-tokens",
        type=click.IntRange(min=1),
        default=golden.DEFAULT_TOKENS,
        show_default=True,
        help="How many tokens to generate.",
    ),
)


@click.command()
@boards_options
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The model that was pushed, to compute the golden numbers from.",
)
@prompt_options
@many_options
def smoke(
    choose: Callable[[], list[BoardChoice]],
    build_dir: Path,
    model: Path | None,
    prompt: PromptChoice,
    many: Many,
) -> None:
    """Prove on boards that what was pushed computes the right numbers.

    The engine starts there, every file has the SHA-256 and the model all the checksums that it was
    pushed with, every kernel computes what it should, the golden model gives the tokens, text and
    hashes of all logits that are written down, and a prompt to the pushed model those that this
    machine's own engine computes. A board whose release fails goes back to the one before it, if
    it has one.
    """
    chosen = choose()
    reference = None
    if model is not None:
        wanted = prompt.prompt(model)
        reference = library.Reference.compute(host_engine(build_dir), model, wanted)
    shows: list[Callable[[], None]] = []

    def work(
        run: BoardRun, choice: BoardChoice, connection: Connection, progress: ByteProgress
    ) -> None:
        prove(run, choice, connection, reference, progress, shows)

    many.run("smoke", chosen, work, shows)


def prove(
    run: BoardRun,
    choice: BoardChoice,
    connection: Connection,
    reference: library.Reference | None,
    progress: ByteProgress,
    shows: list[Callable[[], None]],
    back_to: str | None = None,
) -> None:
    """The smoke test as part of the work on a board.

    Raises SmokeError where it fails, after going back to release `back_to` (None: the one that was
    current before), and the errors of `library.smoke`.
    """
    on_step = _Steps(run, progress)
    result = library.smoke(connection, choice.target, reference, on_step, progress)
    shows.append(functools.partial(print_smoke, result))
    run.reports["smoke"] = smoke_record(choice, connection, result)
    done = result.generated
    if done is not None:
        speed = f"{done.tokens_per_s:.1f} tokens/s ({done.isa}, {done.threads} threads)"
        run.summary = f"verified, {speed}"
    else:
        run.summary = _ENGINE_ONLY
    if not result.ok:
        back = library.roll_back_from(connection, result, back_to, on_step)
        if back is not None:
            shows.append(functools.partial(_print_rollback, back))
        fail_unless_ok(connection, result, back)


@dataclass(frozen=True)
class _Steps:
    """Tells both the work and a progress bar of steps."""

    run: BoardRun
    progress: ByteProgress

    def begin(self, name: str) -> None:
        self.run.begin(name)
        self.progress.start(name, 0)

    def end(self, step: Step) -> None:
        self.run.end(step)


def run_smoke(
    choice: BoardChoice, connection: Connection, reference: library.Reference | None
) -> library.Smoke:
    """Runs the smoke test alone, and says on a terminal which step it is at."""
    with ByteProgress() as progress:
        run = BoardRun(choice.name, choice.target.name)
        return library.smoke(connection, choice.target, reference, _Steps(run, progress), progress)


def _print_rollback(step: Step) -> None:
    stdout_console().print(f"{step.name} {step.outcome}: {step.detail}", soft_wrap=True)


def smoke_record(
    choice: BoardChoice, connection: Connection, result: library.Smoke
) -> dict[str, object]:
    """A smoke test, for JSON."""
    return {
        "board": connection.board.name,
        "address": connection.board.address,
        "target": choice.target.name,
        "ok": result.ok,
        **asdict(result),
    }


def print_smoke(result: library.Smoke) -> None:
    """A smoke test, for people."""
    console = stdout_console()
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("step", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("result", overflow="fold")
    for step in result.steps:
        table.add_row(step.name, step.outcome, f"{step.seconds:.1f}", step.detail)
    console.print(table)
    _print_figures(result.steps)
    done = result.generated
    if done is not None:
        if done.text is not None:
            console.print(done.text.strip(), soft_wrap=True)
        else:
            console.print("tokens " + ",".join(map(str, done.ids)), soft_wrap=True)
        console.print(
            f"{done.tokens_per_s:.1f} tokens/s on the board ({done.isa}, {done.threads} threads)"
        )
        console.print(f"logits_hash: {done.logits_hash} kv:{done.kv}", soft_wrap=True)
    compared = any(step.name == "model" and step.outcome == "passed" for step in result.steps)
    if result.ok:
        console.print("verified" if compared else _ENGINE_ONLY)


def _print_figures(steps: Sequence[Step]) -> None:
    """What was measured, for people; nobody judges it."""
    measured = [step for step in steps if step.figures]
    if not measured:
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("measured", no_wrap=True)
    for title in (
        "prompt",
        "prefill tokens/s",
        "decode tokens/s",
        "load s",
        "peak MiB",
        "read MiB",
    ):
        table.add_column(title, justify="right")
    for step in measured:
        of = step.figures
        mib = [_shown(of[name], ".1f", 1 << 20) for name in ("peak_rss_bytes", "read_bytes")]
        table.add_row(
            step.name,
            _shown(of["prompt_tokens"], ",.0f"),
            _shown(of["prefill_tokens_per_s"], ",.1f"),
            _shown(of["decode_tokens_per_s"], ",.1f"),
            _shown(of["load_seconds"], ".3f"),
            *mib,
        )
    stdout_console().print(table)


def _shown(figure: float | None, spec: str, unit: int = 1) -> str:
    return "?" if figure is None else format(figure / unit, spec)


def fail_unless_ok(
    connection: Connection, result: library.Smoke, rollback: Step | None = None
) -> None:
    """Raises SmokeError with the steps that failed, and what came of going back."""
    if result.ok:
        return
    first, *others = result.failed
    steps = others if rollback is None else [*others, rollback]
    raise SmokeError(
        f"{connection.board.name} fails the smoke test at {first.name}: {first.detail}",
        details="\n".join(f"{step.name}: {step.detail}" for step in steps),
    )


def host_engine(build_dir: Path) -> Path:
    """The engine for this machine, built first. Raises the errors of a build."""
    root = engine_root()
    target = select(load_targets(root), HOST)
    toolchain = find_toolchain()
    compilations = plan([target], root=root, build_root=build_dir, toolchain=toolchain)
    return build_with_progress(compilations, toolchain)[HOST].binary
