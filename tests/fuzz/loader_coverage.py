#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Prints which lines of the loader the fuzzers and the table of bad inputs reach.

    python tests/fuzz/loader_coverage.py [RUNS]

The seeds and the regression inputs, RUNS mutations of them (20,000), every input of bad_inputs.py.
Needs clang and llvm (tests/debian-packages.sh), and COLIBRI_SHARED as the tests do.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path += [str(Path(__file__).resolve().parent.parent / name) for name in ("engine", "golden")]

from bad_inputs import TABLE, Scene, write_good_model
from fuzz_build import HERE, ROOT, TARGETS, build_fuzzers
from seeds import write_seeds

from colibri_deploy.process import run

LOADER = [
    f"{name}.c"
    for name in ("chat", "config", "decimal", "file", "format", "json", "model", "tokenizer")
]
COVERAGE = ("-fprofile-instr-generate", "-fcoverage-mapping")


def exercise(programs: dict[str, Path], directory: Path, runs: int) -> None:
    """Run everything; each process leaves its counts in `directory`/counts."""
    environment = os.environ | {"LLVM_PROFILE_FILE": f"{directory}/counts/%p.profraw"}
    shared = Path(os.environ.get("COLIBRI_SHARED", ROOT.parent / "shared"))
    write_seeds(directory / "seeds", shared)
    for target in TARGETS:
        found = [path for path in [HERE / "regressions" / target] if path.is_dir()]
        command: list[str | Path] = [programs[target], f"-runs={runs}", "-seed=1", "-max_len=80000"]
        command += ["-dict=" + str(HERE / "json.dict")] if target == "config" else []
        run([*command, directory / "seeds" / target, *found], env=environment)
    for bad in (bad for rows in TABLE.values() for bad in rows):
        good = directory / "good" / bad.dtype
        if not good.exists():
            write_good_model(good, bad.dtype)
        scene = Scene(shutil.copytree(good, directory / "scene"))
        bad.change(scene)
        command = [programs["colibri"], "--model", scene.directory, *bad.arguments]
        run(command, env=environment, check=False)
        shutil.rmtree(scene.directory)


def uncovered(programs: dict[str, Path], directory: Path) -> dict[str, tuple[int, list[int]]]:
    """For each file of the loader how many lines have code, and which of them never ran."""
    counts = directory / "all.profdata"
    raw = sorted((directory / "counts").glob("*.profraw"))
    run(["llvm-profdata", "merge", "-sparse", *raw, "-o", counts])
    objects = [word for name in TARGETS for word in ("-object", str(programs[name]))]
    command: list[str | Path] = ["llvm-cov", "export", "-format=lcov", f"-instr-profile={counts}"]
    text = run([*command, programs["colibri"], *objects]).stdout
    result = {}
    for record in text.split("end_of_record\n"):
        lines = [line for line in record.splitlines() if line.startswith(("SF:", "DA:"))]
        if lines and Path(lines[0]).name in LOADER:
            numbers = [tuple(map(int, line[3:].split(",")[:2])) for line in lines[1:]]
            missed = [line for line, count in numbers if not count]
            result[Path(lines[0][3:]).name] = (len(numbers), missed)
    return result


def main() -> None:
    """The command line."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        programs = build_fuzzers(directory, "undefined", COVERAGE)
        exercise(programs, directory, runs)
        files = uncovered(programs, directory)
    for name, (lines, missed) in sorted(files.items()):
        print(f"{name:12} {lines - len(missed):4} of {lines:4} lines  not: {json.dumps(missed)}")
    total = sum(lines for lines, _ in files.values())
    reached = total - sum(len(missed) for _, missed in files.values())
    print(f"{'loader':12} {reached:4} of {total:4} lines, {100 * reached / total:.1f} %")


if __name__ == "__main__":
    main()
