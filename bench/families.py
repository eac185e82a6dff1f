#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What q8, q4 and mxfp4 cost the golden checkpoint of each family: prints a table in Markdown.

The checkpoints are tiny and random, so their losses say how families compare, not what a real model
loses. KL is the mean over the golden logits of KL(reference || engine), in nats; the mean negative
log likelihood is that of the golden paragraph, next to the reference's.

    python bench/families.py COLIBRI FIXTURES
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.dtype_choice import DTypeChoice

DTYPES: tuple[DTypeChoice, ...] = ("keep", "q8", "q4", "mxfp4")
Floats = npt.NDArray[np.float64]


def run(engine: Path, model: Path, ids: list[int], what: str) -> Floats:
    """The numbers that the engine prints for a prompt."""
    tokens = ",".join(map(str, ids))
    command: list[str | Path] = [engine, "--model", model, "--tokens", tokens, what]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return np.array(result.stdout.split(), np.float64)


def log_softmax(logits: Floats) -> Floats:
    """The logarithms of the probabilities."""
    shifted = logits - logits.max()
    result: Floats = shifted - np.log(np.exp(shifted).sum())
    return result


def divergence(reference: Floats, other: Floats) -> float:
    """KL(reference || other) in nats."""
    p, q = log_softmax(reference), log_softmax(other)
    return float((np.exp(p) * (p - q)).sum())


def measure(engine: Path, fixture: Path, dtype: DTypeChoice, scratch: Path) -> tuple[float, float]:
    """Mean KL and mean negative log likelihood of a fixture as converted with `dtype`."""
    golden = json.loads((fixture / "golden.json").read_text(encoding="utf-8"))
    checkpoint, model = scratch / "checkpoint", scratch / "model"
    ignored = shutil.ignore_patterns("golden.*", "tokenizer.json")
    shutil.copytree(fixture, checkpoint, ignore=ignored)
    convert_checkpoint(checkpoint, model, dtype)
    divergences = []
    with np.load(fixture / "golden.npz") as logits:
        for prompt in golden["prompts"]:
            if "skipped" in prompt:
                continue
            ids, more = prompt["input_ids"], prompt["generated_ids"][:8]
            for given, name in ((ids, "prompt"), (ids + more, "after8")):
                reference = logits[f"p{prompt['index']}_logits_{name}"].astype(np.float64)
                divergences.append(divergence(reference, run(engine, model, given, "--logits")))
    (nll,) = run(engine, model, golden["perplexity"]["input_ids"], "--nll")
    return float(np.mean(divergences)), float(nll)


def main() -> None:
    """Prints a row for each fixture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", type=Path)
    parser.add_argument("fixtures", type=Path)
    args = parser.parse_args()
    names = [f"{dtype}: KL | NLL" for dtype in DTYPES]
    print(f"| checkpoint | reference: NLL | {' | '.join(names)} |")
    print(f"| --- |{' --- |' * (1 + 2 * len(DTYPES))}")
    for path in sorted(args.fixtures.glob("*/golden.json")):
        golden = json.loads(path.read_text(encoding="utf-8"))
        cells = [path.parent.name, f"{golden['perplexity']['mean_nll']:.4f}"]
        for dtype in DTYPES:
            with tempfile.TemporaryDirectory() as scratch:
                kl, nll = measure(args.engine, path.parent, dtype, Path(scratch))
            cells += [f"{kl:.2g}", f"{nll:.4f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
