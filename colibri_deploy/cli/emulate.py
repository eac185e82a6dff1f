# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `emulate`: images of emulated boards, and boards that stay on between commands."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from rich import box
from rich.table import Table

from colibri_deploy.cli.console import print_json, stderr_console, stdout_console
from colibri_deploy.cli.targets import complete_target
from colibri_deploy.emulated import parse_emulated
from colibri_deploy.resources import engine_root
from colibri_deploy.running_board import RunningBoard, running_boards, state_directory
from colibri_deploy.sim_process import SimProcess
from colibri_deploy.targets import load_targets, select
from colibri_deploy.vm import VmBoard
from colibri_deploy.vm_image import RECIPES, Image, build_image, cache_directory, find_image

_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_BUILD_DIR = click.option(
    "--build-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build"),
    show_default=True,
    help="Where the files of sim: boards lie.",
)


@click.group()
def emulate() -> None:
    """Emulate boards with the target's CPU model, and keep them between commands.

    vm:TARGET is a whole Linux under qemu-system, sim:TARGET an SSH server whose engine runs under
    qemu-user.
    """


@emulate.command()
@click.argument("targets", nargs=-1, metavar="[TARGET]...", shell_complete=complete_target)
@click.option("--dry-run", is_flag=True, help="Print what would be built, and fetch nothing.")
@_JSON
def build(targets: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Build the images that TARGETs boot, or those of all architectures, from Debian packages.

    They are kept in the cache directory; one that is made of the current packages is not built
    again.
    """
    known = load_targets(engine_root())
    chosen = dict.fromkeys(select(known, name).arch for name in targets) or RECIPES
    cache = cache_directory()
    records = []
    for arch in chosen:
        if dry_run:
            records.append(_record(arch, find_image(arch, cache)))
            continue
        started = time.monotonic()
        with _steps(arch) as on_step:
            image, new = build_image(arch, cache, on_step)
        seconds = round(time.monotonic() - started, 1)
        records.append({**_record(arch, image), "new": new, "seconds": seconds})
    if as_json:
        print_json(records)
    else:
        _print_images(records, dry_run)


@emulate.command()
@click.argument("board")
@click.option(
    "--home",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Begin a vm: board with these files in the home directory, as if its disk had been "
    "written elsewhere.",
)
@_BUILD_DIR
@click.option("--dry-run", is_flag=True, help="Print the emulator's command, and start nothing.")
@_JSON
def start(board: str, home: Path | None, build_dir: Path, dry_run: bool, as_json: bool) -> None:
    """Start BOARD, such as vm:jetson-orin,ram_mib=128, and keep it until `emulate stop`."""
    with _steps(board) as on_step:
        machine = _board(board, build_dir, on_step)
        if isinstance(machine, SimProcess):
            if home is not None:
                raise click.UsageError(f"--home is for vm: boards; {board} has its files here")
            running = None if dry_run else machine.start()
        else:
            running = None if dry_run else machine.start(home)
    if running is None:
        command = _command(machine)
        if as_json:
            print_json({"directory": str(machine.directory), "command": command})
        else:
            click.echo(f"cd {shlex.quote(str(machine.directory))}\n{shlex.join(command)}")
    elif as_json:
        print_json(_running_record(running))
    else:
        seconds = running.seconds_to_ssh
        click.echo(f"{running.name} answered SSH after {seconds:.1f} s; to look around:")
        click.echo(_ssh_command(running))


@emulate.command()
@click.argument("boards", nargs=-1, metavar="[BOARD]...")
@click.option("--all", "every", is_flag=True, help="Stop every board that runs.")
@click.option("--erase", is_flag=True, help="Remove the boards' files, too.")
@_BUILD_DIR
@_JSON
def stop(boards: tuple[str, ...], every: bool, erase: bool, build_dir: Path, as_json: bool) -> None:
    """Shut down BOARDs; their files stay."""
    if every == bool(boards):
        raise click.UsageError("give either BOARDs or --all; `emulate list` lists them")
    if every:
        boards = tuple(board.name for board in _running())
    records: list[dict[str, object]] = []
    for board in boards:
        with _steps(board) as on_step:
            on_step("stopping")
            machine = _board(board, build_dir, on_step)
            was_running = machine.stop(erase=erase)
        records.append({"board": machine.name, "was_running": was_running, "erased": erase})
    if as_json:
        print_json(records)
        return
    for record in records:
        end = "stopped" if record["was_running"] else "did not run"
        click.echo(f"{record['board']} {end}" + (", its files are gone" if erase else ""))


@emulate.command("list")
@_JSON
def list_boards(as_json: bool) -> None:
    """List the boards that run."""
    running = _running()
    if as_json:
        print_json([_running_record(board) for board in running])
        return
    if not running:
        click.echo("no board runs; start one: colibri-deploy emulate start vm:TARGET or sim:TARGET")
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("board", "process", "port", "since", "until"):
        table.add_column(heading, no_wrap=True)
    for board in running:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(board.started))
        until = "emulate stop" if board.kept else "the command that uses it ends"
        table.add_row(board.name, str(board.pid), str(board.port), since, until)
    stdout_console().print(table)


def _running() -> list[RunningBoard]:
    return [*running_boards(state_directory("sim")), *running_boards(state_directory("vm"))]


def _board(name: str, build_dir: Path, on_step: Callable[[str], None]) -> VmBoard | SimProcess:
    """The board of that name. Raises UnknownBoardError, UnknownTargetError."""
    root = engine_root()
    return parse_emulated(name, load_targets(root)).staying(build_dir, root, on_step)


def _command(machine: VmBoard | SimProcess) -> list[str]:
    """What starts the emulator, but for the port and what tells one process from another."""
    identity = "00000000-0000-0000-0000-000000000000"
    if isinstance(machine, SimProcess):
        return machine.command(identity)
    return machine.command(machine.image(), 2222, identity)


@contextmanager
def _steps(what: str) -> Iterator[Callable[[str], None]]:
    """Says on stderr which step something is at: on a terminal in one line, else in many."""
    console = stderr_console()
    if not console.is_terminal:
        yield lambda step: console.print(f"{what}: {step}", soft_wrap=True)
        return
    with console.status(what) as status:
        yield lambda step: status.update(f"{what}: {step}")


def _record(arch: str, image: Image | None) -> dict[str, object]:
    recipe = RECIPES[arch]
    return {
        "arch": arch,
        "suite": recipe.suite,
        "kernel": recipe.kernel,
        "directory": str(image.directory) if image else None,
        "packages": [asdict(package) for package in image.packages] if image else None,
        "bytes": sum(part.stat().st_size for part in (image.kernel, image.initrd)) if image else 0,
    }


def _print_images(records: list[dict[str, object]], dry_run: bool) -> None:
    if dry_run:
        for record in records:
            there = f"there is {record['directory']}" if record["directory"] else "there is none"
            click.echo(
                f"{record['arch']}: {record['kernel']}, BusyBox and dropbear of Debian "
                f"{record['suite']}; {there}"
            )
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("arch", "bytes", "s", ""):
        justify = "right" if heading in ("bytes", "s") else "left"
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("image", overflow="fold")
    for record in records:
        state = "built" if record["new"] else "is current"
        row = (record["arch"], f"{record['bytes']:,}", record["seconds"], state)
        table.add_row(*map(str, row), str(record["directory"]))
    stdout_console().print(table)


def _running_record(running: RunningBoard) -> dict[str, object]:
    """A running board, for JSON."""
    return {**asdict(running), "directory": str(running.directory), "ssh": _ssh_command(running)}


def _ssh_command(running: RunningBoard) -> str:
    """How OpenSSH logs in."""
    board = running.board
    known = f"UserKnownHostsFile={running.known_hosts.path}"
    words = ("ssh", "-F", "none", "-i", str(board.key), "-o", known, "-p", str(board.port))
    return shlex.join((*words, f"{board.user}@{board.host}"))
