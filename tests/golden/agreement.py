#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Compares two models, position by position of a text: top-1 agreement and logit differences.

The engine runs once for every prefix of the text and model, so that this takes minutes.

    python tests/golden/agreement.py ENGINE MODEL OTHER TEXT [--every N]
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt


def logits_after(engine: Path, model: Path, tokens: list[str]) -> npt.NDArray[np.float64]:
    """The logits [vocab_size] after the last of the tokens."""
    words: list[str | Path] = [engine, "--model", model, "--tokens", ",".join(tokens), "--logits"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return np.array(done.stdout.split(), dtype=np.float64)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    for name in ("engine", "model", "other", "text"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--every", type=int, default=1, help="of so many positions take one")
    arguments = parser.parse_args()
    words = [arguments.engine, "--model", arguments.model, "--tokenize"]
    words += ["--prompt_file", arguments.text]
    answer = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    tokens = answer.replace(",", " ").split()
    same, largest, gaps = [], [], []
    for end in range(arguments.every, len(tokens) + 1, arguments.every):
        one = logits_after(arguments.engine, arguments.model, tokens[:end])
        other = logits_after(arguments.engine, arguments.other, tokens[:end])
        same.append(one.argmax() == other.argmax())
        largest.append(np.abs(one - other).max())
        if not same[-1]:
            gaps.append(one.max() - one[other.argmax()])
    print(f"positions: {len(same)} of {len(tokens)}")
    print(f"top-1 agreement: {sum(same)} of {len(same)}, {sum(same) / len(same):.1%}")
    if gaps:
        print(f"where they differ, the model's own choice led by at most {max(gaps):.3f}")
    print(
        f"logit difference: largest {max(largest):.3g}, median of largest {np.median(largest):.3g}"
    )


if __name__ == "__main__":
    main()
