# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Bad input ends in one clear line and an exit code of its own."""

import json
import os
import shutil
import struct
import subprocess
import time
import zlib
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


def test_a_missing_file(run_engine: Run, tmp_path: Path) -> None:
    line = fails(run_engine, 3, "--model", tmp_path / "none", "--tokens", "1")
    assert line == f"{tmp_path}/none/config.json cannot be opened: No such file or directory"


def test_a_truncated_model(run_engine: Run, model: Path) -> None:
    path = model / "model.bin"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 1)
    line = fails(run_engine, 6, "--model", model, "--tokens", "1")
    assert line == f"{path} has {size - 1} bytes, its header says {size}: copy it again"


@pytest.mark.parametrize("size", [0, 1, 127])
def test_less_than_a_header(size: int, run_engine: Run, model: Path) -> None:
    with (model / "model.bin").open("r+b") as file:
        file.truncate(size)
    line = fails(run_engine, 6, "--model", model, "--tokens", "1")
    assert line.startswith(f"{model}/model.bin has {size} bytes")


def test_a_wrong_magic(run_engine: Run, model: Path) -> None:
    flip(model / "model.bin", 0)
    line = fails(run_engine, 5, "--model", model, "--tokens", "1")
    assert line == (
        f"{model}/model.bin is no Colibri model: it does not start with COLIBRIv1; "
        "make one with colibri-deploy convert"
    )


def test_a_newer_version(run_engine: Run, model: Path) -> None:
    with (model / "model.bin").open("r+b") as file:
        file.seek(16)
        file.write(struct.pack("<I", 2))
    line = fails(run_engine, 5, "--model", model, "--tokens", "1")
    assert line.endswith("has format version 2, this Colibri reads 1: a newer one is needed")


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


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("n_experts", '"8 "', '"n_experts" is "8 ", expected an integer (digits without quotes)'),
        ("n_experts", "3.0", '"n_experts" is 3.0, expected an integer (digits without quotes)'),
        ("n_experts", "513", '"n_experts" is 513, expected 0 to 512'),
        ("top_k", "1e400", '"top_k" is 1e400, expected an integer (digits without quotes)'),
        ("norm_eps", "1e400", '"norm_eps" is 1e400: more than 15 digits, or beyond 1e-22 to 1e22'),
        ("norm_eps", "0.0", '"norm_eps" is 0, expected a positive float'),
        (
            "norm_eps",
            "0.1000000000000001",
            '"norm_eps" is 0.1000000000000001: more than 15 digits, or beyond 1e-22 to 1e22',
        ),
        ("eos_ids", "[1, null]", '"eos_ids" is null, expected an integer (digits without quotes)'),
        ("n_layers", '2, "n_layers": 2', '"n_layers" stands there twice'),
        ("norm_eps", "999999999999999e15", '"norm_eps" is 1e+30, expected a positive float'),
        (
            "architecture",
            '"a\x1b[31m"',
            'the string at a?[31m" is not closed, holds an escape or is too long',
        ),
    ],
)
def test_a_wrong_value_in_the_configuration(
    key: str, value: str, message: str, run_engine: Run, model: Path
) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    lines = [f'"{name}": {value if name == key else json.dumps(config[name])}' for name in config]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    line = fails(run_engine, 4, "--model", model, "--tokens", "1")
    assert line == f"{path} line {2 + list(config).index(key)}: {message}"


def test_a_key_that_is_unknown_or_missing(run_engine: Run, model: Path) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"gate_scale": 2}), encoding="utf-8")
    line = fails(run_engine, 4, "--model", model, "--tokens", "1")
    assert 'unknown key "gate_scale": it may change what the model computes' in line
    del config["rope_scale"]
    path.write_text(json.dumps(config), encoding="utf-8")
    line = fails(run_engine, 4, "--model", model, "--tokens", "1")
    assert line == f'{path}: the key "rope_scale" is missing; convert the model again'


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("top_k", 4, "top_k is larger than n_experts"),
        ("n_kv_heads", 3, "n_heads is no multiple of n_kv_heads"),
        ("hidden_size", 48, "the two files do not belong together"),
        ("vocab_size", 49, "the two files do not belong together"),
        ("architecture", "", "architecture is empty"),
        ("rope_dim", 5, "rope_dim is odd or larger than head_dim"),
        ("rope_dim", 4096, "rope_dim is odd or larger than head_dim"),
        ("rope_kind", "thirds", '"rope_kind" is "thirds", expected one of: half pairs'),
        ("rope_kind", "hal", '"rope_kind" is "hal", expected one of: half pairs'),
        ("activation", "swiglu_oai", "activation_limit and swiglu_oai go together"),
        ("router_score", "sparsemixer", "router_jitter and sparsemixer go together"),
        ("router_jitter", 0.01, "router_jitter and sparsemixer go together"),
        ("latent_norm_eps", 1e-6, "kv_rank, q_rank, v_dim and latent_norm_eps do not fit"),
        ("n_groups", 2, "n_groups and top_groups do not fit n_experts and top_k"),
        ("top_groups", 2, "top_groups is larger than n_groups"),
        ("window_layers", [1, 1], "not layers in ascending order"),
        ("window_layers", [7], "not layers in ascending order"),
        ("dense_layers", [0], "dense_layers and dense_ffn_size do not fit"),
        ("dense_ffn_size", 64, "dense_layers and dense_ffn_size do not fit"),
        ("kv_rank", 32, "kv_rank, q_rank, v_dim and latent_norm_eps do not fit each other"),
        ("q_rank", 32, "kv_rank, q_rank, v_dim and latent_norm_eps do not fit each other"),
    ],
)
def test_a_configuration_that_does_not_fit(
    key: str, value: object, message: str, run_engine: Run, model: Path
) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {key: value}), encoding="utf-8")
    assert message in fails(run_engine, 4, "--model", model, "--tokens", "1")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"router_score": "sparsemixer", "router_jitter": 0.01, "n_experts": 4, "n_groups": 2}
            | {"top_groups": 1},
            "sparsemixer needs a top_k of 2 and no groups",
        ),
        (
            {"kv_rank": 32, "v_dim": 8, "latent_norm_eps": 1e-6, "n_kv_heads": 1, "rope_dim": 4}
            | {"qk_clip": 1},
            "qk_clip does not go with kv_rank",
        ),
    ],
)
def test_keys_that_do_not_go_together(
    changes: dict[str, object], message: str, run_engine: Run, model: Path
) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | changes), encoding="utf-8")
    assert message in fails(run_engine, 4, "--model", model, "--tokens", "1")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rope_dim", 0, "the section rope is not part of a model with this config.json"),
        ("shared_ffn_size", 64, "has no section shared_up_weights"),
    ],
)
def test_sections_that_do_not_fit(
    key: str, value: int, message: str, run_engine: Run, model: Path
) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {key: value}), encoding="utf-8")
    assert message in fails(run_engine, 5, "--model", model, "--tokens", "1")


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
        (["--tokens", "1", "--prompt", "a"], "give one of --prompt, --prompt_file and --tokens"),
        (["--kv", "q4"], "--kv is q4, expected auto, f32, f16 or q8"),
        (["--nll", "--logits"], "give one of --tokenize, --detokenize, --logits and --nll"),
        (
            ["--model", "x", "--tokens", "1", "--logits", "--format", "json"],
            "--tokenize, --detokenize, --logits and --nll generate nothing: they go neither with "
            "--num_tokens nor with --format json",
        ),
        (
            ["--model", "x", "--tokens", "1", "--tokenize", "--logits_hash"],
            "--tokenize and --detokenize compute nothing: they go neither with --logits_hash nor "
            "with --trace_routing",
        ),
        (["--model", "x", "--detokenize", "--prompt", "a"], "--detokenize takes ids"),
        (["--model", "x", "--detokenize", "--chat"], "--detokenize takes ids"),
        *(
            (
                ["--model", "x", "--chat", *words],
                "--chat goes with none of --tokens, --prompt_file, --logits, --nll and --format",
            )
            for words in (["--tokens", "1"], ["--prompt_file", "a"], ["--nll"], ["--format", "ids"])
        ),
        *(
            (["--model", "x", "--prompt", "a", *words], "--system and --turn_end go with --chat")
            for words in (["--system", "b"], ["--turn_end", "c"])
        ),
        (
            ["--model", "x", "--verify", "--tokenize"],
            "give a prompt with --prompt, --prompt_file or --tokens; see --help",
        ),
        (
            ["--model", "x"],
            "give a prompt with --prompt, --prompt_file or --tokens; see --help",
        ),
    ],
)
def test_a_wrong_command_line(arguments: list[str], message: str, run_engine: Run) -> None:
    assert fails(run_engine, 2, *arguments) == message


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("1,x", '--tokens: "x" is no list of token ids like 1,2,3'),
        ("-1", '--tokens: "-1" is no list of token ids like 1,2,3'),
        ("1,50", "token 1 of the prompt is 50; the model has the ids 0 to 49"),
        ("", "the prompt has no tokens; give at least one, for instance the BOS id"),
    ],
)
def test_a_prompt_that_the_model_cannot_take(
    tokens: str, message: str, run_engine: Run, model: Path
) -> None:
    line = fails(run_engine, 11, "--model", model, "--tokens", tokens, "--format", "ids")
    assert line == message


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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e30])
def test_a_frequency_that_gives_no_angle(value: float, run_engine: Run, model: Path) -> None:
    path = model / "model.bin"
    data = bytearray(path.read_bytes())
    struct.pack_into("<f", data, section(path, "rope")[0] + 4, value)
    path.write_bytes(reseal(data, "rope"))
    line = fails(run_engine, 5, "--model", model, "--tokens", "1", "--format", "ids")
    assert "value 1 of the section rope" in line


def test_text_without_a_tokenizer(run_engine: Run, model: Path) -> None:
    line = fails(run_engine, 11, "--model", model, "--prompt", "Hello")
    assert line.startswith("this model has no tokenizer; give token ids with --tokens")


def test_infinite_weights_are_an_error_not_a_result(run_engine: Run, model: Path) -> None:
    # An activation that overflows: the embedding is finite, its norm is not.
    path = model / "model.bin"
    offset, _, _ = section(path, "final_norm")
    data = bytearray(path.read_bytes())
    data[offset : offset + 4] = struct.pack("<f", float("inf"))
    path.write_bytes(reseal(data, "final_norm"))
    line = fails(run_engine, 10, "--model", model, "--tokens", "1", "--format", "ids")
    assert line.startswith("NaN or Inf in the logits at position 0")


def reseal(data: bytearray, name: str) -> bytes:
    """The file with the checksums of one section with one item, and of the tables, made anew."""
    n_sections, n_items = struct.unpack_from("<II", data, 24)
    crcs = 128 + 128 * n_sections
    for entry in range(n_sections):
        at = 128 + 128 * entry
        if data[at : at + 32].rstrip(b"\0") == name.encode():
            offset, size = struct.unpack_from("<Q16xQ", data, at + 56)
            first_crc = struct.unpack_from("<I", data, at + 88)[0]
            crc = zlib.crc32(data[offset : offset + size])
            struct.pack_into("<I", data, crcs + 4 * first_crc, crc)
    struct.pack_into("<I", data, 60, zlib.crc32(data[crcs : crcs + 4 * n_items]))
    struct.pack_into("<I", data, 124, zlib.crc32(data[:124]))
    return bytes(data)


@pytest.mark.parametrize("kind", ["directory", "fifo", "missing"])
def test_a_model_that_is_no_regular_file(
    kind: str, run_engine: Run, model: Path, tmp_path: Path
) -> None:
    path = model / "model.bin"
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    line = fails(run_engine, 3, "--model", model, "--tokens", "1")
    assert line.startswith(str(path))
    assert line.endswith("is not a regular file") == (kind != "missing")


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
