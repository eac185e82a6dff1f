# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Target files: the facts that ship, and what a wrong file is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri_deploy.errors import TargetFileError, UnknownTargetError
from colibri_deploy.targets import load_target, load_targets, machine_arch, select

GOOD = """\
description: A board
arch: aarch64
expected_isa: neon
ram_gib: [4, 8]
memory_bandwidth:
  gb_per_s: 12.8
  source: data sheet
page_bytes: 4096
"""


def test_the_shipped_targets_and_their_architectures(root: Path) -> None:
    assert {name: target.arch for name, target in load_targets(root).items()} == {
        "haswell": "x86_64",
        "host": machine_arch(),
        "jetson-orin": "aarch64",
        "rpi-cm4": "aarch64",
        "rpi5": "aarch64",
        "visionfive2": "riscv64",
        "x86-64": "x86_64",
    }


def test_the_cpu_models_that_stand_in_for_the_boards(root: Path) -> None:
    assert {name: target.facts.qemu_cpu for name, target in load_targets(root).items()} == {
        "haswell": "Haswell",
        "host": None,
        "jetson-orin": "cortex-a76",
        "rpi-cm4": "cortex-a72",
        "rpi5": "cortex-a76",
        "visionfive2": "rv64",
        "x86-64": "Nehalem",
    }


def test_a_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "board.yaml"
    path.write_text(GOOD, encoding="utf-8")
    target = load_target(path)
    assert target.name == "board"
    assert target.arch == "aarch64"
    assert target.facts.ram_gib == (4, 8)
    assert target.facts.memory_bandwidth is not None
    assert target.facts.memory_bandwidth.gb_per_s == 12.8
    assert target.facts.caveats == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("aarch64", "arm", "line 2, field arch: input should be 'aarch64', 'riscv64', 'x86_64'"),
        ("arch: aarch64\n", "", "line 1, field arch: missing"),
        ("12.8", "'12.8'", "line 6, field memory_bandwidth.gb_per_s: input should be a valid num"),
        ("12.8", "-1", "line 6, field memory_bandwidth.gb_per_s: input should be greater than 0"),
        ("  source: data sheet\n", "", "line 5, field memory_bandwidth.source: missing"),
        ("source", "sauce", "line 5, field memory_bandwidth.source: missing"),
        ("[4, 8]", "[4, '8']", "line 4, field ram_gib.1: input should be a valid integer"),
        ("4096", "8192", "line 8, field page_bytes: input should be 4096, 16384 or 65536"),
        ("page_bytes", "page_size", "line 8, field page_size: no such field; fields are descrip"),
        ("page_bytes: 4096", "arch: aarch64", "line 8, field arch: already given in line 2"),
        ("A board", "yes", "line 1, field description: input should be a valid string"),
        ("[4, 8]", "[4, 8", "line 5: not valid YAML: expected ',' or ']', but got ':'"),
        (GOOD, "- aarch64\n", "line 1: expected fields like 'arch: aarch64'"),
        (GOOD, "", "line 1: expected fields like 'arch: aarch64'"),
    ],
)
def test_a_wrong_file_is_told_file_line_and_field(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    assert old in GOOD
    path = tmp_path / "board.yaml"
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(TargetFileError) as caught:
        load_target(path)
    assert caught.value.message.startswith(f"{path}, {message}")
    assert caught.value.exit_code == 21


def test_every_problem_of_a_file_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "board.yaml"
    path.write_text("arch: arm\nqemu_cpu: 7\n", encoding="utf-8")
    with pytest.raises(TargetFileError) as caught:
        load_target(path)
    assert "line 1, field description: missing" in caught.value.message
    first, second = caught.value.details.splitlines()
    assert "line 1, field arch: " in first
    assert second == f"{path}, line 2, field qemu_cpu: input should be a valid string"


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "board.yaml"
    path.write_bytes(b"arch: \xff\n")
    with pytest.raises(TargetFileError, match=r"board\.yaml cannot be read: "):
        load_target(path)


def test_an_unknown_target_is_told_the_nearest_one(root: Path) -> None:
    with pytest.raises(UnknownTargetError) as caught:
        select(load_targets(root), "jetson")
    assert caught.value.message == (
        "no target 'jetson': did you mean 'jetson-orin'? targets are "
        "haswell, host, jetson-orin, rpi-cm4, rpi5, visionfive2, x86-64"
    )
    assert caught.value.exit_code == 20
