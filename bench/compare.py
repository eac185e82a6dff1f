#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Colibri next to llama.cpp: the same weights, bits, tokens, threads and machine, in one run.

Both are resident processes with warm caches, and take turns: A B A B, several rounds. Medians are
printed, with the spread of all rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from models import SHAPES, TYPES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
MEASURES = ("decode", "prefill64", "prefill512", "first")
N_DECODED = 128
_PROMPT = 16  # tokens before the decoded ones


class Answering:
    """A process that answers one line for each line."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.greeting = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def ask(self, line: str) -> dict[str, Any]:
        """The answer to a request."""
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args[0]} ended with {self._process.wait()}")
        return dict(json.loads(line))


@dataclass(frozen=True)
class Run:
    """What both engines are asked to do."""

    prompt: list[int]
    decoded: list[int]  # tokens that the peer is fed one by one: those that Colibri chose
    threads: int


class Colibri:
    """bench/session.c with a model."""

    def __init__(self, program: Path, model: Path, level: str | None, batch: int) -> None:
        command = [program, model, *([level] if level else [])]
        self._process = Answering(command)
        self.level = self._process.greeting["isa"]
        self._batch = batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__(None)

    def generate(self, prompt: list[int], n: int, threads: int) -> dict[str, Any]:
        """Feeds the prompt and generates `n` tokens, of which the last is not fed."""
        return self._process.ask(" ".join(map(str, (threads, self._batch, n, *prompt))))

    def seconds(self, run: Run) -> float:
        """Of the prompt, or of the decoded tokens where there are some."""
        answer = self.generate(run.prompt, len(run.decoded) + bool(run.decoded), run.threads)
        return float(answer["decode_seconds" if run.decoded else "prefill_seconds"])


class Peer:
    """llama.cpp with a model, in its own environment."""

    def __init__(self, python: Path, model: Path) -> None:
        self._process = Answering([python, HERE / "peer_driver.py", "serve", model])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__(None)

    def seconds(self, run: Run) -> float:
        """As for Colibri."""
        request = {"prompt": run.prompt, "tokens": run.decoded, "threads": run.threads}
        answer = self._process.ask(json.dumps(request))
        return float(answer["decode_seconds" if run.decoded else "prefill_seconds"])


def prompt_of(n: int, vocab: int) -> list[int]:
    """Random token ids, the same in every run."""
    random_ids = random.Random(n)
    return [random_ids.randrange(vocab) for _ in range(n)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--models", default="S,M")
    parser.add_argument("--types", default="q8,q4")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--measures", default="decode,prefill64,prefill512")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--level", default="avx2")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--work", type=Path, default=ROOT / "build/bench/models")
    parser.add_argument("--session", type=Path, action="append")
    parser.add_argument("--peer", type=Path, default=ROOT / "build/bench/peer/bin/python")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    sessions = args.session or [ROOT / "build/bench/bench/session"]
    rounds = 3 if args.quick else args.rounds
    for name in args.models.split(","):
        for kind in args.types.split(","):
            with ExitStack() as stack:
                engines: dict[str, Any] = {}
                for k, session in enumerate(sessions):
                    engines[f"colibri{k or ''}"] = stack.enter_context(
                        Colibri(session, args.work / f"{name}-{kind}", args.level, args.batch))
                if not args.no_peer:
                    engines["llama.cpp"] = stack.enter_context(Peer(args.peer, args.work / f"{name}-{kind}.gguf"))
                for threads in map(int, args.threads.split(",")):
                    for measure in args.measures.split(","):
                        n = 16 if measure == "decode" else int(measure.removeprefix("prefill"))
                        prompt = prompt_of(n, SHAPES[name].vocab)
                        first = engines["colibri"]
                        decoded = first.generate(prompt, N_DECODED, threads)["ids"] if measure == "decode" else []
                        if args.quick: decoded = decoded[:32]
                        run = Run(prompt, decoded, threads)
                        times = {e: [] for e in engines}
                        for r in range(rounds):
                            for e, engine in engines.items():
                                times[e].append(engine.seconds(run))
                        count = len(decoded) or len(prompt)
                        base = statistics.median(times["colibri"])
                        print(f"{name} {kind} {args.level} t{threads} {measure:10}", *(
                            f"{e} {count/statistics.median(t):8.2f} tok/s ({count/max(t):.1f}-{count/min(t):.1f}) x{statistics.median(t)/base:.2f}" for e, t in times.items()), sep="  ", flush=True)


if __name__ == "__main__":
    main()
