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


def chosen(
    logits: reference.F32, position: int, temperature: str, top_k: int, top_p: str, seed: int
) -> int:
    """The token that docs/DESIGN.md, Sampling, says; written from it alone."""
    weights = reference.exp((logits - logits.max()) / np.float32(temperature))
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    total = 0.0
    for weight in weights:
        total += float(weight)

    def first(n: int) -> float:
        result = 0.0
        for token in order[:n]:
            result += float(weights[token])
        return result

    if 0 < top_k < len(order):
        order = order[:top_k]
        total = first(top_k)
    if 0 < float(top_p) < 1:
        enough = float(np.float32(top_p)) * total
        kept = next((n for n in range(1, len(order)) if first(n) >= enough), len(order))
        order = order[:kept]
        total = first(kept)
    mask = 2**64 - 1
    z = (seed + 0x9E3779B97F4A7C15 * position) & mask
    for _ in range(2):
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        z ^= z >> 31
    wanted = (z >> 11) * 2.0**-53 * total
    return next((t for n, t in enumerate(order, 1) if first(n) > wanted), order[-1])


SETTINGS = [
    ("1", 0, "1"),
    ("0.7", 5, "0"),
    ("1.5", 0, "0.9"),
    ("3", 20, "0.8"),
    ("0.01", 50, "1"),
    ("100", 49, "0.05"),
    ("1", 1, "0.5"),
    ("100", 1000, "1.0"),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), SETTINGS)
def test_a_seed_gives_the_text_that_the_document_says(
    temperature: str,
    top_k: int,
    top_p: str,
    good: Path,
    generate: Callable[..., list[int]],
) -> None:
    model = reference.load(good)
    texts = []
    for seed in (0, 1, 2**31 - 1):
        state = reference.State(model, "f32", len(PROMPT) + NUM_TOKENS)
        hidden, ids = [state.feed(token) for token in PROMPT][-1], []
        for position in range(len(PROMPT) - 1, len(PROMPT) - 1 + NUM_TOKENS):
            ids.append(chosen(state.logits(hidden), position, temperature, top_k, top_p, seed))
            hidden = state.feed(ids[-1])
        options = ["--temperature", temperature, "--top_k", str(top_k), "--top_p", top_p]
        assert generate(good, "--ignore_eos", *options, "--seed", str(seed)) == ids
        texts.append(tuple(ids))
    assert (len(set(texts)) > 1) == (top_k != 1 and float(temperature) > 0.1)


@pytest.mark.parametrize("arch", ["aarch64", "riscv64"])
def test_every_board_gives_the_same_text(
    arch: str, good: Path, run_engine: Run, generate: Callable[..., list[int]]
) -> None:
    options = ["--ignore_eos", "--temperature", "1.5", "--top_p", "0.9", "--seed", "7"]
    named = ["--tokens", ",".join(map(str, PROMPT)), "--format", "ids", "--num_tokens"]
    result = run_engine(arch, "--model", good, *named, str(NUM_TOKENS), *options)
    assert result.status == 0, result.stderr
    assert [int(token) for token in result.stdout.split(",")] == generate(good, *options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--top_k", "3"], "--top_k, --top_p and --seed go with --temperature"),
        (["--temperature", "0.5x"], "--temperature is 0.5x, expected a number like 0.8"),
        (["--temperature", "-1"], "--temperature is -1, expected a number like 0.8"),
        (["--temperature", "101"], "temperature 101, top_k 0, top_p 0: expected 0 to 100"),
        (["--temperature", "1", "--top_p", "1.5"], "top_p 1.5: expected 0 to 100, 0 or more"),
    ],
)
def test_settings_that_make_no_sense(
    options: list[str], message: str, good: Path, run_engine: Run
) -> None:
    named: list[str | Path] = ["--model", good, "--tokens", "1", "--format", "ids"]
    result = run_engine("x86_64", *named, *options)
    assert (result.status, result.stdout) == (2, "")
    assert message in result.stderr
