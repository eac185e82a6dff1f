#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Shows what bench/compare.py has measured: a table, the same in Markdown, a roofline plot.

python bench/comparison_report.py FILE [--markdown] [--svg PLOT]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

_COLUMNS = ("model", "thr.", "what", "ratio", "goal", "Colibri", "llama.cpp", "of the roof", "goal")
_MIB = 1 << 20


@dataclass(frozen=True)
class Measure:
    """Tokens of the prompt, and of those that follow it one by one."""

    prompt: int
    decoded: int = 0
    long: bool = False  # attention has a large part; takes minutes

    @property
    def positions(self) -> int:
        """What the cache must have room for."""
        return self.prompt + self.decoded


MEASURES = {
    "decode": Measure(16, 128),
    "prefill64": Measure(64),
    "prefill512": Measure(512),
    "first": Measure(16, 1),
    "decode4k": Measure(4096, 64, long=True),
    "prefill4k": Measure(4096, long=True),
    "decode16k": Measure(16384, 64, long=True),
    "prefill16k": Measure(16384, long=True),
}


@dataclass(frozen=True)
class Goal:
    """The least ratio to llama.cpp and the least share of the roof; 0: none."""

    ratio: float = 0.0
    share: float = 0.0


def goal_of(row: dict[str, Any]) -> Goal:
    """What is aimed at for a row."""
    model, kind, measure = row["model"], row["type"], row["measure"]
    if model == "demo" or MEASURES[measure].long:
        return Goal()
    if measure == "decode":
        return {"q8": Goal(1.4, 0.90), "q4": Goal(1.4, 0.87), "f16": Goal(1.3)}[kind]
    if measure == "first":
        return Goal(5.0) if (model, kind) == ("M", "q4") else Goal()
    if row["threads"] != 2:
        return Goal()
    if kind == "f16":
        return Goal(1.8)
    ratio = 2.1 if model == "M" else 2.3 if kind == "q8" else 2.2
    return Goal(ratio, 0.45)


def ratio_of(row: dict[str, Any], other: str = "llama.cpp") -> float:
    """How many times as fast as the other Colibri is, by the medians."""
    seconds = row["seconds"]
    return float(statistics.median(seconds[other]) / statistics.median(seconds["colibri"]))


def rate_of(row: dict[str, Any], engine: str) -> float:
    """Tokens per second, by the median."""
    return float(row["tokens"] / statistics.median(row["seconds"][engine]))


def _best_read(roof: dict[str, Any]) -> tuple[float, str]:
    """GB/s of the best read loop, or of numpy's sum if that is faster, and its name."""
    return max(
        (rate, name) for name, rate in (roof["read_gb_s"] | {"numpy": roof["numpy_gb_s"]}).items()
    )


def read_roof(row: dict[str, Any]) -> float:
    """GB/s that the memory gave beside the row, by the median of its rounds."""
    return statistics.median(_best_read(roof)[0] for roof in row["roofs"])


def operations_roof(row: dict[str, Any]) -> float:
    """1e9 operations per second of the multiplier, with the row's type of weights, likewise."""
    name = {"f16": "f32_gflop_s", "q8": "q8_gop_s", "q4": "q4_gop_s"}[row["type"]]
    return float(statistics.median(roof[name] for roof in row["roofs"]))


def share_of(row: dict[str, Any], engine: str = "colibri") -> float | None:
    """Of the read bandwidth in decode, of the multiplier in prefill.

    None where a prompt is so long that it is not the weights' multiplier alone that counts.
    """
    measure = row["measure"]
    rate = 1e-9 * rate_of(row, engine)
    if measure == "first" or (MEASURES[measure].long and not MEASURES[measure].decoded):
        return None
    if MEASURES[measure].decoded:
        return rate * float(row["bytes_per_token"]) / read_roof(row)
    return rate * 2 * float(row["macs_per_token"]) / operations_roof(row)


def _met(value: float | None, goal: float, form: str) -> str:
    if value is None or not goal:
        return ""
    return f"{format(goal, form)} {'met' if value >= goal else 'MISSED'}"


def _shown(row: dict[str, Any], engine: str) -> str:
    """The median, and in parentheses all from the slowest to the fastest."""
    times = row["seconds"].get(engine)
    if times is None:
        return ""
    if row["measure"] == "first":
        peak = row["peak_rss_bytes"][engine] / _MIB
        low, middle, high = min(times), statistics.median(times), max(times)
        return f"{middle:.3f} s ({low:.3f} to {high:.3f}), {peak:,.0f} MiB"
    low, middle, high = (row["tokens"] / f(times) for f in (max, statistics.median, min))
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def ordered(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows by model, type, measure, threads."""
    order = {name: number for number, name in enumerate(("S", "M", "demo", "q8", "q4", "f16"))}

    def key(row: dict[str, Any]) -> tuple[int, int, int, int]:
        where = list(MEASURES).index(row["measure"])
        return order[row["model"]], order[row["type"]], where, row["threads"]

    return sorted((row for row in data["rows"] if "seconds" in row), key=key)


def cells(data: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The table's rows as text."""
    for row in ordered(data):
        goal, ratio, share = goal_of(row), ratio_of(row), share_of(row)
        yield (
            f"{row['model']} {row['type']}",
            str(row["threads"]),
            row["measure"],
            f"{ratio:.2f}",
            _met(ratio, goal.ratio, ".1f"),
            _shown(row, "colibri"),
            _shown(row, "llama.cpp"),
            "" if share is None else f"{share:.0%}",
            _met(share, goal.share, ".0%"),
        )


def roof_cells(data: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The machine's roof beside every measure, as text."""
    for row in ordered(data):
        if not row["roofs"]:
            continue
        best = statistics.median_low(_best_read(roof) for roof in row["roofs"])
        other = statistics.median(roof["numpy_gb_s"] for roof in row["roofs"])
        yield (
            f"{row['model']} {row['type']}",
            str(row["threads"]),
            row["measure"],
            f"{row['roofs'][0]['bytes'] / 1e9:.1f}",
            f"{read_roof(row):.1f} ({best[1]})",
            f"{other:.1f}",
            *(
                f"{statistics.median(roof[key] for roof in row['roofs']):.0f}"
                for key in ("f32_gflop_s", "q8_gop_s", "q4_gop_s")
            ),
        )


def other_cells(data: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Goals without a peer: what a second thread is worth, memory, the time of the first token."""
    rows = ordered(data)
    for row in rows:
        name = f"{row['model']} {row['type']}"
        one = {**row, "threads": 1}
        for other in rows:
            if row["threads"] == 2 and all(other[key] == one[key] for key in _SAME):
                yield name, f"{row['measure']}, 2 threads to 1", *_scaling(row, other)
        if row["measure"] == "first":
            extra = (row["peak_rss_bytes"]["colibri"] - row["file_bytes"]) / _MIB
            met = "met" if extra <= _MOST_EXTRA_MIB else "MISSED"
            memory = f"memory, {row['threads']} thr., file + MiB"
            yield name, memory, f"{extra:.0f}", f"{_MOST_EXTRA_MIB} {met}"
            if (row["model"], row["type"]) == ("M", "q4"):
                seconds = statistics.median(row["seconds"]["colibri"])
                met = "met" if seconds <= _MOST_FIRST_SECONDS else "MISSED"
                what = f"first, {row['threads']} thr., s"
                yield name, what, f"{seconds:.3f}", f"{_MOST_FIRST_SECONDS} {met}"


def _scaling(two: dict[str, Any], one: dict[str, Any]) -> tuple[str, str]:
    """How many times as fast two threads are, and the goal: no more than the memory allows."""
    ratio = rate_of(two, "colibri") / rate_of(one, "colibri")
    if two["measure"] == "first":
        return f"{ratio:.2f}", ""
    goal = _LEAST_SCALING
    if MEASURES[two["measure"]].decoded:
        goal = min(goal, _LEAST_OF_MEMORY * read_roof(two) / read_roof(one))
    return f"{ratio:.2f}", _met(ratio, goal, ".2f")


_SAME = ("model", "type", "level", "threads", "measure")
_LEAST_SCALING = 1.85
_LEAST_OF_MEMORY = 0.97  # of how many times as fast two threads read it
_MOST_EXTRA_MIB = 32  # beside the file; the cache of `first` has less than one
_MOST_FIRST_SECONDS = 0.3
_OTHER_COLUMNS = ("model", "what", "is", "goal")
_ROOF_COLUMNS = ("model", "thr.", "beside", "GB", "read GB/s (streams)", "numpy", "f32", "q8", "q4")


def _tables(
    data: dict[str, Any],
) -> Iterator[tuple[tuple[str, ...], Iterator[tuple[str, ...]]]]:
    """The columns and the rows of each table."""
    yield _COLUMNS, cells(data)
    yield _OTHER_COLUMNS, other_cells(data)
    yield _ROOF_COLUMNS, roof_cells(data)


def facts(data: dict[str, Any]) -> Iterator[str]:
    """Lines that say what was compared, and where."""
    peer = data["builds"]["llama.cpp"]
    yield "machine: " + ", ".join(f"{key} {value}" for key, value in data["machine"].items())
    yield (
        f"llama.cpp: commit {peer['commit']}, llama-cpp-python {peer['version']}, "
        f"{peer['flags']}; {peer['system_info']}"
    )
    yield "each figure: median of all rounds (slowest to fastest); tokens/s, `first` in seconds"


def print_report(data: dict[str, Any]) -> None:
    """For people, on stdout."""
    console = Console(highlight=False, markup=False, width=160)
    for columns, rows in _tables(data):
        table = Table(box=box.SIMPLE, pad_edge=False)
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in facts(data):
        console.print(line, soft_wrap=True)


def markdown(data: dict[str, Any]) -> str:
    """The tables for a page."""
    lines = []
    for columns, rows in _tables(data):
        lines += [f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
        lines += [f"| {' | '.join(row)} |" for row in rows]
        lines.append("")
    return "\n".join([*lines, *(f"* {line}" for line in facts(data))]) + "\n"


# The plot: one panel for each type, both axes logarithmic.
_WIDTH, _HEIGHT, _LEFT, _TOP = 420, 300, 60, 40
_X, _Y = (1.0, 4096.0), (8.0, 1024.0)  # operations per byte, 1e9 operations per second
_COLOURS = {"colibri": "#c2410c", "llama.cpp": "#1d4ed8"}


def _x(value: float, panel: int) -> float:
    part = math.log(value / _X[0]) / math.log(_X[1] / _X[0])
    return _LEFT + panel * (_WIDTH + _LEFT) + part * _WIDTH


def _y(value: float) -> float:
    part = math.log(value / _Y[0]) / math.log(_Y[1] / _Y[0])
    return _TOP + (1 - part) * _HEIGHT


def intensity_of(row: dict[str, Any]) -> float:
    """Operations per byte that is read: a batch reads each weight once."""
    operations = 2 * row["macs_per_token"]
    if MEASURES[row["measure"]].decoded:
        return float(operations / row["bytes_per_token"])
    return float(operations * row["tokens"] / row["file_bytes"])


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{text}</text>'


def _panel(rows: list[dict[str, Any]], kind: str, panel: int) -> Iterator[str]:
    bandwidth, peak = max(map(read_roof, rows)), max(map(operations_roof, rows))
    edge = min(peak / bandwidth, _X[1])
    start = max(_X[0], _Y[0] / bandwidth)
    points = [(start, start * bandwidth), (edge, edge * bandwidth), (_X[1], peak)]
    line = " ".join(f"{_x(x, panel):.1f},{_y(y):.1f}" for x, y in points)
    left, top = _x(_X[0], panel), _TOP
    yield f'<rect x="{left:.1f}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" class="frame"/>'
    yield f'<polyline points="{line}" class="roof"/>'
    title = f"{kind}, {rows[0]['threads']} threads: {bandwidth:.0f} GB/s, {peak:.0f} Gop/s"
    yield _text(left, top - 10, title)
    for power in range(0, 13, 2):
        x = _x(2.0**power, panel)
        yield _text(x, top + _HEIGHT + 14, str(2**power), 'text-anchor="middle"')
    for power in range(3, 11):
        y = _y(2.0**power) + 4
        yield _text(left - 6, y, str(2**power), 'text-anchor="end"')
    for row in rows:
        for engine, colour in _COLOURS.items():
            x = _x(intensity_of(row), panel)
            y = _y(1e-9 * rate_of(row, engine) * 2 * row["macs_per_token"])
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>'
            if engine == "colibri":
                yield _text(x + 6, y + 4, f"{row['model']} {row['measure']}")


def svg(data: dict[str, Any]) -> str:
    """Every measure with the most threads under the roof of its type."""
    rows = [row for row in ordered(data) if share_of(row) is not None]
    most = max(row["threads"] for row in rows)
    rows = [row for row in rows if row["threads"] == most]
    kinds = list(dict.fromkeys(row["type"] for row in rows))
    width = len(kinds) * (_WIDTH + _LEFT) + 90
    height = _TOP + _HEIGHT + 50
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        "<style>.frame{fill:#fff;stroke:#999}.roof{fill:none;stroke:#333;stroke-width:2}</style>",
    ]
    for panel, kind in enumerate(kinds):
        lines += _panel([row for row in rows if row["type"] == kind], kind, panel)
    bottom = height - 10
    lines.append(_text(_LEFT, bottom, "operations per byte; vertical: 1e9 operations per second"))
    for number, (engine, colour) in enumerate(_COLOURS.items()):
        more = f'fill="{colour}"'
        lines.append(_text(_LEFT + 340 + 70 * number, bottom, engine, more))
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("file", type=Path, help="what compare.py wrote")
    parser.add_argument("--markdown", action="store_true", help="the tables for a page")
    parser.add_argument("--svg", type=Path, metavar="PLOT", help="write the plot there")
    args = parser.parse_args()
    data = json.loads(args.file.read_text(encoding="utf-8"))
    if args.svg:
        args.svg.write_text(svg(data), encoding="utf-8")
    if args.markdown:
        print(markdown(data), end="")
    else:
        print_report(data)


if __name__ == "__main__":
    main()
