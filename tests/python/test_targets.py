# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Target files: the facts that ship, and what a wrong file is told."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from colibri_deploy.errors import TargetFileError, UnknownTargetError
from colibri_deploy.process import Completed, run
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
        "bpi-f3": "riscv64",
        "haswell": "x86_64",
        "host": machine_arch(),
        "jetson-orin": "aarch64",
        "jetson-orin-nano": "aarch64",
        "licheepi4a": "riscv64",
        "milkv-jupiter": "riscv64",
        "rk3588": "aarch64",
        "rpi-cm4": "aarch64",
        "rpi4": "aarch64",
        "rpi5": "aarch64",
        "visionfive2": "riscv64",
        "x86-64": "x86_64",
        "x86-avx512": "x86_64",
    }


def test_the_cpu_models_that_stand_in_for_the_boards(root: Path) -> None:
    assert {name: target.facts.qemu_cpu for name, target in load_targets(root).items()} == {
        "bpi-f3": "rv64,v=true,vext_spec=v1.0,vlen=256",
        "haswell": "Haswell",
        "host": None,
        "jetson-orin": "cortex-a76",
        "jetson-orin-nano": "cortex-a76",
        "licheepi4a": "rv64",
        "milkv-jupiter": "rv64,v=true,vext_spec=v1.0,vlen=256",
        "rk3588": "cortex-a76",
        "rpi-cm4": "cortex-a72",
        "rpi4": "cortex-a72",
        "rpi5": "cortex-a76",
        "visionfive2": "rv64",
        "x86-64": "Nehalem",
        "x86-avx512": None,  # QEMU emulates none
    }


@pytest.mark.parametrize(
    "name",
    ["bpi-f3", "jetson-orin", "jetson-orin-nano", "licheepi4a", "milkv-jupiter", "rk3588",
     "rpi-cm4", "rpi4", "rpi5", "visionfive2"],
)  # fmt: skip
def test_on_its_emulated_cpu_the_engine_chooses_the_expected_level(
    name: str, root: Path, run_engine: Callable[..., Completed]
) -> None:
    target = load_targets(root)[name]
    done = run_engine(target.arch, "--version", cpu=target.facts.qemu_cpu)
    assert f"isa chosen: {target.facts.expected_isa}" in done.stdout.splitlines()


def test_every_bandwidth_is_the_arithmetic_of_its_source(root: Path) -> None:
    checked = []
    for name, target in load_targets(root).items():
        bandwidth = target.facts.memory_bandwidth
        sums = re.search(r"(\d+) MT/s x (\d+) bits / 8 = ", bandwidth.source) if bandwidth else None
        if bandwidth and sums:
            checked.append(name)
            assert bandwidth.gb_per_s == round(int(sums[1]) * int(sums[2]) / 8000, 1)
    assert checked == [
        "bpi-f3", "jetson-orin", "licheepi4a", "milkv-jupiter", "rk3588", "rpi-cm4", "rpi4",
        "rpi5", "visionfive2",
    ]  # fmt: skip


def test_a_string_of_the_device_tree_that_two_targets_share_is_the_chips(root: Path) -> None:
    owners: dict[str, list[str]] = {}
    for name, target in load_targets(root).items():
        for compatible in target.facts.devicetree:
            owners.setdefault(compatible, []).append(name)
    assert {compatible: names for compatible, names in owners.items() if len(names) > 1} == {
        "brcm,bcm2711": ["rpi-cm4", "rpi4"],
        "nvidia,tegra234": ["jetson-orin", "jetson-orin-nano"],
        "spacemit,k1": ["bpi-f3", "milkv-jupiter"],
        "spacemit,k1-x": ["bpi-f3", "milkv-jupiter"],
    }


def test_the_schema_takes_every_shipped_target_and_refuses_wrong_ones(root: Path) -> None:
    schema = json.loads(run([sys.executable, "-m", "colibri_deploy", "targets", "schema"]).stdout)
    validator = Draft202012Validator(schema)
    validator.check_schema(schema)
    for path in (root / "targets").glob("*.yaml"):
        validator.validate(yaml.safe_load(path.read_text()))
    good = yaml.safe_load(GOOD)
    for wrong in ({"arch": "arm"}, {"page_size": 4096}, {"ram_gib": ["8"]}, {"page_bytes": 8192}):
        assert not validator.is_valid(good | wrong)
    assert not validator.is_valid({"arch": "aarch64"})
    assert schema["properties"]["page_bytes"]["description"].startswith("Page size of the usual")


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
        "bpi-f3, haswell, host, jetson-orin, jetson-orin-nano, licheepi4a, milkv-jupiter, "
        "rk3588, rpi-cm4, rpi4, rpi5, visionfive2, x86-64, x86-avx512"
    )
    assert caught.value.exit_code == 20
