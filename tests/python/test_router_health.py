# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What weights tell about routers: numbers, and warnings where every token goes one way."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.model import Model
from colibri_deploy.process import run
from colibri_deploy.router_health import RouterHealth, router_health

Arrays = dict[str, npt.NDArray[Any]]

ROUTER = "model.layers.1.block_sparse_moe.gate.weight"  # [3, 32]
NORM = "model.layers.1.post_attention_layernorm.weight"
EMBEDDINGS = "model.embed_tokens.weight"  # [50, 32]


def health_of(checkpoint: Path, change: Callable[[Arrays], object], dtype: Any) -> RouterHealth:
    path = checkpoint / "model.safetensors"
    arrays: Arrays = load_file(path)
    change(arrays)
    save_file(arrays, path)
    convert_checkpoint(checkpoint, checkpoint.with_name("m"), dtype)
    health = router_health(Model.open(checkpoint.with_name("m")))
    assert health is not None
    return health


def test_a_layer_has_the_numbers_of_its_weights(checkpoint: Path) -> None:
    found: Arrays = {}
    health = health_of(checkpoint, found.update, "f32")
    assert health.warnings == []
    rows = found[ROUTER].astype(np.float64) * found[NORM]
    layer = health.layers[1]
    assert layer.layer == 1
    lengths = np.linalg.norm(rows, axis=1)
    assert layer.smallest_row == pytest.approx(lengths.min(), rel=1e-6)
    assert layer.largest_row == pytest.approx(lengths.max(), rel=1e-6)
    # Logits of many inputs of independent elements deviate by the scale.
    inputs = np.random.default_rng(1).standard_normal((20_000, 32))
    logits = inputs @ rows.T
    apart = logits - logits.mean(axis=1, keepdims=True)
    assert layer.logit_scale == pytest.approx(np.sqrt((apart**2).mean()), rel=0.02)
    norms = np.sqrt(np.square(found[EMBEDDINGS].astype(np.float64)).mean(axis=1))
    rms = health.embeddings
    assert rms.smallest == pytest.approx(norms.min(), rel=1e-6)
    assert rms.median == pytest.approx(np.median(norms), rel=1e-6)
    assert rms.largest == pytest.approx(norms.max(), rel=1e-6)
    assert rms.lost == ()


def no_router(arrays: Arrays) -> None:
    arrays[ROUTER][:] = 0


def one_direction(arrays: Arrays) -> None:
    arrays[ROUTER][:] = arrays[ROUTER][0]


def one_element(arrays: Arrays) -> None:
    arrays[NORM][7] = 100


def too_large(arrays: Arrays) -> None:
    arrays[ROUTER] *= np.float32(1000)


def a_twin(arrays: Arrays) -> None:
    arrays[ROUTER][2] = arrays[ROUTER][0]


def tiny_embeddings(arrays: Arrays) -> None:
    arrays[EMBEDDINGS][:40] *= np.float32(1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_router, "layer 1: the router's logits differ by 0 only, so that every token goes to"),
        (one_direction, "layer 1: the router's logits differ by "),
        (one_element, "layer 1: element 7 of the input makes "),
        (too_large, "so that one expert has nearly all the weight"),
        (a_twin, "layer 1: the router's rows 2 equal an earlier one"),
        (tiny_embeddings, "40 of 50 embeddings are too small for the norms to scale up"),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "q8"])
def test_what_sends_every_token_one_way_is_told(
    change: Callable[[Arrays], None], message: str, dtype: str, checkpoint: Path
) -> None:
    health = health_of(checkpoint, change, dtype)
    assert any(message in warning for warning in health.warnings), health.warnings
    if change is tiny_embeddings:
        assert health.embeddings.lost == tuple(range(40))


def test_a_bias_that_decides_alone_is_told(shared: Path, tmp_path: Path) -> None:
    """GPT-OSS has a bias of the router's logits."""
    source = shared / "fixtures" / "gpt_oss"
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_bytes((source / "config.json").read_bytes())
    data = bytearray((source / "model.safetensors").read_bytes())
    length = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8 : 8 + length])["model.layers.1.mlp.router.bias"]
    start, end = (8 + length + offset for offset in entry["data_offsets"])
    bias = np.zeros((end - start) // 2, "<u2")  # bf16
    bias[[3, 5]] = 0x4270  # 60
    data[start:end] = bias.tobytes()
    (checkpoint / "model.safetensors").write_bytes(data)
    convert_checkpoint(checkpoint, tmp_path / "m")
    model = Model.open(tmp_path / "m")
    health = router_health(model)
    assert health is not None
    assert model.config.top_k == 2
    assert [warning[:56] for warning in health.warnings] == [
        "layer 1: a bias sends every token to the experts 3, 5; l"
    ]


def test_inspect_and_convert_show_it(checkpoint: Path, tmp_path: Path) -> None:
    path = checkpoint / "model.safetensors"
    arrays: Arrays = load_file(path)
    no_router(arrays)
    save_file(arrays, path)

    def deploy(*args: str | Path) -> tuple[str, str]:
        done = run([sys.executable, "-m", "colibri_deploy", *args])
        return done.stdout, done.stderr

    _, told = deploy("convert", checkpoint, "-o", tmp_path / "m")
    warning = (
        "layer 1: the router's logits differ by 0 only, so that every token goes to the experts of "
        "the lowest numbers; the router was not trained or not saved"
    )
    assert told == f"warning: {warning}\n"
    shown, _ = deploy("inspect", tmp_path / "m", "--routers")
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "1 0 0 0 0 (0.0%)" in lines
    assert lines[-1] == warning
    record = json.loads(deploy("inspect", tmp_path / "m", "--routers", "--json")[0])
    assert record["routers"]["layers"][1]["warnings"] == [warning]
    assert record["routers"]["layers"][0]["warnings"] == []
