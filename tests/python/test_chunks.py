# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Only the chunks that a board lacks are sent, and it puts the file together from an older one."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from board_fixtures import Place, report_of

from colibri_deploy.chunks import ChunkList, Run, runs_of, spans_to_send
from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.process import Completed, run
from colibri_deploy.sim import Faults

Deploy = Callable[..., Completed]
CHUNK = 1 << 16


def listed(text: str) -> ChunkList:
    return ChunkList(10, tuple(text))


@pytest.mark.parametrize(
    ("new", "old", "runs"),
    [
        ("abc", "abc", [(True, 0, 3)]),
        ("aXc", "abc", [(True, 0, 1), (False, 0, 1), (True, 2, 1)]),
        ("XYc", "abc", [(False, 0, 2), (True, 2, 1)]),
        ("abcXY", "abc", [(True, 0, 3), (False, 0, 2)]),
        ("XabY", "ab", [(False, 0, 1), (True, 0, 2), (False, 1, 1)]),  # moved
        ("cab", "abc", [(True, 2, 1), (True, 0, 2)]),
        ("aab", "aXb", [(True, 0, 1), (True, 0, 1), (True, 2, 1)]),  # one is there once
        ("zzza", "zzzb", [(True, 0, 3), (False, 0, 1)]),  # equal chunks in one run
        ("XYZ", "abc", [(False, 0, 3)]),
        ("X", "", [(False, 0, 1)]),
        ("", "abc", []),
    ],
)
def test_a_file_is_put_together_from_few_runs(
    new: str, old: str, runs: list[tuple[bool, int, int]]
) -> None:
    assert runs_of(listed(new), listed(old)) == tuple(Run(*run) for run in runs)


def test_lists_of_other_chunks_have_nothing_in_common() -> None:
    assert runs_of(listed("ab"), ChunkList(20, ("a", "b"))) == (Run(False, 0, 2),)
    assert ChunkList.parse([]) == ChunkList(0, ())
    assert ChunkList.parse(["nonsense", "a"]) == ChunkList(0, ("a",))
    assert ChunkList.parse(listed("abc").text.splitlines()) == listed("abc")


def test_what_is_sent_and_what_is_there_make_up_the_file(tmp_path: Path) -> None:
    random.seed(1)
    for _ in range(200):
        old, new = (bytes(random.choices(b"ab", k=random.randrange(90))) for _ in range(2))
        paths = tmp_path / "old", tmp_path / "new"
        for path, data in zip(paths, (old, new), strict=True):
            path.write_bytes(data)
        runs = runs_of(ChunkList.read(paths[1], 4), ChunkList.read(paths[0], 4))
        sent = b"".join(new[a:b] for a, b in spans_to_send(runs, 4, len(new)))
        made = [(old if run.is_old else sent)[run.first * 4 :][: run.count * 4] for run in runs]
        assert b"".join(made) == new


@pytest.fixture
def big_model(make_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A model of 3 MB: hidden 64, FFN 256, 12 experts."""
    checkpoint = make_checkpoint(tmp_path / "checkpoint", hidden=64, ffn=256, experts=12)
    convert_checkpoint(checkpoint, tmp_path / "model")
    return tmp_path / "model"


def change(model: Path, start: int, end: int) -> None:
    """Changes bytes of model.bin, and leaves the checksums as they were."""
    data = bytearray((model / "model.bin").read_bytes())
    data[start:end] = bytes(byte ^ 0x55 for byte in data[start:end])
    (model / "model.bin").write_bytes(data)


def push(deploy: Deploy, place: Place, model: Path, *words: str) -> dict[str, Any]:
    done = deploy("push", *place.arguments, "--model", model, "--json", *words)
    assert done.status == 0, done.stderr
    record = report_of(done, "push")
    record["files"] = {file["name"]: file for file in record["files"]}
    return dict(record)


def test_only_the_chunks_that_changed_are_sent(
    sshd: Callable[..., Place], deploy: Deploy, big_model: Path
) -> None:
    place = sshd("desk", workdir="it's a `board`")
    size = (big_model / "model.bin").stat().st_size
    assert push(deploy, place, big_model)["files"]["model.bin"]["copied"] == 0
    change(big_model, 20 * CHUNK - 1, 21 * CHUNK + 1)
    change(big_model, size - 3, size)
    changed = 3 * CHUNK + size % CHUNK
    planned = push(deploy, place, big_model, "--dry-run")
    assert (planned["bytes_to_send"], planned["files"]["model.bin"]["to_copy"]) == (changed, size)
    record = push(deploy, place, big_model)
    assert record["bytes_sent"] == changed
    assert record["files"]["model.bin"]["copied"] == size - changed
    assert (place.current / "model.bin").read_bytes() == (big_model / "model.bin").read_bytes()
    assert place.partials() == []
    run(["sha256sum", "--check", "--strict", "manifest"], cwd=place.current)


def test_what_was_sent_and_what_was_not_is_told(
    sim: Callable[..., Place], deploy: Deploy, big_model: Path
) -> None:
    place = sim()
    push(deploy, place, big_model)
    change(big_model, 20 * CHUNK, 21 * CHUNK)
    done = deploy("push", *place.arguments, "--model", big_model)
    size = (big_model / "model.bin").stat().st_size
    assert f"65,536 bytes: {size - CHUNK:,} are those of the version before" in done.stdout


def test_chunks_that_were_cut_are_not_sent_again(
    sim: Callable[..., Place], deploy: Deploy, root: Path, big_model: Path
) -> None:
    push(deploy, sim(), big_model)
    change(big_model, 4 * CHUNK, 20 * CHUNK)
    script = (root / "colibri_deploy" / "board.sh").stat().st_size
    # Before it there are: look twice, chunks, look; lock, hold; look twice; seal of the
    # engine.
    place = sim("host", Faults(cut_after=11 * script + 8 * CHUNK))
    done = deploy("push", *place.arguments, "--model", big_model)
    assert done.status == 29
    (partial,) = (path for path in place.partials() if path.stat().st_size)
    left = partial.stat().st_size
    assert 0 < left < 16 * CHUNK
    record = push(deploy, sim(), big_model)
    assert record["files"]["model.bin"]["resumed_at"] == left
    assert record["bytes_sent"] == 16 * CHUNK - left
    assert (place.current / "model.bin").read_bytes() == (big_model / "model.bin").read_bytes()


def damage_old_file(place: Place) -> None:
    path = place.stored("model.bin")
    data = bytearray(path.read_bytes())
    data[2 * CHUNK] ^= 1
    path.write_bytes(data)


def damage_list(place: Place) -> None:
    path = place.root / "store" / f"{place.stored('model.bin').name}.chunks"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *lines[2:], lines[1]]))


def cut_old_file(place: Place) -> None:
    os.truncate(place.stored("model.bin"), 5 * CHUNK)


@pytest.mark.parametrize(
    "damage", [damage_old_file, damage_list, cut_old_file], ids=lambda damage: str(damage.__name__)
)
def test_what_was_put_together_from_damage_is_sent_as_a_whole(
    damage: Callable[[Place], None], sim: Callable[..., Place], deploy: Deploy, big_model: Path
) -> None:
    place = sim()
    push(deploy, place, big_model)
    damage(place)
    change(big_model, 20 * CHUNK, 21 * CHUNK)
    record = push(deploy, place, big_model)
    size = (big_model / "model.bin").stat().st_size
    assert record["files"]["model.bin"]["sent"] == size + CHUNK
    assert (place.current / "model.bin").read_bytes() == (big_model / "model.bin").read_bytes()


@pytest.mark.parametrize("text", ["", "65536", "x\ny\n", "99999999999999999999999\n" + "a" * 32])
def test_a_list_that_is_nonsense_costs_bytes_only(
    text: str, sim: Callable[..., Place], deploy: Deploy, big_model: Path
) -> None:
    place = sim()
    push(deploy, place, big_model)
    (place.root / "store" / f"{place.stored('model.bin').name}.chunks").write_text(text)
    change(big_model, 20 * CHUNK, 21 * CHUNK)
    size = (big_model / "model.bin").stat().st_size
    assert push(deploy, place, big_model)["files"]["model.bin"]["sent"] == size


def test_an_expert_that_was_quantised_anew_sends_its_chunks_only(
    sim: Callable[..., Place],
    deploy: Deploy,
    make_checkpoint: Callable[..., Path],
    report_row: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Two conversions of one checkpoint, of which one has another expert 3 in layer 1."""
    from safetensors.numpy import load_file, save_file

    checkpoint = make_checkpoint(tmp_path / "checkpoint", hidden=256, ffn=512, experts=8)
    other = tmp_path / "other"
    shutil.copytree(checkpoint, other)
    path = next(other.glob("*.safetensors"))
    tensors = load_file(path)
    names = [name for name in tensors if "layers.1." in name and "experts.3." in name]
    assert len(names) == 3
    for name in names:
        tensors[name] = -tensors[name]
    save_file(tensors, path)
    for folder in (checkpoint, other):
        convert_checkpoint(folder, folder / "model", "q8")
    place = sim()
    size = push(deploy, place, checkpoint / "model")["files"]["model.bin"]["bytes"]
    record = push(deploy, place, other / "model")
    of_expert = 3 * 256 * 512 * 34 // 32
    assert of_expert <= record["bytes_sent"] <= of_expert + 8 * CHUNK
    done = deploy("smoke", *place.arguments, "--model", other / "model")
    assert done.status == 0, done.stderr
    report_row("push of a model with one expert of 16 changed", "bytes", "of expert", "sent")
    report_row(
        "push of a model with one expert of 16 changed",
        *(f"{n:,}" for n in (size, of_expert, record["bytes_sent"])),
    )
