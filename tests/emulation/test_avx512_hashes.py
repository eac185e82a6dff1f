# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The hash matrix with AVX-512 on a CPU in software."""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from goldens import FROM_ONE_TOKEN, FROM_ONE_TOKEN_HASHES, Key
from matrix import FIXTURES, LARGE, OTHER_FAMILIES, SMALL, differing, few, once, product, third

from colibri_deploy.convert import DTypeChoice
from colibri_deploy.process import Completed

# What VNNI adds to AVX-512 is for integers.
INTEGERS = [key for key in SMALL if key[1] in ("q8", "q4", "mxfp4")]
IN_THIRDS = (
    "f32",
    "q8",
)  # of the others each run computes a few settings: Bochs takes a second each


@pytest.mark.parametrize(
    ("isa", "cpu", "keys"),
    [("avx512", "skylake_x", SMALL), ("avx512_vnni", "sapphire_rapids", INTEGERS)],
)
def test_one_hash_for_all_threads_batches_splits_and_caches(
    isa: str,
    cpu: str,
    keys: list[Key],
    bochs: Callable[..., Completed],
    meson: Callable[..., Completed],
    meson_build: Callable[[str], Path],
    models: Callable[[str, DTypeChoice], Path],
    report_row: Callable[..., None],
    full_matrix: bool,
) -> None:
    build = meson_build("x86_64")
    meson("compile", "-C", build, "hash_matrix")
    settings = {
        key: third(product(FROM_ONE_TOKEN), 0) if key[1] in IN_THIRDS else few(FROM_ONE_TOKEN)
        for key in keys
    }
    if full_matrix:
        keys = FIXTURES + SMALL + OTHER_FAMILIES
        settings |= dict.fromkeys(keys, product(FROM_ONE_TOKEN))
        settings |= dict.fromkeys(LARGE, once(FROM_ONE_TOKEN))
    run = functools.partial(bochs, cpu, build / "tests/hash_matrix")
    converted = {key: models(*key) for key in settings}

    def one(key: Key) -> list[str]:
        expected = FROM_ONE_TOKEN_HASHES[key]
        return differing(run, converted[key], isa, FROM_ONE_TOKEN, settings[key], expected)

    with ThreadPoolExecutor(2) as pool:
        wrong = [line for lines in pool.map(one, settings) for line in lines]
    assert not wrong, "\n".join(wrong)
    title = "logits hash on Bochs: level, CPU; models, caches and settings that give the literals"
    for (name, dtype), each in settings.items():
        kvs = " ".join(dict.fromkeys(one.kv for one in each))
        report_row(title, isa, cpu, name, dtype, kvs, f"{len(each)} settings")
