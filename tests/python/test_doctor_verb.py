# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The verb `doctor`: several boards behind real SSH servers, and this machine."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from planted_boards import plant, plant_state
from ssh_servers import Server

from colibri_deploy.checkup import CHECKS
from colibri_deploy.process import Completed
from colibri_deploy.targets import machine_arch

Doctor = Callable[..., Completed]


@pytest.fixture
def doctor(at_home: Callable[..., Completed]) -> Doctor:
    """`doctor(*words, **env)` runs `colibri-deploy doctor` in the client's home, any status."""
    return functools.partial(at_home, "doctor")


@pytest.fixture
def rack(
    planted_server: Callable[..., Server], client_home: Path, tmp_path: Path
) -> Callable[[dict[str, str]], None]:
    """`rack(state)` writes boards.yaml: desk-pi with that state, and gone, which is not there."""

    def write(state: dict[str, str]) -> None:
        server = planted_server("openssh", "pi5", state)
        (client_home / ".ssh" / "known_hosts").write_text(server.known_hosts_line)
        (client_home / "boards.yaml").write_text(
            f"boards:\n  desk-pi: {{target: rpi5, host: 127.0.0.1, user: {server.user}, "
            f"port: {server.port}, key: {tmp_path}/key}}\n"
            "  gone: {target: rpi4, host: 127.0.0.1, port: 1}\n"
        )

    return write


def findings_of(board: dict[str, Any]) -> dict[str, dict[str, str]]:
    """What was found on a board of the JSON, by the name of the check."""
    return {one["what"]: one for one in board["doctor"]["findings"]}


def test_notes_do_no_harm_and_warnings_have_a_code_of_their_own(
    doctor: Doctor, rack: Callable[[dict[str, str]], None], tmp_path: Path
) -> None:
    rack({"meminfo HugePages_Total": "8"})
    done = doctor("--board", "desk-pi")
    assert (done.status, done.stderr) == (0, "")
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "huge pages note 16.0 MiB of 7.9 GiB set aside" in rows
    assert "RAM that neither the engine nor the page cache can use" in rows
    assert "desk-pi$ sudo sysctl vm.nr_hugepages=0" in rows
    state = tmp_path / "planted openssh/proc/sys/vm/overcommit_memory"
    state.write_text("2\n")
    done = doctor("--board", "desk-pi", "--json")
    assert (done.status, done.stderr) == (44, "error: desk-pi: memory policy\n")
    record = json.loads(done.stdout)
    assert (record["verb"], record["ok"]) == ("doctor", False)
    (board,) = record["boards"]
    assert (board["board"], board["target"]) == ("desk-pi", "rpi5")
    assert (board["outcome"], board["doctor"]["ok"]) == ("failed", False)
    assert findings_of(board)["memory policy"] == {
        "what": "memory policy",
        "severity": "warning",
        "found": "vm.overcommit_memory = 2",
        "consequence": "the engine is refused its key/value cache while there is RAM",
        "remedy": "sudo sysctl vm.overcommit_memory=0",
    }


def test_each_check_is_a_case_of_junit_xml(
    doctor: Doctor, rack: Callable[[dict[str, str]], None], client_home: Path
) -> None:
    rack({"proc/sys/vm/overcommit_memory": "2\n", "meminfo HugePages_Total": "8"})
    done = doctor("--board", "*", "--junit", "out.xml", "--json", "out.json")
    assert done.status == 45
    cases = {
        (suite.attrib["name"], case.attrib["name"]): case[0]
        for suite in ElementTree.parse(client_home / "out.xml").getroot()
        for case in suite.findall("testcase")
    }
    failed = {place for place, verdict in cases.items() if verdict.tag == "failure"}
    assert failed == {("desk-pi", "memory policy"), ("gone", "connection")}
    assert cases["desk-pi", "memory policy"].attrib["message"] == (
        "vm.overcommit_memory = 2; the engine is refused its key/value cache while there is RAM; "
        "sudo sysctl vm.overcommit_memory=0"
    )
    assert cases["desk-pi", "huge pages"].tag == "system-out"
    assert set(CHECKS) - {"storage"} <= {what for board, what in cases if board == "desk-pi"}
    record = json.loads((client_home / "out.json").read_text())
    assert [board["outcome"] for board in record["boards"]] == ["failed", "failed"]
    headings = [line.split() for line in done.stdout.splitlines() if "target rpi" in line]
    assert headings == [["desk-pi", "target", "rpi5"], ["gone", "target", "rpi4"]]


# Tells the free space when both boards are asked for it at the same time.
MEETING_DF = """#!/bin/sh
: >"{folder}/$$"
tries=0
while set -- "{folder}"/*; [ $# -lt 2 ]; do
    [ $((tries += 1)) -lt {tries} ] || exit 1
    sleep 0.1
done
echo Filesystem
echo /dev/x 1 1 67108864 50% /
"""


@pytest.mark.parametrize(("jobs", "meet", "tries"), [("2", True, 300), ("1", False, 3)])
def test_boards_are_examined_side_by_side(
    jobs: str,
    meet: bool,
    tries: int,
    doctor: Doctor,
    planted_server: Callable[..., Server],
    client_home: Path,
    tmp_path: Path,
) -> None:
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    boards, known = ["boards:"], []
    for kind in ("openssh", "dropbear"):
        df = MEETING_DF.format(folder=meeting, tries=tries)
        server = planted_server(kind, "pi5", {"bin/df": df})
        known.append(server.known_hosts_line)
        boards.append(
            f"  {kind}: {{target: rpi5, host: 127.0.0.1, user: {server.user}, "
            f"port: {server.port}, key: {tmp_path}/key}}"
        )
    (client_home / ".ssh" / "known_hosts").write_text("".join(known))
    (client_home / "boards.yaml").write_text("\n".join(boards) + "\n")
    done = doctor("--board", "*", "--jobs", jobs, "--json")
    first, second = (findings_of(board) for board in json.loads(done.stdout)["boards"])
    assert ("free disk" in first) == meet
    assert second["free disk"]["found"].startswith("64.0 GiB")


def test_a_board_that_is_gone_does_not_hide_the_others(
    doctor: Doctor, rack: Callable[[dict[str, str]], None]
) -> None:
    rack({})
    done = doctor("--board", "*", "--json")
    assert done.status == 45
    assert done.stderr.splitlines()[2:] == [
        "error: 1 of 2 boards failed: gone at connection",
        "gone: connection",
    ]
    first, second = json.loads(done.stdout)["boards"]
    assert (first["board"], first["doctor"]["ok"]) == ("desk-pi", True)
    (finding,) = findings_of(second).values()
    assert (finding["what"], finding["severity"]) == ("connection", "error")
    assert finding["found"] == "gone cannot be reached at port 1: Connection refused"
    assert finding["remedy"] == "ssh -v 127.0.0.1:1"


def test_a_board_that_takes_too_long_is_given_up(
    doctor: Doctor, rack: Callable[[dict[str, str]], None]
) -> None:
    rack({"bin/df": "#!/bin/sh\nexec sleep 100\n"})
    begun = time.monotonic()
    done = doctor("--board", "desk-pi", "--timeout", "1", "--json")
    assert (done.status, done.stderr) == (46, "error: desk-pi takes longer than 1 s\n")
    assert time.monotonic() - begun < 90
    (board,) = json.loads(done.stdout)["boards"]
    assert (board["outcome"], board["steps"][-1]["outcome"]) == ("failed", "failed")


def test_a_key_exchange_that_nobody_speaks_any_more(
    doctor: Doctor,
    ssh_server: Callable[..., Server],
    new_key: Callable[..., Path],
    client_home: Path,
) -> None:
    """What a dropbear of before 2013 offers."""
    server = ssh_server("openssh", "KexAlgorithms diffie-hellman-group1-sha1")
    key = new_key("key")
    server.lets_in(key)
    (client_home / ".ssh" / "known_hosts").write_text(server.known_hosts_line)
    address = f"{server.user}@127.0.0.1:{server.port}"
    done = doctor("--host", address, "--target", "rpi5", "--key", key, "--json")
    assert done.status == 44
    (board,) = json.loads(done.stdout)["boards"]
    (finding,) = findings_of(board).values()
    assert "it offers nothing that is known here" in finding["found"]
    assert "if its server is old, update it, dropbear to 2020.79 or later" in finding["found"]


def test_storage_is_measured_when_asked_for_and_nothing_is_left(
    doctor: Doctor, rack: Callable[[dict[str, str]], None], tmp_path: Path
) -> None:
    rack({})
    home = tmp_path / "openssh" / "home"
    before = sorted(home.rglob("*"))
    done = doctor("--board", "desk-pi", "--storage", "--json")
    (board,) = json.loads(done.stdout)["boards"]
    found = findings_of(board)
    # Some file systems, such as tmpfs of an old kernel, cannot be read past the page cache.
    if "storage" in found.get("not told", {}).get("found", ""):
        pytest.fail("no O_DIRECT here")
    speeds = re.fullmatch(r"reads ([\d,]+) MB/s, writes ([\d,]+) MB/s", found["storage"]["found"])
    assert speeds is not None
    assert all(0 < int(speed.replace(",", "")) < 50_000 for speed in speeds.groups())
    assert sorted(home.rglob("*")) == before


@pytest.fixture
def this_machine(tmp_path: Path) -> dict[str, str]:
    """An environment in which this machine is a healthy PC."""
    folder = tmp_path / "planted here"
    env = plant(folder, "haswell", os.environ["PATH"])
    plant_state(folder, {})
    return env


def test_this_machine(
    doctor: Doctor,
    this_machine: dict[str, str],
    require_program: Callable[[str], Path],
    client_home: Path,
) -> None:
    for foreign in {"aarch64", "riscv64", "x86_64"} - {machine_arch()}:
        require_program(f"qemu-{foreign}-static")
    (client_home / "build").mkdir()
    done = doctor("--json", **this_machine)
    (board,) = json.loads(done.stdout)["boards"]
    found = findings_of(board)
    assert (board["board"], board["target"]) == ("this machine", "host")
    assert found["compiler"]["found"].startswith("zig ")
    assert (found["kernel"]["found"], found["ISA level"]["found"]) == (
        "Linux 6.1.0-37-amd64",
        "avx2",
    )
    assert {what for what, one in found.items() if one["severity"] != "ok"} == set()
    assert (done.status, done.stderr) == (0, "")
    assert not any(what.startswith("WSL2") for what in found)


def test_a_model_on_a_drive_of_windows(
    doctor: Doctor, this_machine: dict[str, str], small_model: Path, client_home: Path
) -> None:
    drive = client_home / "drive c"
    shutil.copytree(small_model, drive / "model")
    tree = Path(this_machine["COLIBRI_SYSROOT"])
    (tree / "proc/sys/kernel/osrelease").write_text("5.15.167.4-microsoft-standard-WSL2\n")
    point = str(drive).replace(" ", "\\040")
    (tree / "proc/mounts").write_text(
        f"/dev/sdc / ext4 rw 0 0\nC:\\134 {point} 9p rw,noatime,dirsync,aname=drvfs 0 0\n"
    )
    done = doctor("--model", drive / "model", "--json", **this_machine)
    assert (done.status, done.stderr) == (44, "error: this machine: WSL2, model\n")
    (board,) = json.loads(done.stdout)["boards"]
    found = findings_of(board)
    assert found["WSL2, builds"]["severity"] == "ok"
    assert found["WSL2, model"]["severity"] == "warning"
    assert found["WSL2, model"]["found"] == f"{drive}/model lies on a drive of Windows"
    assert found["WSL2, model"]["remedy"] == f"cp -r '{drive}/model' ~/"


def test_what_this_machine_lacks(
    doctor: Doctor, this_machine: dict[str, str], tmp_path: Path
) -> None:
    few = tmp_path / "few"
    few.mkdir()
    for name in "cat cut date df getconf grep sed sh sort tr".split():
        (few / name).symlink_to(shutil.which(name) or name)
    tree = this_machine["COLIBRI_SYSROOT"]
    done = doctor("--json", COLIBRI_SYSROOT=tree, PATH=f"{tree}/bin:{few}")
    (board,) = json.loads(done.stdout)["boards"]
    found = findings_of(board)
    assert found["emulators"]["found"].startswith("no qemu-user for ")
    assert found["emulators"]["remedy"] == "sudo apt install qemu-user-static"
    assert found["SSH client"]["remedy"] == "sudo apt install openssh-client"
    assert (found["emulators"]["severity"], found["SSH client"]["severity"]) == ("note", "note")


def test_a_build_record_that_was_cut(
    doctor: Doctor, this_machine: dict[str, str], client_home: Path
) -> None:
    record = client_home / "build/host/build.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"isas": ["scal')
    done = doctor(**this_machine)
    assert done.status == 23
    assert done.stderr == "error: build/host/build.json is damaged: remove it and build again\n"
