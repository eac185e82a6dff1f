# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The independent reference program gives the engine's bits."""

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import reference
import reference_file
import safetensors.numpy
import synthetic_families
from goldens import (
    ACROSS_CHUNKS,
    ACROSS_CHUNKS_HASHES,
    FROM_ONE_TOKEN,
    FROM_ONE_TOKEN_HASHES,
    PROMPT,
    Key,
)
from synthetic import Shape, write_checkpoint
from synthetic_families import KINDS, MIXED, values, write_family

from colibri_deploy.convert import DTypeChoice, convert_checkpoint
from colibri_deploy.process import Completed, run

Models = Callable[[str, DTypeChoice], Path]


@pytest.mark.parametrize(
    ("name", "dtype", "kv"),
    [
        ("mixtral", "f32", "f32"),
        ("mixtral", "keep", "f16"),
        ("mixtral", "f16", "f32"),
        ("mixtral", "q8", "f32"),
        ("mixtral", "q8", "f16"),
        ("mixtral", "q4", "f32"),
        ("mixtral", "mxfp4", "f16"),
        ("mixtral", "q8", "q8"),
        ("starcoder_moe", "keep", "f32"),
        ("starcoder_moe", "q8", "f16"),
        ("llama", "keep", "f32"),
        ("llama", "q8", "f16"),
        ("llama", "q4", "f16"),
        ("llama", "mxfp4", "q8"),
        ("llama", "keep", "q8"),
        ("synthetic", "q8", "f16"),
        ("synthetic", "q4", "f16"),
        ("synthetic", "mxfp4", "q8"),
    ],
)
def test_a_program_written_from_the_documents_gives_the_same_hash(
    name: str,
    dtype: DTypeChoice,
    kv: str,
    root: Path,
    models: Callable[[str, DTypeChoice], Path],
    run_engine: Callable[..., Completed],
) -> None:
    arguments: list[str | Path] = [
        *("--model", models(name, dtype), "--tokens", ",".join(map(str, PROMPT))),
        *("--num_tokens", "2", "--ignore_eos", "--kv", kv),
    ]
    reference = run([sys.executable, root / "tests/golden/reference.py", *arguments])
    engine = run_engine("x86_64", *arguments, "--format", "ids", "--logits_hash")
    assert engine.stdout == reference.stdout
    assert len(engine.stdout.split("clb1:")[1]) == len(f"{64 * 'f'} kv:{kv}\n")


@pytest.mark.parametrize("key", list(FROM_ONE_TOKEN_HASHES), ids="-".join)
def test_the_literals_are_what_it_prints(key: Key, models: Models) -> None:
    """The literals to which test_hashes.py holds the engine."""
    model = reference.load(models(*key))
    for sequence, hashes in (
        (FROM_ONE_TOKEN, FROM_ONE_TOKEN_HASHES),
        (ACROSS_CHUNKS, ACROSS_CHUNKS_HASHES),
    ):
        n_generated = sequence.length - len(sequence.prompt)
        for kv, expected in hashes.get(key, {}).items():
            _, found = reference.run(model, sequence.prompt, n_generated, kv, ignore_eos=True)
            assert found == expected, kv


@pytest.fixture(scope="session")
def family_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """`family_models(kind, dtype)` is a model of synthetic_families.py, made once a session."""

    @functools.cache
    def made(kind: str, dtype: str) -> Path:
        path = tmp_path_factory.mktemp("families") / "model"
        write_family(kind, dtype, path)
        return path

    return made


SHORT = 24  # longer than the windows
TWO_CHUNKS = 261  # of attention
THREE_CHUNKS = 515
TYPES = [("f32", "f32"), ("q8", "f16"), (MIXED, "q8")]  # of the weights and of the cache


@pytest.mark.parametrize(
    ("kind", "dtype", "kv", "length"),
    [(kind, *types, SHORT) for kind in KINDS for types in TYPES]
    + [("gpt_oss", "q4", "f16", TWO_CHUNKS), ("latent_sinks", "mxfp4", "q8", TWO_CHUNKS)]
    + [("dense", "q8", "f16", THREE_CHUNKS), ("latent_sinks", "f32", "f32", THREE_CHUNKS)],
)
def test_every_kind_of_model_gives_the_same_hash(
    kind: str,
    dtype: str,
    kv: str,
    length: int,
    family_models: Callable[[str, str], Path],
    run_engine: Callable[..., Completed],
) -> None:
    model = reference.load(family_models(kind, dtype))
    tokens = [(7919 * i * i + 13) % 997 % model.config["vocab_size"] for i in range(length)]
    ids, digest = reference.run(model, tokens, 2, kv)
    printed = f"{','.join(map(str, ids))}\nlogits_hash: clb1:{digest} kv:{kv}\n"
    arguments = [
        *("--model", family_models(kind, dtype), "--tokens", ",".join(map(str, tokens))),
        *("--num_tokens", "2", "--kv", kv, "--format", "ids", "--logits_hash"),
    ]
    for batch, threads in (("1", "3"), ("1", "2"), ("7", "2"), ("4096", "2")):
        engine = run_engine("x86_64", *arguments, "--batch", batch, "--threads", threads)
        assert (engine.status, engine.stderr, engine.stdout) == (0, "", printed), batch


@pytest.mark.parametrize(
    ("mask", "status"),
    # the least f32 masks an expert; two in a group make the group's rank infinite
    [({0: -5.0, 3: -3.4028234663852886e38}, 0), ({0: -3.4028234663852886e38}, 10)],
)
def test_an_expert_of_a_group_that_is_left_out_is_not_chosen(
    mask: dict[int, float],
    status: int,
    run_engine: Callable[..., Completed],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def masked(name: str, item: int, shape: reference_file.Shape) -> reference.F32:
        found = values(name, item, shape)
        if name == "router_correction":  # 12 experts in 4 groups, of which 2 are kept
            found[:] = 0
            found[0, :3] = mask[0]
            found[0, 3::3] = mask.get(3, 0.0)
        return found

    monkeypatch.setattr(synthetic_families, "values", masked)
    write_family("deepseek_v3", "f32", tmp_path / "model")
    tokens = list(range(1, 10))
    named = [
        "--model",
        tmp_path / "model",
        "--tokens",
        ",".join(map(str, tokens)),
        "--format",
        "ids",
    ]
    engine = run_engine("x86_64", *named, "--num_tokens", "2", "--logits_hash")
    assert engine.status == status
    if status:
        assert "NaN or Inf in the router of layer 1 at position 0" in engine.stderr
        with pytest.raises(ArithmeticError, match="the rank of a group is not finite"):
            reference.run(reference.load(tmp_path / "model"), tokens, 2, "f32")
    else:
        ids, digest = reference.run(reference.load(tmp_path / "model"), tokens, 2, "f32")
        assert engine.stdout == f"{','.join(map(str, ids))}\nlogits_hash: clb1:{digest} kv:f32\n"


# Two layers, so that what earlier positions see bears on the last logits; two heads share a key.
SMALL = Shape(hidden=32, ffn=40, experts=3, top_k=2, layers=2, heads=4, kv_heads=2, vocab=50)
LENGTHS = (1, 255, 256, 257, 512, 513)
# The oldest position that is seen is before, at and after the border of a chunk of 256.
WINDOWED_LENGTHS = {
    1: (1, 2, 17, 257),
    3: (3, 4, 16, 257, 258, 259, 300),
    16: (16, 17, 257, 271, 272, 273, 300),
    255: (255, 256, 257, 258, 300),
    256: (256, 257, 258, 300),
    257: (257, 258, 259, 300),
}


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> dict[DTypeChoice, Path]:
    """The same small model in f32 and in q8."""
    directory = tmp_path_factory.mktemp("small")
    write_checkpoint(directory / "checkpoint", SMALL)
    made: dict[DTypeChoice, Path] = {"f32": directory / "f32", "q8": directory / "q8"}
    for dtype, path in made.items():
        convert_checkpoint(directory / "checkpoint", path, dtype)
    return made


@np.errstate(all="ignore")
def reference_logits(model: Path, kv: str, lengths: tuple[int, ...]) -> dict[int, reference.F32]:
    """The logits after the first so many tokens of a prompt."""
    state = reference.State(reference.load(model), kv, max(lengths))
    result = {}
    for length, token in enumerate(prompt(max(lengths)), start=1):
        x = state.feed(token)
        if length in lengths:
            result[length] = state.logits(x)
    return result


def prompt(length: int) -> list[int]:
    """So many tokens of the small model."""
    return [(7919 * i * i + 13) % 997 % SMALL.vocab for i in range(length)]


@pytest.mark.parametrize(("dtype", "kv"), [("f32", "f32"), ("q8", "f16"), ("f32", "q8")])
@pytest.mark.parametrize("window", [0, *WINDOWED_LENGTHS])
def test_windows_and_lengths_at_the_borders_of_chunks(
    window: int,
    dtype: DTypeChoice,
    kv: str,
    small_models: dict[DTypeChoice, Path],
    run_engine: Callable[..., Completed],
    tmp_path: Path,
) -> None:
    config = json.loads((small_models[dtype] / "config.json").read_text(encoding="utf-8"))
    assert config["sliding_window"] == 0
    text = json.dumps(config | {"sliding_window": window})
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    (tmp_path / "model.bin").symlink_to(small_models[dtype] / "model.bin")
    lengths = WINDOWED_LENGTHS.get(window, LENGTHS)
    for length, expected in reference_logits(tmp_path, kv, lengths).items():
        ids = ",".join(map(str, prompt(length)))
        for batch in ("1", "7", "4096"):
            arguments = ("--model", tmp_path, "--tokens", ids, "--batch", batch, "--kv", kv)
            result = run_engine("x86_64", *arguments, "--logits")
            assert (result.status, result.stderr) == (0, "")
            logits = np.array(result.stdout.split(), np.float32)
            assert np.array_equal(logits, expected), (length, batch)


def test_windows_change_the_logits(
    small_models: dict[DTypeChoice, Path], run_engine: Callable[..., Completed], tmp_path: Path
) -> None:
    """A window of so many positions is not one of one more: what a prompt shows is not luck."""
    config = json.loads((small_models["f32"] / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "model.bin").symlink_to(small_models["f32"] / "model.bin")
    ids = ",".join(map(str, prompt(300)))
    seen = set()
    for window in (0, 3, 4, 16, 255, 256, 257, 299):
        text = json.dumps(config | {"sliding_window": window})
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        seen.add(run_engine("x86_64", "--model", tmp_path, "--tokens", ids, "--logits").stdout)
    assert len(seen) == 8


def test_a_score_of_minus_infinity_weighs_nothing(
    root: Path, tmp_path: Path, run_engine: Callable[..., Completed]
) -> None:
    """The keys of token 0 overflow against the query of token 1: a chunk full of such scores."""
    shape = Shape(hidden=32, ffn=16, experts=0, top_k=0, layers=1, heads=1, kv_heads=1, vocab=16)
    write_checkpoint(tmp_path / "checkpoint", shape)
    (file,) = (tmp_path / "checkpoint").glob("*.safetensors")
    tensors = safetensors.numpy.load_file(file)
    place = "model.layers.0.self_attn"
    overflowing = {
        "model.embed_tokens.weight": {(0, 0): 1.0, (1, 1): 1.0},
        f"{place}.k_proj.weight": {(15, 0): -3e25},  # a slow element: RoPE leaves its sign alone
        f"{place}.q_proj.weight": {(15, 1): 1e20},
    }
    for name, places in overflowing.items():
        tensors[name] = np.zeros_like(tensors[name])
        for where, value in places.items():
            tensors[name][where] = value
    safetensors.numpy.save_file(tensors, file)
    convert_checkpoint(tmp_path / "checkpoint", tmp_path / "model", "f32")
    ids = ",".join(["0"] * 256 + ["1"])
    arguments: list[str | Path] = [
        *("--model", tmp_path / "model", "--tokens", ids, "--num_tokens", "1", "--ignore_eos"),
        *("--kv", "f32"),
    ]
    reference = run([sys.executable, root / "tests/golden/reference.py", *arguments])
    engine = run_engine("x86_64", *arguments, "--format", "ids", "--logits_hash")
    assert (engine.status, engine.stdout) == (0, reference.stdout)
