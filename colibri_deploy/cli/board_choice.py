# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""How every verb that works on a board is told which one, and how it connects."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from colibri_deploy.board import Board, boards_files, load_boards, parse_address, select_board
from colibri_deploy.cli.targets import complete_target
from colibri_deploy.errors import ColibriDeployError, UnknownHostKeyError
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.resources import engine_root
from colibri_deploy.sim import PREFIX, SimBoard
from colibri_deploy.ssh import Connection
from colibri_deploy.targets import Target, load_targets, select

_ACCEPT = "--accept-host-key"


@dataclass(frozen=True)
class BoardChoice:
    """What the command line says of a board; opened, a connection to it."""

    target: Target
    board: Board | None  # None: emulate the target `emulated`
    emulated: Target | None
    known_hosts: KnownHosts
    build_dir: Path

    @property
    def engine(self) -> Path:
        """The engine to push."""
        return self.build_dir / self.target.name / "colibri"

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection to the board; an emulated one is there as long as the connection."""
        if self.emulated is not None:
            with (
                SimBoard(self.emulated, self.build_dir / "sim" / self.emulated.name) as sim,
                Connection.open(sim.board, sim.known_hosts) as connection,
            ):
                yield connection
            return
        assert self.board is not None  # the one or the other
        try:
            connection = Connection.open(self.board, self.known_hosts)
        except UnknownHostKeyError as error:
            error.details = _how_to_accept(error.fingerprint)
            raise
        with connection:
            yield connection


def board_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Gives a verb the options that name a board; it receives them as `choice`."""

    @functools.wraps(verb)
    def with_choice(
        board: str | None,
        host: str | None,
        target: str | None,
        key: Path | None,
        known_hosts: Path | None,
        accept_host_key: str | None,
        build_dir: Path,
        **others: Any,
    ) -> None:
        known = KnownHosts(known_hosts or Path.home() / ".ssh" / "known_hosts", accept_host_key)
        choice = _choose(board, host, target, key, known, build_dir)
        verb(choice=choice, **others)

    for option in reversed(_OPTIONS):
        with_choice = option(with_choice)
    return with_choice


def _complete_board(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    try:
        boards = load_boards(boards_files())
        targets = load_targets(engine_root())
    except ColibriDeployError:
        return []  # a completion has nobody to tell
    helps = {name: board.address for name, board in boards.items()}
    helps |= {PREFIX + name: f"emulated: {one.facts.description}" for name, one in targets.items()}
    return [
        CompletionItem(name, help=text)
        for name, text in helps.items()
        if name.startswith(incomplete)
    ]


_OPTIONS = (
    click.option(
        "--board",
        metavar="NAME",
        shell_complete=_complete_board,
        help="A board of boards.yaml, or sim:TARGET, emulated on this machine.",
    ),
    click.option("--host", metavar="USER@ADDR[:PORT]", help="A board by its address."),
    click.option(
        "--target",
        metavar="NAME",
        shell_complete=complete_target,
        help="What kind of board it is; needed with --host.",
    ),
    click.option(
        "--key",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Log in with this private key only.",
    ),
    click.option(
        "--known-hosts",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Where the boards' host keys are.  [default: ~/.ssh/known_hosts]",
    ),
    click.option(
        _ACCEPT,
        metavar="SHA256:...",
        help="Record an unknown host key if this is its fingerprint.",
    ),
    click.option(
        "--build-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("build"),
        show_default=True,
        help="Where the builds and emulated boards lie.",
    ),
)


def _choose(
    name: str | None,
    host: str | None,
    target: str | None,
    key: Path | None,
    known_hosts: KnownHosts,
    build_dir: Path,
) -> BoardChoice:
    if (name is None) == (host is None):
        raise click.UsageError("give either --board NAME or --host USER@ADDR")
    targets = load_targets(engine_root())
    emulated = board = None
    if name is not None and name.startswith(PREFIX):
        if key or known_hosts.accept:
            raise click.UsageError(f"{name} has keys of its own, made for each run")
        emulated = select(targets, name.removeprefix(PREFIX))
        kind = target or emulated.name
    else:
        if name is not None:
            files = boards_files()
            board = select_board(load_boards(files), name, files)
        else:
            board = parse_address(host or "")
        kind = target or board.target or ""
        if not kind:
            raise click.UsageError("give --target NAME with --host; `targets` lists the names")
        if key is not None:
            board = replace(board, key=key)
    return BoardChoice(select(targets, kind), board, emulated, known_hosts, build_dir)


def _how_to_accept(fingerprint: str) -> str:
    words = list(sys.argv[1:])
    if _ACCEPT in words:
        at = words.index(_ACCEPT)
        del words[at : at + 2]
    command = shlex.join(("colibri-deploy", *words, _ACCEPT, fingerprint))
    return (
        "compare it with what the board itself says:\n"
        "  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n"
        f"if they are equal, accept it for good:\n  {command}"
    )
