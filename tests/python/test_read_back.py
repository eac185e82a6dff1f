# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`convert --verify`, and the errors that rounding makes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from colibri_deploy.convert import DTypeChoice, plan_conversion, write_model
from colibri_deploy.errors import ModelCorruptError
from colibri_deploy.model_file import ModelFile
from colibri_deploy.process import run
from colibri_deploy.progress import NoProgress
from colibri_deploy.read_back import read_back
from colibri_deploy.rounding import RoundingError, is_rounded, measure
from colibri_deploy.tiles import DType, pack_tiles, unpack_tiles


@pytest.mark.parametrize("dtype", ["keep", "f16", "bf16", "q8", "q4", "mxfp4"])
def test_every_type_reads_back(dtype: DTypeChoice, checkpoint: Path, tmp_path: Path) -> None:
    plan = plan_conversion(checkpoint, dtype)
    errors = write_model(plan, tmp_path / "m", verify=True)
    rounded = {name for name, error in errors.items() if error.errors}
    names = {section.name for section in plan.sections if section.name.endswith("_weights")}
    assert rounded >= (set() if dtype == "keep" else names)
    assert not rounded & {"router", "rope", "final_norm"}


def damaged(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def test_a_changed_byte_and_a_changed_value_are_found(checkpoint: Path, tmp_path: Path) -> None:
    """The second has the right checksum: only the comparison with the source tells."""
    plan = plan_conversion(checkpoint, "q8")
    write_model(plan, tmp_path / "m")
    path = tmp_path / "m" / "model.bin"
    file = ModelFile.open(path)
    section = file.section("up_weights")
    place = section.item_offset(1, 2) + 64 + 100

    def flip(data: bytearray) -> None:
        data[place] ^= 0x40

    def check() -> None:
        read_back(path, plan.items, plan.tensors, plan.computed, NoProgress())

    check()
    damaged(path, flip)
    with pytest.raises(ModelCorruptError, match="section up_weights, layer 1, expert 2: CRC32"):
        check()
    damaged(path, flip)
    checkpoint_file = checkpoint / "model.safetensors"
    tensor: Any = plan.tensors["model.layers.1.block_sparse_moe.experts.2.w3.weight"]

    def scale(data: bytearray) -> None:
        data[tensor.offset + 403] ^= 0x01  # an exponent

    damaged(checkpoint_file, scale)
    with pytest.raises(ModelCorruptError, match=r"\(section up_weights, layer 1, expert 2\)"):
        check()


def test_what_does_not_read_back_never_appears(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise ModelCorruptError("no")

    monkeypatch.setattr("colibri_deploy.convert.read_back", fail)
    with pytest.raises(ModelCorruptError):
        write_model(plan_conversion(checkpoint), tmp_path / "m", verify=True)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("dtype", [DType.q8, DType.q4, DType.mxfp4])
def test_limits_hold_for_what_is_rounded_and_for_nothing_else(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    values = rng.standard_normal((48, 70)).astype(np.float32)
    values *= np.exp2(rng.integers(-40, 10, (48, 1))).astype(np.float32)
    values[3] = 0
    stored = unpack_tiles(pack_tiles(values, dtype), dtype, 48, 70)
    assert is_rounded(values, stored, dtype)
    row = int(np.abs(values).max(axis=1).argmax())
    block = values[row, :32]
    stored[row, 5] += np.abs(block).max() / {DType.q8: 100, DType.q4: 4, DType.mxfp4: 2}[dtype]
    assert not is_rounded(values, stored, dtype)


def test_errors_are_relative_to_the_values() -> None:
    values = np.array([[3, 4], [0, 0], [-1, 0]], np.float32)
    stored = np.array([[3, 3], [0, 0], [-1.5, 0]], np.float32)
    error = measure(values, stored)
    assert error.rms_relative == pytest.approx(np.sqrt(1.25 / 26))
    assert error.max_relative == 0.5
    both = error + measure(values, values)
    assert both.rms_relative == pytest.approx(np.sqrt(1.25 / 52))
    assert both.max_relative == 0.5
    assert RoundingError().rms_relative == 0


def test_the_table_and_json_state_the_errors(checkpoint: Path, tmp_path: Path) -> None:
    destination = ["-o", str(tmp_path / "m"), "--dtype", "ffn=q4,attn=q8", "--verify"]
    command = [sys.executable, "-m", "colibri_deploy", "convert", str(checkpoint), *destination]
    done = run(command, check=False)
    assert (done.status, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert any("matrices embed f32 (6,400 bytes), attn q8 (" in line for line in lines)
    assert lines[-1].endswith(" s, read back and compared")
    rows = {line.split()[0]: line.split() for line in lines if line.rstrip().endswith(" %")}
    assert set(rows) == {
        *(f"attention_{name}" for name in "qkvo"),
        *(f"{name}_weights" for name in ("gate", "up", "down")),
    }
    record = json.loads(run([*command, "--force", "--json"]).stdout)
    assert record["verified"] is True
    assert record["dtype"] is None
    assert record["dtypes"] == {"embed": "f32", "attn": "q8", "ffn": "q4", "head": "f32"}
    # A uniform distribution in 255 steps, and in 16: the step over the square root of 12.
    errors = cast(dict[str, dict[str, float]], record["errors"])
    assert 0.002 < errors["attention_q"]["rms_relative"] < 0.006
    assert 0.05 < errors["up_weights"]["rms_relative"] < 0.12
    assert errors["lm_head"] == {"rms_relative": 0.0, "max_relative": 0.0}
    up = rows["up_weights"]
    assert up[1] == "q4"
    assert float(up[2]) == pytest.approx(100 * errors["up_weights"]["rms_relative"], rel=0.01)
