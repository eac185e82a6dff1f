# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The settings that must not change a bit of the logits: for hash_matrix.c, which runs them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from goldens import Continuation

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
