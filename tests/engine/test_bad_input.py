# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Bad input ends in one clear line and an exit code of its own: what bad_inputs.py cannot show."""

import json
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.process import Completed

Run = Callable[..., Completed]


@pytest.fixture
def model(tmp_path: Path, make_checkpoint: Callable[..., Path]) -> Path:
    """A small model of its own for each test: 3 experts, 2 used, 2 layers."""
    convert_checkpoint(make_checkpoint(tmp_path / "checkpoint"), tmp_path / "model", "f32")
    return tmp_path / "model"


def fails(run_engine: Run, code: int, *arguments: str | Path) -> str:
    """The one line that the engine prints when it ends with `code`."""
    result = run_engine("x86_64", *arguments)
    assert (result.status, result.stdout) == (code, "")
    assert result.stderr.startswith("colibri: error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("colibri: error: ").strip()


def flip(path: Path, offset: int) -> None:
    """Flips the lowest bit of one byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def section(path: Path, name: str) -> tuple[int, int, int]:
    """Offset, layer stride and expert stride of a section, read from the table."""
    data = path.read_bytes()
    for entry in range(struct.unpack_from("<I", data, 24)[0]):
        at = 128 + 128 * entry
        if data[at : at + 32].rstrip(b"\0") == name.encode():
            offset, layer_stride, expert_stride = struct.unpack_from("<QQQ", data, at + 56)
            return offset, layer_stride, expert_stride
    raise AssertionError(name)


@pytest.mark.parametrize("offset", [40, 130, 128 + 128 * 3 + 60])
def test_a_flipped_bit_in_the_tables(offset: int, run_engine: Run, model: Path) -> None:
    flip(model / "model.bin", offset)
    line = fails(run_engine, 7, "--model", model, "--tokens", "1")
    assert "does not match its checksum: the file is damaged, copy or convert it again" in line


@pytest.mark.parametrize("name", ["embeddings", "attention_q", "router", "rope", "final_norm"])
def test_a_flipped_bit_in_a_section(name: str, run_engine: Run, model: Path) -> None:
    flip(model / "model.bin", section(model / "model.bin", name)[0])
    line = fails(run_engine, 7, "--model", model, "--tokens", "1")
    assert f"section {name}, layer 0, expert 0 does not match its checksum" in line


def test_a_flipped_bit_in_an_unused_expert_is_found_by_verify(
    run_engine: Run, tmp_path: Path, make_checkpoint: Callable[..., Path]
) -> None:
    # Experts of more than 8 MiB in all: loading alone does not read them.
    shape = {"hidden": 256, "ffn": 1024, "experts": 9, "layers": 1, "heads": 4}
    big = make_checkpoint(tmp_path / "big", max_positions=65536, **shape)
    convert_checkpoint(big, tmp_path / "model", "f32")
    arguments: list[str | Path] = ["--model", tmp_path / "model", "--tokens", "1,2,3"]
    arguments += ["--num_tokens", "0", "--format", "ids", "--logits_hash", "--threads", "1"]
    before = run_engine("x86_64", *arguments)
    path = tmp_path / "model" / "model.bin"
    offset, _, stride = section(path, "up_weights")
    hashes = []
    for expert in range(9):
        flip(path, offset + expert * stride)
        hashes.append(run_engine("x86_64", *arguments).stdout)
        line = fails(run_engine, 7, "--model", tmp_path / "model", "--verify")
        assert f"section up_weights, layer 0, expert {expert} does not match" in line
        flip(path, offset + expert * stride)
    # 3 tokens use at most 6 of 9 experts: damage in the others leaves the hash as it was.
    assert hashes.count(before.stdout) >= 3
    verified = run_engine("x86_64", "--model", tmp_path / "model", "--verify")
    assert verified.stdout == "verified: every checksum of the model matches\n"
    # The background check reads gate_weights and up_weights in less time than this call takes.
    flip(path, offset + 8 * stride)
    arguments = ["--model", tmp_path / "model", "--tokens", "1,2,3", "--num_tokens", "60000"]
    line = fails(run_engine, 7, *arguments, "--ignore_eos", "--threads", "1", "--format", "ids")
    assert line == (
        "model.bin: section up_weights, layer 0, expert 8 does not match its checksum: "
        "the file is damaged, copy or convert it again"
    )


def test_an_isa_level_that_the_cpu_lacks(run_engine: Run, model: Path) -> None:
    arguments = ("--model", model, "--tokens", "1", "--isa", "avx2")
    result = run_engine("x86_64", *arguments, cpu="Nehalem")
    assert result.status == 8
    assert result.stderr == (
        "colibri: error: this CPU cannot run the ISA level avx2: it lacks osxsave; "
        "leave out --isa to get the best level that it can run\n"
    )
    result = run_engine("x86_64", *arguments[:4], "--format", "ids", cpu="Nehalem")
    assert (result.status, result.stderr) == (0, "")


def test_an_isa_level_that_the_build_lacks(run_engine: Run, model: Path) -> None:
    line = fails(run_engine, 8, "--model", model, "--tokens", "1", "--isa", "neon")
    assert line == (
        "this program has no kernels for the ISA level neon; it has: "
        "scalar sse42 avx2 avx512 avx512_vnni"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modle", "x"], "unknown option --modle; see --help"),
        (["model"], "unknown option model; see --help"),
        (["--model"], "--model needs a value (PATH)"),
        (["--num-tokens", "-1"], "--num_tokens is -1, expected a number from 0"),
        (["--num_tokens=8x"], "--num_tokens is 8x, expected a number from 0"),
        (["--format", "xml"], "--format is xml, expected text, ids or json"),
        (["--ignore-eos=1"], "--ignore_eos takes no value"),
        (["--tokens", "1"], "name a model with --model; see --help"),
        *(
            (words, "give one of --prompt, --prompt_file, --tokens and --bench")
            for words in (["--tokens", "1", "--prompt", "a"], ["--bench", "--tokens", "1"])
        ),
        (["--kv", "q4"], "--kv is q4, expected auto, f32, f16 or q8"),
        *(
            (words, "give one of --tokenize, --detokenize, --logits, --nll and --bench")
            for words in (["--nll", "--logits"], ["--nll", "--bench"])
        ),
        (
            ["--model", "x", "--tokens", "1", "--logits", "--format", "json"],
            "--tokenize, --detokenize, --logits and --nll generate nothing: they go with none of "
            "--num_tokens, --turn_end and --format json",
        ),
        (
            ["--model", "x", "--chat", "--tokenize", "--turn_end", "c"],
            "--tokenize, --detokenize, --logits and --nll generate nothing: they go with none of "
            "--num_tokens, --turn_end and --format json",
        ),
        *(
            (
                ["--model", "x", *words],
                "--tokenize, --detokenize and --bench go with none of --logits_hash, "
                "--trace_routing and, but for --bench, --profile",
            )
            for words in (
                ["--tokens", "1", "--tokenize", "--logits_hash"],
                ["--bench", "--logits_hash"],
                ["--bench", "--trace_routing", "a"],
                ["--tokens", "1", "--tokenize", "--profile"],
                ["--detokenize", "--profile"],
            )
        ),
        (["--model", "x", "--detokenize", "--prompt", "a"], "--detokenize takes ids"),
        (["--model", "x", "--detokenize", "--chat"], "--detokenize takes ids"),
        *(
            (
                ["--model", "x", "--chat", *words],
                "--chat goes with none of --tokens, --prompt_file, --logits, --nll, --bench and "
                "--format",
            )
            for words in (
                *(["--tokens", "1"], ["--prompt_file", "a"], ["--nll"], ["--format", "ids"]),
                ["--bench"],
            )
        ),
        *(
            (["--model", "x", "--prompt", "a", *words], "--system and --turn_end go with --chat")
            for words in (["--system", "b"], ["--turn_end", "c"])
        ),
        *(
            (
                ["--model", "x", *words],
                "give a prompt with --prompt, --prompt_file or --tokens; see --help",
            )
            for words in ([], ["--verify", "--tokenize"], ["--verify", "--profile"])
        ),
    ],
)
def test_a_wrong_command_line(arguments: list[str], message: str, run_engine: Run) -> None:
    assert fails(run_engine, 2, *arguments) == message


def test_a_prompt_that_is_too_long(run_engine: Run, model: Path) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps(config | {"max_positions": 8}), encoding="utf-8")
    arguments = ("--model", model, "--tokens", "1,2,3,4", "--format", "ids", "--num_tokens")
    assert run_engine("x86_64", *arguments, "4").status == 0
    line = fails(run_engine, 11, *arguments, "5")
    assert line.startswith("4 prompt tokens and 5 new ones are more than the 8 positions")


def test_a_likelihood_needs_two_tokens(run_engine: Run, model: Path) -> None:
    line = fails(run_engine, 11, "--model", model, "--tokens", "1", "--nll")
    assert line.startswith("--nll needs a prompt of at least two tokens")


def test_text_without_a_tokenizer(run_engine: Run, model: Path) -> None:
    line = fails(run_engine, 11, "--model", model, "--prompt", "Hello")
    assert line.startswith("this model has no tokenizer; give token ids with --tokens")


def test_hyphens_and_underscores_are_the_same(run_engine: Run, model: Path) -> None:
    outputs = {
        run_engine("x86_64", "--model", model, "--tokens", "1,2", *spelling).stdout
        for spelling in (
            ("--num_tokens", "3", "--ignore_eos", "--format", "ids"),
            ("--num-tokens", "3", "--ignore-eos", "--format", "ids"),
            ("--num-tokens=3", "--ignore_eos", "--format=ids"),
        )
    }
    assert len(outputs) == 1
    assert len(outputs.pop().split(",")) == 3


def test_the_two_files_can_be_named_apart(run_engine: Run, model: Path, tmp_path: Path) -> None:
    shutil.move(model / "config.json", tmp_path / "other.json")
    named = ("--model", model / "model.bin", "--config", tmp_path / "other.json")
    assert run_engine("x86_64", *named, "--tokens", "1", "--format", "ids").status == 0
    line = fails(run_engine, 2, "--model", model / "model.bin", "--tokens", "1")
    assert line.endswith("model.bin is not a directory; name its config.json with --config")


def test_a_file_that_becomes_shorter_in_use(
    engine: Callable[[str], Path], model: Path, tmp_path: Path
) -> None:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    text = json.dumps(config | {"max_positions": 500_000})
    (model / "config.json").write_text(text, encoding="utf-8")
    trace = tmp_path / "trace.jsonl"
    command: list[str | Path] = [
        engine("x86_64"),
        "--model",
        model,
        "--tokens",
        "1",
        "--ignore_eos",
    ]
    command += ["--num_tokens", "400000", "--format", "ids", "--trace_routing", trace]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not (trace.exists() and trace.stat().st_size) and process.poll() is None:
            time.sleep(0.01)
        os.truncate(model / "model.bin", 70_000)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (6, b"")
    assert b"model.bin became shorter while it was in use" in stderr
