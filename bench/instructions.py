#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Instructions on aarch64 and riscv64, counted by QEMU: of each product for a multiplication and
addition, and of a whole token of a small model.

    python bench/instructions.py AARCH64 RISCV64 [--no-tokens] [--json]

AARCH64 and RISCV64 are Meson builds with the programs `colibri` and `bench/product`. QEMU's log
names every block of instructions that is executed (`-d exec`), and lists it when it is translated
(`-d in_asm`); no plugin, and no other package than qemu-user-static is needed. All figures are
differences of two runs, so that start and loading drop out. Instructions are not time: a CPU takes
some together and waits for others.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from synthetic_gguf import Shape, write_gguf

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.dtype_choice import DTypeChoice

TYPES: dict[str, DTypeChoice] = {"q8": "q8", "q4": "q4", "mxfp4": "mxfp4", "f16": "keep"}
# The products of a token are a million multiplications and additions.
SHAPE = Shape(256, 1, 4, 2, 512, 4, 2, 128, 256)
PROMPT, GENERATED = 16, 4  # tokens that the longer run has beyond the shorter one
VECTORS = (1, 4, 32)
MACS = 4 * 16 * 1024  # of a vector in bench/product

_EXECUTED = re.compile(rb"Trace \d+: \S+ \[[0-9a-f]+/([0-9a-f]+)/")
_LISTED = re.compile(rb"0x([0-9a-f]+):  ")


@dataclass(frozen=True)
class Cpu:
    """A level, and the CPU on which it is counted."""

    arch: str
    level: str
    model: str  # QEMU's -cpu
    name: str


CPUS = (
    Cpu("aarch64", "neon", "cortex-a72", "neon"),
    Cpu("aarch64", "neon_dotprod", "cortex-a76", "neon_dotprod"),
    Cpu("aarch64", "neon_i8mm", "max", "neon_i8mm"),
    Cpu("riscv64", "scalar", "rv64", "rv64 scalar"),
    *(
        Cpu("riscv64", "rvv", f"rv64,v=true,vext_spec=v1.0,vlen={vlen}", f"rvv, VLEN {vlen}")
        for vlen in (128, 256, 512)
    ),
)


@dataclass(frozen=True)
class Count:
    """What was counted for one type of weights at one level."""

    level: str
    type: str
    macs: dict[int, float]  # instructions for a multiplication and addition, by vectors
    decode: float | None  # instructions of a token
    prefill: float | None


class CountError(Exception):
    """QEMU failed, or its log does not tell what was executed."""


def executed(log: Iterable[bytes]) -> int:
    """The instructions that QEMU's log tells of.

    Raises CountError if a block is executed that is not listed, or listed with two lengths.
    """
    lengths: dict[int, int] = {}  # of blocks, by the address of their first instruction
    block: list[int] = []  # addresses of the one that is being listed
    lines: collections.Counter[bytes] = collections.Counter()
    for line in log:
        if line.startswith(b"Trace"):
            lines[line] += 1
        elif listed := _LISTED.match(line):
            block.append(int(listed[1], 16))
        elif block:  # a line without an instruction ends the list
            if lengths.setdefault(block[0], len(block)) != len(block):
                raise CountError(f"the block at {block[0]:#x} has two lengths")
            block = []
    total = 0
    for line, times in lines.items():
        found = _EXECUTED.match(line)
        if not found or int(found[1], 16) not in lengths:
            raise CountError(f"a block is not listed: {line.decode()}")
        total += times * lengths[int(found[1], 16)]
    return total


def instructions(cpu: Cpu, program: Path, *args: str | Path) -> int:
    """How many instructions a program executes from its start to its end."""
    reading, writing = os.pipe()
    command: list[str | Path] = [f"qemu-{cpu.arch}-static", "-cpu", cpu.model, "-d"]
    command += ["in_asm,exec,nochain", "-D", f"/dev/fd/{writing}", program, *args]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, pass_fds=[writing]) as process:
        os.close(writing)
        with os.fdopen(reading, "rb") as log:
            total = executed(log)
    if process.returncode:
        raise CountError(f"{program.name} ended with {process.returncode} on {cpu.model}")
    return total


def of_product(cpu: Cpu, build: Path, type_: str, vectors: int) -> float:
    """Instructions for a multiplication and addition, by calling the product once more."""
    calls = [
        instructions(cpu, build / "bench/product", cpu.level, type_, str(vectors), calls)
        for calls in ("1", "2")
    ]
    return (calls[1] - calls[0]) / (vectors * MACS)


def of_tokens(cpu: Cpu, build: Path, model: Path) -> tuple[float, float]:
    """Instructions of a token in decode and in prefill, by generating and by giving more."""

    def run(prompt: int, generated: int) -> int:
        tokens = ",".join(str(1 + index * 37 % 127) for index in range(prompt))
        options = ["--isa", cpu.level, "--threads", "1", "--tokens", tokens, "--ignore_eos"]
        options += ["--num_tokens", str(generated), "--format", "ids", "--model", str(model)]
        return instructions(cpu, build / "colibri", *options)

    start = run(PROMPT, 1)
    decode = (run(PROMPT, 1 + GENERATED) - start) / GENERATED
    return decode, (run(2 * PROMPT, 1) - start) / PROMPT


def measure(builds: dict[str, Path], tokens: bool) -> Iterator[Count]:
    """All types at all levels."""
    with tempfile.TemporaryDirectory() as scratch:
        gguf = Path(scratch, "gguf")
        write_gguf(gguf, SHAPE, "f16")
        for name, dtype in TYPES.items():
            convert_checkpoint(gguf, Path(scratch, name), dtype)
        for cpu in CPUS:
            build = builds[cpu.arch]
            for name in TYPES:
                macs = {n: of_product(cpu, build, name, n) for n in VECTORS}
                decode = prefill = None
                if tokens:
                    decode, prefill = of_tokens(cpu, build, Path(scratch, name))
                yield Count(cpu.name, name, macs, decode, prefill)


def row(one: Count) -> str:
    """A line of the table."""
    macs = [f"{one.macs[n]:.3f}" for n in VECTORS]
    tokens = [f"{n / 1e3:,.0f}" for n in (one.decode, one.prefill) if n is not None]
    return f"| {one.level} | {one.type} | {' | '.join(macs + tokens)} |"


def main() -> None:
    """Prints a table in Markdown, or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("aarch64", type=Path, help="a Meson build")
    parser.add_argument("riscv64", type=Path, help="a Meson build")
    parser.add_argument("--no-tokens", action="store_true", help="only the products")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    args = parser.parse_args()
    found = measure({"aarch64": args.aarch64, "riscv64": args.riscv64}, not args.no_tokens)
    if args.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    heads = [f"{n} vector{'s' if n > 1 else ''}" for n in VECTORS]
    heads += [] if args.no_tokens else ["decode, thousands", "prefill, thousands"]
    print(f"| level | type | {' | '.join(heads)} |")
    print(f"| --- | --- |{' --- |' * len(heads)}")
    for one in found:
        print(row(one), flush=True)


if __name__ == "__main__":
    main()
