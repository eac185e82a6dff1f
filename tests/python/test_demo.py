# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The demonstration, as `make demo` runs it: with an emulated board, and without an emulator."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from colibri_deploy.demo_model import obtain_demo_model
from colibri_deploy.errors import DownloadError
from colibri_deploy.process import run

LOGITS_HASH = "clb1:850da2a3ddc2638beecba4215ead8d7110f737f0362a386544f8e6cdacf04875"
TEXT = "A hummingbird is a small, flightless bird that belongs to the family Troechelidae."


def without_emulators(directory: Path) -> str:
    """A PATH of links to this machine's programs, but for QEMU's."""
    directory.mkdir()
    for place in ("/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            link = directory / program.name
            if not program.name.startswith("qemu-") and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


def test_the_model_is_verified_on_an_emulated_board_and_on_this_machine(
    tmp_path: Path,
    require: Callable[[bool, str], None],
    require_program: Callable[[str], Path],
) -> None:
    require_program("qemu-aarch64-static")
    try:
        obtain_demo_model()
    except DownloadError as error:
        require(False, str(error))
    command: list[str | Path] = [sys.executable, "-m", "colibri_deploy", "demo"]
    command += ["--build-dir", tmp_path / "build"]

    emulated = json.loads(run([*command, "--json"]).stdout)
    assert emulated["smoke"]["ok"] is True
    assert emulated["smoke"]["target"] == "jetson-orin"
    assert emulated["smoke"]["generated"]["logits_hash"] == LOGITS_HASH
    assert emulated["smoke"]["generated"]["isa"] == "neon_dotprod"
    assert len(emulated["smoke"]["generated"]["ids"]) == 24

    environment = os.environ | {"PATH": without_emulators(tmp_path / "bin")}
    here = run(command, env=environment)
    assert "qemu-aarch64-static is not installed: this machine itself is the board" in here.stdout
    assert "apt-get install qemu-user-static" in here.stdout
    assert "as before" in here.stdout  # the model is not converted again
    assert TEXT in here.stdout
    assert f"logits_hash: {LOGITS_HASH} kv:f16\nverified\n" in here.stdout
