# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `run`."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import click

from colibri_deploy.cli.board_choice import BoardChoice, board_options
from colibri_deploy.cli.push import run_push
from colibri_deploy.errors import StoppedError
from colibri_deploy.run import Engine, RunOptions
from colibri_deploy.ssh import Connection, Sinks


def run_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Gives a verb the options of generating on a board; it receives `options` and `model`."""

    @functools.wraps(verb)
    def with_options(
        num_tokens: int | None, threads: int | None, kv: str | None, **others: Any
    ) -> None:
        verb(options=RunOptions(num_tokens, threads, kv), **others)

    for option in reversed(_OPTIONS):
        with_options = option(with_options)
    return with_options


_OPTIONS = (
    click.option(
        "--model",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="The model to push first; without it, the one on the board is used.",
    ),
    click.option(
        "--num-tokens",
        type=click.IntRange(min=1),
        help="How many tokens to generate at most.  [default: 32]",
    ),
    click.option(
        "--threads", type=click.IntRange(min=1), help="Threads.  [default: one for each CPU]"
    ),
    click.option(
        "--kv",
        type=click.Choice(["auto", "f32", "f16", "q8"]),
        help="Type of the key/value cache.  [default: auto]",
    ),
)


@click.command()
@board_options
@run_options
@click.argument("prompt")
def run(choice: BoardChoice, model: Path | None, options: RunOptions, prompt: str) -> None:
    """Continue PROMPT on a board, and print the text as it comes.

    Ctrl-C ends the engine on the board, too.
    """
    with connected(choice, model) as connection, to_terminal(connection) as sinks:
        Engine(connection).generate(prompt, options, sinks)


@contextlib.contextmanager
def connected(choice: BoardChoice, model: Path | None) -> Iterator[Connection]:
    """A connection to a board, which has `model` then, if one is given. Raises StoppedError."""
    try:
        with choice.connect() as connection:
            if model is not None:
                run_push(choice, connection, model, False)
            yield connection
    except KeyboardInterrupt:
        raise StoppedError(f"stopped, and so is the engine on {choice.name}") from None


@contextlib.contextmanager
def to_terminal(connection: Connection) -> Iterator[Sinks]:
    """Writes what a board says to the standard streams. Raises their OSError."""
    lost: list[OSError] = []

    def write(stream: IO[bytes], data: bytes) -> None:
        try:
            stream.write(data)
            stream.flush()
        except OSError as error:  # a library that knows of connections only would take it for one
            lost.append(error)
            connection.abort()

    try:
        yield Sinks(
            functools.partial(write, sys.stdout.buffer), functools.partial(write, sys.stderr.buffer)
        )
    finally:
        if lost:
            raise lost[0]
