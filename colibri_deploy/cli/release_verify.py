# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `release verify`, and how other verbs are told which key is trusted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import click
from rich import box
from rich.table import Table

from colibri_deploy.cli.console import print_json, stderr_console, stdout_console
from colibri_deploy.errors import ColibriDeployError
from colibri_deploy.release import rebuild as library
from colibri_deploy.release.signature import TrustedKey, read_keys
from colibri_deploy.release.verify import Check, verify_release, version_in
from colibri_deploy.resources import engine_root

Decorated = TypeVar("Decorated", bound=Callable[..., None])


def trusted_keys(path: Path | None) -> list[TrustedKey]:
    """The keys in a file. Raises FileMissingError and SignatureError."""
    return read_keys(path) if path is not None else []


def key_option(name: str) -> Callable[[Decorated], Decorated]:
    """The option of that name for the file of the key that is trusted."""
    return click.option(
        name,
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="COLIBRI_RELEASE_KEY",
        metavar="FILE",
        help="The public key that has to have signed the release: OpenSSH's, a file of allowed "
        "signers, or minisign's.  [env: COLIBRI_RELEASE_KEY]",
    )


@click.command()
@click.argument("place", type=click.Path(path_type=Path), metavar="DIR|FILE")
@key_option("--key")
@click.option("--allow-unsigned", is_flag=True, help="Check the files where no key is given.")
@click.option("--rebuild", is_flag=True, help="Build the commit again here and compare the bytes.")
@click.option(
    "--not-before", metavar="VERSION", help="Refuse a release that is older than this version."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def verify(
    place: Path,
    key: Path | None,
    allow_unsigned: bool,
    rebuild: bool,
    not_before: str | None,
    as_json: bool,
) -> None:
    """Check a release: DIR that holds all of it, or one FILE beside its SHA256SUMS.

    Signature, checksums, members of archives, and whether all files agree with each other. Nothing
    is fetched. With --rebuild also whether the commit, from the checkout that colibri-deploy runs
    from, gives the same bytes in another directory, with another umask, locale, time zone and home.
    """
    if rebuild and not place.is_dir():
        raise click.UsageError("--rebuild compares a whole release: give its directory")
    checks: list[Check] = []
    failure: ColibriDeployError | None = None
    signed_by: TrustedKey | None = None
    try:
        verified = verify_release(
            place,
            trusted_keys(key),
            checks.append,
            allow_unsigned=allow_unsigned,
            not_before=not_before,
        )
        signed_by = verified.key
        if rebuild and verified.commit is not None:
            checks.append(_rebuild(place, version_in(verified.sums), verified.commit))
    except ColibriDeployError as error:
        failure = error
    if as_json:
        print_json(
            {
                "release": str(place),
                "ok": failure is None,
                "signed_by": signed_by.fingerprint if signed_by else None,
                "checks": [asdict(check) for check in checks],
                "error": failure.message if failure else None,
            }
        )
    else:
        _print(checks)
    if failure is not None:
        raise failure


def _rebuild(directory: Path, version: str, commit: str) -> Check:
    console = stderr_console()

    def say(line: str) -> None:
        console.print(line, soft_wrap=True)

    started = time.monotonic()
    n_files = library.rebuild(directory, version, commit, engine_root(), say)
    seconds = time.monotonic() - started
    return Check("rebuild", f"{n_files} files are the same, built again in {seconds:.0f} s")


def _print(checks: list[Check]) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(check.name, check.detail)
    stdout_console().print(table)
