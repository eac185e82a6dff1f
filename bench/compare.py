#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Colibri next to llama.cpp and to the machine's roof: same weights, bits, tokens and threads.

Both engines are resident processes with warm caches and take turns, A B A B, for several rounds;
`first` starts both anew each time. FILE keeps every time that was measured: a run adds its rounds
to what the file has of the same builds, so that a long comparison can be made in pieces.
bench/comparison_report.py shows the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
from comparison_report import MEASURES, print_report
from peer import PeerError, build_peer, peer_facts
from synthetic_gguf import SHAPES, Type, check_conversion, convert, is_current, write_gguf

_HERE = Path(__file__).resolve().parent
_BUILD = _HERE.parent / "build" / "bench"
_POSITIONS = 1024  # of the peer's cache, at least
_LEFT_OUT = {("M", "f16")}  # 7 GB in each of both files
_COMPARED = range(1, 17)  # tokens of the prompts after which both engines' logits are compared
_LEAST_ROOF_BYTES = 512 << 20
_AGREEMENT = {"f16": 0.9999, "q8": 0.995, "q4": 0.99}  # least median of their cosines


class Answering:
    """A process that answers one line for each line."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # numpy's threads have nothing to do
        )
        self.greeting = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def ask(self, line: str) -> dict[str, Any]:
        """The answer to a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._process.args!r} ended with {self._process.wait()}")
        return dict(json.loads(line))


@dataclass(frozen=True)
class Task:
    """What both engines are asked to do: feed the prompt, then `decoded` one by one."""

    prompt: list[int]
    decoded: list[int]
    threads: int

    @property
    def timed(self) -> str:
        """Which part is timed."""
        return "decode_seconds" if self.decoded else "prefill_seconds"


class Colibri(Answering):
    """A build's bench/session with a model."""

    def __init__(self, build: Path, model: Path, level: str, batch: int) -> None:
        super().__init__([build / "bench/session", model, level])
        self._build, self._model, self._level, self._batch = build, model, level, batch

    def generate(self, prompt: list[int], n: int, threads: int) -> dict[str, Any]:
        """Feeds the prompt and generates `n` tokens, of which the last is not fed."""
        return self.ask(" ".join(map(str, (threads, self._batch, n, *prompt))))

    def seconds(self, task: Task) -> float:
        """Of the part that is timed. The engine chooses the tokens that the peer is told."""
        n = len(task.decoded)
        return float(self.generate(task.prompt, n + bool(n), task.threads)[task.timed])

    def first(self, prompt: list[int], threads: int) -> tuple[float, int]:
        """A fresh process with one token to generate: its seconds to its end, its peak memory."""
        words = ["--num_tokens", "1", "--threads", str(threads), "--format", "json"]
        started = time.perf_counter()
        output = self._run(prompt, *words)
        return time.perf_counter() - started, int(json.loads(output)["peak_rss_bytes"])

    def logits(self, prompt: list[int]) -> list[float]:
        """After the prompt."""
        return list(map(float, self._run(prompt, "--logits").split()))

    def _run(self, prompt: list[int], *words: str) -> str:
        options = ["--isa", self._level, "--kv", "f16", "--tokens", ",".join(map(str, prompt))]
        command = [str(self._build / "colibri"), "--model", str(self._model), *options, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Peer(Answering):
    """llama.cpp with a model, in its own environment."""

    def __init__(self, python: Path, model: Path, positions: int) -> None:
        self._command = [python, _HERE / "peer_driver.py"]
        self._model = model
        super().__init__([*self._command, "serve", model, str(positions)])

    def seconds(self, task: Task) -> float:
        """Of the part that is timed."""
        request = {"prompt": task.prompt, "tokens": task.decoded, "threads": task.threads}
        return float(self.ask(json.dumps(request))[task.timed])

    def first(self, prompt: list[int], threads: int) -> tuple[float, int]:
        """As for Colibri, but that the interpreter and loading the libraries are not counted."""
        request = {"prompt": prompt, "threads": threads, "positions": _POSITIONS}
        result = subprocess.run(
            [*self._command, "first", self._model],
            input=json.dumps(request),
            check=True,
            capture_output=True,
            text=True,
        )
        answer = json.loads(result.stdout)
        return float(answer["seconds"]), int(answer["peak_rss_bytes"])

    def logits(self, prompt: list[int]) -> list[float]:
        """After the prompt."""
        request = {"prompt": prompt, "tokens": [], "threads": 1, "logits": True}
        return list(self.ask(json.dumps(request))["logits"])


def prompt_of(n: int, vocab: int) -> list[int]:
    """Random token ids, the same in every run."""
    random_ids = random.Random(n)
    return [random_ids.randrange(vocab) for _ in range(n)]


def cosine_of(ours: list[float], theirs: list[float]) -> float:
    """Of two vectors of logits."""
    a, b = np.array(ours), np.array(theirs)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def agreement(colibri: Colibri, peer: Peer, vocab: int) -> float:
    """The median cosine of both engines' logits after prompts of 1 to 16 tokens.

    Not the least: where experts are nearly equal, rounding an activation to 8 bits decides.
    """
    prompts = [prompt_of(n, vocab) for n in _COMPARED]
    return float(np.median([cosine_of(colibri.logits(one), peer.logits(one)) for one in prompts]))


def measure_roof(build: Path, level: str, threads: int, n_bytes: int) -> dict[str, Any]:
    """What bench/roof and numpy say of the machine."""
    megabytes = str(-(-n_bytes // (1 << 20)))
    command: list[str | Path] = [
        build / "bench/roof",
        "--threads",
        str(threads),
        "--isa",
        level,
        "--mb",
        megabytes,
    ]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    roof: dict[str, Any] = json.loads(answer)
    # In a process of its own: a child's peak memory would begin with its parent's.
    command = [sys.executable, _HERE / "numpy_read.py", str(n_bytes), str(threads)]
    second = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return roof | {"numpy_gb_s": float(second)}


def machine() -> dict[str, Any]:
    """What is known of this machine."""
    found = {"machine": platform.machine(), "cpus": os.cpu_count(), "kernel": platform.release()}
    for line in subprocess.run(["lscpu"], capture_output=True, text=True).stdout.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("Model name", "L1d cache", "L2 cache", "L3 cache", "Hypervisor vendor"):
            found[key.strip()] = value.strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return found | {"memory": f"{memory / 2**30:.0f} GiB"}


class Results:
    """The file of all times; written after every round."""

    def __init__(self, path: Path, builds: dict[str, Any]) -> None:
        self._path = path
        self.data: dict[str, Any] = {"machine": machine(), "builds": builds, "rows": []}
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["builds"] == builds:
                self.data["rows"] = found["rows"]

    def row(self, **key: Any) -> dict[str, Any]:
        """The row with these values; a new one, if there is none."""
        rows: list[dict[str, Any]] = self.data["rows"]
        for row in rows:
            if all(row.get(name) == value for name, value in key.items()):
                return row
        rows.append(key)
        return key

    def write(self) -> None:
        """To the file, which is complete at any time."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_name(self._path.name + ".part")
        part.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        part.replace(self._path)


def one_round(engines: dict[str, Any], row: dict[str, Any], vocab: int) -> None:
    """Add one round of a row's measure to it."""
    threads, measure = row["threads"], row["measure"]
    asked = MEASURES[measure]
    prompt = prompt_of(asked.prompt, vocab)
    if measure == "first":
        for name, engine in engines.items():
            seconds, peak = engine.first(prompt, threads)
            row.setdefault("seconds", {}).setdefault(name, []).append(round(seconds, 6))
            row.setdefault("peak_rss_bytes", {})[name] = peak
        row["tokens"] = 1
        return
    if asked.decoded and "decoded" not in row:
        row["decoded"] = engines["colibri"].generate(prompt, asked.decoded, threads)["ids"]
    decoded = row.get("decoded", [])
    task = Task(prompt, decoded, threads)
    row["tokens"] = len(decoded) or asked.prompt
    for name, engine in engines.items():
        seconds = engine.seconds(task)
        row.setdefault("seconds", {}).setdefault(name, []).append(round(seconds, 6))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--models", default="S,M,demo", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--types", default="q8,q4,f16", help=f"of {', '.join(get_args(Type))}")
    parser.add_argument("--threads", default="1,2", help="numbers of threads")
    short = ",".join(name for name, measure in MEASURES.items() if not measure.long)
    parser.add_argument("--measures", default=short, help=f"of {', '.join(MEASURES)}")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to add to the file")
    parser.add_argument("--quick", action="store_true", help="two rounds")
    parser.add_argument("--level", default="avx2", help="Colibri's ISA level")
    parser.add_argument("--batch", type=int, default=0, help="Colibri's --batch; 0: its default")
    parser.add_argument("--build", type=Path, default=_BUILD, help="Colibri's build")
    parser.add_argument("--baseline", type=Path, help="another build, measured in the same rounds")
    parser.add_argument("--work", type=Path, default=_BUILD / "models", help="for the models")
    parser.add_argument("--peer", type=Path, help="a Python that has the peer; default: build one")
    parser.add_argument("--output", type=Path, default=_BUILD / "compare.json", metavar="FILE")
    parser.add_argument("--json", action="store_true", help="print FILE instead of a table")
    parser.add_argument("--prepare", action="store_true", help="make peer and models, then stop")
    args = parser.parse_args()
    for option, known in (("models", SHAPES), ("types", get_args(Type)), ("measures", MEASURES)):
        for name in getattr(args, option).split(","):
            if name not in known:
                parser.error(f"--{option}: {name!r} is none of {', '.join(known)}")
    return args


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def prepare(args: argparse.Namespace, name: str, kind: Type) -> tuple[Path, Path]:
    """A model for both engines: the GGUF file, and the directory it was converted to."""
    gguf = args.work / f"{name}-{kind}.gguf"
    model = args.work / f"{name}-{kind}"
    if not gguf.exists() or not is_current(gguf, SHAPES[name], kind):
        say(f"{name} {kind}: writing {gguf}")
        shutil.rmtree(model, ignore_errors=True)  # of older weights
        args.work.mkdir(parents=True, exist_ok=True)
        write_gguf(gguf, SHAPES[name], kind)
    if not model.exists():
        say(f"{name} {kind}: converting to {model}")
        convert(gguf, model)
    return gguf, model


def measure_model(
    args: argparse.Namespace, results: Results, python: Path, name: str, kind: Type
) -> None:
    """All rows of one model."""
    gguf, model = prepare(args, name, kind)
    shape = SHAPES[name]
    peer_bytes, n_bytes = check_conversion(gguf, model)
    say(f"{name} {kind}: bytes per token {n_bytes:,}, llama.cpp {peer_bytes:,}")
    with ExitStack() as stack:
        builds = {"colibri": args.build} | ({"baseline": args.baseline} if args.baseline else {})
        engines: dict[str, Any] = {
            label: stack.enter_context(Colibri(build, model, args.level, args.batch))
            for label, build in builds.items()
        }
        measures = args.measures.split(",")
        positions = max(_POSITIONS, *(MEASURES[measure].positions for measure in measures))
        engines["llama.cpp"] = stack.enter_context(Peer(python, gguf, positions))
        cosine = agreement(engines["colibri"], engines["llama.cpp"], shape.vocab)
        say(f"{name} {kind}: median cosine of both engines' logits {cosine:.6f}")
        if not cosine >= _AGREEMENT[kind]:
            raise SystemExit(f"{name} {kind}: the engines do not compute the same")
        for threads in map(int, args.threads.split(",")):
            for measure in measures:
                row = results.row(
                    model=name, type=kind, level=args.level, threads=threads, measure=measure
                )
                decodes = MEASURES[measure].decoded > 0
                cached = shape.cache_bytes(MEASURES[measure].prompt) if decodes else 0
                file_bytes = (model / "model.bin").stat().st_size
                row.update(
                    batch=args.batch,
                    bytes_per_token=n_bytes + cached,
                    macs_per_token=shape.macs_per_token(head=decodes),
                    file_bytes=file_bytes,
                    cosine=round(cosine, 6),
                )
                say(f"{name} {kind}, {threads} threads, {measure}: {args.rounds} rounds")
                roofs = row.setdefault("roofs", [])
                # As much memory as the experts lie in: of less, a cache may hold a part.
                roof_size = max(file_bytes if decodes else 0, _LEAST_ROOF_BYTES)
                for _ in range(args.rounds):
                    if measure != "first":
                        roofs.append(measure_roof(args.build, args.level, threads, roof_size))
                    one_round(engines, row, shape.vocab)
                    results.write()


def digest(path: Path) -> str:
    """The start of a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def main() -> None:
    """The command line."""
    args = parse()
    if args.quick:
        args.rounds = 2
    python = args.peer or build_peer(_BUILD / "peer")
    try:
        facts = peer_facts(python)
    except PeerError as error:
        raise SystemExit(f"error: {error}") from None
    kinds: list[Type] = [kind for kind in get_args(Type) if kind in args.types.split(",")]
    names = args.models.split(",")
    wanted = [(name, kind) for name in names for kind in kinds if (name, kind) not in _LEFT_OUT]
    for name, kind in wanted:
        prepare(args, name, kind)
    if args.prepare:
        return
    say(f"peer: llama.cpp {facts.commit}, {facts.flags}, {facts.system_info}")
    builds: dict[str, Any] = {"colibri": digest(args.build / "bench/session")}
    if args.baseline:
        builds["baseline"] = digest(args.baseline / "bench/session")
    results = Results(args.output, builds | {"llama.cpp": asdict(facts)})
    for name, kind in wanted:
        measure_model(args, results, python, name, kind)
    if args.json:
        print(json.dumps(results.data, indent=1))
    else:
        print_report(results.data)


if __name__ == "__main__":
    main()
