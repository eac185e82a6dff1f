# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Boards: where one is, who logs in, what it is. They are the user's, in boards.yaml:

boards:
  desk-orin:
    target: jetson-orin
    host: 192.0.2.10
    user: nvidia
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from colibri_deploy.errors import BoardsFileError, UnknownBoardError
from colibri_deploy.yaml_file import read_yaml

SSH_PORT = 22
DEFAULT_WORKDIR = ".local/share/colibri"  # in the home directory on the board

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9._-]+)?")


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


class BoardEntry(BaseModel):
    """What boards.yaml may say of one board."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    target: str
    host: Annotated[str, AfterValidator(_host)]
    user: Annotated[str, AfterValidator(_text)] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    key: str | None = None  # "~" is the home directory here
    workdir: Annotated[str, AfterValidator(_text)] = DEFAULT_WORKDIR


class BoardsFile(BaseModel):
    """The content of boards.yaml."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    boards: dict[Annotated[str, AfterValidator(_name)], BoardEntry]


def boards_files() -> tuple[Path, ...]:
    """Where boards are looked for: the project's boards.yaml, then the user's."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path("boards.yaml"), Path(config) / "colibri" / "boards.yaml"


def load_boards(files: Sequence[Path]) -> dict[str, Board]:
    """All boards by name, sorted; of two with one name the earlier file's.

    Files that do not exist are passed over. Raises BoardsFileError with file, line and field.
    """
    boards: dict[str, Board] = {}
    for path in files:
        if path.exists():
            content = read_yaml(path, BoardsFile, BoardsFileError, example="boards:")
            for name, entry in content.boards.items():
                boards.setdefault(name, _board(name, entry))
    return dict(sorted(boards.items()))


def _board(name: str, entry: BoardEntry) -> Board:
    return Board(
        name=name,
        host=entry.host,
        user=entry.user,
        port=entry.port,
        target=entry.target,
        key=Path(entry.key).expanduser() if entry.key else None,
        workdir=entry.workdir,
    )


def select_board(boards: dict[str, Board], name: str, files: Sequence[Path]) -> Board:
    """The board of that name. Raises UnknownBoardError, which names the nearest one."""
    if name in boards:
        return boards[name]
    if not boards:
        where = " or ".join(map(str, files))
        raise UnknownBoardError(f"no board {name!r}: there are none in {where}")
    close = difflib.get_close_matches(name, boards, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UnknownBoardError(f"no board {name!r}: {hint}boards are {', '.join(boards)}")


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
