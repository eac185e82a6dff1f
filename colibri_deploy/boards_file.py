# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Adds boards to a boards.yaml and removes them, as text: comments, order and style stay.

What comes out is read again before it replaces the file, in one rename. A file that is written in
a way that this does not understand is left alone, and the error says what to write by hand.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from colibri_deploy.board import BoardEntry, BoardsFile
from colibri_deploy.errors import BoardsFileError, UnknownBoardError

_INDENT = 2  # of what is added to a file that has no boards yet


def make_entry(name: str, fields: Mapping[str, object]) -> BoardEntry:
    """An entry of these fields. Raises UnknownBoardError where boards.yaml may not say that."""
    try:
        return BoardsFile.model_validate({"boards": {name: fields}}).boards[name]
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"][1:] if part != "[key]")
        text = problem["msg"].removeprefix("Value error, ")
        raise UnknownBoardError(f"{where}: {text[0].lower()}{text[1:]}") from error


def entry_text(name: str, entry: BoardEntry, indent: int = _INDENT, step: int = _INDENT) -> str:
    """The lines of an entry, as boards.yaml has them; `indent` and `step` are columns."""
    lines = [f"{' ' * indent}{_scalar(name)}:\n"]
    for field, value in _said(entry).items():
        lines.append(f"{' ' * (indent + step)}{field}: {_scalar(value)}\n")
    return "".join(lines)


def add_entry(path: Path, name: str, entry: BoardEntry) -> None:
    """Adds a board at the end of a boards.yaml, which is made when it is missing.

    Raises BoardsFileError if the board is there already, and where the file cannot be edited.
    """
    old = _read(path)
    data = _load(path, old)
    boards = data.get("boards") or {}
    if name in boards:
        raise BoardsFileError(f"{path} has a board {name} already: remove it first, or edit it")
    new = _with_entry(old, name, entry)
    _replace(path, new, data | {"boards": boards | {name: _said(entry)}}, entry_text(name, entry))


def remove_entry(path: Path, name: str) -> None:
    """Removes a board, with the comments inside its entry, from a boards.yaml that has it.

    Raises BoardsFileError where the file cannot be edited.
    """
    old = _read(path)
    data = _load(path, old)
    left = {other: said for other, said in data["boards"].items() if other != name}
    _replace(path, _without_entry(old, name), data | {"boards": left}, f"remove {name}")


def _said(entry: BoardEntry) -> dict[str, Any]:
    """The fields that an entry has to give, as YAML has them."""
    fields = entry.model_dump(mode="json", exclude_defaults=True)
    if len(fields.get("jump", ())) == 1:
        fields["jump"] = fields["jump"][0]
    return fields


def _scalar(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=2**31)
    return text.removesuffix("\n").removesuffix("\n...")


def _read(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open(encoding="utf-8", newline="") as file:  # line ends as they are
        return file.read()


def _load(path: Path, text: str) -> dict[str, Any]:
    if not text:
        return {}
    loaded = yaml.safe_load(text)
    if not isinstance(loaded, dict):
        raise BoardsFileError(f"{path}, line 1: expected fields like 'boards:'")
    return loaded


def _with_entry(old: str, name: str, entry: BoardEntry) -> str | None:
    """The text with one board more; None: it is written in a way that this does not edit."""
    newline = "\r\n" if "\r\n" in old else "\n"
    found = _boards(old)
    if found is None:
        return None if old else "boards:\n" + entry_text(name, entry)
    boards = found[1]
    if boards.value and boards.flow_style:
        return None
    indent, step = _INDENT, _INDENT
    if boards.value:
        key, value = boards.value[-1]
        indent = key.start_mark.column
        if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
            step = value.value[0][0].start_mark.column - indent
        at = _end_of_entry(old, value, indent)
    else:  # boards: {}
        head = old[: boards.start_mark.index].rstrip(" ")
        old = head + old[boards.end_mark.index :]
        at = _end_of_line(old, len(head))
    added = entry_text(name, entry, indent, step).replace("\n", newline)
    before = old[:at]
    return before + ("" if before.endswith("\n") else newline) + added + old[at:]


def _without_entry(old: str, name: str) -> str | None:
    """The text with one board less; None: it is written in a way that this does not edit."""
    found = _boards(old)
    if found is None or found[1].flow_style:
        return None
    boards_key, boards = found
    key, value = next(pair for pair in boards.value if pair[0].value == name)
    start = key.start_mark.index - key.start_mark.column
    end = _end_of_entry(old, value, key.start_mark.column)
    new = old[:start] + old[end:]
    if len(boards.value) == 1:
        colon = old.index(":", boards_key.end_mark.index) + 1
        new = f"{new[:colon]} {{}}{new[colon:]}"
    return new


def _boards(text: str) -> tuple[yaml.Node, yaml.MappingNode] | None:
    """The nodes of `boards` and of what it holds."""
    document = yaml.compose(text, Loader=yaml.SafeLoader) if text else None
    if isinstance(document, yaml.MappingNode):
        for key, value in document.value:
            if key.value == "boards" and isinstance(value, yaml.MappingNode):
                return key, value
    return None


def _end_of_entry(text: str, node: yaml.Node, indent: int) -> int:
    """Where the lines of an entry end: after its last field, and after comments that are indented
    as its fields are."""
    while isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end = _end_of_line(text, len(text[: node.end_mark.index].rstrip()))
    while end < len(text):
        after = _end_of_line(text, end)
        line = text[end:after]
        content = line.lstrip(" ")
        if not content.startswith("#") or len(line) - len(content) <= indent:
            break
        end = after
    return end


def _end_of_line(text: str, at: int) -> int:
    """The start of the line after position `at`."""
    return text.find("\n", at) + 1 or len(text)


def _replace(path: Path, text: str | None, expected: dict[str, Any], by_hand: str) -> None:
    """Replaces a file, if `text` means what is expected; the file is the old or the new one."""
    try:
        sound = text is not None and yaml.safe_load(text) == expected
    except yaml.YAMLError:
        sound = False
    if text is None or not sound:
        raise BoardsFileError(
            f"{path} is written in a way that is not edited here; do it by hand", details=by_hand
        )
    place = path.resolve()  # what a symbolic link leads to
    place.parent.mkdir(parents=True, exist_ok=True)
    mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o644
    descriptor, scratch = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(scratch).chmod(mode)
        Path(scratch).replace(place)
    except BaseException:
        Path(scratch).unlink()
        raise
