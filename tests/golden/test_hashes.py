# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""One logits hash per model: whatever the ISA level, the threads and the batch."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from goldens import HASHES, NUM_TOKENS, PROMPT, SHORT_HASHES, SHORT_PROMPT

from colibri_deploy.convert import DTypeChoice
from colibri_deploy.process import Completed

FIXTURES = [key for key in HASHES if key[0] != "synthetic"]


THREADS, BATCHES = (1, 2, 3), (1, 7, len(PROMPT))
EVERY = tuple(itertools.product(THREADS, BATCHES))
DIAGONAL = ((1, len(PROMPT)), (2, 7), (3, 1))  # each thread count and each batch once

Models = Callable[[str, DTypeChoice], Path]


def hashes(
    run_engine: Callable[..., Completed],
    model: Path,
    arch: str,
    isa: str,
    settings: tuple[tuple[int, int], ...],
    prompt: list[int] = PROMPT,
) -> set[str]:
    """The hashes that all settings give."""

    def one(setting: tuple[int, int]) -> str:
        threads, batch = setting
        result = run_engine(
            arch,
            *("--model", model, "--tokens", ",".join(map(str, prompt))),
            *("--num_tokens", str(NUM_TOKENS), "--ignore_eos", "--format", "ids"),
            *("--isa", isa, "--threads", str(threads), "--batch", str(batch), "--logits_hash"),
            cpu=cpu_model(isa),
        )
        assert result.status == 0, result.stderr
        _, logits_hash, _ = result.stdout.splitlines()[-1].split()
        return logits_hash

    with ThreadPoolExecutor(2) as pool:
        return set(pool.map(one, settings))


def cpu_model(isa: str) -> str | None:
    """The emulated CPU for a level that qemu-user's default lacks."""
    return "rv64,v=true,vext_spec=v1.0,vlen=256" if isa == "rvv" else None


LEVELS = [
    ("x86_64", "scalar"),
    ("x86_64", "sse42"),
    ("x86_64", "avx2"),
    ("x86_64", "avx512"),
    ("x86_64", "avx512_vnni"),
    ("aarch64", "scalar"),
    ("aarch64", "neon"),
    ("aarch64", "neon_dotprod"),
    ("aarch64", "neon_i8mm"),
    ("riscv64", "scalar"),
    ("riscv64", "rvv"),
]


@pytest.mark.parametrize(("arch", "isa"), LEVELS)
@pytest.mark.parametrize(("name", "dtype"), FIXTURES)
def test_a_fixture_has_one_hash_for_all_threads_and_batches(
    name: str,
    dtype: DTypeChoice,
    arch: str,
    isa: str,
    models: Models,
    run_engine: Callable[..., Completed],
    require_level: Callable[[str, str], None],
) -> None:
    require_level(arch, isa)
    model = models(name, dtype)
    settings = EVERY if isa in ("scalar", "avx2", "neon") else DIAGONAL
    assert hashes(run_engine, model, arch, isa, settings) == {f"clb1:{HASHES[name, dtype]}"}


@pytest.mark.parametrize(
    ("arch", "isa", "dtype", "settings"),
    [
        ("x86_64", "scalar", "f32", EVERY),
        ("x86_64", "sse42", "f32", DIAGONAL),
        ("x86_64", "avx2", "f32", EVERY),
        ("x86_64", "avx512", "f32", DIAGONAL),
        ("aarch64", "neon", "f32", ((2, 7),)),
        ("riscv64", "scalar", "f32", ((2, 7),)),
        ("x86_64", "scalar", "q8", EVERY),
        ("x86_64", "sse42", "q8", DIAGONAL),
        ("x86_64", "avx2", "q8", EVERY),
        ("x86_64", "avx512", "q8", DIAGONAL),
        ("x86_64", "avx512_vnni", "q8", DIAGONAL),
        ("aarch64", "neon", "q8", DIAGONAL),
        ("riscv64", "scalar", "q8", ((2, 7),)),
        ("x86_64", "scalar", "q4", DIAGONAL),
        ("x86_64", "sse42", "q4", DIAGONAL),
        ("x86_64", "avx2", "q4", EVERY),
        ("x86_64", "avx512", "q4", DIAGONAL),
        ("x86_64", "avx512_vnni", "q4", DIAGONAL),
        ("aarch64", "neon", "q4", ((2, 7),)),
    ],
)
def test_a_model_in_which_the_order_of_sums_shows_has_one_hash(
    arch: str,
    isa: str,
    dtype: DTypeChoice,
    settings: tuple[tuple[int, int], ...],
    models: Models,
    run_engine: Callable[..., Completed],
    require_level: Callable[[str, str], None],
) -> None:
    require_level(arch, isa)
    model = models("synthetic", dtype)
    assert hashes(run_engine, model, arch, isa, settings) == {f"clb1:{HASHES['synthetic', dtype]}"}


@pytest.mark.parametrize("dtype", list(SHORT_HASHES))
@pytest.mark.parametrize(
    ("arch", "isa"),
    [
        ("x86_64", "avx2"),
        ("aarch64", "scalar"),
        ("aarch64", "neon"),
        ("aarch64", "neon_dotprod"),
        ("aarch64", "neon_i8mm"),
        ("riscv64", "scalar"),
        ("riscv64", "rvv"),
    ],
)
def test_it_has_one_hash_on_slow_emulators_too(
    arch: str,
    isa: str,
    dtype: DTypeChoice,
    models: Models,
    run_engine: Callable[..., Completed],
    require_level: Callable[[str, str], None],
) -> None:
    require_level(arch, isa)
    model = models("synthetic", dtype)
    settings = ((1, len(SHORT_PROMPT)), (3, 5))
    found = hashes(run_engine, model, arch, isa, settings, SHORT_PROMPT)
    assert found == {f"clb1:{SHORT_HASHES[dtype]}"}


@pytest.mark.parametrize("kv", ["f32", "f16"])
def test_the_type_of_the_cache_is_named_and_changes_the_hash(
    kv: str, models: Models, run_engine: Callable[..., Completed]
) -> None:
    result = run_engine(
        "x86_64",
        *("--model", models("mixtral", "keep"), "--tokens", ",".join(map(str, PROMPT))),
        *("--num_tokens", str(NUM_TOKENS), "--ignore_eos", "--format", "ids"),
        *("--logits_hash", "--kv", kv),
    )
    word, logits_hash, named = result.stdout.splitlines()[-1].split()
    assert (word, named) == ("logits_hash:", f"kv:{kv}")
    assert (logits_hash == f"clb1:{HASHES['mixtral', 'keep']}") == (kv == "f32")
