# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The hash matrix with AVX-512 on a CPU in software; it has one thread."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from goldens import FROM_ONE_TOKEN, FROM_ONE_TOKEN_HASHES, Key
from matrix import KVS, SMALL, differing, product

from colibri_deploy.convert import DTypeChoice
from colibri_deploy.process import Completed

# What VNNI adds to AVX-512 is for integers.
INTEGERS = [key for key in SMALL if key[1] in ("q8", "q4", "mxfp4")]


@pytest.mark.parametrize(
    ("isa", "cpu", "keys"),
    [("avx512", "skylake_x", SMALL), ("avx512_vnni", "sapphire_rapids", INTEGERS)],
)
def test_the_small_model_has_one_hash_for_all_batches_splits_and_caches(
    isa: str,
    cpu: str,
    keys: list[Key],
    bochs: Callable[..., Completed],
    meson: Callable[..., Completed],
    meson_build: Callable[[str], Path],
    models: Callable[[str, DTypeChoice], Path],
    report_row: Callable[..., None],
) -> None:
    build = meson_build("x86_64")
    meson("compile", "-C", build, "hash_matrix")
    settings = product(FROM_ONE_TOKEN, threads=(1,))
    run = functools.partial(bochs, cpu, build / "tests/hash_matrix")
    converted = {key: models(*key) for key in keys}

    def one(key: Key) -> list[str]:
        expected = FROM_ONE_TOKEN_HASHES[key]
        return differing(run, converted[key], isa, FROM_ONE_TOKEN, settings, expected)

    with ThreadPoolExecutor(2) as pool:
        wrong = [line for lines in pool.map(one, keys) for line in lines]
    assert not wrong, "\n".join(wrong)
    title = "logits hash on Bochs: level, CPU; models, caches and settings that give the literals"
    models_run = f"small_synthetic {' '.join(dtype for _, dtype in keys)}"
    report_row(title, isa, cpu, models_run, " ".join(KVS), f"{len(settings)} settings each")
