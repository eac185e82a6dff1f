# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What `colibri --bench` measures, on a board or on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from colibri_deploy.board_shell import ending
from colibri_deploy.checkup import HERE
from colibri_deploy.errors import (
    DeadlineError,
    EngineError,
    FileMissingError,
    ProcessTimeoutError,
)
from colibri_deploy.file_hash import file_sha256
from colibri_deploy.model_dir import MODEL_NAME
from colibri_deploy.process import run
from colibri_deploy.run import Engine, RunOptions
from colibri_deploy.ssh import Connection

_WORDS = ("--bench", "--format", "json")
_NAME = re.compile(r"[a-z0-9_.]{1,32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LEAST, _MOST = 1e-12, 1e15  # of a figure that is not 0
# What reading a text as JSON, and as a Bench, raises if it is something else.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Bench:
    """Speeds, and what they were measured with."""

    model: str  # SHA-256 of model.bin
    isa: str
    threads: int
    kv: str
    figures: Mapping[str, float]  # everything that the engine prints, by its names

    def __post_init__(self) -> None:
        """Raises ValueError, TypeError or AttributeError if no engine would say this.

        Boards, and who writes files, say what they like.
        """
        if not _SHA256.fullmatch(self.model):
            raise ValueError(self.model)
        for name in (self.isa, self.kv, *self.figures):
            if not _NAME.fullmatch(name):
                raise ValueError(name)
        for value in (self.threads, *self.figures.values()):
            if not (value == 0 or _LEAST <= value <= _MOST):
                raise ValueError(value)

    @classmethod
    def parse(cls, output: str, model_sha256: str) -> Self:
        """What the engine prints with `--format json`. Raises EngineError if it is something else.

        `model_sha256` is that of model.bin.
        """
        try:
            found = json.loads(output)
            isa, kv = found.pop("isa"), found.pop("kv")
            return cls(model_sha256, isa, int(found["threads"]), kv, found)
        except _MALFORMED as error:
            raise EngineError(f"the engine prints {output[:80]!r} as its speeds") from error

    def other_than(self, before: Self) -> str | None:
        """The first circumstance that is another than before, so that speeds say nothing."""
        now, then = self._circumstances(), before._circumstances()
        return next((name for name in now if now[name] != then[name]), None)

    def _circumstances(self) -> dict[str, object]:
        """What has to be equal for two speeds to be comparable."""
        return {
            "model": self.model,
            "isa": self.isa,
            "threads": self.threads,
            "kv": self.kv,
            "num-tokens": self.figures.get("decoded"),
            "prompt": self.figures.get("long_prompt"),
        }

    def record(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def bench_board(connection: Connection, options: RunOptions) -> Bench:
    """Measures the model that is current on a board.

    Where this raises anything the engine ends there. Raises EngineError, ReleaseError if no model
    was pushed, BoardConnectionError, and the errors of `Store`.
    """
    engine = Engine(connection)
    return Bench.parse(engine.output(*_WORDS, options=options), engine.model_sha256)


def bench_here(
    engine: Path, model: Path, options: RunOptions, timeout_s: float | None = None
) -> Bench:
    """Measures a model on this machine.

    Raises EngineError, DeadlineError, and ProcessError if the engine does not start.
    """
    words: list[str | Path] = [engine, "--model", model, *_WORDS, *options.arguments()]
    try:
        done = run(words, timeout_s=timeout_s, check=False)
    except ProcessTimeoutError as error:
        raise DeadlineError(f"{HERE} takes longer than {timeout_s:g} s") from error
    if done.status != 0:
        raise EngineError(
            f"the engine ends with {ending(done.status)}", details=done.stderr.strip()
        )
    return Bench.parse(done.stdout, file_sha256(model / MODEL_NAME))


def earlier_benches(path: Path) -> dict[str, Bench]:
    """The measurements in a file that `bench --json` wrote, by board.

    Raises FileMissingError.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["verb"] != "bench":
            raise ValueError(found["verb"])
        return {one["board"]: Bench(**one["bench"]) for one in found["boards"] if "bench" in one}
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from error
    except _MALFORMED as error:
        raise FileMissingError(
            f"{path} is not what `colibri-deploy bench --json FILE` writes"
        ) from error
