# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Works on many boards at once, each in a thread that can be stopped from outside."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from colibri_deploy.errors import ColibriDeployError, DeadlineError
from colibri_deploy.interrupts import held_back
from colibri_deploy.results import BoardResult, Step
from colibri_deploy.ssh import Connection

_LOOK_SECONDS = 0.2  # how often deadlines are looked at


class StoppedWorkError(Exception):
    """The work on a board ends here because it was stopped from outside."""


@dataclass
class StepNote:
    """What a step says of itself."""

    detail: str = ""


class BoardRun:
    """The work on one board: its steps so far, and how to stop it."""

    def __init__(self, board: str, target: str) -> None:
        self.board = board
        self.target = target
        self.summary = ""  # what the board has to say if it passes
        self.reports: dict[str, object] = {}  # of the verbs, for JSON
        self.crash: BaseException | None = None  # an error that the library does not know
        self.started: float | None = None  # time.monotonic()
        self._seconds = 0.0
        self._error: ColibriDeployError | None = None
        self._steps: list[Step] = []
        self._begun: tuple[str, float] | None = None  # the step that runs, and since when
        self._lock = threading.Lock()  # of the three below
        self._connection: Connection | None = None
        self._is_stopped = False
        self._deadline: DeadlineError | None = None  # why it was stopped, if so

    def begin(self, name: str) -> None:
        """A step begins. Raises StoppedWorkError if the work was stopped."""
        self._begun = (name, time.monotonic())
        self.check()

    def end(self, step: Step) -> None:
        """The step that was begun has ended."""
        self._steps.append(step)
        self._begun = None

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[StepNote]:
        """A step that has passed when the block is left; what the block raises ends the work."""
        self.begin(name)
        note = StepNote()
        yield note
        self._end("passed", note.detail)

    def use(self, connection: Connection) -> None:
        """From now on the connection ends when the work is stopped."""
        with self._lock:
            self._connection = connection
        self.check()

    def check(self) -> None:
        """Raises StoppedWorkError if the work was stopped."""
        if self._is_stopped:
            raise StoppedWorkError

    def stop(self, deadline: DeadlineError | None = None) -> None:
        """Ends the work as soon as can be, from another thread; with `deadline` it has failed."""
        with self._lock:
            if self._is_stopped:
                return
            self._is_stopped, self._deadline = True, deadline
            connection = self._connection
        if connection is not None:
            connection.abort()

    def work(self, do: Callable[[BoardRun], None]) -> None:
        """Does the work; what it raises becomes part of the result."""
        self.started = time.monotonic()
        try:
            self.check()
            do(self)
        except StoppedWorkError:
            self._break_off()
        except ColibriDeployError as error:
            self._error = error
            self._break_off()
        except BaseException as error:
            self.crash = error
            self._break_off()
        self._seconds = time.monotonic() - self.started

    def _break_off(self) -> None:
        """Ends the step that was begun; between steps one that says so, unless one has failed."""
        if self._is_stopped:  # what was raised came of that
            self._error, self.crash = self._deadline, None
        if self._begun is None:
            if any(step.outcome == "failed" for step in self._steps):
                return
            self._begun = ("end" if self._steps else "connect", time.monotonic())
        if self._is_stopped and self._deadline is None:
            self._end("stopped", "stopped before its end")
        else:
            self._end("failed", self._error.message if self._error else repr(self.crash))

    def _end(self, outcome: Literal["passed", "failed", "stopped"], detail: str) -> None:
        assert self._begun is not None  # by `begin`
        name, since = self._begun
        self.end(Step(name, outcome, detail, time.monotonic() - since))

    def result(self) -> BoardResult:
        """What came of it."""
        steps = tuple(self._steps) or (Step("connect", "stopped", "not begun", 0.0),)
        return BoardResult(
            board=self.board,
            target=self.target,
            steps=steps,
            seconds=self._seconds,
            summary=self.summary,
            error=self._error,
            reports=self.reports,
        )


Work = Callable[[BoardRun], None]


def run_all(
    tasks: Sequence[tuple[BoardRun, Work]],
    *,
    jobs: int,
    timeout_s: float | None,
    fail_fast: bool,
    on_end: Callable[[BoardResult], None],
    on_interrupt: Callable[[Sequence[str]], None],
) -> bool:
    """Does all tasks, up to `jobs` at a time; whether Ctrl-C was pressed before their end.

    A task that takes longer than `timeout_s` seconds is stopped and has failed. With `fail_fast`,
    and after Ctrl-C, those that run are stopped and no more are begun; `on_interrupt` is told
    whose end is waited for then. Raises KeyboardInterrupt if it is pressed again, and what a task
    has raised that is no ColibriDeployError.
    """
    ended: queue.SimpleQueue[BoardRun] = queue.SimpleQueue()
    waiting = deque(tasks)
    active: list[BoardRun] = []
    interrupted = False

    def execute(run: BoardRun, do: Work) -> None:
        run.work(do)
        ended.put(run)

    try:
        while waiting or active:
            while waiting and len(active) < jobs:
                with held_back():  # what is active has begun, and will end
                    run, do = waiting.popleft()
                    active.append(run)
                    threading.Thread(target=execute, args=(run, do), daemon=True).start()
            for run in active:
                _stop_if_late(run, timeout_s)
            try:
                with held_back():  # what has ended is not active
                    run = ended.get(timeout=_LOOK_SECONDS)
                    active.remove(run)
            except queue.Empty:
                continue
            result = run.result()
            on_end(result)
            if run.crash is not None or (fail_fast and result.outcome == "failed"):
                waiting.clear()
                for other in active:
                    other.stop()
    except KeyboardInterrupt:
        interrupted = True
        for run in active:
            run.stop()
        if active:
            on_interrupt([run.board for run in active])
        while active:
            active.remove(ended.get())
    for run, _ in tasks:
        if run.crash is not None:
            raise run.crash
    return interrupted


def _stop_if_late(run: BoardRun, timeout_s: float | None) -> None:
    if timeout_s is None or run.started is None:
        return
    if time.monotonic() - run.started > timeout_s:
        run.stop(DeadlineError(f"{run.board} takes longer than {timeout_s:g} s"))
