# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Generates text on a board, with the engine and the model that are current there."""

from __future__ import annotations

import os
from dataclasses import dataclass

from colibri_deploy.board_shell import BoardShell, ending
from colibri_deploy.errors import EngineError, InputError, ReleaseError
from colibri_deploy.model_dir import MODEL_NAME
from colibri_deploy.ssh import Connection, Sinks
from colibri_deploy.store import Store

_MOST_SECONDS = 7 * 86400.0
_MOST_BYTES = 120_000  # of a prompt: Linux gives an argument 128 KiB
_BEGIN, _END = "<|im_start|>", "<|im_end|>"  # of a message in ChatML


@dataclass(frozen=True)
class RunOptions:
    """Options of the engine; None: as it does by itself."""

    n_tokens: int | None = None
    threads: int | None = None
    kv: str | None = None  # type of the key/value cache

    def arguments(self) -> tuple[str, ...]:
        """For the engine's command line."""
        values = {"num_tokens": self.n_tokens, "threads": self.threads, "kv": self.kv}
        given = {name: value for name, value in values.items() if value is not None}
        return tuple(word for name, value in given.items() for word in (f"--{name}", str(value)))


class Engine:
    """The engine on a board, with the model that was pushed."""

    def __init__(self, connection: Connection) -> None:
        """Raises ReleaseError if no model was pushed, and the errors of `Store`."""
        self._shell = BoardShell(connection)
        self._name = connection.board.name
        state = Store(self._shell).probe()
        if MODEL_NAME not in state.files:
            raise ReleaseError(f"{self._name} has no model: push one with --model DIR")
        self._model = ("--model", f"{state.root}/current")
        self._limits = connection.board.limits

    def generate(self, prompt: str, options: RunOptions, sinks: Sinks) -> None:
        """Passes the text on as it comes, and a line break at its end.

        Where this raises anything, KeyboardInterrupt too, the engine ends on the board. Raises
        EngineError, InputError and BoardConnectionError.
        """
        if len(os.fsencode(prompt)) > _MOST_BYTES:
            raise InputError(f"the prompt is longer than {_MOST_BYTES:,} bytes")
        words = [*self._model, "--prompt", prompt, *options.arguments()]
        if options.threads is None:
            words += self._limits.engine_options
        self._check(self._shell.stream("stream", *words, sinks=sinks, timeout_s=_MOST_SECONDS))

    def knows_chatml(self) -> bool:
        """Whether the marks of ChatML are tokens of the model. Raises as `generate`."""
        words = ("--tokenize", "--prompt", (_BEGIN + _END) * 2)
        answer = self._shell.attempt("run", *self._model, *words)
        self._check(answer.status, answer.stderr)
        ids = answer.stdout.decode().strip().split(",")
        begin, end, *again = ids[-4:]
        return len(ids) <= 5 and begin != end and again == [begin, end]  # 5: with a first token

    def _check(self, status: int, said: bytes = b"") -> None:
        """Raises EngineError where the engine did not end well."""
        if status != 0:
            raise EngineError(
                f"the engine on {self._name} ends with {ending(status)}",
                details=said.decode(errors="replace").strip(),
            )


class Chat:
    """A conversation in ChatML; the board is sent all of it each time."""

    def __init__(self, engine: Engine, board: str) -> None:
        """Raises InputError if the model knows no ChatML, and as `Engine.generate`."""
        if not engine.knows_chatml():
            raise InputError(
                f"the model on {board} has no tokens {_BEGIN} and {_END}, so it is none for a "
                "chat in ChatML: give it a text to continue, with `colibri-deploy run`"
            )
        self._engine = engine
        self._said = ""

    def answer(self, turn: str, options: RunOptions, sinks: Sinks) -> None:
        """Passes the answer on as it comes. Raises as `Engine.generate`."""
        self._said += f"{_BEGIN}user\n{turn}{_END}\n{_BEGIN}assistant\n"
        text = bytearray()

        def on_text(data: bytes) -> None:
            text.extend(data)
            sinks.stdout(data)

        self._engine.generate(self._said, options, Sinks(on_text, sinks.stderr))
        answer = os.fsdecode(bytes(text)).removesuffix("\n")  # the engine ends its output with it
        self._said += f"{answer}{_END}\n"
