# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the tree, the fixtures, and engines built once a session.

Where the environment promises a thing (CI=true), a test that lacks it fails; elsewhere it skips
and says why.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings
from synthetic import SHAPES, write_checkpoint
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from colibri_deploy.build import build, plan
from colibri_deploy.convert import DTypeChoice, convert_checkpoint
from colibri_deploy.process import Completed, run
from colibri_deploy.targets import ARCHITECTURES, load_targets, machine_arch, select
from colibri_deploy.toolchain import find_toolchain

pytest_plugins = ["board_fixtures", "bochs_fixtures", "tokenizer_fixtures"]

ROOT = Path(__file__).resolve().parent.parent
COMPUTING = ("emulation", "golden", "kernels")


# What a terminal, or who calls, would change in what programs print.
for _name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR"):
    os.environ.pop(_name, None)
os.environ["LC_ALL"] = "C.UTF-8"

# A machine that stands still for a moment is no slow test.
settings.register_profile(
    "patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

# A shell starts what runs in the background with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds an option of the tests of the logits hash."""
    text = "compute the logits hash with every setting on every level, which takes half an hour"
    parser.addoption("--full-matrix", action="store_true", help=text)


def lacking(reason: str) -> NoReturn:
    """Fails under CI=true, skips elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The directory of shared fixtures: $COLIBRI_SHARED, or ../shared beside the project."""
    path = Path(os.environ.get("COLIBRI_SHARED") or ROOT.parent / "shared")
    if not (path / "fixtures").is_dir():
        lacking(f"no fixtures in {path}: set COLIBRI_SHARED to the directory that holds fixtures/")
    return path


@pytest.fixture(scope="session")
def full_matrix(pytestconfig: pytest.Config) -> bool:
    """Whether every level runs the full product."""
    return bool(pytestconfig.getoption("full_matrix"))


@pytest.fixture(scope="session")
def require_program() -> Callable[[str], Path]:
    """A function from a program's name to its path; the test skips or fails without it."""

    def require(name: str) -> Path:
        path = shutil.which(name)
        if path is None:
            lacking(f"{name} is not installed: run tests/debian-packages.sh test")
        return Path(path)

    return require


@pytest.fixture(scope="session")
def require() -> Callable[[bool, str], None]:
    """`require(there, reason)` skips or fails the test if what it needs is not there."""

    def check(there: bool, reason: str) -> None:
        if not there:
            lacking(reason)

    return check


@pytest.fixture(scope="session")
def meson() -> Callable[..., Completed]:
    """`meson(*args, check=True)` runs Meson with the environment's ziglang first in PATH."""
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}

    def run_it(*args: str | Path, check: bool = True) -> Completed:
        command = [sys.executable, "-m", "mesonbuild.mesonmain", *args]
        return run(command, env=environment, check=check)

    return run_it


@pytest.fixture(scope="session")
def meson_setup(meson: Callable[..., Completed]) -> Callable[..., Completed]:
    """`meson_setup(build, arch, *options, check=True)` is `meson setup` with the cross file."""

    def setup(build: Path, arch: str, *options: str, check: bool = True) -> Completed:
        cross = ROOT / f"cross/{arch}-linux-musl.ini"
        return meson("setup", build, ROOT, "--cross-file", cross, *options, check=check)

    return setup


@pytest.fixture(scope="session")
def meson_build(
    meson: Callable[..., Completed],
    meson_setup: Callable[..., Completed],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Path]:
    """A function from an architecture to a build directory: all targets, and the checker."""

    @functools.cache
    def built(arch: str) -> Path:
        build = tmp_path_factory.mktemp(f"meson-{arch}")
        meson_setup(build, arch)
        meson("compile", "-C", build)
        meson("compile", "-C", build, "checker")
        return build

    return built


_TABLES = pytest.StashKey[dict[str, list[tuple[str, ...]]]]()


@pytest.fixture(scope="session")
def report_row(pytestconfig: pytest.Config) -> Callable[..., None]:
    """`report_row(title, *cells)` adds a row to a table that is printed when all tests are done."""

    def add(title: str, *cells: str) -> None:
        tables = pytestconfig.stash.setdefault(_TABLES, {})
        tables.setdefault(title, []).append(cells)

    return add


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands over its tables."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["tables"] = session.config.stash.get(_TABLES, {})


def pytest_testnodedown(node: WorkerController) -> None:
    """Adds the tables of a worker to those of the session; a head that both have comes once."""
    tables = node.config.stash.setdefault(_TABLES, {})
    for title, rows in getattr(node, "workeroutput", {}).get("tables", {}).items():
        known = tables.setdefault(title, [])
        known += [row for row in rows if row not in known]


class Scheduler(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """What runs where with `pytest -n 2`.

    The directories that compute keep all cores busy by themselves, and share builds and models: one
    worker runs them, in their order. Of the others, which mostly wait, each file goes to the worker
    that is free.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0])
        return "computing" if file.parent.name in COMPUTING else str(file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduler:
    """The scheduler of `pytest -n`."""
    return Scheduler(config, log)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints the tables of `report_row`, and the minutes of each directory of tests."""
    minutes: dict[str, float] = collections.defaultdict(float)
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            minutes[str(Path(report.nodeid.partition("::")[0]).parent)] += report.duration / 60
    spent = [(name, f"{minutes[name]:.1f}") for name in sorted(minutes)]
    tables = config.stash.get(_TABLES, {}) | ({"minutes": spent} if spent else {})
    for title, rows in tables.items():
        terminalreporter.section(title)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            terminalreporter.write_line("  ".join(cells).rstrip())


@pytest.fixture(scope="session")
def engine() -> Callable[[str], Path]:
    """A function from a target or an architecture to the engine's binary, built once a session."""

    @functools.cache
    def built(name: str) -> Path:
        targets = load_targets(ROOT)
        of_arch = [target for target in targets.values() if target.arch == name]
        target = of_arch[0] if name in ARCHITECTURES else select(targets, name)
        toolchain = find_toolchain()
        (compilation,) = plan([target], root=ROOT, build_root=ROOT / "build", toolchain=toolchain)
        return build(compilation, toolchain)[0].binary

    return built


@pytest.fixture(scope="session")
def run_engine(
    engine: Callable[[str], Path], require_program: Callable[[str], Path]
) -> Callable[..., Completed]:
    """`run_engine(arch, *args, cpu=None)` runs the engine with `args` to its end, any status.

    Natively where that is this machine's architecture and no `cpu` is given, otherwise under
    qemu-user with that CPU model.
    """

    def run_it(arch: str, *args: str | Path, cpu: str | None = None) -> Completed:
        runner: list[str | Path] = []
        if arch != machine_arch() or cpu is not None:
            runner = [require_program(f"qemu-{arch}-static")]
            if cpu is not None:
                runner += ["-cpu", cpu]
        return run([*runner, engine(arch), *args], check=False)

    return run_it


@pytest.fixture(scope="session")
def require_level(run_engine: Callable[..., Completed]) -> Callable[[str, str], None]:
    """`require_level(arch, isa)` skips or fails where this machine's CPU lacks the level.

    Levels of other architectures are emulated, and always there.
    """

    def require(arch: str, isa: str) -> None:
        version = run_engine(arch, "--version").stdout
        usable = version.partition("isa usable:")[2].splitlines()[0].split()
        if arch == machine_arch() and isa not in usable:
            lacking(f"this CPU cannot run {isa}: it has the levels {', '.join(usable)}")

    return require


@pytest.fixture
def make_checkpoint() -> Callable[..., Path]:
    """`make_checkpoint(directory, **options)` writes a synthetic checkpoint, small by default.

    The options are those of tests/golden/synthetic.py.
    """
    small = {"hidden": 32, "ffn": 40, "experts": 3, "top_k": 2, "layers": 2, "heads": 4}
    small |= {"kv_heads": 2, "vocab": 50}

    def make(directory: Path, **options: int) -> Path:
        values = (small | options).items()
        words = [f"--{name.replace('_', '-')}={value}" for name, value in values]
        run([sys.executable, ROOT / "tests/golden/synthetic.py", directory, *words])
        return directory

    return make


@pytest.fixture
def checkpoint(make_checkpoint: Callable[..., Path], tmp_path: Path) -> Path:
    """A Mixtral checkpoint: hidden 32, FFN 40, 3 experts, 2 layers, 50 tokens, float32."""
    return make_checkpoint(tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def models(request: pytest.FixtureRequest) -> Iterator[Callable[[str, DTypeChoice], Path]]:
    """`models(name, dtype)` is a converted model, made once a session and removed at its end.

    `name` is a directory of ../shared/fixtures, or of tests/golden/synthetic.py `synthetic` or
    `small_synthetic`, large enough for the order of sums to matter.
    """
    with tempfile.TemporaryDirectory(prefix="colibri-models-") as scratch:
        directory = Path(scratch)

        @functools.cache
        def checkpoint_of(name: str) -> Path:
            if name not in SHAPES:
                shared: Path = request.getfixturevalue("shared")
                return shared / "fixtures" / name
            write_checkpoint(directory / f"{name}-checkpoint", SHAPES[name])
            return directory / f"{name}-checkpoint"

        @functools.cache
        def converted(name: str, dtype: DTypeChoice) -> Path:
            destination = directory / f"{name}-{dtype}"
            convert_checkpoint(checkpoint_of(name), destination, dtype)
            return destination

        yield converted
