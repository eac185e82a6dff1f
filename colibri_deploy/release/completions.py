# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Completions of the engine's options for three shells, made of its own `--help`."""

from __future__ import annotations

import re
from typing import NamedTuple

_OPTION = re.compile(r"^  --(\w+)((?: [A-Z]+)*)  +(.*)$", re.MULTILINE)


class EngineOption(NamedTuple):
    """An option of the engine."""

    name: str  # without "--"
    argument: str  # "FILE", "LINK TARGET"; empty if there is none
    about: str


def engine_options(text: str) -> list[EngineOption]:
    """The options that `colibri --help` lists."""
    return [
        EngineOption(name, words.strip(), about) for name, words, about in _OPTION.findall(text)
    ]


def completions(options: list[EngineOption]) -> dict[str, str]:
    """Path below a prefix, where the shell looks, to script."""
    names = " ".join(f"--{option.name}" for option in options)
    zsh = (
        f"'--{one.name}[{_plain(one.about)}]{f':{one.argument}:_files' if one.argument else ''}'"
        for one in options
    )
    fish = (
        f"complete -c colibri -l {one.name}{' -r' if one.argument else ''} -d '{_plain(one.about)}'"
        for one in options
    )
    return {
        "share/bash-completion/completions/colibri": (
            f'complete -o default -W "{names}" colibri\n'
        ),
        "share/zsh/site-functions/_colibri": (
            "#compdef colibri\n_arguments \\\n  " + " \\\n  ".join(zsh) + "\n"
        ),
        "share/fish/vendor_completions.d/colibri.fish": "\n".join(fish) + "\n",
    }


def _plain(text: str) -> str:
    """The text without what the shells' descriptions would read as syntax."""
    return re.sub(r"['\[\]:\\]", "", text)
