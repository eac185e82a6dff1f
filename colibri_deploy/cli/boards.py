# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `boards`: what boards.yaml says of your boards, and what they say themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from click.shell_completion import CompletionItem
from rich import box
from rich.table import Table

from colibri_deploy.board import (
    Board,
    BoardsFile,
    boards_files,
    load_boards,
    load_entries,
    parse_address,
    resolve_jump,
    select_board,
    select_boards,
)
from colibri_deploy.boards_file import add_entry, entry_text, make_entry, remove_entry
from colibri_deploy.cli.board_choice import (
    HOW_TO_COMPARE,
    BoardChoice,
    choices,
    complete_board,
    how_to_accept,
    login_options,
    tag_option,
)
from colibri_deploy.cli.console import print_json, stdout_console
from colibri_deploy.cli.passwords import secrets_from
from colibri_deploy.cli.targets import complete_target
from colibri_deploy.detect import Facts, Finding, compare, detect, matching_targets
from colibri_deploy.errors import (
    BoardArchError,
    BoardMismatchError,
    BoardsFileError,
    ColibriDeployError,
    UnknownBoardError,
    UnknownHostKeyError,
)
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.resources import engine_root
from colibri_deploy.ssh import Connection
from colibri_deploy.ssh_login import Secrets
from colibri_deploy.targets import Target, load_targets, select
from colibri_deploy.yaml_file import json_schema

_FILES = ("project", "user")  # in the order of boards_files()


def _complete_name(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    try:
        known = load_boards(boards_files())
    except ColibriDeployError:
        return []  # a completion has nobody to tell
    return [
        CompletionItem(name, help=board.address)
        for name, board in known.items()
        if name.startswith(incomplete)
    ]


def _login(verb: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(login_options):
        verb = option(verb)
    return verb


@click.group()
def boards() -> None:
    """Your boards: what boards.yaml says of them, and what they say themselves."""


@boards.command()
def schema() -> None:
    """Print the JSON Schema of boards.yaml, for editors."""
    print_json(json_schema(BoardsFile))


@boards.command("list")
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=_complete_name)
@tag_option
@click.option("--json", "as_json", is_flag=True, help="Print the boards as JSON.")
def list_(names: tuple[str, ...], tag: tuple[str, ...], as_json: bool) -> None:
    """List boards.

    All boards, or those that match a NAME such as 'orin-*'.
    """
    files = boards_files()
    known = load_boards(files)
    chosen = select_boards(known, names, tag, files) if known or names or tag else []
    entries = load_entries(files)
    if as_json:
        print_json([_board_record(board, entries[board.name].path) for board in chosen])
        return
    if not chosen:
        click.echo(f"no boards yet in {' or '.join(map(str, files))}; `boards add` adds one")
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("board", "target", "address", "through", "tags", "file"):
        table.add_column(heading, overflow="fold")
    for board in chosen:
        table.add_row(
            board.name,
            board.target,
            board.address,
            _way(board) or "-",
            " ".join(board.tags) or "-",
            str(entries[board.name].path),
        )
    stdout_console().print(table)


@boards.command()
@click.argument("name", shell_complete=_complete_name)
@click.option("--json", "as_json", is_flag=True, help="Print the board as JSON.")
def show(name: str, as_json: bool) -> None:
    """Show what is known of one board and its kind."""
    files = boards_files()
    board = select_board(load_boards(files), name, files)
    path = load_entries(files)[name].path
    target = select(load_targets(engine_root()), board.target or "")
    if as_json:
        facts = target.facts.model_dump(mode="json")
        print_json(_board_record(board, path) | {"facts": facts})
        return
    rows = [
        ("file", str(path)),
        ("address", board.address),
        ("through", _way(board)),
        ("key", str(board.key) if board.key else ""),
        ("work directory", board.workdir),
        ("tags", " ".join(board.tags)),
        ("limits", ", ".join(f"{name} {said:g}" for name, said in _limits(board).items())),
        ("target", f"{target.name}: {target.facts.description}"),
        ("CPU", target.facts.cpu or ""),
        *(("caveat", caveat) for caveat in target.facts.caveats),
    ]
    _print_rows(name, "", rows)


@boards.command()
@click.argument("name", shell_complete=_complete_name)
def remove(name: str) -> None:
    """Remove a board from its boards.yaml.

    The board itself is left alone.
    """
    files = boards_files()
    select_board(load_boards(files), name, files)
    path = load_entries(files)[name].path
    remove_entry(path, name)
    click.echo(f"removed {name} from {path}")


@boards.command()
@click.argument("name")
@click.argument("address", metavar="USER@ADDR[:PORT]")
@click.option(
    "--target",
    metavar="NAME",
    shell_complete=complete_target,
    help="What kind of board it is.  [default: what the board says]",
)
@click.option(
    "--jump",
    multiple=True,
    metavar="USER@ADDR[:PORT]|BOARD",
    help="A host to go through; given twice: first to last.",
)
@click.option("--tag", multiple=True, metavar="TAG", help="A word by which to choose the board.")
@click.option(
    "--file",
    "which",
    type=click.Choice(_FILES),
    help="Which boards.yaml: ./ or ~/.config/colibri/.  [default: the project's if it is there]",
)
@_login
@click.option("--dry-run", is_flag=True, help="Ask the board, write no boards.yaml.")
@click.option("--json", "as_json", is_flag=True, help="Print what the board says as JSON.")
def add(
    name: str,
    address: str,
    target: str | None,
    jump: tuple[str, ...],
    tag: tuple[str, ...],
    which: str | None,
    key: Path | None,
    known_hosts: Path | None,
    accept_host_key: str | None,
    password_fd: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Find out what a board is, and add it to boards.yaml.

    The board is asked over SSH; its host key has to be known, or to be accepted.
    """
    files = boards_files()
    path = files[_FILES.index(which)] if which else next(filter(Path.exists, files), files[1])
    if name in load_entries([path]):
        raise BoardsFileError(
            f"{path} has a board {name} already; `boards remove {name}` removes it"
        )
    targets = load_targets(engine_root())
    if target is not None:
        select(targets, target)
    place = parse_address(address)
    fields = {
        "target": target or "",
        "host": place.host,
        "user": place.user,
        "port": place.port,
        "key": _portable(key) if key else None,
        "jump": jump,
        "tags": tag,
    }
    make_entry(name, fields)  # complains before anything is asked
    board = replace(place, name=name, key=key, jump=resolve_jump(jump, load_boards(files)))
    hosts = KnownHosts(known_hosts, accept_host_key)
    with _open(board, hosts, secrets_from(password_fd)) as connection:
        host_key = connection.host_key
        facts = detect(connection)
    kind = _kind(name, facts, targets, target)
    entry = make_entry(name, fields | {"target": kind.name})
    if not dry_run:
        add_entry(path, name, entry)
    findings = compare(facts, kind, targets)
    if as_json:
        record = {
            "board": name,
            "address": board.address,
            "host_key": host_key,
            "file": str(path),
            "written": not dry_run,
            "entry": entry.model_dump(mode="json"),
            "facts": asdict(facts),
            "findings": [asdict(finding) for finding in findings],
        }
        print_json(record)
        return
    click.echo(f"{name} ({board.address}) shows the host key {host_key}")
    _print_rows("", "the board says", _fact_rows(facts, kind))
    for finding in findings:
        if finding.verdict != "ok":
            click.echo(f"{finding.verdict}: {finding.what}: {finding.detail}")
    click.echo(f"{'dry run, this would be' if dry_run else 'this was'} added to {path}:")
    click.echo(entry_text(name, entry), nl=False)


@boards.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_board)
@tag_option
@_login
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def check(
    names: tuple[str, ...],
    tag: tuple[str, ...],
    key: Path | None,
    known_hosts: Path | None,
    accept_host_key: str | None,
    password_fd: int | None,
    as_json: bool,
) -> None:
    """Compare what boards say with their targets.

    All boards, or those that match a NAME such as 'orin-*'.
    """
    known = KnownHosts(known_hosts, accept_host_key)
    patterns = names or (() if tag else ("*",))
    secrets = secrets_from(password_fd)
    chosen = choices(patterns, tag, None, None, key, known, secrets, Path("build"))
    checks = [_check(choice) for choice in chosen]
    if as_json:
        print_json([one.record() for one in checks])
    else:
        table = Table(box=box.SIMPLE, pad_edge=False)
        for heading in ("board", "what", "", "the board says"):
            table.add_column(heading, overflow="fold")
        for one in checks:
            for finding in one.findings:
                table.add_row(one.choice.name, finding.what, finding.verdict, finding.detail)
        stdout_console().print(table)
    bad = [one for one in checks if not one.ok]
    if bad:
        raise BoardMismatchError(
            f"{len(bad)} of {len(checks)} boards: {', '.join(one.choice.name for one in bad)}",
            details="\n".join(f"{one.choice.name}: {one.advice}" for one in bad if one.advice),
        )


@dataclass(frozen=True)
class _Check:
    """What came of asking one board."""

    choice: BoardChoice
    facts: Facts | None
    findings: list[Finding]
    advice: str = ""  # what an error says to do

    @property
    def ok(self) -> bool:
        return all(finding.verdict != "wrong" for finding in self.findings)

    def record(self) -> dict[str, object]:
        """The check, for JSON."""
        return {
            "board": self.choice.name,
            "target": self.choice.target.name,
            "ok": self.ok,
            "facts": asdict(self.facts) if self.facts else None,
            "findings": [asdict(finding) for finding in self.findings],
        }


def _check(choice: BoardChoice) -> _Check:
    try:
        with choice.connect() as connection:
            facts = detect(connection)
    except ColibriDeployError as error:
        return _Check(choice, None, [Finding("answer", "wrong", error.message)], error.details)
    targets = load_targets(engine_root())
    is_emulated = choice.emulated is not None
    return _Check(choice, facts, compare(facts, choice.target, targets, is_emulated=is_emulated))


def _open(board: Board, hosts: KnownHosts, secrets: Secrets) -> Connection:
    """Connects; a person at a terminal is asked whether an unknown host key is the board's."""
    while True:
        try:
            return Connection.open(board, hosts, secrets)
        except UnknownHostKeyError as error:
            if not (sys.stdin.isatty() and sys.stderr.isatty()):
                error.details = how_to_accept(error.fingerprint)
                raise
            click.echo(f"{error.message}\n{HOW_TO_COMPARE}", err=True)
            click.confirm("are they equal, and do you accept it for good?", abort=True, err=True)
            hosts = replace(hosts, accept=error.fingerprint)


def _kind(name: str, facts: Facts, targets: dict[str, Target], wanted: str | None) -> Target:
    """The target of a new board: the one that is wanted, or the only one that it can be."""
    if wanted is not None:
        kind = select(targets, wanted)
        if kind.arch != facts.arch:
            raise BoardArchError(f"{name} is {facts.arch}, and {wanted} is {kind.arch}")
        return kind
    found = matching_targets(facts, targets)
    if len(found) == 1:
        return found[0]
    said = ", ".join(filter(None, (facts.arch, facts.model, *facts.compatible)))
    one_of = " or ".join(kind.name for kind in found) or "no target that is known"
    raise UnknownBoardError(f"{name} says that it is {said}: {one_of}; name one with --target")


def _portable(key: Path) -> str:
    """A key's path as boards.yaml has it: absolute, or below "~"."""
    path = Path.cwd() / key
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _way(board: Board) -> str:
    return ", ".join(hop.name for hop in board.jump)


def _limits(board: Board) -> dict[str, float]:
    """Those that are set."""
    return board.limits.model_dump(exclude_none=True)


def _board_record(board: Board, path: Path) -> dict[str, object]:
    return {
        "name": board.name,
        "target": board.target,
        "address": board.address,
        "host": board.host,
        "user": board.user,
        "port": board.port,
        "key": str(board.key) if board.key else None,
        "workdir": board.workdir,
        "jump": [hop.address for hop in board.jump],
        "tags": list(board.tags),
        "limits": _limits(board),
        "file": str(path),
    }


def _fact_rows(facts: Facts, kind: Target) -> Iterable[tuple[str, str]]:
    def size(number: int | None) -> str:
        return f"{number / 2**30:.1f} GiB" if number is not None else ""

    yield "model", facts.model or ""
    yield "device tree", " ".join(facts.compatible)
    yield "target", f"{kind.name}: {kind.facts.description}"
    yield "CPU", facts.cpu or ""
    yield "ISA level", facts.isa or ""
    yield "RAM", size(facts.ram_bytes)
    yield "swap", size(facts.swap_bytes)
    yield "page size", f"{facts.page_bytes} bytes" if facts.page_bytes else ""
    yield "free disk", size(facts.free_bytes)
    yield "kernel", facts.kernel or ""
    yield "system", facts.system or ""
    yield "tools", " ".join(facts.tools)


def _print_rows(left: str, right: str, rows: Iterable[tuple[str, str]]) -> None:
    """A table of two columns, without the rows that say nothing."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(left, no_wrap=True)
    table.add_column(right, overflow="fold")
    for what, said in rows:
        if said:
            table.add_row(what, said)
    stdout_console().print(table)
