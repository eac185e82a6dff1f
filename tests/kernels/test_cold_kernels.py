# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The kernels that no model uses, and of which there is one function for all levels of an
architecture, give the bits that docs/DESIGN.md states: those of tests/golden/reference.py."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import reference
from checker_report import EMULATED, INHERITED
from numpy.typing import NDArray

from colibri_deploy.process import run
from colibri_deploy.targets import machine_arch

LENGTHS = (1, 2, 15, 16, 17, 100, 1000, 4096)
WHERE = [
    ("x86_64", ""),
    ("aarch64", "max"),
    ("riscv64", "rv64,v=true,vext_spec=v1.0,vlen=128"),
]


def numbers(seed: int) -> reference.F32:
    """The input of this seed, as tests/kernels/cold_kernels.c says."""
    states = np.arange(1, LENGTHS[-1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z: NDArray[np.uint64] = states + np.uint64(seed)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    z ^= z >> np.uint64(31)
    integers = (z >> np.uint64(40)).astype(np.int32) - 2**23
    exponents = -19 - (z & np.uint64(7)).astype(np.int32)
    return np.ldexp(integers.astype(np.float32), exponents)


def expected_hashes() -> dict[str, str]:
    """The hash of each kernel's outputs, by the reference."""
    x, y, z = numbers(1), numbers(2), numbers(3)
    x[:4] = 0.0, -0.0, 2.0**-149, -(2.0**-149)
    outputs: dict[str, list[reference.F32]] = {
        "f32_layer_norm": [
            reference.layer_norm(x[:n], y[:n], z[:n], np.float32(1e-5)) for n in LENGTHS
        ],
        "f32_gelu": [reference.gelu(x[:n]) for n in LENGTHS if n % 16 == 0],
        "f32_gelu_tanh": [reference.gelu_tanh(x[:n]) for n in LENGTHS if n % 16 == 0],
        "f32_rope_pairs": [
            reference.rope_pairs(x[:n], y[: n // 2], z[: n // 2]) for n in LENGTHS if n % 2 == 0
        ],
    }
    hashes = {}
    for kernel, vectors in outputs.items():
        values = np.concatenate(vectors)
        assert values.dtype == np.float32
        assert np.isfinite(values).all()  # the bits of NaN differ between CPUs
        hashes[kernel] = hashlib.sha256(values.astype("<f4").tobytes()).hexdigest()
    return hashes


def printed_hashes(report: str) -> dict[tuple[str, str], str]:
    """What the program prints, by level and kernel."""
    words = [line.split() for line in report.splitlines()]
    return {(level, kernel.rstrip(":")): digest for level, kernel, digest in words}


@pytest.mark.parametrize(("arch", "cpu"), WHERE)
def test_their_bits_are_those_of_the_document(
    arch: str,
    cpu: str,
    meson: Callable[..., object],
    meson_build: Callable[[str], Path],
    require_program: Callable[[str], Path],
    report_row: Callable[..., None],
) -> None:
    build = meson_build(arch)
    meson("compile", "-C", build, "cold_kernels")
    emulator: list[str | Path] = []
    if cpu or arch != machine_arch():
        emulator = [require_program(f"qemu-{arch}-static"), *(("-cpu", cpu) if cpu else ())]
    printed = printed_hashes(run([*emulator, build / "tests/cold_kernels"]).stdout)
    expected = expected_hashes()
    assert set(expected) == INHERITED
    if cpu:
        levels = EMULATED[arch][cpu]
    else:
        version = run([*emulator, build / "colibri", "--version"]).stdout
        levels = version.partition("isa usable:")[2].splitlines()[0].split()
    assert printed == {
        (level, kernel): digest for level in levels for kernel, digest in expected.items()
    }
    where = f"qemu {cpu}" if emulator else "this machine"
    report_row("kernels of no model: their bits are the document's", arch, where, " ".join(levels))
