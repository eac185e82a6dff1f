# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Which token greedy generation takes, and where it ends."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import reference
from safetensors.numpy import load_file, save_file
from synthetic import Shape, write_checkpoint

from colibri_deploy.convert import DTypeChoice, convert_checkpoint
from colibri_deploy.process import Completed

Run = Callable[..., Completed]

SHAPE = Shape(hidden=32, ffn=40, experts=3, top_k=2, layers=2, heads=4, kv_heads=2, vocab=50)
PROMPT = [8, 36, 48, 4]
UNUSED, OTHER = 12, 0  # tokens that are not generated after the prompt
NUM_TOKENS = 6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint, not to be changed."""
    directory = tmp_path_factory.mktemp("sampling") / "checkpoint"
    write_checkpoint(directory, SHAPE)
    return directory


@pytest.fixture(scope="module")
def good(checkpoint: Path) -> Path:
    """The checkpoint as a model in f32, not to be changed."""
    convert_checkpoint(checkpoint, checkpoint.parent / "model", "f32")
    return checkpoint.parent / "model"


@pytest.fixture
def generate(run_engine: Run) -> Callable[..., list[int]]:
    """A function from a model and more options to the ids that are generated."""

    def run_it(model: Path, *options: str) -> list[int]:
        prompt = ",".join(map(str, PROMPT))
        named: list[str | Path] = ["--model", model, "--tokens", prompt, "--format", "ids"]
        result = run_engine("x86_64", *named, "--num_tokens", str(NUM_TOKENS), *options)
        assert (result.status, result.stderr) == (0, "")
        line = result.stdout.splitlines()[0]
        return [int(number) for number in line.split(",")] if line else []

    return run_it


@pytest.fixture(scope="module")
def free_run(good: Path) -> list[int]:
    """The ids that the reference generates after the prompt, whatever they are."""
    ids, _ = reference.run(reference.load(good), PROMPT, NUM_TOKENS, "f32", ignore_eos=True)
    assert len(set(ids)) == NUM_TOKENS
    assert not {UNUSED, OTHER} & set(ids)
    return ids


@pytest.mark.parametrize("dtype", ["f32", "q8"])
@pytest.mark.parametrize("others", [(0,), (49,), (0, 49), "below", "above"])
def test_of_equal_logits_the_lower_id_wins(
    others: tuple[int, ...] | str,
    dtype: DTypeChoice,
    checkpoint: Path,
    free_run: list[int],
    generate: Callable[..., list[int]],
    run_engine: Run,
    tmp_path: Path,
) -> None:
    best = free_run[0]
    assert 0 < best < 49
    if isinstance(others, str):
        others = (best - 1,) if others == "below" else (best + 1,)
    tensors = load_file(checkpoint / "model.safetensors")
    for other in others:
        tensors["lm_head.weight"][other] = tensors["lm_head.weight"][best]
    (tmp_path / "checkpoint").mkdir()
    save_file(tensors, tmp_path / "checkpoint" / "model.safetensors", {"format": "pt"})
    text = (checkpoint / "config.json").read_text(encoding="utf-8")
    (tmp_path / "checkpoint" / "config.json").write_text(text, encoding="utf-8")
    convert_checkpoint(tmp_path / "checkpoint", tmp_path / "model", dtype)
    prompt = ",".join(map(str, PROMPT))
    named = ("--model", tmp_path / "model", "--tokens", prompt, "--logits")
    logits = np.array(run_engine("x86_64", *named).stdout.split(), np.float32)
    assert np.flatnonzero(logits == logits.max()).tolist() == sorted((best, *others))
    ids = generate(tmp_path / "model")
    assert ids[0] == min(best, *others)
    assert not set(ids) & set(sorted((best, *others))[1:])
    assert (
        ids
        == reference.run(
            reference.load(tmp_path / "model"), PROMPT, NUM_TOKENS, None, ignore_eos=True
        )[0]
    )


@pytest.mark.parametrize("end", range(NUM_TOKENS))
@pytest.mark.parametrize("place", ["alone", "first", "second", "last"])
def test_each_of_the_eos_ids_ends_the_text(
    end: int,
    place: str,
    good: Path,
    free_run: list[int],
    generate: Callable[..., list[int]],
    run_engine: Run,
    tmp_path: Path,
) -> None:
    eos = free_run[end]
    eos_ids = {
        "alone": [eos],
        "first": [eos, UNUSED],
        "second": [UNUSED, eos],
        "last": [UNUSED, OTHER, eos],
    }[place]
    config = json.loads((good / "config.json").read_text(encoding="utf-8"))
    text = json.dumps(config | {"eos_ids": eos_ids})
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    (tmp_path / "model.bin").symlink_to(good / "model.bin")
    assert generate(tmp_path) == free_run[:end]
    assert generate(tmp_path, "--ignore_eos") == free_run
    # The logits that chose the end are the last ones of the hash.
    for options, ignore in (((), False), (("--ignore_eos",), True)):
        model = reference.load(tmp_path)
        ids, digest = reference.run(model, PROMPT, NUM_TOKENS, "f32", ignore)
        prompt = ",".join(map(str, PROMPT))
        named = ("--model", tmp_path, "--tokens", prompt, "--num_tokens", str(NUM_TOKENS))
        result = run_engine("x86_64", *named, *options, "--format", "ids", "--logits_hash")
        assert result.stdout == f"{','.join(map(str, ids))}\nlogits_hash: clb1:{digest} kv:f32\n"


def test_no_eos_id_ends_nothing(
    good: Path, free_run: list[int], generate: Callable[..., list[int]], tmp_path: Path
) -> None:
    config = json.loads((good / "config.json").read_text(encoding="utf-8"))
    text = json.dumps(config | {"eos_ids": []})
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    (tmp_path / "model.bin").symlink_to(good / "model.bin")
    assert generate(tmp_path) == free_run
    assert generate(tmp_path, "--num_tokens", "0") == []
    assert generate(tmp_path, "--num_tokens", "1") == free_run[:1]
