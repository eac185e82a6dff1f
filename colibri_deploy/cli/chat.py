# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `chat`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from colibri_deploy.cli.board_choice import BoardChoice, board_options
from colibri_deploy.cli.run import connected, run_options, to_terminal
from colibri_deploy.run import Engine, RunOptions


@click.command()
@board_options
@run_options
@click.option("--system", metavar="TEXT", help="What the model is told before the chat.")
def chat(choice: BoardChoice, model: Path | None, options: RunOptions, system: str | None) -> None:
    """Talk to the model on a board: a line is a turn, and the answer comes as it is generated.

    The model must have a chat form: `inspect` shows it. The board computes every turn once. The end
    of the input ends the chat, and so does Ctrl-C.
    """
    with (
        connected(choice, model) as connection,
        to_terminal(connection) as sinks,
        Engine(connection).chat(options, system, sinks) as conversation,
    ):
        for turn in _turns():
            if not conversation.answer(turn):
                break


def _turns() -> Iterator[str]:
    """The lines of standard input that are not empty."""
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    while True:
        try:
            turn = input("> " if asks else "")
        except EOFError:
            return
        if turn.strip():
            yield turn
