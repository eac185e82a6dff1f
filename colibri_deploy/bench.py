# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What `colibri --bench` measures, on a board or on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from colibri_deploy.board_shell import ending
from colibri_deploy.errors import EngineError, FileMissingError
from colibri_deploy.file_hash import file_sha256
from colibri_deploy.model import Model
from colibri_deploy.model_dir import MODEL_NAME
from colibri_deploy.process import run
from colibri_deploy.run import Engine, RunOptions
from colibri_deploy.ssh import Connection

# What has to be equal for two speeds to be comparable.
_CIRCUMSTANCES = ("model", "isa", "threads", "kv")
_WORDS = ("--bench", "--format", "json")


@dataclass(frozen=True)
class Bench:
    """Speeds, and what they were measured with."""

    model: str  # SHA-256 of model.bin
    isa: str
    threads: int
    kv: str
    figures: Mapping[str, float]  # everything that the engine prints, by its names

    @classmethod
    def parse(cls, output: str, model_sha256: str) -> Self:
        """What the engine prints with `--format json`. Raises EngineError if it is something else.

        `model_sha256` is that of model.bin.
        """
        try:
            found: dict[str, Any] = json.loads(output)
            isa, kv, threads = str(found.pop("isa")), str(found.pop("kv")), int(found["threads"])
            figures = {name: float(value) for name, value in found.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EngineError(f"the engine prints {output[:80]!r} as its speeds") from error
        return cls(model_sha256, isa, threads, kv, figures)

    def other_than(self, before: Self) -> str | None:
        """The first circumstance that is another than before, so that speeds say nothing."""
        return next(
            (one for one in _CIRCUMSTANCES if getattr(self, one) != getattr(before, one)), None
        )

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


def bench_here(engine: Path, model: Path, options: RunOptions) -> Bench:
    """Measures a model on this machine.

    Raises EngineError, ProcessError if the engine does not start, and the errors of `Model.open`.
    """
    Model.open(model)
    done = run([engine, "--model", model, *_WORDS, *options.arguments()], check=False)
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
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from error
    try:
        boards = json.loads(text)["boards"]
        return {board["board"]: Bench(**board["bench"]) for board in boards if "bench" in board}
    except (ValueError, KeyError, TypeError) as error:
        raise FileMissingError(
            f"{path} is not what `colibri-deploy bench --json FILE` writes"
        ) from error
