# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A push that comes to grief anywhere leaves a board that runs the old version or the new one.

Through OpenSSH's server: the client is killed, the line is cut, the disk is filled, before and
after every command, and at every chunk and one byte to either side. A line that comes back costs
nothing but time.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
from cutting_client import FILLER, Command, Cut, Job
from loopback import wait_until

from colibri_deploy.process import run
from colibri_deploy.store import BLOCK_BYTES

CHUNK = 3 << 14
LEAST_CUTS = 50  # points for each way to cut
LEAST_FILLS = 20
LEAST_BREAKS = 10
SOME = 4  # of so many points one is tried with a line that comes back
AT_ONCE = 2  # pushes, each to a work directory of its own
COMPLETED = 6  # every so many pushes that came to grief are followed by one that must succeed
TITLE = "pushes that came to grief, and the version that was current then"


@dataclass(frozen=True)
class Version:
    """What is pushed."""

    engine: Path
    model: Path

    @property
    def manifest(self) -> dict[str, str]:
        """SHA-256 by name."""
        paths = {"colibri": self.engine}
        paths |= {name: self.model / name for name in ("model.bin", "config.json")}
        return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}


@dataclass
class Bench:
    """A board with many work directories, and clients that come to grief."""

    folder: Path  # of the work directories
    clients: queue.SimpleQueue[subprocess.Popen[str]]  # those that have nothing to do
    old: Version
    new: Version

    def push(
        self,
        workdir: Path,
        version: Version,
        cut: Cut | None = None,
        trace: Path | None = None,
        connections: int = 1,
        comes_back: bool = False,
    ) -> int:
        """The exit status; -9: the client was killed."""
        job = Job(
            str(workdir),
            str(version.engine),
            str(version.model),
            CHUNK,
            cut,
            connections,
            comes_back,
            str(trace) if trace else None,
        )
        client = self.clients.get()
        try:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write(json.dumps(asdict(job)) + "\n")
            client.stdin.flush()
            return int(client.stdout.readline())
        finally:
            self.clients.put(client)

    def commands(self) -> list[Command]:
        """What a push of the new version over the old one runs."""
        trace = self.folder / "trace"
        workdir = self.with_old_version("traced")
        assert self.push(workdir, self.new, trace=trace) == 0
        assert current(workdir) == self.new.manifest
        return [Command(**one) for one in json.loads(trace.read_text())]

    def with_old_version(self, name: str, folder: Path | None = None) -> Path:
        """A work directory on the board where the old version is current."""
        workdir = (folder or self.folder) / name
        shutil.copytree(self.folder / "old", workdir, symlinks=True)
        return workdir


def current(workdir: Path) -> dict[str, str]:
    """The SHA-256 of the files of the current release, whose engine has to run."""
    release = workdir / "current"
    assert run([release / "colibri", "--version"]).stdout.startswith("colibri ")
    names = {path.name for path in release.iterdir()} - {"manifest"}
    return {name: hashlib.sha256((release / name).read_bytes()).hexdigest() for name in names}


@pytest.fixture
def bench(
    sshd: Callable[..., object], engine: Callable[[str], Path], small_model: Path, tmp_path: Path
) -> Iterator[Bench]:
    sshd("desk")
    old = Version(engine("host"), small_model)
    new = Version(tmp_path / "new" / "colibri", tmp_path / "new" / "model")
    shutil.copytree(small_model, new.model)
    new.engine.write_bytes(old.engine.read_bytes() + b"\0")
    new.engine.chmod(0o755)
    data = bytearray((new.model / "model.bin").read_bytes())
    for chunk in (5, 15):
        data[chunk * CHUNK + 5] ^= 1
    (new.model / "model.bin").write_bytes(data)
    folder = tmp_path / "boards"
    folder.mkdir()
    program = Path(__file__).with_name("cutting_client.py")
    words: list[str | Path] = [
        sys.executable,
        program,
        tmp_path / "boards.yaml",
        tmp_path / "known_hosts",
    ]
    clients: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
    pipe = subprocess.PIPE
    for _ in range(AT_ONCE):
        clients.put(subprocess.Popen(words, text=True, stdin=pipe, stdout=pipe))
    made = Bench(folder, clients, old, new)
    assert made.push(folder / "old", old) == 0
    assert current(folder / "old") == old.manifest
    yield made
    for _ in range(AT_ONCE):
        with clients.get() as client:
            client.terminate()


def chunk_ends(command: Command) -> list[int]:
    """Where the chunks of what a command is fed begin and end."""
    if command.verb != "receive":
        return []
    return sorted({*range(0, command.n_bytes, CHUNK), command.n_bytes})


def cuts(commands: list[Command], how: str) -> Iterator[Cut]:
    for one in commands:
        for is_after in (False, True):
            yield Cut(how, one.verb, one.number, None, is_after)
        places = {end + by for end in chunk_ends(one) for by in (-1, 0, 1)}
        for at in sorted(places & {*range(one.n_bytes + 1)}):
            yield Cut(how, one.verb, one.number, at)


def check(bench: Bench, workdir: Path, number: int, new: Version | None = None) -> int:
    """0 if the old version is current and whole, 1 if it is the new one; completes some pushes."""
    new = new or bench.new
    found = [bench.old.manifest, new.manifest].index(current(workdir))
    if number % COMPLETED == 0:
        assert bench.push(workdir, new) == 0
        assert current(workdir) == new.manifest
        assert list(workdir.glob("store/.*")) == []
        wait_until(lambda: not (workdir / "lock").exists(), "the lock stays")
    return found


@pytest.mark.parametrize("how", ["kill", "line"])
def test_a_push_that_is_cut_anywhere_leaves_one_of_two_versions(
    how: str, bench: Bench, report_row: Callable[..., None]
) -> None:
    started = time.monotonic()

    def cut_one(number: int, cut: Cut) -> int:
        workdir = bench.with_old_version(str(number))
        status = bench.push(workdir, bench.new, cut)
        assert status == -9 if how == "kill" else status in (0, 29), cut
        found = check(bench, workdir, number)
        shutil.rmtree(workdir)
        return found

    points = cuts(bench.commands(), how)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        left = list(pool.map(cut_one, itertools.count(), points))
    assert len(left) >= LEAST_CUTS
    assert set(left) == {0, 1}
    report(report_row, how, left, started)


def test_a_line_that_comes_back_is_no_trouble(
    bench: Bench, report_row: Callable[..., None]
) -> None:
    started = time.monotonic()

    def cut_one(number: int, cut: Cut) -> int:
        workdir = bench.with_old_version(str(number))
        assert bench.push(workdir, bench.new, cut, comes_back=True) == 0, cut
        found = check(bench, workdir, number)
        shutil.rmtree(workdir)
        return found

    commands = bench.commands()
    planned = [one.verb for one in commands].index("lock")
    points = itertools.islice(cuts(commands[planned:], "line"), 0, None, SOME)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        left = list(pool.map(cut_one, itertools.count(), points))
    assert len(left) >= LEAST_BREAKS
    assert set(left) == {1}
    report(report_row, "line that comes back", left, started)


TWO_CONNECTIONS = [
    *(Cut("kill", "receive_range", 0, at) for at in (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES)),
    Cut("kill", "receive_range", 1, None, is_after=True),
    Cut("kill", "spread", 0, None, is_after=True),
    Cut("line", "receive_range", 0, BLOCK_BYTES - 1),
    Cut("line", "receive_range", 1, None),
    Cut("line", "receive_range", 1, BLOCK_BYTES // 2 + 1),
    Cut("workers", "receive_range", 1, 0),
    Cut("fill", "spread", 0, None),
    Cut("fill", "receive_range", 0, 1),
    Cut("fill", "receive_range", 1, BLOCK_BYTES),
]


def test_a_push_over_two_connections_that_is_cut_leaves_one_of_two_versions(
    bench: Bench, disk: Path, report_row: Callable[..., None], tmp_path: Path
) -> None:
    """All weights of the model are others, so it is sent as a whole."""
    started = time.monotonic()
    new = Version(bench.old.engine, tmp_path / "another")
    shutil.copytree(bench.old.model, new.model)
    data = (new.model / "model.bin").read_bytes()
    weights = bytes(byte ^ 1 for byte in data[BLOCK_BYTES:])
    (new.model / "model.bin").write_bytes(data[:BLOCK_BYTES] + weights)
    left = []
    for number, cut in enumerate(TWO_CONNECTIONS):
        workdir = bench.with_old_version(str(number), disk)
        status = bench.push(workdir, new, replace(cut), connections=2, comes_back=True)
        assert status == {"kill": -9, "line": 0, "workers": 0, "fill": 35}[cut.how], cut
        (disk / FILLER).unlink(missing_ok=True)
        left.append(check(bench, workdir, number, new))
        assert left[-1] == (status == 0)
        shutil.rmtree(workdir)
    report(report_row, "two connections", left, started)


def report(report_row: Callable[..., None], how: str, left: list[int], started: float) -> None:
    counts = (str(len(left)), "old", str(left.count(0)), "new", str(left.count(1)))
    report_row(TITLE, how, *counts, f"{time.monotonic() - started:.0f} s")


@pytest.fixture
def disk(bench: Bench, require: Callable[[bool, str], None]) -> Iterator[Path]:
    """A file system of 4 MiB."""
    path = bench.folder / "disk"
    path.mkdir()
    done = run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], check=False)
    require(done.status == 0, f"no file system can be mounted: {done.stderr.strip()}")
    yield path
    run(["umount", path])


def test_a_disk_that_is_filled_anywhere_leaves_one_of_two_versions(
    bench: Bench, disk: Path, report_row: Callable[..., None]
) -> None:
    started = time.monotonic()
    statuses, left = [], []
    for number, cut in enumerate(fillings(bench.commands())):
        workdir = bench.with_old_version(str(number), disk)
        statuses.append(bench.push(workdir, bench.new, cut))
        assert (disk / FILLER).stat().st_size > 0
        assert current(workdir) in (bench.old.manifest, bench.new.manifest), cut
        (disk / FILLER).unlink()
        left.append(check(bench, workdir, number))
        shutil.rmtree(workdir)
    assert len(left) >= LEAST_FILLS
    assert set(left) == {0, 1}
    assert set(statuses) == {0, 35}  # 0 where nothing more was to be written
    report(report_row, "fill", left, started)


def fillings(commands: list[Command]) -> Iterator[Cut]:
    for one in commands:
        yield Cut("fill", one.verb, one.number, None)
        for at in chunk_ends(one):
            yield Cut("fill", one.verb, one.number, at)
