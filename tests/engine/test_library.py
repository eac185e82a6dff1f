# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The promises of colibri.h, checked by a C program that links the library (test_library.c)."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from synthetic import Shape, write_checkpoint

from colibri_deploy.convert import DTypeChoice, convert_checkpoint
from colibri_deploy.golden_model import convert_golden_model
from colibri_deploy.model_file import ModelFile
from colibri_deploy.process import run
from colibri_deploy.targets import machine_arch

SOURCES = ("library_checks", "test_library", "test_library_files", "test_library_quiet")
SHAPE = Shape(
    hidden=32, ffn=40, experts=3, top_k=2, layers=2, heads=4, kv_heads=2, vocab=50,
    max_positions=1_000_000,
)  # fmt: skip


@pytest.fixture(scope="module")
def program(
    root: Path, meson_build: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The C program, linked with the library."""
    arch = machine_arch()
    path = tmp_path_factory.mktemp("library") / "test_library"
    command: list[str | Path] = [
        *(sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-musl", "-static"),
        *("-std=c17", "-O1", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-frounding-math"),
        *("-fno-builtin", "-fno-sanitize=undefined", "-I", root / "src"),
        *(root / "tests/engine" / f"{name}.c" for name in SOURCES),
        meson_build(arch) / "src/libcolibri.a",
        *("-o", path, "-lpthread", "-lm"),
    ]
    run(command)
    return path


@pytest.fixture(scope="module")
def library_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small model in f32 and q8, and one whose logits are so small that they are subnormal."""
    directory = tmp_path_factory.mktemp("models")
    checkpoint = directory / "checkpoint"
    write_checkpoint(checkpoint, SHAPE)

    def converted(name: str, dtype: DTypeChoice) -> Path:
        convert_checkpoint(checkpoint, directory / name, dtype)
        return directory / name

    made = {dtype: converted(dtype, dtype) for dtype in ("f32", "q8")}
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.norm.weight"] *= np.float32(2.0**-133)
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    return made | {"subnormal": converted("subnormal", "f32")}


@pytest.mark.parametrize(
    ("check", "model"),
    [
        ("threads", "f32"),
        ("threads", "q8"),
        ("signals", "q8"),
        ("modes", "f32"),
        ("modes", "q8"),
        ("modes", "subnormal"),
        ("stop", "q8"),
        ("turns", "f32"),
        ("turns", "q8"),
        ("load_errors", "f32"),
        ("infer_errors", "f32"),
        ("infer_errors", "q8"),
    ],
)
def test_a_promise_is_kept(
    check: str, model: str, program: Path, library_models: dict[str, Path]
) -> None:
    result = run([program, check, library_models[model]], check=False)
    assert (result.status, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.parametrize("how", ["1", "2", "3", "1lock", "2lock", "3lock"])
@pytest.mark.parametrize("model", ["f32", "q8"])
def test_nothing_is_asked_of_the_kernel_between_the_first_token_and_the_last(
    model: str, how: str, program: Path, library_models: dict[str, Path]
) -> None:
    """No system call but those of a thread that waits, no memory; and no page, with the lock."""
    result = run([program, "quiet", library_models[model], how], check=False)
    assert (result.status, result.stderr) == (0, "")
    n_faults = int(result.stdout.removesuffix(" page faults\n"))
    # 600 tokens go through three chunks of the cache, each of 16 pages or more
    assert n_faults == 0 if how.endswith("lock") else n_faults >= 32


@pytest.mark.parametrize("kind", ["other config", "truncated", "damaged table", "damaged item"])
def test_a_refused_model_leaves_nothing_behind(
    kind: str, program: Path, library_models: dict[str, Path], tmp_path: Path
) -> None:
    config = json.loads((library_models["f32"] / "config.json").read_text(encoding="utf-8"))
    data = bytearray((library_models["f32"] / "model.bin").read_bytes())
    if kind == "other config":
        config["vocab_size"] = 49
    elif kind == "truncated":
        del data[-1]
    else:
        data[200 if kind == "damaged table" else -1] ^= 1
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "model.bin").write_bytes(data)
    result = run([program, "refused", tmp_path], check=False)
    assert (result.status, result.stdout, result.stderr) == (0, "", "")


def test_a_file_that_becomes_shorter_is_an_error(
    program: Path, library_models: dict[str, Path], tmp_path: Path
) -> None:
    model = shutil.copytree(library_models["f32"], tmp_path / "model")
    assert (model / "model.bin").stat().st_size > 4 * 70_000  # there is something to lose
    result = run([program, "shorter", model], check=False)
    assert (result.status, result.stdout, result.stderr) == (0, "", "")


def test_damage_in_a_large_section_is_found_while_the_model_is_used(
    program: Path, tmp_path: Path, make_checkpoint: Callable[..., Path]
) -> None:
    shape = {"hidden": 256, "ffn": 1024, "experts": 9, "layers": 1, "heads": 4}
    convert_checkpoint(make_checkpoint(tmp_path / "big", **shape), tmp_path / "model", "f32")
    path = tmp_path / "model" / "model.bin"
    down = ModelFile.open(path).section("down_weights")
    assert down.size > 8 << 20
    with path.open("r+b") as file:
        file.seek(down.item_offset(0, 8) + down.item_size - 1)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([last ^ 1]))
    result = run([program, "damaged", tmp_path / "model"], check=False)
    assert (result.status, result.stdout, result.stderr) == (0, "", "")


def test_a_tokenizer_whose_file_becomes_shorter_is_an_error(program: Path, tmp_path: Path) -> None:
    convert_golden_model(tmp_path / "model")
    with (tmp_path / "model" / "model.bin").open("rb") as file:
        table = file.read(128 * 257)
    last = table[128 * int.from_bytes(table[24:28], "little") :][:128]
    assert last.startswith(b"tokenizer\0")
    assert int.from_bytes(last[80:88], "little") > 24_000  # its size: the cut is within it
    result = run([program, "shorter_tokenizer", tmp_path / "model"], check=False)
    assert (result.status, result.stdout, result.stderr) == (0, "", "")
