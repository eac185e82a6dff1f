#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Peak memory and time of a conversion to q8: the demonstration's GGUF file, and checkpoints of
about its size and four times as large. The peak must not grow with the model.

    python bench/conversion.py
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.demo_model import obtain_demo_model

SYNTHETIC = Path(__file__).resolve().parent.parent / "tests" / "golden" / "synthetic.py"
SHAPE = ["--hidden", "1024", "--ffn", "2048", "--heads", "16", "--kv-heads", "4", "--vocab", "1024"]


def convert(source: Path, destination: Path) -> None:
    """Converts in this process and prints its peak before and after, KiB, and the seconds."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    convert_checkpoint(source, destination, "q8", force=True)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(before, after, time.monotonic() - started)


def main() -> None:
    """Prints one line for each source."""
    print(f"{'source':36} {'bytes':>13} {'peak':>10} {'above import':>12} {'seconds':>8}")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        sources = {"SmolLM2-135M, GGUF Q4_1": obtain_demo_model()}
        for layers in (1, 4):
            sources[f"synthetic, {layers} layers, f32"] = directory = work / f"layers-{layers}"
            experts = ["--experts", "4", "--layers", str(layers)]
            command: list[str | Path] = [sys.executable, SYNTHETIC, directory, *SHAPE, *experts]
            subprocess.run(command, check=True)
        for label, source in sources.items():
            command = [sys.executable, __file__, source, work / "model"]
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
            before, after, seconds = (float(word) for word in answer.stdout.split())
            file = source / "model.safetensors" if source.is_dir() else source
            print(
                f"{label:36} {file.stat().st_size:13,} {after / 1024:6.0f} MiB "
                f"{(after - before) / 1024:8.0f} MiB {seconds:8.1f}"
            )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    else:
        main()
