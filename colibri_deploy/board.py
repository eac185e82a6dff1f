# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Boards: where one is, who logs in, what it is. They are the user's, in boards.yaml:

boards:
  desk-orin:
    target: jetson-orin
    host: 192.0.2.10
    user: nvidia
    tags: [lab]
"""

from __future__ import annotations

import difflib
import fnmatch
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
)

from colibri_deploy.errors import BoardsFileError, UnknownBoardError
from colibri_deploy.yaml_file import line_of, read_yaml

SSH_PORT = 22
DEFAULT_WORKDIR = ".local/share/colibri"  # in the home directory on the board

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?")


class _Content(BaseModel):
    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", use_attribute_docstrings=True
    )


class Limits(_Content):
    """What of a board and of the line to it we may use."""

    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of the engine when it computes; by default one for each CPU."""
    push_mb_per_s: Annotated[float, Field(gt=0)] | None = None
    """How fast to send, in 1e6 bytes a second; by default as fast as can be."""

    @property
    def engine_options(self) -> tuple[str, ...]:
        """What the engine is to be told when it computes on the board."""
        return () if self.threads is None else ("--threads", str(self.threads))


NO_LIMITS = Limits()


@dataclass(frozen=True)
class Board:
    """One board, as the tool connects to it."""

    name: str  # in boards.yaml, otherwise its address
    host: str
    user: str | None = None  # None: what ~/.ssh/config says, otherwise the user's name here
    port: int | None = None  # None: what ~/.ssh/config says, otherwise 22
    target: str | None = None  # None: the command line has to say it
    key: Path | None = None  # private key; None: the agent's and the default ones
    workdir: str = DEFAULT_WORKDIR  # absolute, or within the home directory
    jump: tuple[Board, ...] = ()  # the hosts to go through, first to last
    ssh_config: bool = True  # whether ~/.ssh/config has a say
    tags: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS

    @property
    def address(self) -> str:
        """`[user@]host[:port]`, as `parse_address` reads it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = "" if self.user is None else f"{self.user}@"
        return user + host + ("" if self.port is None else f":{self.port}")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("a name is made of letters, digits, '.', '_' and '-'")
    return value


def _host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError(f"{value!r} is neither a host name nor an IP address")
    return value


def _text(value: str) -> str:
    if not value or not value.isprintable():
        raise ValueError("expected a text without control characters")
    return value


def _hop(value: str) -> str:
    if "@" not in value:
        return _name(value)
    try:
        parse_address(value)
    except UnknownBoardError as error:
        raise ValueError(error.message) from error
    return value


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value  # YAML has lists only


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else _tuple(value)


_Name = Annotated[
    str,
    AfterValidator(_name),
    WithJsonSchema({"type": "string", "pattern": f"^{_NAME.pattern}$"}),
]
_STRINGS = {"type": "array", "items": {"type": "string"}}


class BoardEntry(_Content):
    """What boards.yaml may say of one board."""

    target: str
    """The kind of board: a name that `colibri-deploy targets` lists."""
    host: Annotated[
        str,
        AfterValidator(_host),
        WithJsonSchema({"type": "string", "pattern": f"^({_HOST.pattern})$"}),
    ]
    """Name or IP address, or a Host of ~/.ssh/config."""
    user: Annotated[str, AfterValidator(_text)] | None = None
    """Who logs in; by default what ~/.ssh/config says, otherwise your name here."""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """By default what ~/.ssh/config says, otherwise 22."""
    key: str | None = None
    """Private key, "~" being your home directory; by default the agent's keys, then ~/.ssh/id_*."""
    workdir: Annotated[str, AfterValidator(_text)] = DEFAULT_WORKDIR
    """Where everything lies on the board: absolute, or within the home directory there."""
    jump: Annotated[
        tuple[Annotated[str, AfterValidator(_hop)], ...],
        BeforeValidator(_one_or_more),
        WithJsonSchema({"anyOf": [{"type": "string"}, _STRINGS]}),
    ] = ()
    """Hosts to go through, first to last: user@host[:port], or the name of another board."""
    tags: Annotated[tuple[_Name, ...], BeforeValidator(_tuple)] = ()
    """Words by which --tag chooses boards."""
    limits: Limits = NO_LIMITS
    """What of the board and of the line to it we may use."""


class BoardsFile(_Content):
    """The content of boards.yaml."""

    boards: dict[_Name, BoardEntry] = Field(json_schema_extra={"additionalProperties": False})
    """Boards by name."""


@dataclass(frozen=True)
class PlacedEntry:
    """An entry, and the file it stands in."""

    path: Path
    entry: BoardEntry


def boards_files() -> tuple[Path, ...]:
    """Where boards are looked for: the project's boards.yaml, then the user's."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path("boards.yaml"), Path(config) / "colibri" / "boards.yaml"


def load_entries(files: Sequence[Path]) -> dict[str, PlacedEntry]:
    """All entries by name, sorted; of two with one name the earlier file's.

    Files that do not exist are passed over. Raises BoardsFileError with file, line and field.
    """
    entries: dict[str, PlacedEntry] = {}
    for path in files:
        if path.exists():
            content = read_yaml(path, BoardsFile, BoardsFileError, example="boards:")
            for name, entry in content.boards.items():
                entries.setdefault(name, PlacedEntry(path, entry))
    return dict(sorted(entries.items()))


def load_boards(files: Sequence[Path]) -> dict[str, Board]:
    """All boards by name, as `load_entries` finds them, each with its hops.

    Raises BoardsFileError with file, line and field.
    """
    entries = load_entries(files)
    return {name: _board(name, entries) for name in entries}


def resolve_jump(hops: Iterable[str], boards: Mapping[str, Board]) -> tuple[Board, ...]:
    """The hosts to go through for what a command line says: addresses, or names of boards.

    Raises UnknownBoardError.
    """
    way: list[Board] = []
    for hop in hops:
        if "@" in hop:
            way.append(parse_address(hop))
        elif hop in boards:
            way += (*boards[hop].jump, boards[hop])
        else:
            raise UnknownBoardError(_no_hop(hop, boards))
    return tuple(way)


def _no_hop(hop: str, names: Iterable[str]) -> str:
    known = ", ".join(names)
    others = f", or one of {known}" if known else ""
    return f"no board {hop!r} to go through; write user@host{others}"


def _board(name: str, entries: Mapping[str, PlacedEntry], trail: tuple[str, ...] = ()) -> Board:
    """The board of an entry; `trail` names those that are reached through it."""
    path, entry = entries[name].path, entries[name].entry
    known: dict[str, Board] = {}
    for hop in entry.jump:
        if "@" in hop:
            continue
        problem = None
        if hop in (*trail, name):
            problem = f"{' through '.join((*trail, name, hop))} is a circle"
        elif hop not in entries:
            problem = _no_hop(hop, (other for other in entries if other != name))
        if problem:
            line = line_of(path, ("boards", name, "jump"))
            raise BoardsFileError(f"{path}, line {line}, field boards.{name}.jump: {problem}")
        known[hop] = _board(hop, entries, (*trail, name))
    return Board(
        name=name,
        host=entry.host,
        user=entry.user,
        port=entry.port,
        target=entry.target,
        key=Path(entry.key).expanduser() if entry.key else None,
        workdir=entry.workdir,
        jump=resolve_jump(entry.jump, known),
        tags=entry.tags,
        limits=entry.limits,
    )


def select_board(boards: Mapping[str, Board], name: str, files: Sequence[Path]) -> Board:
    """The board of that name. Raises UnknownBoardError, which names the nearest one."""
    if name in boards:
        return boards[name]
    if not boards:
        where = " or ".join(map(str, files))
        raise UnknownBoardError(f"no board {name!r}: there are none in {where}")
    close = difflib.get_close_matches(name, boards, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UnknownBoardError(f"no board {name!r}: {hint}boards are {', '.join(boards)}")


def select_boards(
    boards: Mapping[str, Board],
    patterns: Sequence[str],
    tags: Sequence[str],
    files: Sequence[Path],
) -> list[Board]:
    """The boards that match one of the patterns (none: all boards) and have all of the tags.

    A pattern is a name, or has `*`, `?` and `[...]` as in a shell. Each board comes once, in the
    order of the patterns. Raises UnknownBoardError for a pattern that matches no board, and where
    no board has the tags.
    """
    names: dict[str, None] = {}
    for pattern in patterns or ("*",):
        matching = fnmatch.filter(boards, pattern)
        if not matching:
            select_board(boards, pattern, files)  # raises
        names |= dict.fromkeys(matching)
    found = [boards[name] for name in names if set(tags) <= set(boards[name].tags)]
    if not found:
        known = sorted({tag for name in names for tag in boards[name].tags})
        theirs = f"their tags are {', '.join(known)}" if known else "they have no tags"
        raise UnknownBoardError(
            f"none of {', '.join(names)} has the tag {' and '.join(tags)}: {theirs}"
        )
    return found


def parse_address(address: str) -> Board:
    """The board at `[user@]host[:port]`; an IPv6 address with a port stands in brackets.

    Raises UnknownBoardError.
    """
    user, at, place = address.rpartition("@")
    bracketed = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?", place)
    plain = re.fullmatch(r"([^:]+)(?::(\d+))?", place)
    match = bracketed or plain
    host, port = (match[1], match[2]) if match else (place, None)
    if not _HOST.fullmatch(host) or (at and not user) or not user.isprintable():
        raise UnknownBoardError(f"{address!r} is no address; write user@host or user@host:port")
    number = int(port) if port else None
    if number is not None and not 1 <= number <= 65535:
        raise UnknownBoardError(f"{address!r}: {number} is no port; ports are 1 to 65535")
    board = Board(name="", host=host, user=user or None, port=number)
    return replace(board, name=board.address)
