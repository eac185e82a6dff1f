# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the engine and the model that are current on a board: text, chats, and how fast it is."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from colibri_deploy.board_shell import BoardShell, ending
from colibri_deploy.errors import EngineError, InputError, ReleaseError
from colibri_deploy.model_dir import MODEL_NAME
from colibri_deploy.ssh import Connection, Dialogue, Sinks
from colibri_deploy.store import Store

_MOST_SECONDS = 7 * 86400.0
_MOST_OUTPUT = 1 << 20  # bytes that are kept of what the engine prints
_MOST_BYTES = 120_000  # of a prompt or a system text: Linux gives an argument 128 KiB
_INPUT = 11  # the engine's status for what its model cannot take


@dataclass(frozen=True)
class RunOptions:
    """Options of the engine; None: as it does by itself."""

    n_tokens: int | None = None
    threads: int | None = None
    kv: str | None = None  # type of the key/value cache
    isa: str | None = None  # level of the kernels

    def arguments(self) -> tuple[str, ...]:
        """For the engine's command line."""
        values = {
            "num_tokens": self.n_tokens,
            "threads": self.threads,
            "kv": self.kv,
            "isa": self.isa,
        }
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
        self.model_sha256 = state.files[MODEL_NAME]
        self._model = ("--model", f"{state.root}/current")
        self._limits = connection.board.limits

    def generate(self, prompt: str, options: RunOptions, sinks: Sinks) -> None:
        """Passes the text on as it comes, and a line break at its end.

        Where this raises anything, KeyboardInterrupt too, the engine ends on the board. Raises
        EngineError, InputError and BoardConnectionError.
        """
        _check_size("prompt", prompt)
        words = [*self._model, "--prompt", prompt, *self._arguments(options)]
        self._check(self._shell.stream("stream", *words, sinks=sinks, timeout_s=_MOST_SECONDS))

    def output(self, *words: str, options: RunOptions) -> str:
        """What the engine prints with these options besides, at most 1 MiB.

        Raises as `generate`.
        """
        out, err = bytearray(), bytearray()

        def keep(kept: bytearray, data: bytes) -> None:
            if len(kept) + len(data) > _MOST_OUTPUT:
                raise EngineError(f"the engine on {self._name} prints more than 1 MiB")
            kept += data

        status = self._shell.stream(
            "stream",
            *self._model,
            *words,
            *self._arguments(options),
            sinks=Sinks(functools.partial(keep, out), functools.partial(keep, err)),
            timeout_s=_MOST_SECONDS,
        )
        self._check(status, bytes(err))
        return out.decode(errors="replace")

    @contextlib.contextmanager
    def chat(self, options: RunOptions, system: str | None, sinks: Sinks) -> Iterator[Chat]:
        """A conversation with one engine, which ends with the context.

        Raises InputError if the model has no chat form, or if it takes no system text or none of
        that length, and as `generate`.
        """
        _check_size("system text", system or "")
        words = [*self._model, "--chat", *([] if system is None else ["--system", system])]
        answer = self._shell.attempt("run", *words, "--tokenize")  # of no turn at all
        said = answer.stderr.decode(errors="replace").strip().removeprefix("colibri: error: ")
        if answer.status == _INPUT:
            verbs = "`colibri-deploy run`, `colibri-deploy convert`"
            raise InputError(f"no chat with {self._name}: {said} ({verbs})")
        self._check(answer.status, answer.stderr)
        mark = f"\x1e{secrets.token_hex(16)}\x1e"
        words += ["--turn_end", mark, *self._arguments(options)]
        ears = _Ears(mark.encode(), sinks.stdout)
        with self._shell.converse("run", *words, sinks=Sinks(ears, sinks.stderr)) as dialogue:
            yield Chat(dialogue, ears)
            self._check(dialogue.end(_MOST_SECONDS))

    def _arguments(self, options: RunOptions) -> tuple[str, ...]:
        more = self._limits.engine_options if options.threads is None else ()
        return (*options.arguments(), *more)

    def _check(self, status: int, said: bytes = b"") -> None:
        """Raises EngineError where the engine did not end well."""
        if status != 0:
            raise EngineError(
                f"the engine on {self._name} ends with {ending(status)}",
                details=said.decode(errors="replace").strip(),
            )


def _check_size(what: str, text: str) -> None:
    if len(os.fsencode(text)) > _MOST_BYTES:
        raise InputError(f"the {what} is longer than {_MOST_BYTES:,} bytes")


class Chat:
    """A conversation; each turn is sent, and computed, once (`Engine.chat`)."""

    def __init__(self, dialogue: Dialogue, ears: _Ears) -> None:
        self._dialogue = dialogue
        self._ears = ears

    def answer(self, turn: str) -> bool:
        """Passes the answer to one line on as it comes; False if the engine has ended.

        Raises BoardConnectionError.
        """
        self._ears.turn_is_over = False
        self._dialogue.say(os.fsencode(turn) + b"\n")
        self._dialogue.hear(lambda: self._ears.turn_is_over, _MOST_SECONDS)
        return self._ears.turn_is_over


class _Ears:
    """Passes on what comes, but for the mark at the end of each turn."""

    def __init__(self, mark: bytes, sink: Callable[[bytes], None]) -> None:
        self._mark = mark
        self._sink = sink
        self._held = b""  # may be the beginning of a mark
        self.turn_is_over = False

    def __call__(self, data: bytes) -> None:
        before, mark, after = (self._held + data).partition(self._mark)
        if mark:
            self.turn_is_over = True
            self._held = after
        else:
            start = before.rfind(self._mark[:1])
            cut = start if start >= 0 and self._mark.startswith(before[start:]) else len(before)
            before, self._held = before[:cut], before[cut:]
        if before:
            self._sink(before)
