# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""No file makes the loader crash, read outside, leak, or allocate and loop without bound.

Each fuzzer runs what was found before (regressions/), then 100,000 inputs from the seeds.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz_build import HERE, TARGETS, build_fuzzers
from seeds import write_seeds

from colibri_deploy.process import run

RUNS = 100_000
# Bytes of the largest input, and other words for libFuzzer.
OPTIONS = {
    "config": ["-max_len=4096", f"-dict={HERE / 'json.dict'}"],
    "model": ["-max_len=16000"],
    "tokenizer": ["-max_len=80000"],
}
# A hang is 100 s long: a machine that has other work must not look like one.
BOUNDS = ["-rss_limit_mb=1024", "-malloc_limit_mb=64", "-timeout=100"]
REGRESSIONS = sorted(path for path in (HERE / "regressions").rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def fuzzers(
    tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[str], Path]
) -> dict[str, Path]:
    """The fuzzers by name."""
    require_program("clang")
    return build_fuzzers(tmp_path_factory.mktemp("fuzz"))


@pytest.fixture(scope="module")
def corpus(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the seeds of each fuzzer."""
    directory = tmp_path_factory.mktemp("seeds") / "seeds"
    write_seeds(directory, shared)
    return directory


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_is_mended(path: Path, fuzzers: dict[str, Path]) -> None:
    result = run([fuzzers[path.parent.name], *BOUNDS, path], check=False)
    assert result.status == 0, result.stderr[-4000:]
    assert "Executed" in result.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_breaks_the_loader(
    target: str,
    fuzzers: dict[str, Path],
    corpus: Path,
    tmp_path: Path,
    report_row: Callable[..., None],
) -> None:
    command: list[str | Path] = [fuzzers[target], f"-runs={RUNS}", "-seed=1", *BOUNDS]
    command += [*OPTIONS[target], f"-artifact_prefix={tmp_path}/", "-print_final_stats=1"]
    seeds = [corpus / target, *(HERE / "regressions").glob(target)]
    n_seeds = sum(len(list(directory.iterdir())) for directory in seeds)
    result = run([*command, *seeds], check=False)
    assert result.status == 0, result.stderr[-4000:]
    read = re.search(r"seed corpus: files: (\d+)", result.stderr)
    executed = re.search(r"number_of_executed_units: (\d+)", result.stderr)
    covered = re.findall(r"cov: (\d+)", result.stderr)
    assert read
    assert int(read[1]) == n_seeds > 10
    assert executed
    assert int(executed[1]) >= RUNS
    report_row("fuzzing: inputs, edges covered", target, executed[1], covered[-1])
