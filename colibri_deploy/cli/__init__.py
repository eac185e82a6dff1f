# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The command line: one module for each group of verbs, registered here.

Only this layer prints and exits; the library below it returns values and raises
ColibriDeployError, which becomes one line `error: ...` and the error's exit code. An OSError that
no part of the library knows more about becomes such a line, too.
"""

from __future__ import annotations

import sys

import click

from colibri_deploy import __version__
from colibri_deploy.cli.bench import bench
from colibri_deploy.cli.boards import boards
from colibri_deploy.cli.build import build
from colibri_deploy.cli.chat import chat
from colibri_deploy.cli.completion import completion
from colibri_deploy.cli.console import flush, print_error
from colibri_deploy.cli.convert import convert
from colibri_deploy.cli.demo import demo
from colibri_deploy.cli.doctor import doctor
from colibri_deploy.cli.emulate import emulate
from colibri_deploy.cli.header import header
from colibri_deploy.cli.inspect import inspect
from colibri_deploy.cli.push import push
from colibri_deploy.cli.release import release
from colibri_deploy.cli.rollback import rollback
from colibri_deploy.cli.run import run
from colibri_deploy.cli.smoke import smoke
from colibri_deploy.cli.targets import targets
from colibri_deploy.cli.test import test
from colibri_deploy.cli.undeploy import undeploy
from colibri_deploy.cli.verify import verify
from colibri_deploy.errors import ColibriDeployError, FileMissingError


class _Group(click.Group):
    """Turns the library's errors into a line and an exit code."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ColibriDeployError as error:
            print_error(error)
            ctx.exit(error.exit_code)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="colibri-deploy")
def cli() -> None:
    """Build the Colibri engine for boards, prepare the models that it runs, and deploy both."""


cli.add_command(bench)
cli.add_command(boards)
cli.add_command(build)
cli.add_command(chat)
cli.add_command(completion)
cli.add_command(convert)
cli.add_command(demo)
cli.add_command(doctor)
cli.add_command(emulate)
cli.add_command(header)
cli.add_command(inspect)
cli.add_command(push)
cli.add_command(release)
cli.add_command(rollback)
cli.add_command(run)
cli.add_command(smoke)
cli.add_command(targets)
cli.add_command(test)
cli.add_command(undeploy)
cli.add_command(verify)


def main() -> None:
    """Runs the command line; never returns. The console script is that of __main__.py."""
    status: str | int | None = None
    failure: OSError | None = None
    try:
        cli(prog_name="colibri-deploy")
    except SystemExit as end:
        status = end.code
    except OSError as error:  # of a verb, or of click's own output
        failure = error
    lost = flush(sys.stdout)
    cause = failure or lost
    if isinstance(cause, BrokenPipeError):
        status = status or 1  # who reads no further is not told, as click does it
    elif cause is not None:
        # A write to a file or stream that is open already fails without a name.
        name = cause.filename or ("standard output" if lost else "output or input failed")
        print_error(FileMissingError(f"{name}: {cause.strerror or cause}"))
        status = FileMissingError.exit_code
    flush(sys.stderr)
    sys.exit(status)
