# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What is planted on a board behind a real SSH server is found, and nothing else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ssh_servers import Server

from colibri_deploy.asking import Answers
from colibri_deploy.checkup import CHECKS, Diagnosis, Subject
from colibri_deploy.condition import Mount, StorageSpeed, condition_in, mount_of
from colibri_deploy.detect import facts_in
from colibri_deploy.doctor import examine_board
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.ssh import Connection
from colibri_deploy.targets import load_targets

LEVELS = ("scalar", "neon", "neon_dotprod", "neon_i8mm")
GIB = 1 << 30
CPUFREQ = "sys/devices/system/cpu/cpu2/cpufreq"
ZONE = "sys/class/thermal/thermal_zone0"
ROOT_ON = "proc/mounts"

Examine = Callable[..., dict[str, Diagnosis]]


@pytest.fixture
def examine(
    planted_server: Callable[..., Server], client_home: Path, tmp_path: Path, root: Path
) -> Examine:
    """`examine(board, state)` plants a board of PLANTED behind sshd, and examines it there."""

    def examine_it(
        planted: str = "pi5",
        state: dict[str, str] | None = None,
        target: str = "rpi5",
        kind: str = "openssh",
        levels: tuple[str, ...] = LEVELS,
        model_bytes: int | None = None,
    ) -> dict[str, Diagnosis]:
        server = planted_server(kind, planted, state or {})
        known = client_home / ".ssh" / "known_hosts"
        known.write_text(server.known_hosts_line)
        targets = load_targets(root)
        with Connection.open(server.with_key(tmp_path / "key"), KnownHosts(known)) as connection:
            return examine_board(
                connection, targets[target], targets, levels, model_bytes, with_storage=False
            )

    return examine_it


@pytest.mark.parametrize("kind", ["openssh", "dropbear"])
def test_a_healthy_board_has_nothing(kind: str, examine: Examine) -> None:
    found = examine(kind=kind, model_bytes=1 << 20)
    unwell = {what: one for what, one in found.items() if one.severity != "ok"}
    assert unwell == {}
    checked = {*CHECKS, "SSH server", "architecture", "target", "RAM", "page size", "tools"}
    assert set(found) == checked - {"storage"}


FINDINGS: dict[str, tuple[str, dict[str, object], str, str, str]] = {
    "memory that is promised only once": (
        "memory policy",
        {"state": {"proc/sys/vm/overcommit_memory": "2\n"}},
        "warning",
        "vm.overcommit_memory = 2",
        "sudo sysctl vm.overcommit_memory=0",
    ),
    "a model that is larger than RAM": (
        "memory",
        {"model_bytes": 9 * GIB},
        "warning",
        "6.7 GiB of 7.9 GiB available, the model has 9.0 GiB",
        "colibri-deploy convert --dtype q4 CHECKPOINT -o DIR  # or a board with more RAM",
    ),
    "a model that others leave no room": (
        "memory",
        {"model_bytes": 7 * GIB},
        "note",
        "6.7 GiB of 7.9 GiB available, the model has 7.0 GiB",
        "top  # who has it?",
    ),
    "no swap beside a model that takes all RAM": (
        "swap",
        {"state": {"meminfo SwapTotal": "0 kB"}, "model_bytes": 8 * GIB},
        "note",
        "none, and the model takes all RAM",
        "sudo fallocate -l 2G /swapfile && ",
    ),
    "a model that may not be locked": (
        "locked memory",
        {"model_bytes": 9 << 20},
        "note",
        "at most 8.0 MiB, the model has 9.0 MiB",
        "ulimit -l unlimited",
    ),
    "huge pages that take half of RAM": (
        "huge pages",
        {"state": {"meminfo HugePages_Total": "2048"}},
        "warning",
        "4.0 GiB of 7.9 GiB set aside",
        "sudo sysctl vm.nr_hugepages=0",
    ),
    "a few huge pages": (
        "huge pages",
        {"state": {"meminfo HugePages_Total": "8"}},
        "note",
        "16.0 MiB of 7.9 GiB set aside",
        "sudo sysctl vm.nr_hugepages=0",
    ),
    "a full disk": (
        "free disk",
        {"state": {"bin/df": "#!/bin/sh\necho Filesystem\necho /dev/x 10 5 2048 50% /\n"}},
        "warning",
        "2.0 MiB at /",
        "df -h && du -xh /",
    ),
    "a disk without room for the model": (
        "free disk",
        {
            "state": {"bin/df": "#!/bin/sh\necho Filesystem\necho /dev/x 1 1 1048576 50% /\n"},
            "model_bytes": GIB,
        },
        "warning",
        "1.0 GiB at /",
        "df -h && du -xh /",
    ),
    "a card that went read-only": (
        "mount",
        {"state": {ROOT_ON: "/dev/mmcblk0p2 / ext4 ro,noatime 0 0\n"}},
        "error",
        "ext4 at /, read-only",
        "sudo mount -o remount,rw /",
    ),
    "a mount from which nothing starts": (
        "mount",
        {"state": {ROOT_ON: "/dev/sda1 / ext4 rw,nosuid,noexec 0 0\n"}},
        "error",
        "ext4 at /, noexec",
        "sudo mount -o remount,exec /",
    ),
    "a stick without links": (
        "mount",
        {"state": {ROOT_ON: "/dev/root / ext4 rw 0 0\n/dev/sda1 / exfat rw 0 0\n"}},
        "error",
        "exfat at /",
        "df -hT  # and set workdir in boards.yaml",
    ),
    "a disk in RAM": (
        "mount",
        {"state": {ROOT_ON: "tmpfs / tmpfs rw 0 0\n"}},
        "note",
        "tmpfs at /",
        "df -hT",
    ),
    "a disk on a server": (
        "mount",
        {"state": {ROOT_ON: "192.0.2.1:/pi / nfs4 rw,vers=4.2 0 0\n"}},
        "note",
        "nfs4 at /",
        "df -hT",
    ),
    "CPUs that stay at their lowest clock": (
        "CPU clock",
        {"state": {f"{CPUFREQ}/scaling_governor": "powersave\n"}},
        "warning",
        "ondemand powersave",
        "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    ),
    "CPUs that may not reach their clock": (
        "CPU clock",
        {"state": {f"{CPUFREQ}/scaling_max_freq": "1500000\n"}},
        "warning",
        "ondemand, at most 1.50 of 2.40 GHz",
        "echo 2400000 | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_max_freq",
    ),
    "a Jetson in a power mode": (
        "CPU clock",
        {
            "planted": "orin nano",
            "target": "jetson-orin-nano",
            "state": {f"{CPUFREQ}/scaling_max_freq": "1500000\n"},
        },
        "warning",
        "ondemand, at most 1.50 of 2.40 GHz",
        "sudo nvpmodel -m 0 && sudo jetson_clocks",
    ),
    "CPUs that are off": (
        "CPUs",
        {"state": {"sys/devices/system/cpu/online": "0,2-3\n"}},
        "warning",
        "3 of 4 on",
        "echo 1 | sudo tee /sys/devices/system/cpu/cpu*/online",
    ),
    "a board that is too hot": (
        "temperature",
        {"state": {f"{ZONE}/temp": "81200\n"}},
        "warning",
        "81 C at cpu-thermal, slowed down from 80 C on",
        "watch cat /sys/class/thermal/thermal_zone*/temp",
    ),
    "a board that heat slows down already": (
        "temperature",
        {"state": {"sys/class/thermal/cooling_device0/cur_state": "2\n"}},
        "warning",
        "48 C at cpu-thermal, slowed down from 80 C on",
        "watch cat ",
    ),
    "a supply that is too weak": (
        "power supply",
        {"state": {"sys/class/hwmon/hwmon1/in0_lcrit_alarm": "1\n"}},
        "warning",
        "under-voltage",
        "sudo dmesg | grep -i voltage",
    ),
    "a clock that was never set": (
        "time",
        {"state": {"bin/date": "#!/bin/sh\necho 86460\n"}},
        "warning",
        "1970-01-02 00:01 UTC, never set",
        "sudo timedatectl set-ntp true",
    ),
    "an engine for other instructions": (
        "ISA level",
        {"levels": ("neon_i8mm",)},
        "error",
        "neon_dotprod; the build has neon_i8mm",
        "colibri-deploy build --target rpi5",
    ),
    "a build that does not use the CPU": (
        "ISA level",
        {"levels": ("scalar", "neon")},
        "warning",
        "neon_dotprod; the build stops at neon",
        "colibri-deploy build --target rpi5  # after adding",
    ),
    "a CPU that is weaker than the target's": (
        "ISA level",
        {"planted": "pi4"},
        "warning",
        "neon; the target expects neon_dotprod",
        "grep -m1 -E 'Features|flags|isa' /proc/cpuinfo",
    ),
    "a kernel that cannot name the vectors": (
        "kernel",
        {"planted": "a K1 with the vendor's kernel", "target": "bpi-f3", "levels": ("scalar",)},
        "note",
        "Linux 6.1.15 does not tell RVV 1.0 from its drafts",
        "colibri-deploy smoke --board openssh",
    ),
    "another kind of board": (
        "target",
        {"planted": "pi4"},
        "error",
        "Raspberry Pi 4 Model B Rev 1.1 (raspberrypi,4-model-b): rpi4",
        "colibri-deploy targets",
    ),
    "another architecture": (
        "architecture",
        {"planted": "visionfive2", "levels": ("scalar",)},
        "error",
        "riscv64; rpi5 is aarch64",
        "colibri-deploy targets",
    ),
    "more RAM than is sold": (
        "RAM",
        {"state": {"meminfo MemTotal": "32505856 kB"}},
        "error",
        "31.0 GiB; the target has at most 16",
        "colibri-deploy targets",
    ),
    "a kernel with other pages": (
        "page size",
        {"state": {"proc/self/smaps": "KernelPageSize:        4 kB\n", "bin/getconf": "exit 1\n"}},
        "note",
        "4096 bytes; usually 16384 here",
        "uname -r",
    ),
}


@pytest.mark.parametrize("what", FINDINGS)
def test_what_is_planted_is_found(what: str, examine: Examine) -> None:
    name, words, severity, found, remedy = FINDINGS[what]
    one = examine(**words)[name]
    assert (one.severity, one.found[: len(found)]) == (severity, found)
    assert one.consequence
    assert one.remedy.startswith(remedy)


def test_every_check_has_a_finding_that_a_test_plants() -> None:
    apart = {"storage"}  # which is measured, below
    assert {name for name, *_ in FINDINGS.values()} >= set(CHECKS) - apart


@pytest.mark.parametrize(
    ("ahead", "severity"), [(-30, "ok"), (-90, "note"), (90, "note"), (172800, "warning")]
)
def test_a_clock_that_is_off(ahead: int, severity: str, examine: Examine) -> None:
    date = f"#!/bin/sh\necho $(($({shutil.which('date')} +%s) + {ahead}))\n"
    one = examine(state={"bin/date": date})["time"]
    assert one.severity == severity
    if severity != "ok":
        way = "ahead of" if ahead > 0 else "behind"
        (seconds,) = re.findall(rf"UTC, ([\d,]+) s {way} this machine", one.found)
        assert abs(int(seconds.replace(",", "")) - abs(ahead)) < 30


def test_a_driver_that_scales_by_itself_may_call_it_powersave(examine: Examine) -> None:
    folders = [f"sys/devices/system/cpu/cpu{number}/cpufreq" for number in range(4)]
    governors = {f"{folder}/scaling_governor": "powersave\n" for folder in folders}
    drivers = {f"{folder}/scaling_driver": "intel_pstate\n" for folder in folders}
    assert examine(state=governors | drivers)["CPU clock"] == Diagnosis("ok", "powersave")


def test_a_tool_that_a_push_needs_is_missed(
    ssh_server: Callable[..., Server],
    new_key: Callable[..., Path],
    client_home: Path,
    tmp_path: Path,
    root: Path,
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in "cat cmp date dd df grep ls sed sh sort tr uname".split():
        (tools / name).symlink_to(shutil.which(name) or name)
    wrapper = tmp_path / "poor"
    wrapper.write_text(f'#!/bin/sh\nPATH={tools}\neval "$SSH_ORIGINAL_COMMAND"\n')
    wrapper.chmod(0o755)
    server = ssh_server("openssh", f"ForceCommand {wrapper}")
    server.lets_in(new_key("key"))
    known = client_home / ".ssh" / "known_hosts"
    known.write_text(server.known_hosts_line)
    targets = load_targets(root)
    with Connection.open(server.with_key(tmp_path / "key"), KnownHosts(known)) as connection:
        found = examine_board(
            connection, targets["host"], targets, LEVELS, None, with_storage=False
        )
    assert found["tools"].severity == "error"
    assert found["tools"].found == (
        "a push needs chmod, du, find, head, ln, mkdir, mv, readlink, rm, rmdir, sync, "
        "sha256sum or cksum"
    )
    assert found["tools"].consequence == "nothing can be pushed"
    assert found["tools"].remedy.startswith("sudo apt install coreutils")


def test_an_old_dropbear(
    planted_server: Callable[..., Server],
    require_program: Callable[[str], Path],
    client_home: Path,
    tmp_path: Path,
    root: Path,
) -> None:
    """The program itself, with another year in its version: the exchange covers that, too."""
    program = require_program("/usr/sbin/dropbear").read_bytes()
    (version,) = set(re.findall(rb"dropbear_20\d\d\.\d\d", program))
    old = tmp_path / "old-dropbear"
    old.write_bytes(program.replace(version, b"dropbear_2016.74"))
    old.chmod(0o755)
    server = planted_server("dropbear", "pi5", {})
    server.stop()
    server.command[0] = old
    server.start()
    known = client_home / ".ssh" / "known_hosts"
    known.write_text(server.known_hosts_line)
    targets = load_targets(root)
    with Connection.open(server.with_key(tmp_path / "key"), KnownHosts(known)) as connection:
        found = examine_board(
            connection, targets["rpi5"], targets, LEVELS, None, with_storage=False
        )
    one = found["SSH server"]
    assert (one.severity, one.found) == ("warning", "dropbear_2016.74")
    assert one.remedy.startswith("sudo apt install dropbear")


def test_slow_storage_is_a_note() -> None:
    nothing = Answers()
    slow = StorageSpeed(write_bytes_per_s=3e6, read_bytes_per_s=20e6)
    subject = Subject("pi", facts_in(nothing), condition_in(nothing, 0.0), (), storage=slow)
    one = CHECKS["storage"](subject)
    assert one is not None
    assert (one.severity, one.found) == ("note", "reads 20 MB/s, writes 3 MB/s")
    assert one.consequence == "a model of 1 GB takes 50 s to load"


def test_what_is_not_told_is_said(examine: Examine, tmp_path: Path) -> None:
    found = examine(state={f"{ZONE}/temp": "", "proc/mounts": ""})
    assert found["not told"].severity == "note"
    assert found["not told"].found == "mount, temperature"


@pytest.mark.parametrize(
    ("path", "point"),
    [("/data/x", "/data"), ("/database", "/"), ("/data/a b/c", "/data/a b"), ("/", "/")],
)
def test_a_path_lies_on_the_nearest_mount(path: str, point: str) -> None:
    mounts = [Mount(one, "ext4", ()) for one in ("/data/a b", "/", "/data", "/datab")]
    assert mount_of(path, mounts) == Mount(point, "ext4", ())


def test_of_two_mounts_at_one_point_the_last_counts() -> None:
    mounts = [Mount("/", "rootfs", ()), Mount("/", "ext4", ())]
    assert mount_of("/home", mounts) == Mount("/", "ext4", ())
