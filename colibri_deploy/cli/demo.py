# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `demo`: the whole product on an emulated board."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import click

from colibri_deploy import demo as library
from colibri_deploy.build import plan
from colibri_deploy.cli.board_choice import BoardChoice
from colibri_deploy.cli.build import build_with_progress
from colibri_deploy.cli.byte_progress import ByteProgress
from colibri_deploy.cli.console import print_json, stdout_console
from colibri_deploy.cli.push import push_record, run_push
from colibri_deploy.cli.smoke import HOST, fail_unless_ok, print_smoke, run_smoke, smoke_record
from colibri_deploy.emulated import Emulated
from colibri_deploy.golden import Prompt
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.resources import engine_root
from colibri_deploy.sim import Faults
from colibri_deploy.smoke import Reference
from colibri_deploy.ssh_login import Secrets
from colibri_deploy.targets import load_targets, machine_arch, select
from colibri_deploy.toolchain import find_toolchain

_BOARD = "jetson-orin"


@click.command()
@click.option(
    "--build-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build"),
    show_default=True,
    help="Where the builds, the model and the emulated board lie.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def demo(build_dir: Path, as_json: bool) -> None:
    """Run a real language model on an emulated board, and verify its numbers there.

    SmolLM2-135M-Instruct becomes a Mixture of Experts (4 experts, 2 for each token), the engine is
    built for a Jetson Orin, both are pushed over SSH to the emulated board, and what it generates
    must have the logits hash that this machine computes. What has not changed since the last time
    is not done again.
    """
    console = stdout_console()
    console.quiet = as_json
    targets = load_targets(engine_root())
    board = _BOARD
    emulator = f"qemu-{targets[board].arch}-static"
    if targets[board].arch != machine_arch() and shutil.which(emulator) is None:
        console.print(
            f"{emulator} is not installed: this machine itself is the board. For an emulated one:"
        )
        console.print("  apt-get install qemu-user-static")
        board = HOST

    console.print(
        "1. The model: SmolLM2-135M-Instruct, made a Mixture of Experts, q8", style="bold"
    )
    with ByteProgress() as progress:
        made = library.prepare_model(build_dir / "demo", progress)
    model = build_dir / "demo" / "model"
    size = (model / "model.bin").stat().st_size
    console.print(f"   {model}: {size:,} bytes, {'converted' if made else 'as before'}")

    console.print(f"2. The engine for {board} and for this machine", style="bold")
    toolchain = find_toolchain()
    wanted = [select(targets, name) for name in dict.fromkeys((board, HOST))]
    compilations = plan(wanted, root=engine_root(), build_root=build_dir, toolchain=toolchain)
    built = build_with_progress(compilations, toolchain)
    for name, one in built.items():
        levels = " ".join(one.record.isas)
        console.print(f"   {name}: {one.record.arch}, {one.record.bytes:,} bytes, levels {levels}")

    choice = BoardChoice(
        target=select(targets, board),
        board=None,
        emulated=Emulated(select(targets, board), Faults()),
        known_hosts=KnownHosts(None),
        secrets=Secrets(),
        build_dir=build_dir,
    )
    with choice.connect() as connection:
        console.print(
            f"3. Push over SSH to {connection.board.address}, the board {board}", style="bold"
        )
        planned, pushed = run_push(choice, connection, model, False)
        console.print(f"   {planned.to_send:,} bytes sent, verified there")
        console.print("4. Smoke test on the board", style="bold")
        prompt = Prompt("prompt", library.PROMPT, library.N_TOKENS)
        reference = Reference.compute(built[HOST].binary, model, prompt)
        result = run_smoke(choice, connection, reference)
        if as_json:
            record = {
                "build": [
                    {**asdict(one.record), "binary": str(one.binary)} for one in built.values()
                ],
                "push": push_record(choice, connection, planned, pushed),
                "smoke": smoke_record(choice, connection, result),
            }
            print_json(record)
        else:
            print_smoke(result)
            if board != HOST:
                console.print("The board is emulated: its speed says nothing of a real one.")
    fail_unless_ok(connection, result)
