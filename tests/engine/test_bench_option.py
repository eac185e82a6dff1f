# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""--bench, --profile, --cpus and --realtime, and the memory that was used."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic import Shape, write_checkpoint

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.process import run
from colibri_deploy.targets import machine_arch

SHAPE = Shape(
    hidden=128, ffn=192, experts=8, top_k=2, layers=3, heads=4, kv_heads=2, vocab=160
)  # multiples of 64: no padding
OPERATIONS = ["other", "waiting", "norm", "quantise", "q, k, v", "attention", "o", "router"]
OPERATIONS += ["gate, up", "down", "head"]
SIZE, FFN, KV = SHAPE.hidden, SHAPE.ffn, SHAPE.hidden // SHAPE.heads * SHAPE.kv_heads
WEIGHTS = {  # that a token is multiplied by
    "q, k, v": SHAPE.layers * (SIZE + 2 * KV) * SIZE,
    "o": SHAPE.layers * SIZE * SIZE,
    "router": SHAPE.layers * SHAPE.experts * SIZE,
    "gate, up": SHAPE.layers * SHAPE.top_k * 2 * FFN * SIZE,
    "down": SHAPE.layers * SHAPE.top_k * SIZE * FFN,
    "head": SHAPE.vocab * SIZE,
}
Engine = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model in q8, not to be changed."""
    directory = tmp_path_factory.mktemp("bench")
    write_checkpoint(directory / "checkpoint", SHAPE)
    convert_checkpoint(directory / "checkpoint", directory / "model", "q8")
    return directory / "model"


@pytest.fixture
def measure(model: Path, engine: Callable[[str], Path]) -> Engine:
    """`measure(option...)` is what the engine prints, as JSON."""

    def result(*options: str) -> Any:
        command: list[str | Path] = [engine(machine_arch()), "--model", model, *options]
        return json.loads(run([*command, "--format", "json"]).stdout)

    return result


def q8_bytes(weights: int) -> int:
    """A byte for each weight and an f16 for each 32."""
    return weights * 34 // 32


def test_the_bytes_of_a_token_are_those_of_its_matrices(measure: Engine) -> None:
    found = measure("--bench", "--profile", "--num_tokens", "9", "--threads", "2")
    expected = {name: q8_bytes(weights) for name, weights in WEIGHTS.items()}
    expected["router"] = SHAPE.layers * 4 * 16 * SIZE  # f32, a tile of 16 rows
    decode = found["profile"]["decode"]
    assert list(decode) == OPERATIONS
    for name, in_all in expected.items():
        assert decode[name]["mb_per_token"] == pytest.approx(in_all / 1e6, abs=1e-4), name
    cache = found["megabytes_per_token"] - sum(expected.values()) / 1e6
    # keys and values in f16: of the position before, and half of those that are decoded
    assert cache == pytest.approx(SHAPE.layers * 2 * KV * 2 * 5.5 / 1e6, rel=0.1)


def test_the_products_of_a_token_are_its_weights(measure: Engine) -> None:
    profile = measure("--bench", "--profile", "--num_tokens", "9", "--threads", "2")["profile"]
    for phase, of_head in (("prefill", 64), ("decode", 1)):  # a prompt has one vector of logits
        for name, weights in WEIGHTS.items():
            one = profile[phase][name]
            rate, us = one["gop_per_second"], one["us_per_token"]
            expected = weights / (of_head if name == "head" else 1)
            rounding = 0.0005 * (rate + us) * 1e3 / 2  # three decimals of each
            products = pytest.approx(expected, rel=1e-5, abs=1.01 * rounding)
            assert rate * us * 1e3 / 2 == products, (phase, name)


def test_the_numbers_fit_together(measure: Engine) -> None:
    found = measure("--bench", "--num_tokens", "33", "--threads", "1")
    assert (found["threads"], found["decoded"], found["long_prompt"]) == (1, 33, 512)
    speed = found["decode_tokens_per_second"] * found["megabytes_per_token"] / 1e3
    assert found["decode_gb_per_second"] == pytest.approx(speed, rel=1e-6)
    share = 100 * speed / found["read_gb_per_second"]
    assert found["percent_of_read"] == pytest.approx(share, rel=1e-6)
    work = sum(WEIGHTS.values()) - WEIGHTS["head"] * 511 / 512
    rate = 2e-9 * found["long_tokens_per_second"]
    assert found["long_gop_per_second"] == pytest.approx(rate * work, rel=1e-6)
    at_peak = (work - WEIGHTS["router"]) / found["kernel_q8_gop_per_second"]
    at_peak += WEIGHTS["router"] / found["kernel_f32_gop_per_second"]
    assert found["percent_of_kernels"] == pytest.approx(100 * rate * at_peak, rel=1e-6)
    assert 0 < found["ms_p50"] <= found["ms_p99"] <= found["ms_p99.9"]
    assert found["major_faults"] == 0
    assert found["peak_rss_mb"] > 2.8  # the file


def test_a_profile_accounts_for_the_time_and_leaves_the_hash(measure: Engine) -> None:
    call = ["--tokens", "1,2,3", "--num_tokens", "40", "--ignore_eos", "--logits_hash"]
    call += ["--threads", "2"]
    plain, profiled = measure(*call), measure(*call, "--profile")
    assert profiled["logits_hash"] == plain["logits_hash"]
    us = sum(one["us_per_token"] for one in profiled["profile"]["decode"].values())
    assert us * 40 / 1e6 == pytest.approx(profiled["decode_seconds"], rel=0.02)
    assert "profile" not in plain
    head = q8_bytes(WEIGHTS["head"]) / 1e6
    unfed = measure(*call[:-3], *call[-2:], "--profile")  # the last token is not fed without a hash
    assert unfed["profile"]["decode"]["head"]["mb_per_token"] == pytest.approx(head, abs=1e-4)


def test_cpus_that_are_not_there_are_refused(
    model: Path, measure: Engine, engine: Callable[[str], Path]
) -> None:
    call = ("--tokens", "1", "--num_tokens", "2", "--ignore_eos")
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    assert len(measure(*call, "--cpus", cpus)["ids"]) == 2
    for wrong in ("", "a", "0,", "1023", f"{cpus},1023", "0-1"):
        command: list[str | Path] = [engine(machine_arch()), "--model", model, *call]
        result = run([*command, "--cpus", wrong], check=False)
        assert (result.status, result.stdout) == (2, "")
        assert result.stderr.startswith("colibri: error: --cpus ")


def test_realtime_is_had_or_refused(
    model: Path, engine: Callable[[str], Path], require_program: Callable[[str], Path]
) -> None:
    command: list[str | Path] = [engine(machine_arch()), "--model", model, "--tokens", "1"]
    command += ["--num_tokens", "2", "--format", "ids", "--realtime"]
    if os.geteuid() == 0:
        assert run(command).stderr == ""
        words = ["--bounding-set=-sys_nice", "--inh-caps=-all"]
        command = [require_program("setpriv"), *words, *command]
    result = run(["sh", "-c", 'ulimit -r 0 && exec "$@"', "sh", *command], check=False)
    assert (result.status, result.stdout) == (2, "")
    assert result.stderr.startswith("colibri: error: --realtime: ")
    assert "CAP_SYS_NICE" in result.stderr


def test_the_peak_memory_is_that_of_the_program_alone(measure: Engine) -> None:
    """Linux begins what getrusage tells with the memory of the process that began the program."""
    ballast = bytearray(os.urandom(1 << 20)) * 256
    found = measure("--tokens", "1", "--num_tokens", "1")
    assert 1 << 18 < found["peak_rss_bytes"] < len(ballast) // 4
