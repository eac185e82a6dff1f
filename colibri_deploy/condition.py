# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The state that a board, or this machine, is in: what changes from boot to boot."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from colibri_deploy.asking import Answers, ask, ask_here
from colibri_deploy.ssh import Connection

PROBE_BYTES = 64 << 20
_SCRIPT = "condition.sh"
_PROBE_SECONDS = 120.0  # for PROBE_BYTES written and read; the slowest cards do 2 MB/s
_SHORTEST_SECONDS = 0.01  # what the board's clock can tell


@dataclass(frozen=True)
class Mount:
    """A line of /proc/mounts."""

    point: str
    kind: str  # of file system, "ext4"
    options: tuple[str, ...]


@dataclass(frozen=True)
class Zone:
    """A thermal zone."""

    name: str
    celsius: float
    passive_celsius: float | None  # where the kernel slows the CPUs down; None: nowhere


@dataclass(frozen=True)
class Condition:
    """The state of a board; None or empty where it does not say."""

    clock: float | None  # its seconds since 1970
    clock_ahead_s: float | None  # of this machine's clock
    root: str | None  # the work directory, or what there is of the way to it
    mount: Mount | None  # where that lies
    overcommit: int | None  # vm.overcommit_memory
    available_bytes: int | None  # RAM that is free or can be freed
    huge_bytes: int | None  # RAM set aside for huge pages
    memlock_bytes: int | None  # -1: no limit
    cpus_present: int | None
    cpus_online: int | None
    governors: tuple[tuple[str, str], ...]  # driver and governor of each CPU
    clocks_khz: tuple[tuple[int, int], ...]  # of each CPU: highest that is allowed, and that can be
    zones: tuple[Zone, ...]
    is_slowed: bool | None  # whether heat slows the CPUs down now
    low_voltage: bool | None  # whether the supply is too weak now


@dataclass(frozen=True)
class StorageSpeed:
    """What the storage below the work directory moves; None where it could not be measured."""

    write_bytes_per_s: float | None
    read_bytes_per_s: float | None  # past the page cache


def condition_of(connection: Connection) -> Condition:
    """Asks a board. Raises BoardConnectionError and BoardError."""
    before = time.time()
    answers = ask(connection, _SCRIPT, {})
    return condition_in(answers, (before + time.time()) / 2)


def condition_here(directory: Path) -> Condition:
    """Asks this machine; `directory` stands for the work directory."""
    return condition_in(ask_here(_SCRIPT, directory, {}), time.time())


def storage_speed(connection: Connection) -> StorageSpeed:
    """Writes PROBE_BYTES on a board, reads and removes them. Raises as `condition_of`."""
    mib = str(PROBE_BYTES >> 20)
    return _speed(ask(connection, "storage.sh", {"mib": mib}, timeout_s=_PROBE_SECONDS))


def storage_speed_here(directory: Path) -> StorageSpeed:
    """The same in a directory of this machine."""
    return _speed(ask_here("storage.sh", directory, {"mib": str(PROBE_BYTES >> 20)}))


def _speed(answers: Answers) -> StorageSpeed:
    def rate(key: str) -> float | None:
        times = answers.first(key)
        if times is None:
            return None
        start, end = map(float, times.split())
        return PROBE_BYTES / max(end - start, _SHORTEST_SECONDS)

    return StorageSpeed(rate("written"), rate("read"))


def condition_in(answers: Answers, now: float) -> Condition:
    """What the answers say; `now` is this machine's time when they were given."""
    clock = answers.number("now")
    root = answers.first("root")
    mounts = [_mount(line) for line in answers.all("mount")]
    voltages = answers.all("low_voltage")
    slowed = answers.all("slowed")
    memlock = answers.first("memlock")
    page = answers.number("huge_page_kib", 1024)
    pages = answers.number("huge_pages")
    return Condition(
        clock=clock,
        clock_ahead_s=None if clock is None else clock - now,
        root=root,
        mount=mount_of(root, mounts) if root else None,
        overcommit=answers.number("overcommit"),
        available_bytes=answers.number("available_kib", 1024),
        huge_bytes=None if page is None or pages is None else page * pages,
        memlock_bytes=-1 if memlock == "unlimited" else answers.number("memlock"),
        cpus_present=_count(answers.first("present")),
        cpus_online=_count(answers.first("online")),
        governors=tuple(
            (words[0], words[1])
            for words in map(str.split, answers.all("governor"))
            if len(words) == 2
        ),
        clocks_khz=tuple(
            (int(words[0]), int(words[1]))
            for words in map(str.split, answers.all("clock_khz"))
            if len(words) == 2
        ),
        zones=tuple(zone for zone in map(_zone, answers.all("zone")) if zone),
        is_slowed=any(state != "0" for state in slowed) if slowed else None,
        low_voltage="1" in voltages if voltages else None,
    )


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """The mount that a path lies on: of the longest mount point above it the last, which hides
    others."""
    above = [mount for mount in mounts if PurePosixPath(path).is_relative_to(mount.point)]
    longest = max((len(mount.point) for mount in above), default=0)
    return next((mount for mount in reversed(above) if len(mount.point) == longest), None)


def _mount(line: str) -> Mount:
    """A mount of `point type options`; the kernel writes blanks and backslashes as \\040."""
    point, kind, options, *_ = [*line.split(" "), "", ""]
    name = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)
    return Mount(name, kind, tuple(options.split(",")))


def _count(ranges: str | None) -> int | None:
    """How many CPUs a list such as "0-3,6" has."""
    if not ranges or not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", ranges):
        return None
    bounds = [part.split("-") for part in ranges.split(",")]
    return sum(int(bound[-1]) - int(bound[0]) + 1 for bound in bounds)


def _zone(line: str) -> Zone | None:
    """A zone of `temperature passive type`, in thousandths of a degree; None: it has no reading."""
    match = re.fullmatch(r"(-?\d+) (-|-?\d+) (.+)", line)
    if match is None:
        return None
    passive = None if match[2] == "-" else int(match[2]) / 1000
    return Zone(match[3], int(match[1]) / 1000, passive)
