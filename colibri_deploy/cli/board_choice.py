# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""How every verb that works on boards is told which ones, and how it connects."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from colibri_deploy.board import Board, boards_files, load_boards, parse_address, select_boards
from colibri_deploy.cli.passwords import secrets_from
from colibri_deploy.cli.targets import complete_target
from colibri_deploy.emulated import PREFIXES, Emulated, parse_emulated
from colibri_deploy.errors import ColibriDeployError, UnknownHostKeyError
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.resources import engine_root
from colibri_deploy.ssh import Connection
from colibri_deploy.ssh_login import Secrets
from colibri_deploy.targets import Target, load_targets, select

_ACCEPT = "--accept-host-key"
HOW_TO_COMPARE = (
    "compare it with what the board itself says:\n"
    "  ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n"
    "  dropbearkey -y -f /etc/dropbear/dropbear_ed25519_host_key  # where dropbear serves"
)


@dataclass(frozen=True)
class BoardChoice:
    """What the command line says of one board; opened, a connection to it."""

    target: Target
    board: Board | None  # None: it is `emulated`
    emulated: Emulated | None
    known_hosts: KnownHosts
    secrets: Secrets
    build_dir: Path

    @property
    def name(self) -> str:
        """What the board is called."""
        if self.emulated is not None:
            return self.emulated.name
        assert self.board is not None  # the one or the other
        return self.board.name

    @property
    def engine(self) -> Path:
        """The engine to push."""
        return self.build_dir / self.target.name / "colibri"

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection to the board; an emulated one is there as long as the connection."""
        if self.emulated is not None:
            with (
                self.emulated.prepare(self.build_dir) as there,
                Connection.open(there.board, there.known_hosts) as connection,
            ):
                yield connection
            return
        assert self.board is not None  # the one or the other
        try:
            connection = Connection.open(self.board, self.known_hosts, self.secrets)
        except UnknownHostKeyError as error:
            error.details = how_to_accept(error.fingerprint)
            raise
        with connection:
            yield connection


def boards_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Gives a verb the options that choose boards.

    It receives `choose`, a function that returns those chosen as `choices` does, and `build_dir`.
    """

    @functools.wraps(verb)
    def with_choices(
        board: tuple[str, ...],
        tag: tuple[str, ...],
        host: str | None,
        target: str | None,
        key: Path | None,
        known_hosts: Path | None,
        accept_host_key: str | None,
        password_fd: int | None,
        build_dir: Path,
        **others: Any,
    ) -> None:
        def choose() -> list[BoardChoice]:
            known = KnownHosts(known_hosts, accept_host_key)
            secrets = secrets_from(password_fd)
            return choices(board, tag, host, target, key, known, secrets, build_dir)

        verb(choose=choose, build_dir=build_dir, **others)

    for option in reversed(_OPTIONS):
        with_choices = option(with_choices)
    return with_choices


def board_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Gives a verb the options that choose boards; it receives the one chosen as `choice`."""

    @functools.wraps(verb)
    def with_choice(
        choose: Callable[[], list[BoardChoice]], build_dir: Path, **others: Any
    ) -> None:
        choice, *more = choose()
        if more:
            names = ", ".join(one.name for one in (choice, *more))
            what = click.get_current_context().info_name
            raise click.UsageError(f"{what} takes one board, and these match: {names}")
        verb(choice=choice, **others)

    return boards_options(with_choice)


def complete_board(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The boards whose names begin with `incomplete`, for the shell; the emulated ones, too."""
    try:
        boards = load_boards(boards_files())
        targets = load_targets(engine_root())
    except ColibriDeployError:
        return []  # a completion has nobody to tell
    helps = {name: board.address for name, board in boards.items()}
    for prefix in PREFIXES:
        helps |= {
            prefix + name: f"emulated: {one.facts.description}" for name, one in targets.items()
        }
    return [
        CompletionItem(name, help=text)
        for name, text in helps.items()
        if name.startswith(incomplete)
    ]


def _complete_tag(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    try:
        boards = load_boards(boards_files())
    except ColibriDeployError:
        return []
    tags = sorted({tag for board in boards.values() for tag in board.tags})
    return [CompletionItem(tag) for tag in tags if tag.startswith(incomplete)]


tag_option = click.option(
    "--tag",
    multiple=True,
    metavar="TAG",
    shell_complete=_complete_tag,
    help="Only boards with this tag; given twice: with both.",
)

# How to get in, for every verb that connects.
login_options = (
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
        help="Where the boards' host keys are.  [default: as ~/.ssh/config says]",
    ),
    click.option(
        _ACCEPT,
        metavar="SHA256:...",
        help="Record an unknown host key if this is its fingerprint.",
    ),
    click.option(
        "--password-fd",
        type=int,
        metavar="N",
        help="Read passwords and passphrases from this file descriptor.  [default: a prompt]",
    ),
)

_OPTIONS = (
    click.option(
        "--board",
        multiple=True,
        metavar="NAME",
        shell_complete=complete_board,
        help="A board of boards.yaml, a pattern such as 'orin-*', or sim:TARGET or vm:TARGET, "
        "emulated on this machine.",
    ),
    tag_option,
    click.option("--host", metavar="USER@ADDR[:PORT]", help="A board by its address."),
    click.option(
        "--target",
        metavar="NAME",
        shell_complete=complete_target,
        help="What kind of board it is; needed with --host.",
    ),
    *login_options,
    click.option(
        "--build-dir",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("build"),
        show_default=True,
        help="Where the builds and emulated boards lie.",
    ),
)


def choices(
    names: Sequence[str],
    tags: Sequence[str],
    host: str | None,
    target: str | None,
    key: Path | None,
    known_hosts: KnownHosts,
    secrets: Secrets,
    build_dir: Path,
) -> list[BoardChoice]:
    """The boards that a command line chooses, at least one, each once.

    `names` are names and patterns of boards.yaml, and emulated boards; `tags` select among the
    former, or among all boards where no name is given. `host` is an address instead of both.
    `target` and `key` hold for all of them. Raises click.UsageError, UnknownBoardError,
    UnknownTargetError and BoardsFileError.
    """
    if bool(names or tags) == (host is not None):
        raise click.UsageError("give either --board NAME or --host USER@ADDR")
    targets = load_targets(engine_root())
    patterns = [name for name in names if not name.startswith(PREFIXES)]
    emulated = [name for name in dict.fromkeys(names) if name.startswith(PREFIXES)]
    if emulated and tags:
        raise click.UsageError(f"{emulated[0]} has no tags")
    if emulated and (key or known_hosts.accept):
        raise click.UsageError(f"{emulated[0]} has keys of its own: leave out --key and {_ACCEPT}")
    boards = [parse_address(host)] if host is not None else []
    if patterns or tags:
        files = boards_files()
        boards = select_boards(load_boards(files), patterns, tags, files)
    chosen = []
    for board in boards:
        name = target or board.target
        if not name:
            raise click.UsageError("give --target NAME with --host; `targets` lists the names")
        kind = select(targets, name)
        keyed = replace(board, key=key) if key is not None else board
        chosen.append(BoardChoice(kind, keyed, None, known_hosts, secrets, build_dir))
    for name in emulated:
        stand_in = parse_emulated(name, targets)
        kind = select(targets, target) if target else stand_in.target
        chosen.append(BoardChoice(kind, None, stand_in, known_hosts, secrets, build_dir))
    return chosen


def how_to_accept(fingerprint: str) -> str:
    """What to do about an unknown host key, with the complete command."""
    words = list(sys.argv[1:])
    if _ACCEPT in words:
        at = words.index(_ACCEPT)
        del words[at : at + 2]
    command = shlex.join(("colibri-deploy", *words, _ACCEPT, fingerprint))
    return f"{HOW_TO_COMPARE}\nif they are equal, accept it for good:\n  {command}"
