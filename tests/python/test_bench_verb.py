# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`bench`: what the engine on a board measures of itself comes back as table, JSON and JUnit."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from board_fixtures import Place

from colibri_deploy.process import Completed

Deploy = Callable[..., Completed]

SHORT = ("--num-tokens", "8", "--threads", "1")


@pytest.fixture
def board(sshd: Callable[..., Place], deploy: Deploy, small_model: Path) -> Place:
    """A board behind OpenSSH's server, called desk, with a model."""
    place = sshd("desk")
    assert deploy("push", *place.arguments, "--model", small_model).status == 0
    return place


def boards_in(path: Path) -> dict[str, Any]:
    """The boards of a file of results, by name."""
    return {board["board"]: board for board in json.loads(path.read_text())["boards"]}


def rows_of(done: Completed) -> list[list[str]]:
    """The cells of a table, its title first."""
    return [line.split() for line in done.stdout.splitlines() if line.strip(" ─")]


def test_a_model_is_pushed_measured_and_compared_with_before(
    sshd: Callable[..., Place], deploy: Deploy, small_model: Path, tmp_path: Path
) -> None:
    place = sshd("desk")
    first = deploy("bench", *place.arguments, *SHORT, "--model", small_model, "--json", "old.json")
    assert (first.status, first.stderr) == (0, "")
    measured = boards_in(tmp_path / "old.json")["desk"]
    found = measured["bench"]
    assert found["model"] == hashlib.sha256((small_model / "model.bin").read_bytes()).hexdigest()
    assert [step["name"] for step in measured["steps"]] == ["connect", "push", "measure"]
    figures = found["figures"]
    assert (found["threads"], figures["decoded"], figures["rounds"]) == (1, 8, 5)
    title, row = rows_of(first)
    assert " ".join(title) == (
        "board ISA level threads decode tokens/s of read prefill tokens/s of kernels p50 ms p99 ms"
    )
    assert row == [
        *("desk", found["isa"], "1", f"{figures['decode_tokens_per_second']:,.1f}"),
        *(f"{figures['percent_of_read']:.0f}", "%"),
        f"{figures['long_tokens_per_second']:,.1f}",
        *(f"{figures['percent_of_kernels']:.0f}", "%"),
        *(f"{figures[name]:,.2f}" for name in ("ms_p50", "ms_p99")),
    ]

    # A time ten times as long as it was: the ratio says so.
    figures["decode_tokens_per_second"] /= 10
    old = {"boards": [{"board": "desk", "bench": found}]}
    (tmp_path / "slow.json").write_text(json.dumps(old))
    words = (*place.arguments, *SHORT, "--compare", "slow.json")
    again = deploy("bench", *words, "--json")
    assert again.status == 0
    (now,) = json.loads(again.stdout)["boards"]
    decoded = now["bench"]["figures"]["decode_tokens_per_second"]
    slow = figures["decode_tokens_per_second"]
    assert now["ratio"]["decode"] == pytest.approx(decoded / slow)
    assert now["ratio"]["decode"] > 2

    other = deploy("bench", *words, "--isa", "scalar")
    title, row = rows_of(other)
    assert title[-4:] == ["decode", "x", "prefill", "x"]
    assert row[:3] == ["desk", "scalar", "1"]
    assert row[-4:] == ["other", "isa", "other", "isa"]


def test_a_rack_is_measured_as_far_as_it_answers(
    board: Place, deploy: Deploy, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    path = tmp_path / "boards.yaml"
    path.write_text(
        f"{path.read_text()}    limits: {{threads: 1}}\n"
        f"  gone:\n    target: host\n    host: 127.0.0.1\n    port: {port}\n"
    )
    words = ("--board", "gone", "--num-tokens", "8", "--junit", "junit.xml", "--json", "all.json")
    done = deploy("bench", *board.arguments, *words)
    assert done.status == 45
    assert "error: 1 of 2 boards failed: gone at connect" in done.stderr
    assert [row[0] for row in rows_of(done)] == ["board", "desk"]
    boards = boards_in(tmp_path / "all.json")
    assert boards["desk"]["bench"]["threads"] == 1
    assert "bench" not in boards["gone"]
    cases = ElementTree.parse(tmp_path / "junit.xml").iterfind(".//testcase[@name='measure']")
    measured = {
        one.get("name"): float(one.get("value", "")) for one in next(cases).iter("property")
    }
    assert measured["ms_p50"] == pytest.approx(boards["desk"]["bench"]["figures"]["ms_p50"])


def test_what_the_engine_refuses_is_told(board: Place, deploy: Deploy) -> None:
    done = deploy("bench", *board.arguments, "--isa", "neon9")
    assert (done.status, done.stdout) == (48, "")
    error, said = done.stderr.splitlines()
    assert error == "error: the engine on desk ends with status 8"
    assert said.startswith("colibri: error: ")
    assert "neon9" in said


def test_an_emulated_board_without_a_model_is_told_to_get_one(
    sim: Callable[..., Place], deploy: Deploy
) -> None:
    place = sim()
    assert deploy("push", *place.arguments).status == 0
    done = deploy("bench", *place.arguments)
    assert done.status == 42
    assert done.stderr.endswith(" has no model: push one with --model DIR\n")


def test_without_a_board_this_machine_is_measured(deploy: Deploy, small_model: Path) -> None:
    done = deploy("bench", *SHORT, "--model", small_model)
    assert done.status == 0
    assert [" ".join(row[:2]) for row in rows_of(done)] == ["board ISA", "this machine"]


def test_an_emulated_boards_speed_is_called_so(deploy: Deploy, small_model: Path) -> None:
    done = deploy("bench", "--board", "sim:host", *SHORT, "--model", small_model)
    assert done.status == 0
    assert done.stdout.endswith("sim:host is emulated: its speed says nothing of a real one.\n")


def test_what_cannot_be_measured_or_compared_is_refused(
    deploy: Deploy, small_model: Path, tmp_path: Path
) -> None:
    assert deploy("bench").status == 2
    (tmp_path / "other.json").write_text('{"boards": [{"board": "desk", "bench": {"isa": 1}}]}')
    for name, said in (
        ("none.json", "none.json cannot be read: No such file or directory"),
        ("other.json", "other.json is not what `colibri-deploy bench --json FILE` writes"),
    ):
        done = deploy("bench", "--model", small_model, "--compare", name)
        assert (done.status, done.stderr) == (3, f"error: {said}\n")
