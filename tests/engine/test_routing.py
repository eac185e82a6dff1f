# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The routing trace against the goldens of the reference implementation, and the warning of a
router that sends every token to the same expert."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from safetensors.numpy import load_file, save_file

from colibri_deploy.convert import DTypeChoice, convert_checkpoint
from colibri_deploy.process import Completed

PROMPT = [(7919 * i + 13) % 512 for i in range(40)]
WARNING = re.compile(
    r"colibri: warning: the router of layer (\d+): all (\d+) tokens of a batch went to "
    r"expert (\d+); likely causes: .+"
)

Models = Callable[[str, DTypeChoice], Path]
RunEngine = Callable[..., Completed]


class Route(NamedTuple):
    """One line of the trace."""

    layer: int
    position: int
    token: int
    experts: list[int]
    weights: list[float]


def read_trace(path: Path) -> list[Route]:
    """The lines of a trace, in order."""
    return [Route(**json.loads(line)) for line in path.read_text().splitlines()]


def write_trace(run_engine: RunEngine, model: Path, ids: list[int], path: Path, *args: str) -> str:
    """Runs the engine with --trace_routing, two tokens generated; its other output."""
    result = run_engine(
        "x86_64",
        *("--model", model, "--tokens", ",".join(map(str, ids)), "--format", "ids"),
        *("--num_tokens", "2", "--ignore_eos", "--logits_hash", "--trace_routing", path, *args),
    )
    assert (result.status, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize(("name", "n_prompts"), [("mixtral", 12), ("starcoder_moe", 11)])
def test_every_prompt_is_routed_as_the_reference_routes_it(
    name: str, n_prompts: int, shared: Path, models: Models, run_engine: RunEngine, tmp_path: Path
) -> None:
    golden = json.loads((shared / "fixtures" / name / "golden.json").read_text())
    prompts = [prompt for prompt in golden["prompts"] if not prompt.get("skipped")]
    assert len(prompts) == n_prompts
    for prompt in prompts:
        ids = prompt["input_ids"]
        trace = tmp_path / f"{prompt['index']}.jsonl"
        result = run_engine(
            "x86_64",
            *("--model", models(name, "keep"), "--tokens", ",".join(map(str, ids))),
            *("--num_tokens", "0", "--format", "ids", "--trace_routing", trace),
        )
        assert result.status == 0, result.stderr
        routes = {(route.layer, route.position): route for route in read_trace(trace)}
        assert len(routes) == len(golden["moe_layers"]) * len(ids)
        for layer, expected in prompt["routing"].items():
            rows = zip(ids, expected["experts"], expected["weights"], strict=True)
            for position, (token, experts, weights) in enumerate(rows):
                route = routes[int(layer), position]
                assert route.token == token
                assert route.experts == sorted(experts)
                by_expert = dict(zip(experts, weights, strict=True))
                assert dict(zip(route.experts, route.weights, strict=True)) == pytest.approx(
                    by_expert, rel=0, abs=1e-4
                )


def test_the_trace_has_every_token_that_was_fed_layer_by_layer(
    models: Models, run_engine: RunEngine, tmp_path: Path
) -> None:
    output = write_trace(
        run_engine, models("mixtral", "keep"), PROMPT, tmp_path / "t", "--batch", "16"
    )
    generated = [int(word) for word in output.splitlines()[0].split(",")]
    assert len(generated) == 2
    batches = [range(16), range(16, 32), range(32, 40), [40], [41]]  # both tokens are fed back
    assert [(route.layer, route.position) for route in read_trace(tmp_path / "t")] == [
        (layer, position) for batch in batches for layer in range(2) for position in batch
    ]
    fed = [*PROMPT, *generated]
    for route in read_trace(tmp_path / "t"):
        assert route.token == fed[route.position]
        assert route.experts == sorted(set(route.experts))
        assert sum(route.weights) == pytest.approx(1, abs=1e-6)


def test_the_trace_has_the_same_lines_for_every_batch_and_thread_count(
    models: Models, run_engine: RunEngine, tmp_path: Path
) -> None:
    model = models("synthetic", "q8")
    settings = [(1, 1), (7, 1), (7, 3), (40, 1), (40, 2)]
    traces, outputs = [], set()
    for batch, threads in settings:
        path = tmp_path / f"{batch}-{threads}"
        counts = ("--batch", str(batch), "--threads", str(threads))
        outputs.add(write_trace(run_engine, model, PROMPT, path, *counts))
        traces.append(path.read_text().splitlines())
    plain = run_engine(
        "x86_64",
        *("--model", model, "--tokens", ",".join(map(str, PROMPT)), "--format", "ids"),
        *("--num_tokens", "2", "--ignore_eos", "--logits_hash"),
    )
    assert outputs == {plain.stdout}  # tracing changes nothing
    assert len(traces[0]) == 2 * 42
    assert all(sorted(trace) == sorted(traces[0]) for trace in traces)
    assert traces[1] == traces[2]  # threads do not change the order either
    assert traces[3] == traces[4]


def test_a_dense_model_has_no_trace(models: Models, run_engine: RunEngine, tmp_path: Path) -> None:
    result = run_engine(
        "x86_64",
        *("--model", models("llama", "keep"), "--tokens", "1"),
        *("--trace_routing", tmp_path / "trace"),
    )
    assert result.status == 2
    assert result.stderr.endswith("--trace_routing: the model is dense, it routes nothing\n")
    assert not (tmp_path / "trace").exists()


def test_a_trace_that_cannot_be_written_is_an_error(
    models: Models, run_engine: RunEngine, tmp_path: Path
) -> None:
    ids = ",".join(map(str, PROMPT))
    for path in (tmp_path / "missing/trace", Path("/dev/full")):
        result = run_engine(
            "x86_64",
            *("--model", models("mixtral", "keep"), "--tokens", ids, "--trace_routing", path),
        )
        assert result.status == 3
        assert f"colibri: error: {path} cannot be written: " in result.stderr


@pytest.fixture
def collapsed(make_checkpoint: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """`collapsed(name, rows, **options)`: a model with `rows(router)` for the router of layer 1.

    A router is an array [experts, hidden].
    """

    def make(name: str, rows: Callable[[Any], Any], **options: int) -> Path:
        checkpoint = make_checkpoint(tmp_path / name / "checkpoint", **options)
        tensors = load_file(checkpoint / "model.safetensors")
        router = "model.layers.1.block_sparse_moe.gate.weight"
        tensors[router] = rows(tensors[router])
        save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
        convert_checkpoint(checkpoint, tmp_path / name / "model", "f32")
        return tmp_path / name / "model"

    return make


def run_tokens(run_engine: RunEngine, model: Path, n: int, *args: str) -> Completed:
    """n different prompt tokens and one generated one."""
    ids = ",".join(str(3 * i + 1) for i in range(n))
    return run_engine(
        "x86_64", "--model", model, "--tokens", ids, "--num_tokens", "1", "--format", "ids", *args
    )


def test_a_router_of_equal_rows_takes_the_lowest_experts_and_is_warned_of_once(
    collapsed: Callable[..., Path], run_engine: RunEngine, tmp_path: Path
) -> None:
    model = collapsed("equal", lambda rows: rows * 0 + rows[0], experts=8, top_k=2)
    trace = tmp_path / "trace"
    result = run_tokens(run_engine, model, 16, "--batch", "8", "--trace_routing", str(trace))
    assert result.status == 0
    (line,) = result.stderr.splitlines()  # two batches, one warning
    match = WARNING.fullmatch(line)
    assert match
    assert match.groups() == ("1", "8", "0")
    routes = [route for route in read_trace(trace) if route.layer == 1]
    assert len(routes) == 16
    assert all(route[3:] == ([0, 1], [0.5, 0.5]) for route in routes)


def test_few_tokens_sound_routers_and_too_few_experts_are_not_warned_of(
    collapsed: Callable[..., Path], run_engine: RunEngine, models: Models
) -> None:
    model = collapsed("all", lambda rows: rows * 0, experts=2, top_k=2)
    assert run_tokens(run_engine, model, 16).stderr == ""
    model = collapsed("one", lambda rows: rows * 0, experts=3, top_k=1)
    assert run_tokens(run_engine, model, 7).stderr == ""
    assert run_tokens(run_engine, model, 16, "--batch", "7").stderr == ""
    assert WARNING.match(run_tokens(run_engine, model, 8).stderr)
    for name in ("mixtral", "starcoder_moe", "llama"):
        assert run_tokens(run_engine, models(name, "keep"), 16).stderr == ""


@pytest.mark.parametrize("name", ["model.bin", "config.json"])
def test_a_trace_does_not_overwrite_the_model(
    name: str, run_engine: RunEngine, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    convert_checkpoint(make_checkpoint(tmp_path / "checkpoint"), model, "f32")
    before = (model / name).read_bytes()
    result = run_engine(
        "x86_64",
        *("--model", model, "--tokens", "1", "--format", "ids"),
        *("--trace_routing", model / name),
    )
    assert result.status == 2
    assert result.stderr == (
        f"colibri: error: --trace_routing would overwrite {model / name}, which this call reads\n"
    )
    assert (model / name).read_bytes() == before
