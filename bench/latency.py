#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""How long the next token takes at worst: many tokens in a row, with what steadies them.

    python bench/latency.py COLIBRI MODEL [--tokens N] [--rounds N] [--variants NAME,NAME] [--json]

Variants take turns in each round; a figure is the median over rounds of what `colibri --bench`
prints of its last decoding. Faults and sleeps are those of all of its tokens together.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

CPUS = ",".join(map(str, sorted(os.sched_getaffinity(0))))
VARIANTS = {
    "plain": [],
    "mlock": ["--use_mlock"],
    "cpus": ["--cpus", CPUS],
    "realtime": ["--realtime"],
    "all": ["--use_mlock", "--cpus", CPUS, "--realtime"],
}
FIGURES = ("ms_p50", "ms_p99", "ms_p99.9", "ms_deviation", "minor_faults", "major_faults", "sleeps")
Row = dict[str, float]


def measure(args: argparse.Namespace, variant: str) -> Row | str:
    """The figures of one run, or why there is none."""
    command = [args.colibri, "--model", args.model, "--bench", "--num_tokens", str(args.tokens)]
    command += ["--threads", str(args.threads), "--format", "json", *VARIANTS[variant]]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        return result.stderr.strip()
    found: dict[str, Any] = json.loads(result.stdout)
    return {name: float(found[name]) for name in FIGURES}


def compare(args: argparse.Namespace) -> dict[str, Row | str]:
    """The medians of each variant, or why it was refused."""
    rows: dict[str, list[Row]] = {name: [] for name in args.variants}
    refused: dict[str, str] = {}
    for number in range(args.rounds):
        for variant in args.variants:
            print(f"round {number + 1} of {args.rounds}: {variant}", file=sys.stderr)
            row = refused.get(variant) or measure(args, variant)
            if isinstance(row, str):
                refused[variant] = row
            else:
                rows[variant].append(row)
    return {
        variant: refused.get(variant)
        or {name: statistics.median(row[name] for row in rows[variant]) for name in FIGURES}
        for variant in args.variants
    }


def variants(text: str) -> list[str]:
    """The names in a list."""
    names = text.split(",")
    if unknown := set(names) - set(VARIANTS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are {', '.join(VARIANTS)}")
    return names


def main() -> None:
    """Prints a line for each variant."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("colibri", type=Path, help="the engine")
    parser.add_argument("model", type=Path, help="a model's directory")
    parser.add_argument("--tokens", type=int, default=1000, help="tokens in a row")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--variants", type=variants, default=list(VARIANTS), help=",".join(VARIANTS)
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    args = parser.parse_args()

    found = compare(args)
    if args.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{'ms a token':10}" + "".join(f"{name.removeprefix('ms_'):>13}" for name in FIGURES))
    for variant, row in found.items():
        cells = [row] if isinstance(row, str) else [f"{row[name]:13.4g}" for name in FIGURES]
        print(f"{variant:10}" + "".join(cells))


if __name__ == "__main__":
    main()
