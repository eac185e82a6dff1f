# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`bench`: what the engine on a board measures of itself comes back as table, JSON and JUnit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from board_fixtures import Place
from loopback import free_port

from colibri_deploy.bench import Bench, earlier_benches
from colibri_deploy.errors import EngineError, FileMissingError
from colibri_deploy.process import Completed

Deploy = Callable[..., Completed]

SHORT = ("--num-tokens", "8", "--threads", "1")
SAID = '{"isa": "avx2", "kv": "f16", "threads": 2, "decode_tokens_per_second": 8.5}'


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
    old = {"verb": "bench", "boards": [{"board": "desk", "bench": found}]}
    (tmp_path / "slow.json").write_text(json.dumps(old))
    words = (*place.arguments, *SHORT, "--compare", "slow.json")
    again = deploy("bench", *words, "--json")
    assert again.status == 0
    (now,) = json.loads(again.stdout)["boards"]
    decoded = now["bench"]["figures"]["decode_tokens_per_second"]
    slow = figures["decode_tokens_per_second"]
    assert now["ratio"]["decode"] == pytest.approx(decoded / slow)
    assert now["emulated"] is False

    other = deploy("bench", *words, "--isa", "scalar")
    title, row = rows_of(other)
    assert title[-4:] == ["decode", "x", "prefill", "x"]
    assert row[:3] == ["desk", "scalar", "1"]
    assert row[-4:] == ["other", "isa", "other", "isa"]
    _, row = rows_of(deploy("bench", *words, "--num-tokens", "9"))
    assert row[-4:] == ["other", "num-tokens", "other", "num-tokens"]


def test_a_rack_is_measured_as_far_as_it_answers(
    board: Place, deploy: Deploy, tmp_path: Path
) -> None:
    port = free_port()
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


def test_an_emulated_boards_speed_is_called_so(
    deploy: Deploy, small_model: Path, tmp_path: Path
) -> None:
    note = "sim:host is emulated: its speed says nothing of a real one.\n"
    words = ("bench", "--board", "sim:host", *SHORT, "--model", small_model)
    done = deploy(*words, "--json", "found.json")
    assert done.status == 0
    assert done.stdout.endswith(note)
    assert boards_in(tmp_path / "found.json")["sim:host"]["emulated"] is True
    failed = deploy(*words, "--isa", "neon9")
    assert (failed.status, failed.stdout) == (48, "")


def test_what_cannot_be_measured_or_compared_is_refused(
    deploy: Deploy, small_model: Path, tmp_path: Path
) -> None:
    assert deploy("bench").status == 2
    old = {"verb": "bench", "boards": [{"board": "desk", "bench": measured_before()}]}
    (tmp_path / "desk.json").write_text(json.dumps(old))
    for name, said in (
        ("none.json", "none.json cannot be read: No such file or directory"),
        ("/bin/true", "/bin/true is not what `colibri-deploy bench --json FILE` writes"),
        ("desk.json", "desk.json has no speeds of this machine"),
    ):
        done = deploy("bench", "--model", small_model, "--compare", name)
        assert (done.status, done.stderr) == (3, f"error: {said}\n")
    done = deploy("bench", "--model", tmp_path / "none", PATH="")  # without a compiler
    assert done.status == 3
    assert str(tmp_path / "none") in done.stderr


def measured_before(**others: object) -> dict[str, object]:
    """A measurement as --json writes it."""
    figures = {"decode_tokens_per_second": 8.5}
    one = {"model": "0" * 64, "isa": "avx2", "threads": 2, "kv": "f16", "figures": figures}
    return {**one, **others}


@pytest.mark.parametrize(
    "text",
    [
        "\x7fELF\xff",
        "[" * 200_000,
        json.dumps([measured_before()]),
        json.dumps({"verb": "smoke", "boards": []}),
        json.dumps({"verb": "bench", "boards": 3}),
        *(
            json.dumps({"verb": "bench", "boards": [{"board": "desk", "bench": wrong}]})
            for wrong in (
                {"isa": 1},
                measured_before(figures=[]),
                measured_before(figures={"decode_tokens_per_second": "8.5"}),
                measured_before(figures={"decode_tokens_per_second": float("nan")}),
                measured_before(threads=None),
                measured_before(model="\x1b[31m"),
                measured_before(more=1),
            )
        ),
    ],
    ids=lambda text: text[:60],
)
def test_another_file_is_not_compared_with(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FileMissingError, match="is not what `colibri-deploy bench --json FILE` wr"):
        earlier_benches(path)


def test_a_board_that_is_not_in_the_file_is_told(
    sshd: Callable[..., Place], deploy: Deploy, small_model: Path, tmp_path: Path
) -> None:
    old = {"verb": "bench", "boards": [{"board": "desk", "bench": measured_before()}]}
    (tmp_path / "old.json").write_text(json.dumps(old))
    place = sshd("desk")
    words = ("--board", "sim:host", *SHORT, "--model", small_model, "--compare", "old.json")
    rows = rows_of(deploy("bench", *place.arguments, *words))
    assert [row[0] for row in rows[:3]] == ["board", "desk", "sim:host"]
    assert rows[1][-4:] == ["other", "model", "other", "model"]
    assert rows[2][-6:] == ["not", "in", "file", "not", "in", "file"]


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        (SAID, ""),
        (SAID, "[" * 200_000),
        (SAID, '["isa"]'),
        (SAID, "null"),
        ("2,", "1e999,"),
        ("2,", "NaN,"),
        ("2,", '"2",'),
        ("2,", "[2],"),
        ("2,", f"{10**400},"),
        ("2,", "-2,"),
        ("8.5", "NaN"),
        ("8.5", "-8.5"),
        ("8.5", "1e300"),
        ("8.5", '"8.5"'),
        ("8.5", f"{10**400}"),
        ("8.5", "{}"),
        ('"avx2"', "1"),
        ("avx2", "\\u001b[31m"),
        ("f16", "f16\\n"),
        ("decode", "\\u009b31m"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_measurement_is_refused(said: str, instead: str) -> None:
    good = Bench.parse(SAID, "0" * 64)
    assert (good.isa, good.kv, good.threads) == ("avx2", "f16", 2)
    with pytest.raises(EngineError, match=r"^the engine prints '.*' as its speeds$") as caught:
        Bench.parse(SAID.replace(said, instead), "0" * 64)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "head -c 200000 /dev/zero | tr '\\0' '['",
            f"the engine prints '{'[' * 80}' as its speeds",
        ),
        ("yes", "the engine on desk prints more than 1 MiB"),
        (
            r"printf '\033]0;a\007b\r\nd\302\233e\n' >&2; exit 3",
            "the engine on desk ends with status 3\n?]0;a?b\nd?e",
        ),
    ],
)
def test_an_engine_that_says_what_it_likes_harms_nobody(
    script: str, said: str, board: Place, deploy: Deploy, tmp_path: Path
) -> None:
    board.stored("colibri").write_text(f"#!/bin/sh\n{script}\n")
    done = deploy("bench", *board.arguments, "--json", "out.json", "--junit", "out.xml")
    assert (done.status, done.stdout) == (48, "")
    assert done.stderr == f"error: {said}\n"
    assert boards_in(tmp_path / "out.json")["desk"]["error"]["code"] == 48
    assert ElementTree.parse(tmp_path / "out.xml").find(".//failure") is not None


def test_this_machine_has_no_more_time_than_it_is_given(deploy: Deploy, small_model: Path) -> None:
    done = deploy("bench", "--num-tokens", "512", "--model", small_model, "--timeout", "0.05")
    assert done.status == 46
    assert done.stderr.endswith("error: this machine takes longer than 0.05 s\n")
