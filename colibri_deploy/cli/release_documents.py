# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What a release packs of the command line: its man page, and completions for three shells."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.shell_completion import get_completion_class

_PROGRAM = "colibri-deploy"
COMPLETIONS = {  # where each shell looks, below a prefix
    "bash": f"share/bash-completion/completions/{_PROGRAM}",
    "zsh": f"share/zsh/site-functions/_{_PROGRAM}",
    "fish": f"share/fish/vendor_completions.d/{_PROGRAM}.fish",
}


def documents(root: click.Context) -> dict[str, bytes]:
    """Path below a prefix to content; `root` is the context of the whole command line."""
    found = {f"share/man/man1/{_PROGRAM}.1": man_page(root).encode()}
    for shell, path in COMPLETIONS.items():
        found[path] = completion_script(root, shell).encode()
    return found


def completion_script(root: click.Context, shell: str) -> str:
    """The script that completes verbs, options and targets in `bash`, `zsh` or `fish`."""
    completer = get_completion_class(shell)
    assert completer is not None  # click has one for each of COMPLETIONS
    return completer(root.command, {}, _PROGRAM, "_COLIBRI_DEPLOY_COMPLETE").source()


def man_page(root: click.Context) -> str:
    """colibri-deploy(1), from the texts of `--help`; for the macros see man(7)."""
    assert isinstance(root.command, click.Group)
    lines = [
        '.TH COLIBRI\\-DEPLOY 1 "" Colibri "User Commands"',
        ".SH NAME",
        "colibri\\-deploy \\- build, deploy and prove the Colibri engine on boards",
        ".SH SYNOPSIS",
        ".B colibri\\-deploy",
        ".IR VERB\\  [ options ]",
        ".SH DESCRIPTION",
        *_paragraphs(root.command.help or ""),
        ".SH VERBS",
    ]
    for name in root.command.list_commands(root):
        command = root.command.get_command(root, name)
        assert command is not None  # it is in the list
        lines += _verb(command, click.Context(command, info_name=name, parent=root))
    lines += [".SH SEE ALSO", ".BR colibri (1)"]
    return "\n".join(lines) + "\n"


def _verb(command: click.Command, ctx: click.Context) -> Iterator[str]:
    words = [*_names(ctx), *command.collect_usage_pieces(ctx)]
    yield f'.SS "{_escape(" ".join(words))}"'
    yield from _paragraphs(command.help or "")
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            yield from (".TP", f'.B "{_escape(record[0])}"', _escape(record[1]))
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None  # it is in the list
            yield from _verb(inner, click.Context(inner, info_name=name, parent=ctx))


def _names(ctx: click.Context) -> list[str]:
    """The verb's words, without the program's."""
    return ctx.command_path.split()[1:]


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs as click reads them: one that begins with \\b keeps its lines."""
    for paragraph in text.split("\n\n"):
        lines = [line.strip("\n") for line in paragraph.strip("\n").splitlines()]
        yield ".PP"
        if lines[:1] == ["\b"]:
            yield from (".nf", *(_escape(line) for line in lines[1:]), ".fi")
        else:
            yield _escape(" ".join(line.strip() for line in lines))


def _escape(text: str) -> str:
    """The text so that troff prints it as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{text}" if text.startswith((".", "'")) else text
