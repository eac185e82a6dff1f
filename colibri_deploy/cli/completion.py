# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `completion`."""

from __future__ import annotations

import click

from colibri_deploy.cli.release_documents import COMPLETIONS, completion_script


@click.command()
@click.argument("shell", type=click.Choice(sorted(COMPLETIONS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes verbs, options and targets in a shell.

    \b
    bash: eval "$(colibri-deploy completion bash)"      in ~/.bashrc
    zsh:  eval "$(colibri-deploy completion zsh)"       in ~/.zshrc
    fish: colibri-deploy completion fish > ~/.config/fish/completions/colibri-deploy.fish
    """
    click.echo(completion_script(ctx.find_root(), shell))
