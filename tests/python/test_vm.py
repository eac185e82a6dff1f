# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Whole emulated systems: Debian's kernel boots, dropbear lets one in, what is pushed is proved."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from board_fixtures import report_of
from goldens import FROM_ONE_TOKEN, FROM_ONE_TOKEN_HASHES

from colibri_deploy.convert import DTypeChoice
from colibri_deploy.emulated import Emulated, parse_emulated
from colibri_deploy.errors import (
    AuthenticationError,
    ChangedHostKeyError,
    ColibriDeployError,
    ProcessError,
    UnknownBoardError,
    UnknownTargetError,
)
from colibri_deploy.initramfs import Initramfs
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.process import Completed, run
from colibri_deploy.running_board import RunningBoard, running_boards
from colibri_deploy.sim import Faults
from colibri_deploy.ssh import Connection
from colibri_deploy.targets import Target, load_targets
from colibri_deploy.vm import VmBoard, VmOptions
from colibri_deploy.vm_image import build_image, cache_directory, find_image

Deploy = Callable[..., Completed]

# By what `uname -m` says: a target, what the kernel says of its CPU, QEMU's program.
SYSTEMS = {
    "aarch64": ("jetson-orin", "CPU part\t: 0xd0b", "qemu-system-aarch64"),
    "riscv64": ("bpi-f3", "isa\t\t: rv64imafdcv", "qemu-system-riscv64"),
    "x86_64": ("haswell", "model name\t: Intel Core Processor (Haswell)", "qemu-system-x86_64"),
}


@pytest.fixture(scope="module")
def targets(root: Path) -> dict[str, Target]:
    """All targets."""
    return load_targets(root)


@pytest.fixture(scope="module")
def need_system(
    require_program: Callable[[str], Path], require: Callable[[bool, str], None]
) -> Callable[[str], None]:
    """`need_system(arch)` makes sure that such a system can boot: its image is in the cache."""

    def need(arch: str) -> None:
        require_program(SYSTEMS[arch][2])
        require_program("dpkg-deb")
        if find_image(arch, cache_directory()) is None:
            try:
                build_image(arch, cache_directory(), print)
            except ColibriDeployError as error:
                require(False, f"no image can be built: {error.message}: {error.details}")

    return need


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """The environment that puts boards into `tmp_path`, and finds the images that are there."""
    return {"XDG_CACHE_HOME": str(cache_directory().parents[1]), "XDG_STATE_HOME": str(tmp_path)}


@pytest.fixture
def emulate(places: Mapping[str, str]) -> Iterator[Callable[..., Any]]:
    """`emulate(verb, *args)` is what `colibri-deploy emulate` prints as JSON.

    In the end no board runs.
    """

    def run_it(*words: str) -> Any:
        command = [sys.executable, "-m", "colibri_deploy", "emulate", *words, "--json"]
        return json.loads(run(command, env={**os.environ, **places}, timeout_s=240).stdout)

    yield run_it
    run_it("stop", "--all")


def running(record: dict[str, Any]) -> RunningBoard:
    """The board that `emulate start` has started."""
    values = {key: value for key, value in record.items() if key != "ssh"}
    return RunningBoard(**values | {"directory": Path(record["directory"])})


def ask(record: dict[str, Any], command: str, user: str = "colibri") -> str:
    """What a command prints on a board."""
    vm = running(record)
    with Connection.open(replace(vm.board, user=user), vm.known_hosts) as connection:
        answer = connection.run(command, timeout_s=60)
    assert answer.status == 0, answer
    return answer.stdout.decode()


@pytest.mark.parametrize("arch", SYSTEMS)
def test_a_system_boots_with_the_targets_cpu_and_the_ram_and_disk_that_were_asked_for(
    arch: str,
    need_system: Callable[[str], None],
    emulate: Callable[..., Any],
    report_row: Callable[..., None],
) -> None:
    need_system(arch)
    target, cpu, _ = SYSTEMS[arch]
    record = emulate("start", f"vm:{target},ram_mib=192,disk_mib=40")
    report_row("whole systems: seconds to SSH", arch, f"{record['seconds_to_ssh']:.1f}")
    said = ask(record, "uname -m; uname -v; id -un; readlink /bin/sh; df -Pk . | tail -n 1")
    machine, kernel, user, shell, disk = said.splitlines()
    assert (machine, user, shell) == (arch, "colibri", "busybox")
    assert "Debian" in kernel
    device, kib, *_, mounted = disk.split()
    assert (device, mounted) == ("/dev/vda", "/home/colibri")
    assert 30_000 < int(kib) < 40 * 1024
    assert cpu in ask(record, "cat /proc/cpuinfo")
    assert 96 << 10 < int(ask(record, "grep MemTotal /proc/meminfo").split()[1]) < 192 << 10
    assert ask(record, "id -un", user="root") == "root\n"


def test_the_last_user_of_a_board_stops_it_and_keys_are_checked_on_both_sides(
    need_system: Callable[[str], None], targets: dict[str, Target], tmp_path: Path
) -> None:
    need_system("aarch64")
    states = tmp_path / "states"

    def board() -> VmBoard:
        options = VmOptions(ram_mib=192, disk_mib=40)
        return VmBoard("vm:rpi5", targets["rpi5"], options, states)

    with board() as one:
        with board() as other:
            assert other.board == one.board
        assert [vm.name for vm in running_boards(states)] == ["vm:rpi5"]
        host, kind, blob = Path(str(one.known_hosts.path)).read_text().split()
        changed = bytearray(base64.b64decode(blob))
        changed[-1] ^= 1
        known = tmp_path / "known_hosts"
        known.write_text(f"{host} {kind} {base64.b64encode(changed).decode()}\n")
        with pytest.raises(ChangedHostKeyError):
            Connection.open(one.board, KnownHosts(known))
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "stranger"])
        with pytest.raises(AuthenticationError):
            Connection.open(replace(one.board, key=tmp_path / "stranger"), one.known_hosts)
        assert one.directory.stat().st_mode & 0o077 == 0
    assert running_boards(states) == []


def test_a_model_is_proved_on_a_board_that_is_started_for_it(
    need_system: Callable[[str], None],
    engine: Callable[[str], Path],
    models: Callable[[str, DTypeChoice], Path],
    deploy: Deploy,
    build_dir: Path,
    places: Mapping[str, str],
    emulate: Callable[..., Any],
) -> None:
    """Pushed while the board is there for the push only; found again, and kept, after `start`."""
    need_system("aarch64")
    (build_dir / "jetson-orin").mkdir()
    (build_dir / "jetson-orin" / "colibri").symlink_to(engine("jetson-orin"))
    model = models("mixtral", "q8")
    board = ("--board", "vm:jetson-orin,ram_mib=192,disk_mib=40", "--model", model, "--json")
    done = deploy("push", *board, **places)
    assert done.status == 0, done.stderr
    assert report_of(done, "push")["bytes_sent"] > 1_000_000
    assert emulate("list") == []
    record = emulate("start", board[1])
    (first,) = FROM_ONE_TOKEN.prompt
    tokens = ("--tokens", str(first), "--num-tokens", str(FROM_ONE_TOKEN.length - 1))
    done = deploy("smoke", *board, *tokens, **places)
    assert done.status == 0, done.stderr
    smoke = report_of(done, "smoke")
    golden = FROM_ONE_TOKEN_HASHES["mixtral", "q8"]["f16"]
    assert smoke["generated"]["logits_hash"] == f"clb1:{golden}"
    assert smoke["generated"]["isa"] == "neon_dotprod"
    assert [vm["pid"] for vm in emulate("list")] == [record["pid"]]
    done = deploy("doctor", *board[:2], **places)
    assert (done.status, done.stderr) == (44, f"error: {board[1]}: free disk\n")  # of 40 MiB
    assert int(ask(record, "cat /dev/zero >fill; df -Pk . | tail -n 1").split()[3]) < 64
    (build_dir / "jetson-orin" / "colibri").unlink()
    changed = engine("jetson-orin").read_bytes() + b"\0"
    (build_dir / "jetson-orin" / "colibri").write_bytes(changed)
    done = deploy("push", *board, **places)
    assert (done.status, "no room on vm:jetson-orin" in done.stderr) == (35, True)


def test_a_board_that_lost_its_power_starts_again_with_its_slow_disk(
    need_system: Callable[[str], None], emulate: Callable[..., Any], tmp_path: Path
) -> None:
    need_system("aarch64")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "given").write_text("before\n")
    name = "vm:rpi4,ram_mib=192,disk_mib=40,disk_mb_per_s=4"
    first = emulate("start", name, "--home", str(tmp_path / "home"))
    assert emulate("start", name) == first
    assert ask(first, "ls -l given").split()[2:4] == ["colibri", "colibri"]
    ask(first, "echo here >>given; sync")
    os.kill(first["pid"], signal.SIGKILL)
    assert emulate("list") == []
    folder = Path(first["directory"])
    assert sorted(path.name for path in folder.iterdir()) == ["console.log", "disk.ext4", "lock"]
    with pytest.raises(ProcessError) as caught:
        emulate("start", name, "--home", str(tmp_path / "home"))
    assert (caught.value.status, "has a disk already" in caught.value.details) == (38, True)
    second = emulate("start", name)
    assert second["pid"] != first["pid"]
    assert ask(second, "cat given") == "before\nhere\n"
    begun = time.monotonic()
    ask(second, "dd if=/dev/vda of=/dev/null bs=1M count=12", user="root")
    assert time.monotonic() - begun > 12 * 2**20 / 4e6 * 0.9  # a burst of a tenth is let through
    assert emulate("stop", name) == [{"board": name, "was_running": True, "erased": False}]
    assert emulate("stop", name, "--erase") == [
        {"board": name, "was_running": False, "erased": True}
    ]
    assert not folder.exists()


def test_a_model_larger_than_the_ram_comes_from_storage(
    need_system: Callable[[str], None],
    engine: Callable[[str], Path],
    models: Callable[[str, DTypeChoice], Path],
    emulate: Callable[..., Any],
    deploy: Deploy,
    places: Mapping[str, str],
    tmp_path: Path,
) -> None:
    """138 MB of model in 64 MiB of RAM, as 300 MB would be in 128 MiB."""
    need_system("aarch64")
    model = models("synthetic", "q8")
    home = tmp_path / "home"
    shutil.copytree(model, home)
    shutil.copy(engine("jetson-orin"), home / "colibri")
    name = "vm:jetson-orin,ram_mib=64,disk_mib=180"
    record = emulate("start", name, "--home", str(home))
    examined = deploy("doctor", "--board", name, "--model", model, "--json", **places)
    (memory,) = [
        one for one in report_of(examined, "doctor")["findings"] if one["what"] == "memory"
    ]
    assert (memory["severity"], memory["consequence"].split(":")[0]) == (
        "warning",
        "storage is the limit",
    )

    vmstat = "grep -E 'pgpgin|oom_kill' /proc/vmstat"
    generate = "./colibri --model . --tokens 1,2,3,4 --num_tokens 4 --ignore_eos --logits_hash"
    vm = running(record)
    with Connection.open(vm.board, vm.known_hosts) as connection:
        command = f"{vmstat}; {generate} --format json; {vmstat}"
        answer = connection.run(command, timeout_s=300)
    assert answer.status == 0, answer
    before, _, result, after, oom_kills = answer.stdout.decode().splitlines()
    said = json.loads(result)
    # By tests/golden/reference.py.
    golden = "clb1:cd87a1aec90a42fe8bd8aedaf2b2f61e0a025dcede7130bb4f713473fb39fe3f"
    assert (said["ids"], said["logits_hash"]) == ([473, 293, 5, 132], golden)
    size = (model / "model.bin").stat().st_size
    warning, summary = answer.stderr.decode().splitlines()
    told = re.fullmatch(
        r"colibri: warning: the model has (\d+) MB, the memory (\d+) MB available: .* storage .*",
        warning,
    )
    assert told is not None, warning
    assert int(told[1]) == size // 10**6
    assert int(told[2]) < 64
    read, faults = said["read_bytes"], said["page_faults"]
    ended = re.fullmatch(r"colibri: read (\d+) MB from storage in (\d+) page faults", summary)
    assert ended is not None, summary
    # It is said a moment after the result, for which a few more pages may be needed.
    assert read // 10**6 <= int(ended[1]) <= read // 10**6 + 2
    assert faults <= int(ended[2]) <= faults + 50
    assert read > size
    paged_in = (int(after.split()[1]) - int(before.split()[1])) * 1024  # by the whole system
    assert 0.9 * read < paged_in < 1.2 * read
    assert oom_kills.split() == ["oom_kill", "0"]


def test_a_board_without_an_image_is_told_how_to_build_it(deploy: Deploy, tmp_path: Path) -> None:
    done = deploy("smoke", "--board", "vm:rpi5", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.status == 38
    assert done.stderr == (
        "error: there is no aarch64 image for vm:rpi5; build it: "
        "colibri-deploy emulate build rpi5\n"
    )


def test_what_would_be_built_is_told_and_nothing_fetched(
    places: dict[str, str], tmp_path: Path
) -> None:
    places = {**places, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "colibri_deploy", "emulate", "build", "rpi5", "--dry-run"]
    done = run(command, env={**os.environ, **places})
    assert done.stdout == (
        "aarch64: linux-image-cloud-arm64, BusyBox and dropbear of Debian bookworm; there is none\n"
    )
    assert not (tmp_path / "cache").exists()


def test_the_name_of_a_board_says_its_options(targets: dict[str, Target]) -> None:
    board = parse_emulated("vm:rpi5,disk_mb_per_s=20,ram_mib=128", targets)
    assert board == Emulated(targets["rpi5"], VmOptions(ram_mib=128, disk_mb_per_s=20.0))
    assert board.name == "vm:rpi5,ram_mib=128,disk_mb_per_s=20"
    assert parse_emulated("vm:rpi5,ram_mib=512", targets).name == "vm:rpi5"
    slow = parse_emulated("sim:rpi5,no_sftp,latency_ms=2.5", targets)
    assert slow == Emulated(targets["rpi5"], Faults(latency_ms=2.5, no_sftp=True))
    assert slow.name == "sim:rpi5,latency_ms=2.5,no_sftp"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("vm:rpi5,ram=3", "vm:rpi5 has no option 'ram'; its options are ram_mib, disk_mib, "),
        ("vm:rpi5,ram_mib=3", "vm:rpi5, option ram_mib: Input should be greater than or equal"),
        ("vm:rpi5,ram_mib=many", "vm:rpi5, option ram_mib: Input should be a valid integer"),
        ("sim:rpi5,ram_mib=128", "sim:rpi5 has no option 'ram_mib'; its options are latency_ms"),
        ("sim:rpi5,latency_ms=0", "sim:rpi5, option latency_ms: Input should be greater than 0"),
        ("rpi5", "rpi5 is no emulated board: write sim:TARGET or vm:TARGET"),
    ],
)
def test_an_option_that_cannot_be_is_refused(
    name: str, problem: str, targets: dict[str, Target]
) -> None:
    with pytest.raises(UnknownBoardError) as caught:
        parse_emulated(name, targets)
    assert caught.value.message.startswith(problem)
    with pytest.raises(UnknownTargetError):
        parse_emulated("vm:rpi55", targets)


def test_the_archive_is_what_cpio_reads(
    require_program: Callable[[str], Path], tmp_path: Path
) -> None:
    archive = Initramfs()
    archive.directory("home/pi", 0o750, owner=1000)
    archive.file("etc/name", b"board\n", 0o640)
    archive.link("bin/sh", "busybox")
    archive.device("dev/null", 1, 3)
    (tmp_path / "archive").write_bytes(archive.pack())
    busybox = require_program("busybox")
    listed = run([busybox, "sh", "-c", f"{busybox} cpio -tv <{tmp_path}/archive"]).stdout
    rows = [line.split() for line in listed.splitlines()]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("drwxr-xr-x", "0/0", "home"),
        ("drwxr-x---", "1000/1000", "home/pi"),
        ("drwxr-xr-x", "0/0", "etc"),
        ("-rw-r-----", "0/0", "etc/name"),
        ("drwxr-xr-x", "0/0", "bin"),
        ("lrwxrwxrwx", "0/0", "busybox"),
        ("drwxr-xr-x", "0/0", "dev"),
        ("crw-------", "0/0", "dev/null"),
    ]
