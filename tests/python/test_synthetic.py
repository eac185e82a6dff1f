# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The generator of synthetic checkpoints: the same bytes everywhere."""

from __future__ import annotations

import hashlib
import struct
import sys
from pathlib import Path

from safetensors.numpy import load_file

from colibri_deploy.process import run


def test_the_generator_is_splitmix64(root: Path) -> None:
    """The first outputs for seed 1234567, as published for the reference implementation."""
    script = (
        "import runpy, sys\n"
        "module = runpy.run_path(sys.argv[1])\n"
        "print(*module['splitmix64'](1234567, 0, 5))\n"
    )
    done = run([sys.executable, "-c", script, root / "tests/golden/synthetic.py"])
    assert done.stdout.split() == [
        "6457827717110365317",
        "3203168211198807973",
        "9817491932198370423",
        "4593380528125082431",
        "16408922859458223821",
    ]


def test_the_synthetic_checkpoint_has_the_same_bytes_everywhere(checkpoint: Path) -> None:
    digest = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    assert digest == "e9d86713e7fcd67af80c30c56168bbb94b90324bb565c9a8ef20e9e92a3b9feb"


def test_the_synthetic_values_are_those_of_plain_integers(checkpoint: Path) -> None:
    def rounded(value: float) -> float:
        """To float32; a product of two float32 is exact before."""
        result: float = struct.unpack("<f", struct.pack("<f", value))[0]
        return result

    mask, gamma = 2**64 - 1, 0x9E3779B97F4A7C15
    for name, centre, spread in (
        ("lm_head.weight", 0.0, 2 * (3 / 32) ** 0.5),
        ("model.norm.weight", 1.0, 0.25),
    ):
        values = load_file(checkpoint / "model.safetensors")[name].reshape(-1)
        state = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") + gamma
        for index in (0, 1, values.size - 1):
            z = (state + (index + 1) * gamma) & mask
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
            z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
            unit = ((z ^ z >> 31) >> 40) / 2**23 - 1
            assert values[index] == rounded(centre + rounded(unit * rounded(spread)))
