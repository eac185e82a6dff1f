# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The golden model gives its literals: at every ISA level, and in two other programs."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.coverage import Coverage, Expert, proved_experts
from colibri_deploy.golden import Generation
from colibri_deploy.golden_model import (
    CHECKPOINT,
    SHA256,
    Golden,
    convert_golden_model,
    golden_coverage,
    load_goldens,
)
from colibri_deploy.process import Completed

GOLDENS = load_goldens()
LITERALS: list[dict[str, Any]] = json.loads((CHECKPOINT / "goldens.json").read_text())["prompts"]
N_LAYERS, N_EXPERTS = 4, 8
TOLERANCE = 5e-5  # between float32 here and there, for logits of up to 20

RunEngine = Callable[..., Completed]

each_golden = pytest.mark.parametrize("golden", GOLDENS, ids=range(len(GOLDENS)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted golden model."""
    directory = tmp_path_factory.mktemp("golden") / "model"
    convert_golden_model(directory)
    return directory


def generate(
    run_engine: RunEngine,
    golden: Golden,
    model: Path,
    isa: str,
    arch: str = "x86_64",
    cpu: str | None = None,
) -> Generation:
    """What the engine generates from a golden's prompt."""
    arguments = ("--model", model, *golden.prompt.arguments())
    done = run_engine(arch, *arguments, "--isa", isa, cpu=cpu)
    assert (done.status, done.stderr) == (0, "")
    generation = Generation.parse(done.stdout)
    assert generation.isa == isa
    return generation


def check(found: Generation, golden: Golden) -> None:
    """Everything that the golden says."""
    assert found.prompt_ids == golden.prompt_ids
    assert found.ids == golden.ids
    assert found.text == golden.text
    assert (found.logits_hash, found.kv) == (golden.logits_hash, golden.kv)


@pytest.mark.parametrize("isa", ["scalar", "sse42", "avx2", "avx512", "avx512_vnni"])
def test_tokens_text_and_hash_are_the_literals(
    isa: str,
    model: Path,
    run_engine: RunEngine,
    require_level: Callable[[str, str], None],
) -> None:
    require_level("x86_64", isa)
    for golden in GOLDENS:
        check(generate(run_engine, golden, model, isa), golden)


@pytest.mark.parametrize(
    ("arch", "isa", "cpu"),
    [
        ("aarch64", "neon_dotprod", "cortex-a76"),
        ("riscv64", "rvv", "rv64,v=true,vext_spec=v1.0,vlen=256"),
    ],
)
def test_they_are_on_other_architectures(
    arch: str, isa: str, cpu: str, model: Path, run_engine: RunEngine
) -> None:
    for golden in GOLDENS:
        check(generate(run_engine, golden, model, isa, arch, cpu), golden)


@each_golden
def test_the_program_written_from_the_documents_gives_them_too(golden: Golden, model: Path) -> None:
    ids, digest = reference.run(
        reference.load(model), golden.prompt_ids, len(golden.ids), golden.kv, ignore_eos=True
    )
    assert tuple(ids) == golden.ids
    assert f"clb1:{digest}" == golden.logits_hash


@pytest.mark.parametrize("literal", LITERALS, ids=range(len(LITERALS)))
def test_the_logits_are_those_of_transformers(
    literal: dict[str, Any], model: Path, run_engine: RunEngine
) -> None:
    """The largest ones, after the prompt and after the last token."""
    prompt_ids, ids = literal["prompt_ids"], literal["ids"]
    for tokens, expected in (
        (prompt_ids, literal["logits_after_prompt"]),
        (prompt_ids + ids, literal["logits_at_end"]),
    ):
        text = ",".join(map(str, tokens))
        done = run_engine("x86_64", "--model", model, "--tokens", text, "--logits")
        assert (done.status, done.stderr) == (0, "")
        logits = [float(word) for word in done.stdout.split()]
        assert len(logits) == 896
        assert len(expected) == 8
        for token, logit in expected:
            assert logits[token] == pytest.approx(logit, rel=0, abs=TOLERANCE)
        assert max(logits) == logits[expected[0][0]]


def test_the_hashes_prove_every_expert_as_transformers_routes(
    model: Path, run_engine: RunEngine, tmp_path: Path
) -> None:
    proved: set[Expert] = set()
    for golden in GOLDENS:
        path = tmp_path / "trace"
        arguments = ("--model", model, *golden.prompt.arguments())
        done = run_engine("x86_64", *arguments, "--trace_routing", path)
        assert Generation.parse(done.stdout).logits_hash == golden.logits_hash
        trace = path.read_text()
        assert len(trace.splitlines()) == N_LAYERS * (len(golden.prompt_ids) + len(golden.ids))
        found = proved_experts(trace, len(golden.prompt_ids), N_LAYERS)
        assert found == {(layer, e) for layer, of in enumerate(golden.experts) for e in of}
        proved |= found
    assert proved == set(itertools.product(range(N_LAYERS), range(N_EXPERTS)))


def test_a_prompt_crosses_the_border_of_a_chunk_of_attention() -> None:
    longest = max(GOLDENS, key=lambda golden: len(golden.prompt_ids))
    assert len(longest.prompt_ids) < 256 < len(longest.prompt_ids) + len(longest.ids) <= 320


def flip_lowest_bit(checkpoint: Path, tensor: str) -> None:
    """Of the first weight of a tensor in model.safetensors, bfloat16."""
    path = checkpoint / "model.safetensors"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    start, _ = json.loads(data[8 : 8 + size])[tensor]["data_offsets"]
    data[8 + size + start] ^= 1
    path.write_bytes(data)


def test_the_lowest_bit_of_a_weight_of_any_expert_changes_a_hash(
    run_engine: RunEngine, tmp_path: Path
) -> None:
    """Every checksum of the model is right, since it is converted after the change."""
    checkpoint = shutil.copytree(CHECKPOINT, tmp_path / "checkpoint")
    for layer, expert in itertools.product(range(N_LAYERS), range(N_EXPERTS)):
        matrix = ("w1", "w2", "w3")[(layer + expert) % 3]
        tensor = f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{matrix}.weight"
        flip_lowest_bit(checkpoint, tensor)
        convert_checkpoint(checkpoint, tmp_path / "model", force=True)
        flip_lowest_bit(checkpoint, tensor)
        for golden in GOLDENS:
            found = generate(run_engine, golden, tmp_path / "model", "scalar")
            proved = expert in golden.experts[layer]
            assert (found.logits_hash != golden.logits_hash) == proved, (tensor, golden.prompt)
    convert_checkpoint(checkpoint, tmp_path / "model", force=True)
    for golden in GOLDENS:
        check(generate(run_engine, golden, tmp_path / "model", "scalar"), golden)


def test_it_is_converted_to_the_bytes_that_boards_are_sent(model: Path) -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in model.iterdir()}
    assert found == SHA256


def test_the_literals_prove_as_many_experts_as_are_told() -> None:
    assert golden_coverage(GOLDENS) == Coverage(32, 32)
    assert golden_coverage(GOLDENS[2:3]) == Coverage(31, 32)


def test_the_checkpoint_is_small(model: Path) -> None:
    names = ("config.json", "model.safetensors", "tokenizer.json")
    assert sum((CHECKPOINT / name).stat().st_size for name in names) <= 1_200_000
    assert (model / "model.bin").stat().st_size <= 2_300_000
