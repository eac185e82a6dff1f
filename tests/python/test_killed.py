# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A conversion that is killed leaves nothing under the final name."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from colibri_deploy.model import Model

KILLS = 10


def test_ten_kills_at_random_moments_leave_no_model(
    root: Path, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    options = {"hidden": 256, "vocab": 8_000, "experts": 1, "top_k": 1}
    source = make_checkpoint(tmp_path / "checkpoint", **options)
    (tmp_path / "models").mkdir()
    destination = tmp_path / "models" / "m"
    partial = tmp_path / "models" / ".m.partial"
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from colibri_deploy.convert import convert_checkpoint\n"
        "convert_checkpoint(Path(sys.argv[1]), Path(sys.argv[2]), 'q4', force=True)\n"
    )

    command = [sys.executable, "-c", script, str(source), str(destination)]

    def start() -> subprocess.Popen[bytes]:
        """A conversion that has begun to write, or is through already."""
        shutil.rmtree(partial, ignore_errors=True)
        process = subprocess.Popen(command, cwd=root)
        while not (partial / "model.bin").exists() and process.poll() is None:
            time.sleep(0.001)
        return process

    seconds = float("inf")
    for _ in range(2):  # one of them this machine may have slept through
        process, started = start(), time.monotonic()
        assert process.wait() == 0
        seconds = min(seconds, time.monotonic() - started)
    whole = (destination / "model.bin").read_bytes()
    shutil.rmtree(destination)
    moments = random.Random(6)
    kills = 0
    for _ in range(10 * KILLS):
        process = start()
        time.sleep(moments.uniform(0, seconds))
        process.kill()
        if process.wait() == -signal.SIGKILL:
            kills += 1
            # Killed after the renaming, before the end: then it is all there.
            assert not destination.exists() or (destination / "model.bin").read_bytes() == whole
            if kills == KILLS:
                break
    assert kills == KILLS
    assert {path.name for path in destination.parent.iterdir()} <= {".m.partial", ".m.old", "m"}
    subprocess.run(command, cwd=root, check=True)  # it finds what the last one left
    assert [path.name for path in destination.parent.iterdir()] == ["m"]
    assert (destination / "model.bin").read_bytes() == whole
    assert Model.open(destination).file.verify() == []
