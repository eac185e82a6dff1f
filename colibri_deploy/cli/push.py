# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `push`."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click
from click.core import ParameterSource
from rich import box
from rich.table import Table

from colibri_deploy import push as library
from colibri_deploy.cli.board_choice import BoardChoice, boards_options
from colibri_deploy.cli.byte_progress import ByteProgress
from colibri_deploy.cli.console import stdout_console
from colibri_deploy.cli.many import Many, many_options
from colibri_deploy.cli.release_verify import key_option, trusted_keys
from colibri_deploy.many import BoardRun
from colibri_deploy.release.released import Release, ReleasedEngine
from colibri_deploy.ssh import Connection


@click.command()
@boards_options
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The model to push too; without it, the one on the board stays.",
)
@click.option(
    "--release",
    "place",
    type=click.Path(path_type=Path),
    metavar="DIR|FILE",
    help="Push the engine of this release, or tarball of one, instead of the one that was built.",
)
@key_option("--release-key")
@click.option("--allow-unsigned", is_flag=True, help="Push a release where no key is given.")
@click.option("--allow-downgrade", is_flag=True, help="Push a release older than what is there.")
@click.option("--dry-run", is_flag=True, help="Look at the boards, write nothing there.")
@many_options
@click.pass_context
def push(
    ctx: click.Context,
    choose: Callable[[], list[BoardChoice]],
    build_dir: Path,
    model: Path | None,
    place: Path | None,
    release_key: Path | None,
    allow_unsigned: bool,
    allow_downgrade: bool,
    dry_run: bool,
    many: Many,
) -> None:
    """Push the engine that was built for boards, and a model.

    Only what a board lacks is sent, and an upload that was cut goes on where it ended: at once
    where the board can be reached again, otherwise with the next push. Everything is verified on
    the board before the new release replaces the current one.

    With --release, its signature is checked here before a board is reached, and by the boards that
    can. A board keeps the key of the first release, and refuses those of another.
    """
    if place is None:
        for name in ("release_key", "allow_unsigned", "allow_downgrade"):
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                option = "--" + name.replace("_", "-")
                raise click.UsageError(f"{option} goes with --release")
    shows: list[Callable[[], None]] = []
    choices = choose()
    released: dict[str, ReleasedEngine] = {}  # by architecture

    def work(
        run: BoardRun, choice: BoardChoice, connection: Connection, progress: ByteProgress
    ) -> None:
        engine = released.get(choice.target.arch, choice.engine)
        rules = {"dry_run": dry_run, "allow_downgrade": allow_downgrade}
        deliver(run, choice, connection, engine, model, progress, shows, **rules)

    with tempfile.TemporaryDirectory(prefix="colibri-release-") as scratch:
        if place is not None:
            keys = trusted_keys(release_key)
            release = Release.open(place, keys, Path(scratch), allow_unsigned=allow_unsigned)
            released |= {one.target.arch: release.engine(one.target.arch) for one in choices}
        many.run("push", choices, work, shows)


def deliver(
    run: BoardRun,
    choice: BoardChoice,
    connection: Connection,
    engine: Path | ReleasedEngine,
    model: Path | None,
    progress: ByteProgress,
    shows: list[Callable[[], None]],
    *,
    dry_run: bool,
    allow_downgrade: bool = False,
) -> library.Pushed | None:
    """The push as part of the work on a board. Raises the errors of `library.push`."""
    with run.step("push") as step:
        plan = library.plan_push(
            *(connection, choice.target, engine, model, progress), allow_downgrade=allow_downgrade
        )
        pushed = None if dry_run else library.push(connection, plan, progress)
        if pushed is None:
            step.detail = f"dry run: {plan.to_send:,} bytes would be sent, release {plan.release}"
        else:
            step.detail = f"sent {pushed.bytes_sent:,} bytes, release {pushed.release}"
        if plan.origin is not None:
            step.detail += f"; {_origin_line(plan.origin, pushed)}"
    run.summary = step.detail
    run.reports["push"] = push_record(choice, connection, plan, pushed)
    shows.append(functools.partial(print_push, connection, plan, pushed))
    return pushed


def run_push(
    choice: BoardChoice, connection: Connection, model: Path | None, dry_run: bool
) -> tuple[library.PushPlan, library.Pushed | None]:
    """Plans a push and, unless it is a dry run, does it, with a progress bar."""
    with ByteProgress() as progress:
        plan = library.plan_push(connection, choice.target, choice.engine, model, progress)
        return plan, None if dry_run else library.push(connection, plan, progress)


def push_record(
    choice: BoardChoice,
    connection: Connection,
    plan: library.PushPlan,
    pushed: library.Pushed | None,
) -> dict[str, object]:
    """A push, for JSON."""
    record: dict[str, object] = {
        "board": connection.board.name,
        "address": connection.board.address,
        "target": choice.target.name,
        "dry_run": pushed is None,
        "bytes_to_send": plan.to_send,
        **_origin_record(plan.origin),
    }
    if pushed is not None:
        return record | asdict(pushed)
    files = [
        {
            "name": file.item.name,
            "sha256": file.item.sha256,
            "bytes": file.item.bytes if file.item.path else None,
            "to_send": file.to_send,
            "to_copy": file.to_copy,
        }
        for file in plan.files
    ]
    state = plan.state
    return record | {
        "release": plan.release,
        "previous": state.current,
        "root": state.root,
        "free_bytes": state.free_bytes,
        "files": files,
    }


def _origin_record(origin: library.Origin | None) -> dict[str, object]:
    if origin is None:
        return {}
    key = _signer(origin)
    return {
        "version": origin.engine.version,
        "replaces_version": origin.replaces,
        "may_be_downgrade": origin.may_be_downgrade,
        "signed_by": key,
        "is_first_key": origin.is_first_key,
        "signature": "checked on host" if key else "none",
    }


def _signer(origin: library.Origin) -> str | None:
    return origin.engine.proof.key.fingerprint if origin.engine.proof else None


def print_push(
    connection: Connection, plan: library.PushPlan, pushed: library.Pushed | None
) -> None:
    """A push, for people."""
    console = stdout_console()
    root = plan.state.root
    console.print(f"{connection.board.name}, {plan.state.machine}: {root}", soft_wrap=True)
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("file", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("SHA-256", no_wrap=True)
    table.add_column("to send" if pushed is None else "sent", no_wrap=True)
    if pushed is None:
        for file in plan.files:
            size = f"{file.item.bytes:,}" if file.item.path else "-"
            sending = f"{file.to_send:,} bytes" if file.to_send else "nothing, it is there"
            table.add_row(file.item.name, size, file.item.sha256[:12], sending)
    else:
        for done in pushed.files:
            size = f"{done.bytes:,}" if done.bytes is not None else "-"
            table.add_row(done.name, size, done.sha256[:12], _sent(done))
    console.print(table)
    if plan.origin is not None:
        console.print(_origin_line(plan.origin, pushed), soft_wrap=True)
    before = plan.state.current or "none"
    if pushed is None:
        console.print(
            f"dry run: {plan.to_send:,} bytes would be sent, release {plan.release} would "
            f"replace {before}; nothing was written",
            soft_wrap=True,
        )
    else:
        if pushed.mended:
            mended = ", ".join(pushed.mended)
            console.print(f"mended in the release: {mended}", soft_wrap=True)
        removed = pushed.pruned
        if removed.releases or removed.bytes:
            console.print(
                f"removed {len(removed.releases)} older releases, "
                f"{removed.bytes:,} bytes that none needs any more"
            )
        was = "as before" if before == pushed.release else f"before: {before}"
        console.print(
            f"sent {pushed.bytes_sent:,} bytes in {pushed.seconds:.1f} s{_how(pushed)}; "
            f"release {pushed.release} is current ({was})",
            soft_wrap=True,
        )


def _origin_line(origin: library.Origin, pushed: library.Pushed | None) -> str:
    """Which release it is, and who says so."""
    replaced = f", in place of {origin.replaces}" if origin.replaces else ""
    if origin.may_be_downgrade:
        replaced = ", in place of one that says no version and may be newer"
    key = _signer(origin)
    signed = f"signed by {key}" if key else "not signed"
    said = pushed.signature if pushed else _origin_record(origin)["signature"]
    first = "; the board trusts this key from now on" if pushed and origin.is_first_key else ""
    return f"version {origin.engine.version}{replaced}, {signed}; signature: {said}{first}"


def _how(pushed: library.Pushed) -> str:
    over = f" over {pushed.connections} connections" if pushed.connections > 1 else ""
    times = "once" if pushed.breaks == 1 else f"{pushed.breaks} times"
    return over + (f"; the line broke {times}, and the push went on" if pushed.breaks else "")


def _sent(file: library.PushedFile) -> str:
    if file.repaired:
        return f"{file.sent:,} bytes: it was damaged on the board"
    if file.copied:
        return f"{file.sent:,} bytes: {file.copied:,} are those of the version before"
    if file.resumed_at:
        return f"{file.sent:,} bytes: {file.resumed_at:,} were there from a push that was cut"
    return f"{file.sent:,} bytes" if file.sent else "nothing, it is there"
