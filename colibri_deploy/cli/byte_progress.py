# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A progress bar over bytes, on stderr, where that is a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from colibri_deploy.cli.console import stderr_console


class _Figures(ProgressColumn):
    """Bytes, rate and time left; nothing where nobody counts."""

    def __init__(self) -> None:
        super().__init__()
        self._columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text()
        return Text(" ").join(column.render(task) for column in self._columns)


_entered: list[Progress] = []


@contextmanager
def hidden_bars() -> Iterator[None]:
    """Bars leave the terminal to somebody who asks there."""
    bars = list(_entered)
    for one in bars:
        one.stop()
    try:
        yield
    finally:
        for one in bars:
            one.start()


@contextmanager
def byte_bars() -> Iterator[Progress]:
    """Bars for several boards at once; each is a ByteProgress."""
    with _new_bars() as bars:
        _entered.append(bars)
        try:
            yield bars
        finally:
            _entered.remove(bars)


def _new_bars() -> Progress:
    console = stderr_console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        _Figures(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


class ByteProgress:
    """Implements the library's `Progress` protocols; a context manager."""

    def __init__(self, bars: Progress | None = None, board: str = "") -> None:
        """With `bars`, which somebody else has entered, it is the line of that board there."""
        self._is_own = bars is None
        self._bars = bars or _new_bars()
        self._prefix = f"{board}: " if board else ""
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._is_own:
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_own:
            self._bars.stop()
        elif self._task is not None:
            self._bars.remove_task(self._task)

    def start(self, what: str, total: int) -> None:
        """A step begins that takes `total` bytes (0: nobody counts); it replaces the one before."""
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(self._prefix + what, total=total or None)

    def advance(self, n_bytes: int) -> None:
        """`n_bytes` more are done."""
        if self._task is not None:
            self._bars.advance(self._task, n_bytes)

    def wait_for(self, owner: str) -> None:
        """Somebody else deploys, or did so until he died."""
        self.start(f"waiting for a sign of life from {owner}", 0)
