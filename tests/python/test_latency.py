# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""bench/latency.py measures the variants that are asked for with the real engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from latency import FIGURES

from colibri_deploy.process import run


def test_each_variant_has_its_figures_or_the_reason_why_not(
    root: Path, engine: Callable[[str], Path], small_model: Path
) -> None:
    program: list[str | Path] = [
        sys.executable,
        root / "bench/latency.py",
        engine("host"),
        small_model,
    ]
    options = ("--tokens", "8", "--rounds", "2", "--threads", "1", "--variants", "plain,cpus")
    found = json.loads(run([*program, *options, "--json"]).stdout)
    assert list(found) == ["plain", "cpus"]
    for row in found.values():
        assert list(row) == [*FIGURES]
        assert row["ms_p99"] >= row["ms_p50"] > 0
    shown = run([*program, *options]).stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["ms", "plain", "cpus"]
    refused = run([*program[:-1], root / "nowhere", *options, "--json"])
    assert json.loads(refused.stdout)["plain"].startswith("colibri: error: ")
    done = run([*program, "--variants", "plain,fast"], check=False)
    assert (done.status, "fast: there are plain, mlock" in done.stderr) == (2, True)
