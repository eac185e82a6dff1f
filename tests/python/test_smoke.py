# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`smoke` and `test`: what was pushed is proved on the board, and what is wrong there is found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from board_fixtures import Place, report_of

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.golden import Generation
from colibri_deploy.golden_model import SHA256
from colibri_deploy.process import Completed, run
from colibri_deploy.sim import Faults

Deploy = Callable[..., Completed]


@pytest.fixture
def board(sim: Callable[..., Place], deploy: Deploy, small_model: Path) -> Place:
    """An emulated board of this machine's kind that has the engine and the small model."""
    place = sim()
    done = deploy("push", *place.arguments, "--model", small_model)
    assert done.status == 0, done.stderr
    return place


def outcomes(done: Completed) -> dict[str, str]:
    """What became of each step, from the JSON."""
    return {step["name"]: step["outcome"] for step in report_of(done, "smoke")["steps"]}


PASSED = dict.fromkeys(("version", "sha256", "verify", "selftest", "golden", "model"), "passed")


def test_what_was_pushed_passes(board: Place, deploy: Deploy, small_model: Path) -> None:
    done = deploy("smoke", *board.arguments, "--model", small_model, "--json")
    assert (done.status, done.stderr) == (0, "building x86_64 (host)\n")
    record = report_of(done, "smoke")
    assert (record["ok"], outcomes(done)) == (True, PASSED)
    generated = record["generated"]
    assert generated["prompt_ids"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(generated["ids"]) == 16
    assert generated["logits_hash"] == record["golden"]["logits_hash"]
    words = ["--tokens", "1,2,3,4,5,6,7,8", "--num_tokens", "16", "--logits_hash", "--ignore_eos"]
    direct = run([board.current / "colibri", "--model", board.current, "--format", "ids", *words])
    ids, last = direct.stdout.splitlines()
    assert ids == ",".join(map(str, generated["ids"]))
    assert last == f"logits_hash: {generated['logits_hash']} kv:f32"


SIZES = 2_254_828 + 380  # bytes of the golden model


def golden_detail(done: Completed) -> str:
    """What the step `golden` says."""
    (step,) = (s for s in report_of(done, "smoke")["steps"] if s["name"] == "golden")
    return str(step["detail"])


def test_the_golden_model_is_sent_once_and_goes_with_the_rest(
    sim: Callable[..., Place], deploy: Deploy, build_dir: Path
) -> None:
    place = sim()
    assert deploy("push", *place.arguments).status == 0
    proved = "128 tokens, text and logits hashes of 4 prompts; they prove 32 of 32 experts"
    done = deploy("smoke", *place.arguments, "--json")
    assert (done.status, golden_detail(done)) == (0, f"{proved}; {SIZES:,} bytes sent")
    path = build_dir / "host" / "colibri"
    changed = path.read_bytes() + b"\0"
    path.unlink()
    path.write_bytes(changed)
    for _ in range(3):  # then none of the first release's files is needed
        path.write_bytes(path.read_bytes() + b"\0")
        assert deploy("push", *place.arguments).status == 0
    done = deploy("smoke", *place.arguments, "--json")
    assert (done.status, golden_detail(done)) == (0, proved)
    assert deploy("undeploy", *place.arguments).status == 0
    assert not place.root.exists()


def test_a_golden_model_that_was_cut_goes_on_where_it_ended(
    sim: Callable[..., Place], deploy: Deploy, root: Path
) -> None:
    assert deploy("push", *sim().arguments).status == 0
    script = (root / "colibri_deploy" / "board.sh").stat().st_size
    place = sim("host", Faults(cut_after=10 * script + SIZES // 2))
    done = deploy("smoke", *place.arguments)
    assert done.status == 29
    assert "lost the connection" in done.stderr
    place = sim()
    (partial,) = place.partials()
    there = partial.stat().st_size
    assert 0 < there < SIZES
    done = deploy("smoke", *place.arguments, "--json")
    assert done.status == 0
    assert golden_detail(done).endswith(f"; {SIZES - there:,} bytes sent")
    assert place.partials() == []


def test_a_damaged_golden_model_is_no_reason_to_go_back_and_is_sent_again(
    board: Place, deploy: Deploy, small_model: Path, build_dir: Path
) -> None:
    path = build_dir / "host" / "colibri"
    changed = path.read_bytes() + b"\0"
    path.unlink()
    path.write_bytes(changed)
    words = (*board.arguments, "--model", small_model)
    assert deploy("push", *words).status == 0
    assert deploy("smoke", *words).status == 0
    release = board.current.readlink()
    damage(board.root / "store" / SHA256["model.bin"], 1_500_000)
    done = deploy("smoke", *words, "--json")
    assert (done.status, outcomes(done)) == (37, {**PASSED, "golden": "failed"})
    assert "at golden: the golden model on the board is damaged: model.bin is" in done.stderr
    assert board.current.readlink() == release
    done = deploy("smoke", *words, "--json")
    assert (done.status, outcomes(done)) == (0, PASSED)
    assert golden_detail(done).endswith("; 2,254,828 bytes sent")


def test_what_is_measured_is_recorded_and_shown(
    board: Place, deploy: Deploy, small_model: Path, tmp_path: Path
) -> None:
    words = ("--json", "out.json", "--junit", "out.xml")
    done = deploy("smoke", *board.arguments, "--model", small_model, *words)
    assert done.status == 0, done.stderr
    (record,) = json.loads((tmp_path / "out.json").read_text())["boards"]
    figures = {step["name"]: step["figures"] for step in record["smoke"]["steps"]}
    assert {name for name, measured in figures.items() if measured} == {"golden", "model"}
    assert (figures["golden"]["prompt_tokens"], figures["model"]["prompt_tokens"]) == (239, 8)
    for name in ("golden", "model"):
        measured = figures[name]
        assert 0 < measured["load_seconds"] < 10
        assert measured["prefill_tokens_per_s"] > 0
        assert measured["decode_tokens_per_s"] > 0
        assert 500_000 < measured["peak_rss_bytes"] < 100_000_000
        case = ElementTree.parse(tmp_path / "out.xml").find(f".//testcase[@name='{name}']")
        assert case is not None
        told = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        assert told == {k: f"{v:.10g}" for k, v in measured.items() if v is not None}
    rows = [line.split() for line in done.stdout.splitlines()]
    shown = {row[0]: row for row in rows if row[:1] in (["golden"], ["model"]) and len(row) == 7}
    assert shown.keys() == {"golden", "model"}
    assert float(shown["golden"][5]) == pytest.approx(
        figures["golden"]["peak_rss_bytes"] / 2**20, abs=0.06
    )


def test_the_result_for_people_ends_with_tokens_hash_and_verified(
    board: Place, deploy: Deploy, small_model: Path
) -> None:
    words = ("--tokens", "7,8", "--num-tokens", "3")
    done = deploy("smoke", *board.arguments, "--model", small_model, *words)
    assert done.status == 0
    *_, tokens, speed, logits, verdict = done.stdout.splitlines()
    assert tokens.startswith("tokens ")
    assert tokens.count(",") == 2
    assert " tokens/s on the board (" in speed
    assert logits.startswith("logits_hash: clb1:")
    assert verdict == "verified"


def test_without_a_model_here_only_the_engine_is_verified(board: Place, deploy: Deploy) -> None:
    done = deploy("smoke", *board.arguments, "--json")
    assert done.status == 0
    assert outcomes(done) == {**PASSED, "model": "skipped"}
    done = deploy("smoke", *board.arguments)
    assert done.stdout.endswith("\nthe engine is verified; no model was compared\n")
    assert "no model here to compare with: give --model DIR" in done.stdout


def test_an_engine_alone_is_tested_as_far_as_it_goes(
    sim: Callable[..., Place], deploy: Deploy
) -> None:
    place = sim()
    assert deploy("push", *place.arguments).status == 0
    done = deploy("smoke", *place.arguments, "--json")
    assert done.status == 0
    assert outcomes(done) == {**PASSED, "verify": "skipped", "model": "skipped"}


def test_a_board_with_nothing_on_it(sim: Callable[..., Place], deploy: Deploy) -> None:
    place = sim()
    done = deploy("smoke", *place.arguments)
    assert done.status == 37
    assert done.stderr.startswith("error: nothing was pushed to colibri@127.0.0.1:")
    assert not place.root.exists()


def damage(path: Path, at: int) -> None:
    """Flips one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_one_flipped_bit_in_the_model_is_found_twice_and_mended_by_a_push(
    board: Place, deploy: Deploy, small_model: Path
) -> None:
    damage(board.stored("model.bin"), 524_288 + 5)  # in the router
    done = deploy("smoke", *board.arguments, "--model", small_model, "--json")
    assert done.status == 37
    found = outcomes(done)
    assert (found["version"], found["sha256"], found["verify"]) == ("passed", "failed", "failed")
    first, second, *_ = done.stderr.splitlines()[1:]
    assert " fails the smoke test at sha256: model.bin is damaged: SHA-256 " in first
    assert second.startswith("verify: the engine fails with status 7: colibri: error: ")
    assert deploy("push", *board.arguments, "--model", small_model).status == 0
    done = deploy("smoke", *board.arguments, "--model", small_model, "--json")
    assert (done.status, outcomes(done)) == (0, PASSED)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_manifest_that_was_cut_is_found(kept: int, board: Place, deploy: Deploy) -> None:
    manifest = board.current / "manifest"
    manifest.write_text("".join(manifest.read_text().splitlines(keepends=True)[:kept]))
    done = deploy("smoke", *board.arguments, "--json")
    assert done.status == 37
    assert outcomes(done)["sha256"] == "failed"
    assert "at sha256: the manifest is damaged; push again with --model\n" in done.stderr


def test_an_engine_that_does_not_start_ends_the_test(board: Place, deploy: Deploy) -> None:
    board.stored("colibri").write_bytes(b"#!/bin/sh\nkill -ILL $$\n")
    done = deploy("smoke", *board.arguments, "--json")
    assert done.status == 37
    assert outcomes(done) == {"version": "failed"}
    assert "the engine fails with status 132, SIGILL: " in done.stderr


def test_another_model_here_than_on_the_board_is_told(
    board: Place, deploy: Deploy, make_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    convert_checkpoint(make_checkpoint(tmp_path / "checkpoint", vocab=51), tmp_path / "other")
    done = deploy("smoke", *board.arguments, "--model", tmp_path / "other", "--json")
    assert done.status == 37
    assert outcomes(done) == {**PASSED, "model": "failed"}
    assert f"the model on the board is not the one in {tmp_path}/other" in done.stderr


def test_a_config_that_changes_the_numbers_but_no_token_is_found_by_the_hash(
    board: Place, deploy: Deploy, small_model: Path, tmp_path: Path
) -> None:
    """The board's release is whole by its own manifest; only the logits say that it is wrong."""
    path = board.stored("config.json")
    config = json.loads(path.read_text())
    config["norm_eps"] = float(f"{config['norm_eps'] * 1.01:.3g}")
    path.write_text(json.dumps(config))
    forged = run(["sha256sum", path]).stdout.split()[0]
    release = board.current.resolve()
    manifest = release / "manifest"
    manifest.write_text(manifest.read_text().replace(path.name, forged))
    name = run(["sha256sum", manifest]).stdout[:16]
    release.rename(release.with_name(name))
    board.current.unlink()
    board.current.symlink_to(Path("releases", name))
    words = ("--num-tokens", "2", "--json")
    done = deploy("smoke", *board.arguments, "--model", small_model, *words)
    assert done.status == 37
    assert outcomes(done) == {**PASSED, "model": "failed"}
    assert "at model: the logits hash is 'clb1:" in done.stderr


GOLDEN = Generation((1, 2), (3, 4, 5), "abc", "clb1:0", "f32", "scalar", 1, 0.1, 0.3)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({}, None),
        ({"isa": "avx2", "threads": 2, "decode_seconds": 1.0}, None),
        ({"prompt_ids": (1, 7)}, "the token ids of the prompt differ from position 1 on: (7,) for"),
        ({"ids": (3, 9, 5)}, "the generated ids differ from position 1 on: (9, 5) for (4, 5)"),
        ({"ids": (3, 4)}, "the generated ids differ from position 2 on: () for (5,)"),
        ({"kv": "f16"}, "the KV type is 'f16', golden is 'f32'"),
        ({"text": "abd"}, "the text is 'abd', golden is 'abc'"),
        ({"logits_hash": "clb1:1"}, "the logits hash is 'clb1:1', golden is 'clb1:0'"),
    ],
)
def test_the_first_difference_is_told(change: dict[str, Any], difference: str | None) -> None:
    found = Generation(**{**GOLDEN.__dict__, **change}).difference(GOLDEN)
    assert (found or "").startswith(difference or "")
    assert (found is None) == (difference is None)


def test_a_foreign_board_has_the_hash_of_this_machine(
    deploy: Deploy,
    engine: Callable[[str], Path],
    require_program: Callable[[str], Path],
    small_model: Path,
    tmp_path: Path,
) -> None:
    """aarch64 and riscv64 under qemu-user: built, pushed, run and compared in one command."""
    for target, arch in (("jetson-orin", "aarch64"), ("visionfive2", "riscv64")):
        require_program(f"qemu-{arch}-static")
        engine(target)  # which may take a while; the command then has little to build
        words = ("--board", f"sim:{target}", "--model", small_model, "--json")
        first = json.loads(deploy("test", *words).stdout)
        assert first["build"][0]["arch"] == arch
        (board,) = first["boards"]
        assert (board["push"]["previous"], board["smoke"]["ok"]) == (None, True)
        assert f"({arch})" in board["smoke"]["steps"][0]["detail"]
        (again,) = json.loads(deploy("test", *words).stdout)["boards"]
        assert (again["push"]["bytes_sent"], again["smoke"]["ok"]) == (0, True)
        assert again["smoke"]["golden"]["logits_hash"] == board["smoke"]["golden"]["logits_hash"]
        home = tmp_path / "build" / "sim" / target / "home"
        assert (home / ".local/share/colibri/current/colibri").exists()


def test_a_dry_run_of_everything(deploy: Deploy, small_model: Path, tmp_path: Path) -> None:
    done = deploy("test", "--board", "sim:host", "--model", small_model, "--dry-run")
    assert done.status == 0, done.stderr
    assert f"-C {tmp_path}/build/.compile/" in done.stdout
    assert "bytes would be sent, release " in done.stdout
    (tmp_path / "build" / "host" / "colibri").unlink()
    done = deploy("test", "--board", "sim:host", "--dry-run", "--json")
    record = json.loads(done.stdout)
    assert (done.status, record["boards"], len(record["build"])) == (0, [], 1)


def test_a_foreign_board_without_qemu_is_told_what_to_install(
    deploy: Deploy, tmp_path: Path
) -> None:
    foreign = "jetson-orin" if os.uname().machine != "aarch64" else "visionfive2"
    done = deploy("push", "--board", f"sim:{foreign}", PATH=str(tmp_path))
    assert done.status == 38
    assert "install the package qemu-user-static (Debian, Ubuntu)" in done.stderr
    assert done.stderr.endswith("; sim:host runs without\n")
