# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Options in the name of an emulated board: `vm:rpi5,ram_mib=256`, `sim:rpi5,no_sftp`.

They are the fields of a frozen dataclass, all with defaults; a bool is set by its name alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from colibri_deploy.errors import UnknownBoardError

T = TypeVar("T")


def parse_knobs(words: Sequence[str], kind: type[T], board: str) -> T:
    """The options that words such as `ram_mib=256` say. Raises UnknownBoardError."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type] # a dataclass
    values: dict[str, str | bool] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in known:
            raise UnknownBoardError(
                f"{board} has no option {name!r}; its options are {', '.join(known)}"
            )
        values[name] = value if equals else True
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        place, problem = first["loc"][0], first["msg"]
        raise UnknownBoardError(f"{board}, option {place}: {problem}") from error


def format_knobs(knobs: Any) -> str:
    """What follows the target in the board's name: nothing for defaults, else `,name=value...`."""
    text = ""
    for field in fields(knobs):
        value = getattr(knobs, field.name)
        if value != field.default:
            text += f",{field.name}" if value is True else f",{field.name}={value:g}"
    return text
