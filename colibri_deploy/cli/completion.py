# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "fish", "zsh"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes verbs, options and targets in a shell.

    \b
    bash: eval "$(colibri-deploy completion bash)"      in ~/.bashrc
    zsh:  eval "$(colibri-deploy completion zsh)"       in ~/.zshrc
    fish: colibri-deploy completion fish > ~/.config/fish/completions/colibri-deploy.fish
    """
    completer = get_completion_class(shell)
    assert completer is not None  # click has one for each of the choices above
    root = ctx.find_root()
    script = completer(root.command, {}, "colibri-deploy", "_COLIBRI_DEPLOY_COMPLETE")
    click.echo(script.source())
