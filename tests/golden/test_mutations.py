# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The hash sees what it is there to see: engines that add in another order, or that fuse a
multiplication with an addition, are built here, and none of them keeps the hash."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from goldens import PROMPT

from colibri_deploy.convert import DTypeChoice
from colibri_deploy.process import run

SOURCES = ("meson.build", "meson_options.txt", "cross", "src", "templates")

# What is replaced by what, in which file. The first stands there exactly once.
TWO_ACCUMULATORS = (
    "templates/ops/float_mm.c.j2",
    """        for (int c = 0; c < n_cols; c++)
            a = vadd(a, vmul({{ load }}(w + c * CLB_TILE_ROWS), vset1(x[c])));
""",
    """        f32x16 b = vset1(0);
        for (int c = 0; c < n_cols; c += 2)
            a = vadd(a, vmul({{ load }}(w + c * CLB_TILE_ROWS), vset1(x[c])));
        for (int c = 1; c < n_cols; c += 2)
            b = vadd(b, vmul({{ load }}(w + c * CLB_TILE_ROWS), vset1(x[c])));
        a = vadd(a, b);
""",
)
CONTRACTION = ("meson.build", "-ffp-contract=off", "-ffp-contract=fast")
FMA = ("templates/isa/avx2.j2", "'-mf16c'", "'-mf16c', '-mfma'")
OTHER_ORDER_OF_EXPERTS = (
    "src/transformer.c",
    "    for (int i = 0; i < r->n_active; i++) {\n",
    "    for (int i = r->n_active - 1; i >= 0; i--) {\n",
)


def build_mutant(root: Path, directory: Path, changes: list[tuple[str, str, str]]) -> Path:
    """The engine of this tree with `changes`."""
    for name in SOURCES:
        source = root / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, directory / name)
    for name, old, new in changes:
        text = (directory / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"the mutation no longer fits {name}"
        (directory / name).write_text(text.replace(old, new), encoding="utf-8")
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    cross = directory / "cross/x86_64-linux-musl.ini"
    build = directory / "build"
    meson: list[str | Path] = [sys.executable, "-m", "mesonbuild.mesonmain"]
    run([*meson, "setup", build, "--cross-file", cross], cwd=directory, env=environment)
    run(["ninja", "-C", build, "colibri"], env=environment)
    return build / "colibri"


def logits_hash(engine: Path, model: Path, isa: str) -> str:
    """The hash that an engine gives for the synthetic model."""
    result = run(
        [
            *(engine, "--model", model, "--tokens", ",".join(map(str, PROMPT))),
            *("--num_tokens", "2", "--ignore_eos", "--format", "ids", "--isa", isa),
            "--logits_hash",
        ]
    )
    return result.stdout.splitlines()[-1].split()[1]


@pytest.mark.parametrize(
    ("changes", "isa", "dtype"),
    [
        pytest.param([], "scalar", "q8", id="none"),
        pytest.param([TWO_ACCUMULATORS], "scalar", "f32", id="two-accumulators"),
        pytest.param([CONTRACTION, FMA], "avx2", "f32", id="contracted-fma"),
        pytest.param([OTHER_ORDER_OF_EXPERTS], "avx2", "q8", id="other-order-of-experts"),
    ],
)
def test_a_mutant_changes_the_hash(
    changes: list[tuple[str, str, str]],
    isa: str,
    dtype: DTypeChoice,
    root: Path,
    tmp_path: Path,
    engine: Callable[[str], Path],
    models: Callable[[str, DTypeChoice], Path],
) -> None:
    model = models("synthetic", dtype)
    mutant = build_mutant(root, tmp_path, changes)
    same = logits_hash(mutant, model, isa) == logits_hash(engine("x86_64"), model, isa)
    assert same == (not changes)
