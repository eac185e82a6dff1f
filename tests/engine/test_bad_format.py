# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What docs/FORMAT.md allows is read, and each checksum guards what it stands for.

bad_inputs.py breaks the rules one at a time.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from bad_inputs import FREE, SHAPE, File
from synthetic import write_checkpoint

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.process import Completed

Run = Callable[..., Completed]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that nothing is wrong with, not to be changed."""
    directory = tmp_path_factory.mktemp("good")
    write_checkpoint(directory / "checkpoint", SHAPE)
    convert_checkpoint(directory / "checkpoint", directory / "model", "f32")
    return directory / "model"


@pytest.fixture
def outcome(good: Path, tmp_path: Path, run_engine: Run) -> Callable[[bytes], Completed]:
    """A function that runs the engine on the good model with another model.bin."""

    def run_it(data: bytes) -> Completed:
        (tmp_path / "model.bin").write_bytes(data)
        named = ("--model", tmp_path / "model.bin", "--config", good / "config.json")
        return run_engine("x86_64", *named, "--tokens", "1,2", "--num_tokens=0", "--format=ids")

    return run_it


def says(result: Completed, code: int, words: str) -> None:
    """The engine ended with the code and one line that holds the words."""
    assert (result.status, result.stdout) == (code, ""), result.stderr
    assert result.stderr.startswith("colibri: error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_what_no_rule_forbids_is_read(good: Path, outcome: Callable[[bytes], Completed]) -> None:
    data = (good / "model.bin").read_bytes()
    assert outcome(data).status == 0
    assert outcome(File(data).sealed()).status == 0
    # right behind the tables, and right behind the item before
    file = File(data)
    ends = file.get("crcs_offset") + 4 * file.get("n_items"), FREE + 128
    for place in (-(-ends[0] // 64) * 64, ends[1]):
        start = file.get("offset", "final_norm")
        file.data[place : place + 128] = file.data[start : start + 128]
        file.put("offset", place, "final_norm")
        result = outcome(file.sealed())
        assert (result.status, result.stderr) == (0, "")


@pytest.mark.parametrize("name", ["final_norm", "attention_k", "gate_weights", "lm_head"])
def test_each_item_has_a_checksum_of_its_own(
    name: str, good: Path, outcome: Callable[[bytes], Completed]
) -> None:
    data = (good / "model.bin").read_bytes()
    whole = File(data)
    size = whole.get("item_size", name)
    for layer in range(whole.get("n_layers", name)):
        for expert in range(whole.get("n_experts", name)):
            start = whole.get("offset", name) + layer * whole.get("layer_stride", name)
            start += expert * whole.get("expert_stride", name)
            for offset in (start, start + size - 1):
                file = File(data)
                file.data[offset] ^= 0x80
                says(outcome(file.sealed()), 7, f"{name}, layer {layer}, expert {expert} does")


@pytest.mark.parametrize(
    ("offset", "what"),
    [
        *((offset, "the header") for offset in (20, 24, 36, 60, 64, 123, 124, 127)),
        *((offset, "the section table") for offset in (128, 255, 128 + 92)),
        *((128 + 128 * 14 + offset, "the CRC table") for offset in (0, 3, 4)),
    ],
)
def test_a_flipped_bit_in_a_table_is_named(
    offset: int, what: str, good: Path, outcome: Callable[[bytes], Completed]
) -> None:
    data = bytearray((good / "model.bin").read_bytes())
    assert struct.unpack_from("<I", data, 24) == (14,)
    data[offset] ^= 0x10
    says(outcome(bytes(data)), 7, f"{what} does not match its checksum")


def test_the_last_ids_of_the_vocabulary_are_fine(
    good: Path, tmp_path: Path, run_engine: Run
) -> None:
    config = json.loads((good / "config.json").read_text(encoding="utf-8"))
    config |= {"bos_id": 49, "eos_ids": [49, 0]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    named = ("--model", good / "model.bin", "--config", tmp_path / "config.json")
    result = run_engine("x86_64", *named, "--tokens", "49", "--format", "ids")
    assert (result.status, result.stderr) == (0, "")


@pytest.mark.parametrize(("option", "limit"), [("batch", 4096), ("threads", 1024)])
def test_more_than_the_largest_number(option: str, limit: int, good: Path, run_engine: Run) -> None:
    asked = ("--model", good, "--tokens", "1", "--format", "ids", f"--{option}")
    says(run_engine("x86_64", *asked, str(limit + 1)), 2, str(limit))
    says(run_engine("x86_64", *asked, str(2**31)), 2, f"--{option} is {2**31}")
    result = run_engine("x86_64", *asked, str(limit), "--num_tokens", "0")
    assert (result.status, result.stderr) == (0, "")
