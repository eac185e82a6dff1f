# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`convert`, `inspect` and `verify` as a user meets them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.model_file import ModelFile
from colibri_deploy.process import Completed, run


def deploy(*args: str | Path) -> Completed:
    """Runs colibri-deploy with `args`, any status."""
    return run([sys.executable, "-m", "colibri_deploy", *args], check=False)


def test_a_dry_run_writes_nothing(checkpoint: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    for output in ((), ("-o", tmp_path / "a" / "m")):
        done = deploy("convert", checkpoint, *output, "--dry-run", "--dtype", "q8")
        assert done.status == 0
        lines = done.stdout.splitlines()
        assert lines[0].startswith("mixtral: 2 layers, hidden 32, 3 experts (top 2) of 40, 4 heads")
        assert "model.bin: 917,520 bytes, matrices q8" in lines
        assert lines[-1] == "dry run: nothing was written"
    assert sorted(tmp_path.rglob("*")) == before


def test_convert_prints_the_size_first_and_then_what_it_wrote(
    checkpoint: Path, tmp_path: Path
) -> None:
    done = deploy("convert", checkpoint, "-o", tmp_path / "m")
    assert (done.status, done.stderr) == (0, "")
    size = (tmp_path / "m" / "model.bin").stat().st_size
    lines = done.stdout.splitlines()
    assert lines[1:4] == [
        "the matrices are stored as f32; only f32 holds all values",
        "the checkpoint has no tokenizer: the model takes token ids only",
        f"model.bin: {size:,} bytes, matrices f32",
    ]
    assert re.fullmatch(rf"wrote {re.escape(str(tmp_path))}/m in \d+\.\d s", lines[4])


def test_convert_as_json(checkpoint: Path, tmp_path: Path) -> None:
    done = deploy(
        "convert", checkpoint, "-o", tmp_path / "m", "--json", "--expert-layout", "grouped"
    )
    record = json.loads(done.stdout)
    assert record["bytes"] == (tmp_path / "m" / "model.bin").stat().st_size
    assert (record["dtype"], record["architecture"]) == ("f32", "mixtral")
    up = record["sections"][9]
    assert (up["name"], up["dtype"], up["layout"]) == ("up_weights", "f32", "tiles")
    gate_bytes = 48 * 64 * 4
    assert up["offset"] - record["sections"][8]["offset"] == gate_bytes
    assert (
        json.loads(deploy("inspect", tmp_path / "m", "--json").stdout)["sections"]
        == (record["sections"])
    )


def test_convert_wants_a_destination(checkpoint: Path) -> None:
    done = deploy("convert", checkpoint)
    assert done.status == 2
    assert "give -o DIR, or --dry-run" in done.stderr


def test_a_missing_checkpoint_has_code_3(tmp_path: Path) -> None:
    done = deploy("convert", tmp_path / "none", "-o", tmp_path / "m")
    assert done.status == 3
    assert done.stderr == (
        f"error: {tmp_path}/none is not a directory; give that of a checkpoint, or a GGUF file\n"
    )


def test_inspect_shows_sections_totals_and_config(checkpoint: Path, tmp_path: Path) -> None:
    convert_checkpoint(checkpoint, tmp_path / "m", "q8")
    done = deploy("inspect", tmp_path / "m")
    assert (done.status, done.stderr) == (0, "")
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    # 2 layers x 3 experts x 3 tiles x 1 pair of 1,088 bytes
    assert "gate_weights q8 tiles 2 x 3 40 x 32 589,824 19,584 2.1 %" in rows
    assert "router f32 tiles 2 x 1 3 x 32 524,288 8,192 0.9 %" in rows
    assert "attention_norm f32 rows 2 x 1 1 x 32 131,072 256 0.0 %" in rows
    assert "n_experts 3" in rows
    assert done.stdout.splitlines()[1] == (
        "model.bin: format version 1, 917,520 bytes, 14 sections, 36 items"
    )
    record = json.loads(deploy("inspect", tmp_path / "m", "--json").stdout)
    assert record["bytes_by_dtype"]["q8"] == sum(
        section["size"] for section in record["sections"] if section["dtype"] == "q8"
    )
    assert record["config"]["eos_ids"] == []
    assert record["chat"] is None


def test_q4_is_shown_and_verified(checkpoint: Path, tmp_path: Path) -> None:
    done = deploy("convert", checkpoint, "-o", tmp_path / "m", "--dtype", "q4")
    assert (done.status, done.stderr) == (0, "")
    done = deploy("inspect", tmp_path / "m")
    assert (done.status, done.stderr) == (0, "")
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    # 2 layers x 3 experts x 3 tiles x 1 pair of 576 bytes
    assert any(
        row.startswith("gate_weights q4 tiles 2 x 3 40 x 32 ") and " 10,368 " in row for row in rows
    )
    assert any(row.startswith("embeddings q4 tiles 1 x 1 50 x 32 ") for row in rows)
    assert any(row.startswith("router f32 tiles 2 x 1 3 x 32 ") for row in rows)
    assert deploy("verify", tmp_path / "m").status == 0


def test_verify_names_what_is_damaged_with_code_7(checkpoint: Path, tmp_path: Path) -> None:
    convert_checkpoint(checkpoint, tmp_path / "m")
    path = tmp_path / "m" / "model.bin"
    done = deploy("verify", tmp_path / "m")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout == f"{path}: {path.stat().st_size:,} bytes, 36 items, all as written\n"
    down = ModelFile.open(path).section("down_weights")
    data = bytearray(path.read_bytes())
    data[down.item_offset(1, 2) + 17] ^= 1
    path.write_bytes(data)
    assert deploy("inspect", tmp_path / "m").status == 0  # values are not its business
    done = deploy("verify", tmp_path / "m")
    assert (done.status, done.stdout) == (7, "")
    first, second = done.stderr.splitlines()
    assert first.startswith(f"error: {path} is damaged in 1 place; copy the file again")
    assert second.startswith("section down_weights, layer 1, expert 2: CRC32 ")
    done = deploy("verify", tmp_path / "m", "--json")
    assert done.status == 7
    record = json.loads(done.stdout)
    assert record["ok"] is False
    assert [(one["section"], one["layer"], one["expert"]) for one in record["damaged"]] == [
        ("down_weights", 1, 2)
    ]


@pytest.mark.parametrize("verb", ["inspect", "verify"])
def test_files_that_are_no_models_have_their_codes(
    verb: str, checkpoint: Path, tmp_path: Path
) -> None:
    convert_checkpoint(checkpoint, tmp_path / "m")
    model, config = tmp_path / "m" / "model.bin", tmp_path / "m" / "config.json"
    assert deploy(verb, tmp_path / "none").status == 3
    good = config.read_text()
    config.unlink()
    assert deploy(verb, tmp_path / "m").status == 3
    config.write_text(good.replace('"n_experts": 3', '"n_experts": "8 "'))
    done = deploy(verb, tmp_path / "m")
    assert (done.status, done.stdout) == (4, "")
    assert done.stderr == f'error: {config}: n_experts is "8 ", expected an integer\n'
    config.write_text(good)
    data = model.read_bytes()
    model.write_bytes(data[:-1])
    assert deploy(verb, tmp_path / "m").status == 6
    model.write_bytes(b"GGUF" + data[4:])
    assert deploy(verb, tmp_path / "m").status == 5
    model.write_bytes(data[:30] + b"\xff" + data[31:])
    assert deploy(verb, tmp_path / "m").status == 7
