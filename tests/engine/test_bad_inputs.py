# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The table of bad inputs, each run through the real program; docs/bad-inputs.md shows it."""

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from bad_inputs import TABLE, Bad, File, Scene, document, outcome, write_good_model

from colibri_deploy.convert import DTypeChoice
from colibri_deploy.process import Completed

Run = Callable[..., Completed]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[DTypeChoice], Path]:
    """A function from a type to a good model of it, not to be changed."""
    directory = tmp_path_factory.mktemp("good")

    @functools.cache
    def made(dtype: DTypeChoice) -> Path:
        write_good_model(directory / dtype, dtype)
        return directory / dtype

    return made


@pytest.mark.parametrize(
    "bad",
    [pytest.param(bad, id=f"{title}: {bad.name}") for title, rows in TABLE.items() for bad in rows],
)
def test_a_bad_input_gives_its_line(
    bad: Bad, good: Callable[[DTypeChoice], Path], run_engine: Run, tmp_path: Path
) -> None:
    scene = Scene(shutil.copytree(good(bad.dtype), tmp_path / "model"))
    bad.change(scene)
    result = run_engine("x86_64", "--model", scene.directory, *bad.arguments)
    assert outcome(result.status, result.stderr, scene.directory) == (bad.code, bad.line)
    assert result.stdout == ""
    assert result.stderr.startswith("colibri: error: ")


def test_the_page_shows_the_table(root: Path) -> None:
    page = (root / "docs/bad-inputs.md").read_text(encoding="utf-8")
    assert page == document(), "run: python tests/engine/bad_inputs.py > docs/bad-inputs.md"


def test_a_file_that_ends_at_any_boundary(
    good: Callable[[DTypeChoice], Path], run_engine: Run, tmp_path: Path
) -> None:
    model = shutil.copytree(good("f32"), tmp_path / "model") / "model.bin"
    data = model.read_bytes()
    file = File(data)
    n_sections, n_items = file.get("n_sections"), file.get("n_items")
    ends = {*range(128, 129 + 128 * n_sections, 128), 128 * (n_sections + 1) + 4 * n_items}
    for at in range(128, 128 + 128 * n_sections, 128):
        section = data[at : at + 32].rstrip(b"\0").decode()
        first, size = file.start(section), file.get("item_size", section)
        for layer in range(file.get("n_layers", section)):
            for expert in range(file.get("n_experts", section)):
                start = first + layer * file.get("layer_stride", section)
                start += expert * file.get("expert_stride", section)
                ends |= {start, start + size}
    assert max(ends) == len(data)
    for end in sorted(ends - {len(data)}, reverse=True):
        os.truncate(model, end)
        result = run_engine("x86_64", "--model", tmp_path / "model", "--tokens", "1")
        line = f"MODEL/model.bin has {end} bytes, its header says {len(data)}: copy it again"
        assert outcome(result.status, result.stderr, tmp_path / "model") == (6, line)
