# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the engine for targets.

    build/<target>/colibri           the binary
    build/<target>/build.json        what it was built from and with
    build/.compile/<arch>-<key>/     a Meson build directory, shared by the targets that need the
                                     same compilation; beside it <arch>-<key>.log

The key is a hash of everything that a Meson build directory cannot change after its creation.
A debug build goes to build/<target>-debug/, so that it is never deployed by mistake.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from colibri_deploy.errors import BuildError, ProcessError
from colibri_deploy.process import run, stream
from colibri_deploy.targets import Target
from colibri_deploy.toolchain import Toolchain

_EXCERPT_LINES = 20  # of a compiler's message in an error
_CODE_OPTIONS = ("b_lto", "debug", "optimization")
_PROJECT = re.compile(r"^project\(.*?\)$", re.DOTALL | re.MULTILINE)  # the call in meson.build
_PLACES = ("-I", "-ffile-prefix-map=")  # flags that name directories of this machine
_NINJA_STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")  # fixed by NINJA_STATUS below


@dataclass(frozen=True)
class Compilation:
    """One Meson build directory and the targets that take their binary from it."""

    arch: str
    isas: tuple[str, ...]  # empty: all of the architecture
    debug: bool
    targets: tuple[str, ...]
    root: Path  # of the sources
    build_root: Path
    directory: Path  # the Meson build directory
    setup: tuple[str, ...]  # command, run once
    compile: tuple[str, ...]  # command, run always

    @property
    def log(self) -> Path:
        """Where the output of both commands goes."""
        return self.directory.with_name(self.directory.name + ".log")

    def output(self, target: str) -> Path:
        """The directory that the binary for `target` and its build.json go to."""
        return self.build_root / (f"{target}-debug" if self.debug else target)


@dataclass(frozen=True)
class Progress:
    """How far a compilation has come."""

    compilation: Compilation
    done: int
    total: int  # 0: not known yet
    step: str


@dataclass(frozen=True)
class BuildRecord:
    """The content of build.json."""

    target: str
    arch: str
    version: str  # of Colibri
    bytes: int  # size of the binary
    sha256: str
    debug: bool
    isas: tuple[str, ...]  # levels in the binary, weakest first
    flags: dict[str, str]  # of the C compiler, for each Meson target
    options: dict[str, Any]  # of Meson, those of this project and the ones that decide the code
    toolchain: dict[str, str]  # name and version
    meson: str  # version


@dataclass(frozen=True)
class Built:
    """A binary and what is known of it."""

    binary: Path  # absolute
    record: BuildRecord


def plan(
    targets: Iterable[Target],
    *,
    root: Path,
    build_root: Path,
    toolchain: Toolchain,
    debug: bool = False,
) -> tuple[Compilation, ...]:
    """The compilations that `targets` need, in their order; nothing is written.

    `root` holds meson.build, `build_root` receives everything (see above). Raises BuildError where
    there is no cross file for an architecture.
    """
    wanted: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for target in targets:
        names = wanted.setdefault((target.arch, target.facts.isas), [])
        if target.name not in names:
            names.append(target.name)
    return tuple(
        _compilation(arch, isas, tuple(names), root, build_root.resolve(), toolchain, debug)
        for (arch, isas), names in wanted.items()
    )


def build(
    compilation: Compilation,
    toolchain: Toolchain,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> tuple[Built, ...]:
    """Compiles what has changed and writes binary and build.json of each target.

    Raises BuildError with the compiler's message and the path of the full log.
    """
    directory = compilation.directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _locked(directory.with_name(directory.name + ".lock")):
        compilation.log.write_text("", encoding="utf-8")
        if not (directory / "build.ninja").is_file():
            on_progress(Progress(compilation, 0, 0, "configuring"))
            _run(compilation, compilation.setup, toolchain, on_progress)
        _run(compilation, compilation.compile, toolchain, on_progress)
        return tuple(_deliver(compilation, target, toolchain) for target in compilation.targets)


def _compilation(
    arch: str,
    isas: tuple[str, ...],
    targets: tuple[str, ...],
    root: Path,
    build_root: Path,
    toolchain: Toolchain,
    debug: bool,
) -> Compilation:
    cross_file = root / "cross" / f"{arch}-linux-musl.ini"
    try:
        cross = cross_file.read_text(encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{arch} cannot be built: there is no cross file {cross_file}") from error
    facts = (
        arch,
        isas,
        debug,
        str(root),
        cross,
        _defaults(root),
        toolchain.python,
        toolchain.meson_version,
        toolchain.compiler_version,
    )
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]
    directory = build_root / ".compile" / f"{arch}-{key}"
    return Compilation(
        arch=arch,
        isas=isas,
        debug=debug,
        targets=targets,
        root=root,
        build_root=build_root,
        directory=directory,
        setup=(
            *toolchain.meson,
            "setup",
            f"--cross-file={cross_file}",
            f"-Disas={','.join(isas)}",
            f"-Ddebug={str(debug).lower()}",
            "-Db_colorout=never",
            str(directory),
            str(root),
        ),
        compile=(*toolchain.ninja, "-C", str(directory)),
    )


def _defaults(root: Path) -> list[str]:
    """What says the defaults of Meson's options: a build directory keeps those of its creation."""
    try:
        project = _PROJECT.findall((root / "meson.build").read_text(encoding="utf-8"))
        return [*project, (root / "meson_options.txt").read_text(encoding="utf-8")]
    except OSError as error:
        raise BuildError(f"{root} holds no sources of the engine: {error}") from error


def _run(
    compilation: Compilation,
    command: Sequence[str],
    toolchain: Toolchain,
    on_progress: Callable[[Progress], None],
) -> None:
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        step = _NINJA_STEP.match(line)
        if step:
            on_progress(Progress(compilation, int(step[1]), int(step[2]), step[3]))

    env = {**toolchain.env, "NINJA_STATUS": "[%f/%t] "}
    try:
        stream(command, log=compilation.log, on_line=on_line, env=env)
    except ProcessError as error:
        what = "configure" if command == compilation.setup else "compile"
        raise BuildError(
            f"the engine does not {what} for {compilation.arch} "
            f"({', '.join(compilation.targets)}); the full log is {compilation.log}",
            details="\n".join(failure_excerpt(lines)) or str(error),
        ) from error


def failure_excerpt(lines: Sequence[str]) -> list[str]:
    """The lines of Meson's or Ninja's output that say why it failed, at most 20.

    Ninja prints `FAILED: <outputs>`, the command, and what the command said. Meson ends with a line
    `<file>:<line>:<column>: ERROR: <message>`, also where Ninja ran it.
    """
    errors = [line for line in lines if ": ERROR: " in line]
    if errors:
        return errors[-_EXCERPT_LINES:]
    for first, line in enumerate(lines):
        if line.startswith("FAILED: "):
            return [line, *itertools.takewhile(_is_said, lines[first + 2 :])][:_EXCERPT_LINES]
    return [line for line in lines if line][-_EXCERPT_LINES:]


def _is_said(line: str) -> bool:
    """Whether a command wrote the line, not Ninja."""
    return not (_NINJA_STEP.match(line) or line.startswith(("FAILED: ", "ninja: ")))


def _deliver(compilation: Compilation, target: str, toolchain: Toolchain) -> Built:
    compiled = compilation.directory / "colibri"
    if not compiled.is_file():
        raise BuildError(f"the build made no {compiled}; the full log is {compilation.log}")
    output = compilation.output(target)
    output.mkdir(parents=True, exist_ok=True)
    binary = output / "colibri"
    partial = output / f".colibri.{os.getpid()}"
    shutil.copy2(compiled, partial)
    partial.replace(binary)
    content = binary.read_bytes()
    record = BuildRecord(
        target=target,
        arch=compilation.arch,
        version=_introspect(compilation, "projectinfo")["version"],
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        debug=compilation.debug,
        isas=_levels(compilation),
        flags=_flags(compilation),
        options=_options(compilation),
        toolchain={"name": toolchain.compiler, "version": toolchain.compiler_version},
        meson=toolchain.meson_version,
    )
    text = json.dumps(asdict(record), indent=2) + "\n"
    partial.write_text(text, encoding="utf-8")
    partial.replace(output / "build.json")
    return Built(binary, record)


def _introspect(compilation: Compilation, what: str) -> Any:
    """What Meson says of a build directory: https://mesonbuild.com/IDE-integration.html."""
    path = compilation.directory / "meson-info" / f"intro-{what}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def _levels(compilation: Compilation) -> tuple[str, ...]:
    """The ISA levels in the binary, from the program that meson.build asks too.

    It prints a line `level;flag flag` for each level, weakest first.
    """
    render = compilation.root / "templates" / "render.py"
    done = run([sys.executable, render, "plan", compilation.arch, ",".join(compilation.isas)])
    return tuple(line.split(";")[0] for line in done.stdout.splitlines() if ";" in line)


def _flags(compilation: Compilation) -> dict[str, str]:
    flags = {}
    for target in _introspect(compilation, "targets"):
        for source in target.get("target_sources", ()):
            if source.get("language") == "c":
                words = (word for word in source["parameters"] if not word.startswith(_PLACES))
                flags[str(target["name"])] = shlex.join(words)
    return dict(sorted(flags.items()))


def _options(compilation: Compilation) -> dict[str, Any]:
    return {
        option["name"]: option["value"]
        for option in _introspect(compilation, "buildoptions")
        if option["section"] == "user" or option["name"] in _CODE_OPTIONS
    }


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits until no other process builds in the same directory."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
