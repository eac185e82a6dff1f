# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A conversion's destination: whole or not at all, and never something else."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.errors import ConversionError
from colibri_deploy.model import Model
from colibri_deploy.model_dir import new_model_directory
from colibri_deploy.process import run
from colibri_deploy.tiles import DType


def test_the_destination_is_never_something_else(checkpoint: Path, tmp_path: Path) -> None:
    def refusal(destination: Path, force: bool = True) -> str:
        with pytest.raises(ConversionError) as caught:
            convert_checkpoint(checkpoint, destination, force=force)
        return caught.value.message

    before = {path: path.read_bytes() for path in checkpoint.iterdir()}
    assert "is no model directory: it holds model.safetensors" in refusal(checkpoint)
    assert "cannot be used: Not a directory" in refusal(checkpoint / "config.json")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").touch()
    assert "is no model directory: it holds config.json" in refusal(tmp_path / "other")
    convert_checkpoint(checkpoint, tmp_path / "m")
    assert "m holds a model already; --force replaces it" in refusal(tmp_path / "m", force=False)
    (tmp_path / "m" / "notes").touch()
    assert "is no model directory: it holds notes" in refusal(tmp_path / "m")
    assert {path: path.read_bytes() for path in checkpoint.iterdir()} == before


def test_an_empty_directory_and_missing_parents_are_fine(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for destination in (tmp_path / "empty", tmp_path / "a" / "b" / "m"):
        convert_checkpoint(checkpoint, destination)
        assert sorted(path.name for path in destination.iterdir()) == ["config.json", "model.bin"]
        assert [path.name for path in destination.parent.glob(".*")] == []


def fail_half_way(destination: Path) -> None:
    with new_model_directory(destination, force=True) as partial:
        (partial / "model.bin").write_bytes(b"half a model")
        raise RuntimeError("something went wrong")


def test_force_replaces_a_model_whole_or_not_at_all(checkpoint: Path, tmp_path: Path) -> None:
    convert_checkpoint(checkpoint, tmp_path / "m")
    first = (tmp_path / "m" / "model.bin").read_bytes()
    with pytest.raises(RuntimeError, match="something went wrong"):
        fail_half_way(tmp_path / "m")
    assert (tmp_path / "m" / "model.bin").read_bytes() == first
    convert_checkpoint(checkpoint, tmp_path / "m", "q8", force=True)
    assert Model.open(tmp_path / "m").file.section("lm_head").dtype is DType.q8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "m"]


def test_two_conversions_to_one_place_do_not_mix(tmp_path: Path) -> None:
    with new_model_directory(tmp_path / "m") as partial:
        (partial / "model.bin").write_bytes(b"first")
        with (
            pytest.raises(ConversionError, match="another conversion writes"),
            new_model_directory(tmp_path / "m"),
        ):
            pass
    assert (tmp_path / "m" / "model.bin").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_what_a_killed_conversion_left_is_removed(checkpoint: Path, tmp_path: Path) -> None:
    partial = tmp_path / ".m.partial"
    (partial / "x").mkdir(parents=True)
    (partial / "model.bin").write_bytes(bytes(100))
    convert_checkpoint(checkpoint, tmp_path / "m")
    assert Model.open(tmp_path / "m").file.verify() == []
    assert not partial.exists()


def test_a_killed_conversion_leaves_nothing_under_the_final_name(
    root: Path, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    options = {"hidden": 512, "ffn": 1024, "experts": 8, "layers": 3}
    source = make_checkpoint(tmp_path / "checkpoint", **options)
    destination = tmp_path / "m"
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "colibri_deploy",
        "convert",
        source,
        "-o",
        destination,
    ]
    writing = tmp_path / ".m.partial" / "model.bin"
    killed = 0
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=root)
        try:
            deadline = time.monotonic() + 60
            while not writing.exists() and process.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            time.sleep(delay)
        finally:
            process.send_signal(signal.SIGKILL)
            status = process.wait()
        if status == 0:
            break  # it was done before
        assert status == -signal.SIGKILL
        if destination.exists():  # killed after the renaming
            assert Model.open(destination).file.verify() == []
            break
        killed += 1
    assert killed >= 2
    done = run([*command, "--force"], check=False)
    assert done.status == 0, done.stderr
    assert Model.open(destination).file.verify() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "m"]
