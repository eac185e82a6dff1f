# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What must hold before anything is released. Each gate returns what it found, or raises."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from colibri_deploy import __version__
from colibri_deploy.errors import ColibriDeployError, PackagingError, ProcessError
from colibri_deploy.golden import Generation
from colibri_deploy.golden_model import load_goldens
from colibri_deploy.model_dir import CONFIG_NAME, MODEL_NAME
from colibri_deploy.process import run, stream
from colibri_deploy.release import binaries
from colibri_deploy.release.disassembly import read_objects
from colibri_deploy.release.elf import read_elf
from colibri_deploy.release.pipeline import Outcome, Release, Tell
from colibri_deploy.release.semver import is_older, is_version
from colibri_deploy.release.versions import pinned_versions
from colibri_deploy.targets import machine_arch

MAX_BYTES = 204_800  # of a program: the budget in src/size_budget.py, held against what is packed
MAX_GROWTH = 4_096  # bytes by which a section may grow from one release to the next
_UNKNOWN_VERSION = "0+unknown"  # colibri_deploy runs from a checkout and is not installed
_SPDX = "SPDX-License-Identifier: Apache-2.0"
_SOURCES = (".c", ".h", ".ld", ".py", ".sh")
_HEAD_LINES = 4


def version(release: Release, tell: Tell) -> Outcome:
    """meson.build, the installed Python package and the tag, if there is one, agree."""
    tree = release.tree
    if not is_version(tree.version):
        raise PackagingError(f"meson.build has version {tree.version}: 1.2.3 or 1.2.3-rc.1 is one")
    if __version__ not in (tree.version, _UNKNOWN_VERSION):
        raise PackagingError(
            f"meson.build has version {tree.version}, and colibri-deploy is installed as "
            f"{__version__}: pip install --editable {tree.root}"
        )
    if tree.tags and tree.version not in tree.tags:
        raise PackagingError(
            f"meson.build has version {tree.version}, and the commit has the tag v{tree.tags[0]}"
        )
    return Outcome({"version": tree.version, "tagged": bool(tree.tags)})


def pins(release: Release, tell: Tell) -> Outcome:
    """Every package that decides the bytes of a release is there in its version."""
    for name, wanted in pinned_versions(release.tree.root).items():
        found = release.versions.get(name)
        if found != wanted:
            raise PackagingError(
                f"{name} is {found or 'not'} installed, and releases are made with {wanted}: "
                "pip install 'colibri-deploy[release]'"
            )
    return Outcome({"versions": dict(release.versions)})


def changelog(release: Release, tell: Tell) -> Outcome:
    """CHANGELOG.md has a section about the version."""
    if release.tree.changelog is None:
        raise PackagingError(
            f"CHANGELOG.md has no section '## {release.version}': say there what is new"
        )
    return Outcome()


def clean(release: Release, tell: Tell) -> Outcome:
    """The checkout is the commit, nothing more or less."""
    if release.tree.changes:
        raise PackagingError(
            "the checkout is not what is committed: commit, or git stash --include-untracked",
            details="\n".join(release.tree.changes),
        )
    return Outcome()


def licences(release: Release, tell: Tell) -> Outcome:
    """Every source file names its licence, and that of the C library is at hand."""
    tree = release.tree
    sources = [path for path in tree.files if path.endswith(_SOURCES)]
    bare = []
    for path in sources:
        lines = (tree.root / path).read_text(encoding="utf-8").splitlines()
        if not any(_SPDX in line for line in lines[:_HEAD_LINES]):
            bare.append(path)
    if bare:
        raise PackagingError(f"no SPDX licence stands in {', '.join(bare)}")
    notices = binaries.notices()
    return Outcome({"files": len(sources), "notices": sorted(notices)})


def tests(release: Release, tell: Tell) -> Outcome:
    """`make test` passes for this commit; it need not run again where it has."""
    stamp = release.build_dir / "tested"
    if not (stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == release.tree.commit):
        release.work.mkdir(parents=True, exist_ok=True)
        log = release.work / "tests.log"
        log.unlink(missing_ok=True)
        try:
            stream(["make", "-C", release.tree.root, "test"], log=log, on_line=tell)
        except ProcessError as error:
            raise PackagingError(f"make test fails; its output is {log}", error.details) from error
    return Outcome({"commit": release.tree.commit})


def isa(release: Release, tell: Tell) -> Outcome:
    """No object, before linking, holds an instruction beyond its level."""
    objdump = shutil.which("objdump")
    known = run([objdump, "--info"]).stdout.split() if objdump else []
    if objdump is None or not {"i386", "aarch64", "riscv"} <= set(known):
        raise PackagingError(
            "there is no objdump of all architectures: apt install binutils-multiarch"
        )
    facts = {}
    for arch in binaries.ARCHITECTURES:
        tell(f"reading the instructions of {arch}")
        compiled = binaries.compilation_of(release, arch).directory
        objects = read_objects(Path(objdump), release.tree.root, compiled, arch)
        if objects.escapes:
            lines = "\n".join(objects.escapes[:20])
            raise PackagingError(f"instructions of {arch} are beyond their level", details=lines)
        facts[arch] = dict(objects.instructions)
    return Outcome(facts)


def static(release: Release, tell: Tell) -> Outcome:
    """The programs need nothing, and nothing in them can be written and executed."""
    for arch in binaries.ARCHITECTURES:
        program = read_elf(binaries.program(release, arch))
        debug = read_elf(binaries.debug_program(release, arch))
        faults = [*program.faults, *debug.faults]
        if program.arch != arch:
            faults.append(f"it is for {program.arch}")
        if not program.build_id or program.build_id != debug.build_id:
            faults.append(f"its build id is {program.build_id!r}, of debug {debug.build_id!r}")
        loaded = [(s.name, s.content) for s in program.sections if s.is_loaded]
        if loaded != [(s.name, s.content) for s in debug.sections if s.is_loaded]:
            faults.append("the file with debug information is that of another program")
        if faults:
            raise PackagingError(f"the program for {arch}: {'; '.join(faults)}")
    return Outcome()


def size(release: Release, tell: Tell) -> Outcome:
    """No program is over its budget, and no section has grown much since the last release."""
    last = last_release(release)
    before: dict[str, Any] = last["programs"] if last else {}
    for arch in binaries.ARCHITECTURES:
        path = binaries.program(release, arch)
        whole = path.stat().st_size
        if whole > MAX_BYTES:
            raise PackagingError(f"the program for {arch} has {whole:,} of {MAX_BYTES:,} bytes")
        sections = read_elf(path).sizes
        for name, n_bytes in sections.items():
            old = before[arch]["sections"].get(name, 0) if before else n_bytes
            if n_bytes - old > MAX_GROWTH:
                raise PackagingError(
                    f"{name} of {arch} has grown from {old:,} to {n_bytes:,} bytes since release "
                    f"{last['version'] if last else ''}: make it smaller, or --skip size"
                )
    return Outcome({"compared_with": last["version"] if last else None})


def last_release(release: Release) -> dict[str, Any] | None:
    """release.json of the highest version below this one beside it; None: there is none."""
    last: dict[str, Any] | None = None
    for path in release.dist_dir.parent.glob("*/release.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        is_earlier = is_older(record["version"], release.version)
        if is_earlier and (last is None or is_older(last["version"], record["version"])):
            last = record
    return last


def emulation(release: Release, tell: Tell) -> Outcome:
    """Each program, alone in an empty directory tree, passes its self-test and the golden model."""
    facts: dict[str, Any] = {}
    for arch in binaries.ARCHITECTURES:
        emulator = None
        if arch != machine_arch():
            emulator = shutil.which(f"qemu-{arch}-static")
            if emulator is None:
                raise PackagingError(f"{arch} cannot run here: apt install qemu-user-static")
        tell(f"running {arch}")
        facts[arch] = _try_alone(release, arch, emulator)
    return Outcome(facts)


def _try_alone(release: Release, arch: str, emulator: str | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="colibri-") as scratch:
        root = Path(scratch)
        model = binaries.golden_model(release)
        for name in (MODEL_NAME, CONFIG_NAME):
            shutil.copy(model / name, root)
        shutil.copy(binaries.program(release, arch), root / "colibri")
        shown = root
        prefix: list[str | Path] = []
        if emulator is not None:
            shutil.copy(emulator, root / "qemu")
        if _may_change_root():
            prefix, shown = ["unshare", "--map-root-user", "--root", root], Path("/")
        if emulator is not None:
            prefix.append(shown / "qemu")
        engine = [*prefix, shown / "colibri"]
        try:
            run([*engine, "--selftest"], cwd=root, env={})
            golden = load_goldens()[0]
            words = (*golden.prompt.arguments(), "--kv", golden.kv)
            done = run([*engine, "--model", shown, *words], cwd=root, env={})
        except ColibriDeployError as error:
            raise PackagingError(f"the program for {arch} fails", str(error)) from error
    ours = Generation.parse(done.stdout)
    difference = ours.difference(golden)
    if difference:
        raise PackagingError(
            f"the program for {arch} computes the golden model wrong: {difference}"
        )
    return {"logits_hash": ours.logits_hash, "isa": ours.isa, "empty_root": bool(shown != root)}


def _may_change_root() -> bool:
    """Whether a program can be run on a root of its own here; else it is an empty directory."""
    try:
        run(["unshare", "--map-root-user", "--root", "/", "true"])
    except ProcessError:
        return False
    return True
