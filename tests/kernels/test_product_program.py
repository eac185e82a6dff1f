# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""bench/product.c, whose instructions bench/instructions.py counts: it calls what it is told to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.process import Completed, run
from colibri_deploy.targets import machine_arch


@pytest.fixture(scope="module")
def product(
    meson: Callable[..., Completed], meson_build: Callable[[str], Path]
) -> Callable[..., Completed]:
    """`product(*words)` runs it on this machine, any status."""
    build = meson_build(machine_arch())
    meson("compile", "-C", build, "bench/product")
    return lambda *words: run([build / "bench/product", *words], check=False)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8", "q4", "mxfp4"])
def test_the_best_level_computes_what_scalar_does(
    kind: str, product: Callable[..., Completed], run_engine: Callable[..., Completed]
) -> None:
    version = run_engine(machine_arch(), "--version").stdout
    best = version.partition("isa usable:")[2].splitlines()[0].split()[-1]
    results = {product(level, kind, "3", "2").stdout for level in ("scalar", best)}
    assert len(results) == 1
    assert float(results.pop()) != 0


def test_what_it_cannot_call_is_refused(product: Callable[..., Completed]) -> None:
    assert product("scalar", "q8", "33", "1").status == 2
    assert product("scalar", "q9", "1", "1").stderr == "product: there is no type q9\n"
    assert product("neon9", "q8", "1", "1").status == 8
