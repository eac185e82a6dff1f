# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The settings that must not change a bit of the logits: for hash_matrix.c, which runs them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from goldens import FAMILIES, FROM_ONE_TOKEN_HASHES, Continuation

from colibri_deploy.process import Completed

KVS = ("f32", "f16", "q8")
THREADS = (1, 2, 3)
BATCHES = (1, 7, 32)
WHOLE = 4096  # as large as any prompt here


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a sequence is computed."""

    kv: str
    threads: int
    batch: int
    split: int  # so many tokens are the prompt, the others are generated

    def __str__(self) -> str:
        return f"{self.kv}:{self.threads}:{self.batch}:{self.split}"


def product(
    sequence: Continuation, kvs: Sequence[str] = KVS, threads: Sequence[int] = THREADS
) -> list[Setting]:
    """All settings; batches that hold the whole prompt are one and the same."""
    batches = [(split, batch) for split in sequence.splits for batch in (*BATCHES, WHOLE)]
    pairs = [(split, batch) for split, batch in batches if batch < split or batch == WHOLE]
    return [
        Setting(kv, n_threads, batch, split)
        for kv, (split, batch), n_threads in itertools.product(kvs, pairs, threads)
    ]


def third(settings: Sequence[Setting], which: int) -> list[Setting]:
    """One third of a product, 0 to 2: cache, batch and split in full, the threads take turns."""
    turn = len(THREADS)
    return [one for i, one in enumerate(settings) if (i // turn + i) % turn == which]


def once(sequence: Continuation) -> list[Setting]:
    """A single setting, with the shortest prompt."""
    return [Setting("f16", 2, WHOLE, sequence.splits[0])]


def few(sequence: Continuation) -> list[Setting]:
    """For each type of cache all but one token generated, and all given in several batches."""
    first, last = (2, WHOLE, sequence.splits[0]), (3, 7, sequence.splits[-1])
    return [Setting(kv, *setting) for kv in KVS for setting in (first, last)]


@dataclasses.dataclass(frozen=True)
class Level:
    """An ISA level on some CPU, and what of the product each run of the tests computes on it."""

    arch: str
    isa: str
    cpu: str | None = None  # an emulated one; None: this machine
    which_third: int | None = None  # of the settings; None: all
    small_kvs: tuple[str, ...] = KVS  # with the small synthetic model

    def __str__(self) -> str:
        return f"{self.arch} {self.isa}" + (f" on {self.cpu}" if self.cpu else "")

    def settings(self, sequence: Continuation, kvs: Sequence[str] = KVS) -> list[Setting]:
        """What each run of the tests computes."""
        everything = product(sequence, kvs)
        return everything if self.which_third is None else third(everything, self.which_third)


NATIVE = [Level("x86_64", isa) for isa in ("scalar", "sse42", "avx2", "avx512", "avx512_vnni")]
RV64V = "rv64,v=true,vext_spec=v1.0,vlen="
EMULATED = [
    Level("aarch64", "scalar", "cortex-a72", 0),
    Level("aarch64", "neon", "cortex-a72"),
    Level("aarch64", "neon_dotprod", "cortex-a76", 1),
    Level("aarch64", "neon_i8mm", "max", 2),
    Level("riscv64", "scalar", "rv64,v=false", 0),
    # qemu takes long for vectors: what one length leaves out, the others do.
    Level("riscv64", "rvv", f"{RV64V}128", 0, ("f32",)),
    Level("riscv64", "rvv", f"{RV64V}256", 1, ("f16",)),
    Level("riscv64", "rvv", f"{RV64V}512", 2, ("q8",)),
]

# Models, by what they cost.
OTHER_FAMILIES = [key for key in FROM_ONE_TOKEN_HASHES if key[0] in FAMILIES]
FIXTURES = [
    key
    for key in FROM_ONE_TOKEN_HASHES
    if key not in OTHER_FAMILIES and not key[0].endswith("synthetic")
]
SMALL = [key for key in FROM_ONE_TOKEN_HASHES if key[0] == "small_synthetic"]
LARGE = [key for key in FROM_ONE_TOKEN_HASHES if key[0] == "synthetic"]


def differing(
    run: Callable[..., Completed],
    model: Path,
    isa: str,
    sequence: Continuation,
    settings: Sequence[Setting],
    expected: dict[str, str],
) -> list[str]:
    """The driver's lines whose hash is not the `expected` one of their cache.

    `run(*arguments)` runs the driver to its end.
    """
    prompt = ",".join(map(str, sequence.prompt))
    result = run(model, isa, str(sequence.length), prompt, *map(str, settings))
    assert result.status == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [str(one) for one in settings]
    return [
        f"{model.name} {isa} {line}"
        for line, setting in zip(lines, settings, strict=True)
        if line != f"{setting} {expected[setting.kv]}"
    ]
