#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The two ways to place experts in model.bin, side by side: decode and prefill of one model that
was converted twice.

    python bench/layouts.py COLIBRI INTERLEAVED GROUPED

The layouts take turns, A B B A. In each turn the page cache forgets both files, as far as it can;
one is read again and measured alone, since where its pages happen to lie may count for
more than the layout. `cold start` is all tokens over the seconds of load, prompt and tokens from
the disk. A ratio is the median over pairs of grouped to interleaved, with its quartiles: above 1
grouped is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """Rates of both layouts, in tokens a second."""

    what: str
    threads: int
    interleaved: float  # median
    grouped: float
    ratio: float  # median of the pairs' ratios, grouped to interleaved
    ratio_quartiles: tuple[float, float]


def run(args: argparse.Namespace, model: Path, threads: int, *options: str) -> dict[str, Any]:
    """What the engine reports of one call."""
    prompt = ",".join(str(1 + index * 37 % 499) for index in range(args.prompt))
    command = [args.colibri, "--model", model, "--tokens", prompt, "--threads", str(threads)]
    command += ["--num_tokens", str(args.tokens), "--ignore_eos", "--format", "json", *options]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(answer.stdout)
    return result


def forget(model: Path) -> None:
    """Drops the file from the page cache."""
    with (model / "model.bin").open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remember(model: Path) -> None:
    """Brings the file into the page cache anew, from its start to its end."""
    forget(model)
    with (model / "model.bin").open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


def rates(args: argparse.Namespace, model: Path, other: Path) -> dict[tuple[str, int], float]:
    """Tokens a second of what, with how many threads."""
    forget(other)
    forget(model)
    threads = max(args.threads)
    report = run(args, model, threads)
    seconds = sum(report[f"{part}_seconds"] for part in ("load", "prefill", "decode"))
    found = {("cold start", threads): (args.prompt + args.tokens) / seconds}
    remember(model)
    for threads in args.threads:
        report = run(args, model, threads)
        found["decode", threads] = args.tokens / report["decode_seconds"]
        found["prefill", threads] = args.prompt / report["prefill_seconds"]
    return found


def compare(args: argparse.Namespace) -> list[Comparison]:
    """The two layouts in turns."""
    models = (args.interleaved, args.grouped)
    pairs = []
    for turn in range(args.rounds):
        first = rates(args, models[turn % 2], models[1 - turn % 2])
        second = rates(args, models[1 - turn % 2], models[turn % 2])
        pairs.append((first, second) if turn % 2 == 0 else (second, first))
    found = []
    for key in sorted(pairs[0][0]):
        ratios = [grouped[key] / interleaved[key] for interleaved, grouped in pairs]
        low, _, high = statistics.quantiles(ratios, n=4)
        found.append(
            Comparison(
                *key,
                statistics.median(interleaved[key] for interleaved, _ in pairs),
                statistics.median(grouped[key] for _, grouped in pairs),
                statistics.median(ratios),
                (low, high),
            )
        )
    return found


def main() -> None:
    """Prints a line for each number of threads and kind of work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("colibri", type=Path, help="the engine")
    parser.add_argument("interleaved", type=Path, help="a model's directory")
    parser.add_argument("grouped", type=Path, help="the same model, converted with grouped experts")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7, help="pairs of runs, 2 at least")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=32, help="tokens to generate")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    args = parser.parse_args()

    hashes = {
        run(args, model, max(args.threads), "--logits_hash")["logits_hash"]
        for model in (args.interleaved, args.grouped)
    }
    if len(hashes) != 1:
        parser.error(f"{args.interleaved} and {args.grouped} are not one model")
    found = compare(args)
    if args.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    print(f"{'':12} threads  interleaved    grouped  ratio (quartiles)")
    for one in found:
        low, high = one.ratio_quartiles
        print(
            f"{one.what:12} {one.threads:7} {one.interleaved:8.2f}/s {one.grouped:8.2f}/s"
            f"  {one.ratio:.3f} ({low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
