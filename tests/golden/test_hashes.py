# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""One logits hash per model and type of cache: whatever the ISA level, the threads, the batch, and
how much of the sequence was the prompt."""

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from goldens import (
    ACROSS_CHUNKS,
    ACROSS_CHUNKS_HASHES,
    FROM_ONE_TOKEN,
    FROM_ONE_TOKEN_HASHES,
    HASHES,
    NUM_TOKENS,
    PROMPT,
    Key,
)
from matrix import (
    EMULATED,
    FIXTURES,
    KVS,
    LARGE,
    NATIVE,
    OTHER_FAMILIES,
    SMALL,
    Level,
    Setting,
    differing,
    few,
    once,
    product,
    third,
)

from colibri_deploy.convert import DTypeChoice
from colibri_deploy.process import Completed, run
from colibri_deploy.targets import machine_arch

Models = Callable[[str, DTypeChoice], Path]
Driver = Callable[[Level], Callable[..., Completed]]


@pytest.fixture(scope="session")
def driver(
    meson: Callable[..., Completed],
    meson_build: Callable[[str], Path],
    require_program: Callable[[str], Path],
) -> Driver:
    """`driver(level)` is a function that runs hash_matrix with some arguments on its CPU."""

    @functools.cache
    def built(arch: str) -> Path:
        meson("compile", "-C", meson_build(arch), "hash_matrix")
        return meson_build(arch) / "tests/hash_matrix"

    def runner(level: Level) -> Callable[..., Completed]:
        command: list[str | Path] = [built(level.arch)]
        if level.arch != machine_arch() or level.cpu:
            emulator = require_program(f"qemu-{level.arch}-static")
            command = [emulator, *(["-cpu", level.cpu] if level.cpu else []), *command]
        return lambda *arguments: run([*command, *arguments], check=False)

    return runner


@pytest.fixture(scope="module")
def count(report_row: Callable[..., None]) -> Iterator[Callable[..., None]]:
    """`count(name, dtype, level, n)` adds n equal settings to the table of this module."""
    counts: dict[tuple[str, str], dict[str, int]] = {}

    def add(name: str, dtype: str, level: Level, n: int) -> None:
        levels = counts.setdefault((name, dtype), {})
        levels[str(level)] = levels.get(str(level), 0) + n

    yield add
    for (name, dtype), levels in counts.items():
        report_row(
            "logits hash: model, dtype; caches, levels and settings that give the literal",
            *(name, dtype, " ".join(KVS), f"{len(levels)} levels, {sum(levels.values())} settings"),
        )


def check(
    level: Level,
    settings: list[Setting],
    keys: list[Key],
    models: Models,
    driver: Driver,
    count: Callable[..., None],
    across_chunks: bool = False,
) -> None:
    """All settings with all models give the literals."""
    sequence = ACROSS_CHUNKS if across_chunks else FROM_ONE_TOKEN
    hashes = ACROSS_CHUNKS_HASHES if across_chunks else FROM_ONE_TOKEN_HASHES
    run_driver = driver(level)
    converted = {key: models(*key) for key in keys}

    def one(key: Key) -> list[str]:
        return differing(run_driver, converted[key], level.isa, sequence, settings, hashes[key])

    with ThreadPoolExecutor(2) as pool:
        wrong = dict(zip(keys, pool.map(one, keys), strict=True))
    for key, lines in wrong.items():
        count(*key, level, len(settings) - len(lines))
    assert not any(wrong.values()), "\n".join(line for lines in wrong.values() for line in lines)


@pytest.mark.parametrize("level", NATIVE, ids=str)
def test_one_hash_natively(
    level: Level,
    models: Models,
    driver: Driver,
    count: Callable[..., None],
    require_level: Callable[[str, str], None],
    full_matrix: bool,
) -> None:
    require_level(level.arch, level.isa)
    everything = product(FROM_ONE_TOKEN)
    assert len(everything) == 3 * 3 * 8
    check(level, everything, FIXTURES + SMALL, models, driver, count)
    costly, across = everything, product(ACROSS_CHUNKS)
    if not full_matrix:
        turn = NATIVE.index(level) % 3
        costly, across = third(costly, turn), third(across, turn)
    check(level, costly, LARGE + OTHER_FAMILIES, models, driver, count)
    check(level, across, list(ACROSS_CHUNKS_HASHES), models, driver, count, across_chunks=True)


@pytest.mark.parametrize("level", EMULATED, ids=str)
def test_one_hash_under_emulation(
    level: Level, models: Models, driver: Driver, count: Callable[..., None], full_matrix: bool
) -> None:
    if full_matrix:
        keys = FIXTURES + SMALL + OTHER_FAMILIES
        check(level, product(FROM_ONE_TOKEN), keys, models, driver, count)
        check(level, once(FROM_ONE_TOKEN), LARGE, models, driver, count)
        return
    check(level, level.settings(FROM_ONE_TOKEN), FIXTURES, models, driver, count)
    check(level, few(FROM_ONE_TOKEN), OTHER_FAMILIES, models, driver, count)
    small = level.settings(FROM_ONE_TOKEN, level.small_kvs)
    check(level, small, SMALL, models, driver, count)


@pytest.mark.parametrize("level", NATIVE + EMULATED, ids=str)
def test_the_program_prints_the_hash(
    level: Level,
    models: Models,
    run_engine: Callable[..., Completed],
    require_level: Callable[[str, str], None],
) -> None:
    """`colibri` itself, which computes logits only where they are asked for; two chunks."""
    require_level(level.arch, level.isa)
    native = level in NATIVE
    keys = list(HASHES) if native else [key for key in HASHES if key[0] == "mixtral"]
    converted = {key: models(*key) for key in keys}

    def one(key: Key) -> str:
        result = run_engine(
            level.arch,
            *("--model", converted[key], "--tokens", ",".join(map(str, PROMPT))),
            *("--num_tokens", str(NUM_TOKENS), "--ignore_eos", "--format", "ids"),
            *("--isa", level.isa, "--threads", "2", "--batch", "100", "--logits_hash"),
            cpu=level.cpu,
        )
        assert result.status == 0, result.stderr
        return result.stdout.splitlines()[-1].split()[1].removeprefix("clb1:")

    with ThreadPoolExecutor(2) as pool:
        assert dict(zip(keys, pool.map(one, keys), strict=True)) == {k: HASHES[k] for k in keys}


@pytest.mark.parametrize("kv", KVS)
def test_the_type_of_the_cache_is_named_and_changes_the_hash(
    kv: str, models: Models, run_engine: Callable[..., Completed]
) -> None:
    sequence = FROM_ONE_TOKEN
    n_generated = sequence.length - len(sequence.prompt)
    result = run_engine(
        "x86_64",
        *("--model", models("mixtral", "keep"), "--tokens", ",".join(map(str, sequence.prompt))),
        *("--num_tokens", str(n_generated), "--ignore_eos", "--format", "ids"),
        *("--logits_hash", "--kv", kv),
    )
    hashes = FROM_ONE_TOKEN_HASHES["mixtral", "keep"]
    assert len(set(hashes.values())) == len(KVS)
    assert result.stdout.splitlines()[-1] == f"logits_hash: clb1:{hashes[kv]} kv:{kv}"
