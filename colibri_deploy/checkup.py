# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What a doctor looks at: each check reads facts and state, and says what comes of them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from colibri_deploy.condition import Condition, StorageSpeed
from colibri_deploy.detect import ISA_FEATURES, RATIFIED_V, Facts, reaches
from colibri_deploy.targets import Target

HERE = "this machine"

_ROOM_BYTES = 64 << 20  # for an engine, and what is being sent
_LATEST_PAST = 1704067200  # 2024: a clock before it was never set
_CLOCK_SECONDS = 60.0  # what a clock may be off
_DAY_SECONDS = 86400.0
_HOT_CELSIUS = 85.0  # where no zone says when the kernel slows the CPUs down
_SLOW_READ = 40e6  # bytes/s; SD cards reach up to 90 MB/s
_SLOW_WRITE = 5e6
_SCALES_ITSELF = ("intel_pstate", "amd-pstate-epp")  # drivers whose `powersave` is no lowest clock
_NO_LINKS = ("vfat", "exfat", "msdos", "ntfs", "ntfs3", "fuseblk")
_IN_RAM = ("tmpfs", "ramfs", "rootfs")
_FAR_AWAY = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p")
_CPUS = "/sys/devices/system/cpu"


@dataclass(frozen=True)
class Diagnosis:
    """What one check found."""

    severity: Literal["ok", "note", "warning", "error"]
    found: str
    consequence: str = ""
    remedy: str = ""  # a command for the shell of whom it is about


@dataclass(frozen=True)
class Subject:
    """Who is examined, and what for."""

    name: str  # as --board has it, or HERE
    facts: Facts
    condition: Condition
    levels: tuple[str, ...]  # ISA levels of the build, weakest first
    target: Target | None = None  # None: this machine
    model_bytes: int | None = None  # None: no model is to run
    storage: StorageSpeed | None = None  # None: it was not measured

    @property
    def is_jetson(self) -> bool:
        """Whether NVIDIA's tools set its clocks."""
        return any(name.startswith("nvidia,") for name in self.facts.compatible)


def _kernel(subject: Subject) -> Diagnosis | None:
    facts = subject.facts
    if facts.kernel is None:
        return None
    if facts.isa is None and facts.arch == "riscv64" and facts.kernel_version < RATIFIED_V:
        return Diagnosis(
            "note",
            f"Linux {facts.kernel} does not tell RVV 1.0 from its drafts",
            "the engine takes the CPU's letter V for 1.0; on a draft it fails",
            f"colibri-deploy smoke --board {shlex.quote(subject.name)}",
        )
    return Diagnosis("ok", f"Linux {facts.kernel}")


def _isa(subject: Subject) -> Diagnosis | None:
    facts = subject.facts
    if facts.isa is None:
        return None
    expected = subject.target.facts.expected_isa if subject.target else None
    ranks = list(ISA_FEATURES.get(facts.arch, ()))
    usable = [level for level in subject.levels if reaches(facts, level)]
    build = f"colibri-deploy build --target {subject.target.name if subject.target else 'host'}"
    if not usable:
        inside = " ".join(subject.levels)
        return Diagnosis(
            "error", f"{facts.isa}; the build has {inside}", "the engine ends at once", build
        )
    best = max(usable, key=ranks.index)
    if expected is not None and not reaches(facts, expected):
        return Diagnosis(
            "warning",
            f"{facts.isa}; the target expects {expected}",
            f"the engine computes with {best}: the same numbers, more slowly",
            "grep -m1 -E 'Features|flags|isa' /proc/cpuinfo  # is it the board, is it a VM?",
        )
    if best != facts.isa:
        return Diagnosis(
            "warning",
            f"{facts.isa}; the build stops at {best}",
            f"the engine computes with {best}: the same numbers, more slowly",
            build + "  # after adding the level to isas in the target's file",
        )
    return Diagnosis("ok", facts.isa)


def _memory_policy(subject: Subject) -> Diagnosis | None:
    policy = subject.condition.overcommit
    if policy is None:
        return None
    found = f"vm.overcommit_memory = {policy}"
    if policy != 2:
        return Diagnosis("ok", found)
    return Diagnosis(
        "warning",
        found,
        "the engine is refused its key/value cache while there is RAM",
        "sudo sysctl vm.overcommit_memory=0",
    )


def _memory(subject: Subject) -> Diagnosis | None:
    ram, free = subject.facts.ram_bytes, subject.condition.available_bytes
    model = subject.model_bytes
    if ram is None or free is None:
        return None
    found = f"{_gib(free)} of {_gib(ram)} available"
    if model is None:
        return Diagnosis("ok", found)
    found += f", the model has {_gib(model)}"
    if model > ram:
        return Diagnosis(
            "warning",
            found,
            f"storage is the limit: {_gib(model - ram)} have no room, and are read again and again",
            "colibri-deploy convert --dtype q4 CHECKPOINT -o DIR  # or a board with more RAM",
        )
    if model > free:
        return Diagnosis(
            "note",
            found,
            "until others give RAM back, parts of the model are read again",
            "top  # who has it?",
        )
    return Diagnosis("ok", found)


def _swap(subject: Subject) -> Diagnosis | None:
    swap, ram, model = subject.facts.swap_bytes, subject.facts.ram_bytes, subject.model_bytes
    if swap is None or ram is None:
        return None
    if swap == 0 and model is not None and model > ram * 0.9:
        return Diagnosis(
            "note",
            "none, and the model takes all RAM",
            "what other programs hold cannot make room; the kernel ends one when RAM runs out",
            "sudo fallocate -l 2G /swapfile && sudo chmod 600 /swapfile && "
            "sudo mkswap /swapfile && sudo swapon /swapfile",
        )
    return Diagnosis("ok", _gib(swap))


def _locked_memory(subject: Subject) -> Diagnosis | None:
    limit, model = subject.condition.memlock_bytes, subject.model_bytes
    if limit is None:
        return None
    found = "no limit" if limit < 0 else f"at most {_gib(limit)}"
    if model is not None and 0 <= limit < model:
        return Diagnosis(
            "note",
            f"{found}, the model has {_gib(model)}",
            "colibri --use_mlock fails",
            "ulimit -l unlimited  # as root; for good in /etc/security/limits.conf",
        )
    return Diagnosis("ok", found)


def _huge_pages(subject: Subject) -> Diagnosis | None:
    size, ram = subject.condition.huge_bytes, subject.facts.ram_bytes
    if size is None or ram is None:
        return None
    if size == 0:
        return Diagnosis("ok", "none set aside")
    return Diagnosis(
        "warning" if size > ram / 10 else "note",
        f"{_gib(size)} of {_gib(ram)} set aside",
        "RAM that neither the engine nor the page cache can use",
        "sudo sysctl vm.nr_hugepages=0",
    )


def _disk(subject: Subject) -> Diagnosis | None:
    free, model = subject.facts.free_bytes, subject.model_bytes or 0
    if free is None:
        return None
    found = f"{_gib(free)} at {subject.condition.root}"
    if free >= model + _ROOM_BYTES:
        return Diagnosis("ok", found)
    return Diagnosis(
        "warning",
        found + (f", the model has {_gib(model)}" if model else ""),
        "a push is refused, unless the board has the files already",
        f"df -h && du -xh {shlex.quote(subject.condition.root or '/')} | sort -h | tail",
    )


def _mount(subject: Subject) -> Diagnosis | None:
    mount = subject.condition.mount
    if mount is None:
        return None
    point = shlex.quote(mount.point)
    found = f"{mount.kind} at {mount.point}"
    move = "df -hT  # and set workdir in boards.yaml"
    if "ro" in mount.options:
        return Diagnosis(
            "error",
            f"{found}, read-only",
            "nothing can be pushed; a card that fails is mounted so, too",
            f"sudo mount -o remount,rw {point}  # and look at dmesg",
        )
    if "noexec" in mount.options:
        return Diagnosis(
            "error",
            f"{found}, noexec",
            "the engine cannot start: Permission denied",
            f"sudo mount -o remount,exec {point}",
        )
    if mount.kind in _NO_LINKS:
        return Diagnosis("error", found, "releases are made of links, of which it has none", move)
    if mount.kind in _IN_RAM:
        return Diagnosis(
            "note", found, "it is gone after a restart, and takes RAM until then", move
        )
    if mount.kind in _FAR_AWAY:
        return Diagnosis(
            "note", found, "the model is read over a network, while it runs, too", move
        )
    return Diagnosis("ok", found)


def _governor(subject: Subject) -> Diagnosis | None:
    condition = subject.condition
    if not condition.governors:
        return None
    names = " ".join(sorted({governor for _, governor in condition.governors}))
    capped = [pair for pair in condition.clocks_khz if pair[0] < pair[1]]
    if capped:
        most, can = min(capped)
        return Diagnosis(
            "warning",
            f"{names}, at most {most / 1e6:.2f} of {can / 1e6:.2f} GHz",
            "tokens/s fall with the clock",
            "sudo nvpmodel -m 0 && sudo jetson_clocks"
            if subject.is_jetson
            else f"echo {can} | sudo tee {_CPUS}/cpu*/cpufreq/scaling_max_freq",
        )
    if any(
        governor in ("powersave", "userspace") and driver not in _SCALES_ITSELF
        for driver, governor in condition.governors
    ):
        return Diagnosis(
            "warning",
            names,
            "the CPUs stay at their lowest clock, or at one that somebody set",
            f"echo performance | sudo tee {_CPUS}/cpu*/cpufreq/scaling_governor",
        )
    return Diagnosis("ok", names)


def _online(subject: Subject) -> Diagnosis | None:
    present, online = subject.condition.cpus_present, subject.condition.cpus_online
    if present is None or online is None:
        return None
    if online == present:
        return Diagnosis("ok", f"all {present} on")
    return Diagnosis(
        "warning",
        f"{online} of {present} on",
        "the engine has fewer threads than the board has cores",
        "sudo nvpmodel -m 0" if subject.is_jetson else f"echo 1 | sudo tee {_CPUS}/cpu*/online",
    )


def _heat(subject: Subject) -> Diagnosis | None:
    zones = subject.condition.zones
    if not zones:
        return None
    hottest = max(zones, key=lambda zone: zone.celsius - (zone.passive_celsius or _HOT_CELSIUS))
    found = f"{hottest.celsius:.0f} C at {hottest.name}"
    limit = hottest.passive_celsius or _HOT_CELSIUS
    if subject.condition.is_slowed or hottest.celsius >= limit:
        return Diagnosis(
            "warning",
            f"{found}, slowed down from {limit:.0f} C on",
            "the CPUs run slower than they can, the more so the longer they work",
            "watch cat /sys/class/thermal/thermal_zone*/temp  # while you cool it",
        )
    return Diagnosis("ok", found)


def _power(subject: Subject) -> Diagnosis | None:
    low = subject.condition.low_voltage
    if low is None:
        return None
    if not low:
        return Diagnosis("ok", "enough")
    return Diagnosis(
        "warning",
        "under-voltage",
        "the CPUs are slowed down, and what is written may be lost",
        "sudo dmesg | grep -i voltage  # and take the maker's supply, and a short cable",
    )


def _clock(subject: Subject) -> Diagnosis | None:
    clock, ahead = subject.condition.clock, subject.condition.clock_ahead_s
    if clock is None or ahead is None:
        return None
    date = datetime.fromtimestamp(clock, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if clock >= _LATEST_PAST and abs(ahead) <= _CLOCK_SECONDS:
        return Diagnosis("ok", date)
    never = clock < _LATEST_PAST
    off = f"{abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} {HERE}"
    return Diagnosis(
        "warning" if never or abs(ahead) > _DAY_SECONDS else "note",
        f"{date}, {'never set' if never else off}",
        "ages of files and locks are wrong, and apt and curl refuse certificates",
        "sudo timedatectl set-ntp true  # or: sudo date -u -s 'YYYY-MM-DD HH:MM'",
    )


def _storage(subject: Subject) -> Diagnosis | None:
    speed = subject.storage
    if speed is None:
        return None
    read, write = speed.read_bytes_per_s, speed.write_bytes_per_s
    if read is None or write is None:
        return None
    found = f"reads {read / 1e6:,.0f} MB/s, writes {write / 1e6:,.0f} MB/s"
    if read >= _SLOW_READ and write >= _SLOW_WRITE:
        return Diagnosis("ok", found)
    seconds = (subject.model_bytes or 1e9) / read
    of_what = "the model" if subject.model_bytes else "a model of 1 GB"
    return Diagnosis(
        "note",
        found,
        f"{of_what} takes {seconds:,.0f} s to load",
        "lsblk -o NAME,SIZE,TRAN,MODEL  # and set workdir in boards.yaml to a faster disk",
    )


# What is checked, by name; None: the subject does not say.
CHECKS: Mapping[str, Callable[[Subject], Diagnosis | None]] = {
    "kernel": _kernel,
    "ISA level": _isa,
    "memory": _memory,
    "swap": _swap,
    "memory policy": _memory_policy,
    "locked memory": _locked_memory,
    "huge pages": _huge_pages,
    "free disk": _disk,
    "mount": _mount,
    "storage": _storage,
    "CPU clock": _governor,
    "CPUs": _online,
    "temperature": _heat,
    "power supply": _power,
    "time": _clock,
}

# Those of which nothing is said where nobody asked, or few boards have a sensor.
OPTIONAL = ("storage", "power supply")


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 2**28 else f"{n_bytes / 2**20:.1f} MiB"
