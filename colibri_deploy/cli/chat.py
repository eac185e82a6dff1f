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
from colibri_deploy.run import Chat, Engine, RunOptions


@click.command()
@board_options
@run_options
def chat(choice: BoardChoice, model: Path | None, options: RunOptions) -> None:
    """Talk to the model on a board: a line is a turn, and the answer comes as it is generated.

    The model must know ChatML (<|im_start|>, <|im_end|>). The whole conversation is sent to the
    board each time. The end of the input ends the chat, and so does Ctrl-C.
    """
    with connected(choice, model) as connection, to_terminal(connection) as sinks:
        conversation = Chat(Engine(connection), choice.name)
        for turn in _turns():
            conversation.answer(turn, options, sinks)


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
