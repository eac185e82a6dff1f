# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What must not be released is not: programs with a fault, and checkouts with one."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.errors import PackagingError
from colibri_deploy.process import run
from colibri_deploy.release import deb, gates, notes
from colibri_deploy.release.elf import read_elf
from colibri_deploy.release.pipeline import Outcome, Release, Step, StepResult, run_steps
from colibri_deploy.release.steps import STEPS
from colibri_deploy.release.tree import read_tree
from colibri_deploy.toolchain import find_toolchain

ZIG = (sys.executable, "-m", "ziglang")


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from an architecture to an object file that needs a function `absent`."""
    folder = tmp_path_factory.mktemp("objects")
    source = folder / "start.c"
    source.write_text("int absent(void);\nint data = 1;\nint _start(void) { return absent(); }\n")

    def compiled(arch: str) -> Path:
        path = folder / f"{arch}.o"
        run([*ZIG, "cc", "-target", f"{arch}-linux-musl", "-c", source, "-o", path])
        return path

    return compiled


@pytest.mark.parametrize(
    ("arch", "flags", "faults"),
    [
        ("x86_64", "--defsym=absent=0", []),
        ("riscv64", "--defsym=absent=0", []),
        ("x86_64", "--unresolved-symbols=ignore-all", ["it leaves undefined: absent"]),
        ("aarch64", "--defsym=absent=0 -z execstack", ["its stack is executable"]),
        (
            *("aarch64", "--defsym=absent=0 -z nognustack"),
            ["it does not say that its stack is not executable"],
        ),
        ("riscv64", "--defsym=absent=0 --omagic", ["a segment is writable and executable"]),
        (
            *("x86_64", "--defsym=absent=0 -pie --dynamic-linker=/lib/ld.so --no-relax"),
            ["it asks for an interpreter", "it needs libraries"],
        ),
    ],
)
def test_a_fault_of_a_program_is_found(
    arch: str, flags: str, faults: list[str], objects: Callable[[str], Path], tmp_path: Path
) -> None:
    program = tmp_path / "program"
    run([*ZIG, "ld.lld", *flags.split(), objects(arch), "-o", program])
    elf = read_elf(program)
    assert (elf.arch, elf.faults) == (arch, faults)


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"\x7fELF\x02\x01", b"#!/bin/sh\n"):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(PackagingError, match="is not a program for Linux"):
            read_elf(tmp_path / "file")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout that may be released."""
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "meson.build").write_text("project('colibri', 'c', version : '0.1.0')\n")
    (root / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 0.1.0\n\n- All of it.\n\n## 0.0.9\n\n- x\n"
    )
    (root / "one.c").write_text("// SPDX-License-Identifier: Apache-2.0\n")
    (root / "Makefile").write_text("test:\n\tfalse\n")
    git(root, "init", "--quiet")
    commit(root)
    return root


def git(root: Path, *words: str) -> str:
    """Runs git as nobody in particular."""
    who = ("-c", "user.name=Tester", "-c", "user.email=tester@localhost")
    return run(["git", "-C", root, *who, *words]).stdout.strip()


def commit(root: Path) -> None:
    """Commits everything."""
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "all")


toolchain = functools.cache(find_toolchain)


def release_of(root: Path) -> Release:
    """The release of a checkout, with the tools of this environment."""
    return Release(
        tree=read_tree(root),
        toolchain=toolchain(),
        versions={},
        documents={},
        build_dir=root.parent / "build",
        dist_dir=root.parent / "dist/0.1.0",
    )


def step_of(name: str) -> Step:
    """The step of releases of that name."""
    (step,) = (step for step in STEPS if step.name == name)
    return step


def passes(root: Path, gate: Callable[[Release, Callable[[str], None]], Outcome]) -> Outcome:
    """What a gate finds, or its PackagingError."""
    return gate(release_of(root), lambda what: None)


def test_a_sound_checkout_passes(checkout: Path) -> None:
    for gate in (gates.version, gates.changelog, gates.clean, gates.licences):
        passes(checkout, gate)
    assert release_of(checkout).tree.changelog == "- All of it."


def test_a_tag_of_another_version_stops(checkout: Path) -> None:
    git(checkout, "tag", "v0.2.0")
    with pytest.raises(PackagingError, match=r"has version 0\.1\.0, .* tag v0\.2\.0"):
        passes(checkout, gates.version)
    git(checkout, "tag", "v0.1.0")
    assert passes(checkout, gates.version).facts["tagged"]


def test_a_version_that_the_changelog_does_not_know_stops(checkout: Path) -> None:
    (checkout / "meson.build").write_text("project('colibri', 'c', version : '0.3.0')\n")
    with pytest.raises(PackagingError, match=r"no section '## 0\.3\.0'"):
        passes(checkout, gates.changelog)


@pytest.mark.parametrize("name", ["one.c", "new.c"])
def test_a_change_that_is_not_committed_stops(name: str, checkout: Path) -> None:
    (checkout / name).write_text("// SPDX-License-Identifier: Apache-2.0\n\n")
    with pytest.raises(PackagingError) as stopped:
        passes(checkout, gates.clean)
    assert stopped.value.details.endswith(name)


def test_checks_run_again_where_artifacts_are_kept(checkout: Path) -> None:
    checks = [step for step in STEPS if step.name in ("changelog", "clean", "size")]
    assert {step.kind for step in checks} == {"check"}
    clean = [step for step in checks if step.name == "clean"]
    assert run_steps(release_of(checkout), clean)["clean"].status == "done"
    (checkout / "planted.h").touch()
    with pytest.raises(PackagingError, match="the checkout is not what is committed"):
        run_steps(release_of(checkout), clean)


def test_notes_and_record_are_the_same_with_a_tag_and_without(checkout: Path) -> None:
    def written() -> list[bytes]:
        release = release_of(checkout)
        release.results["compile"] = StepResult("done", {}, (), 0.0)
        return [
            path.read_bytes()
            for step in (notes.notes, notes.record)
            for path in step(release, lambda what: None).files
        ]

    before, digest = written(), release_of(checkout).key
    git(checkout, "tag", "v0.1.0")
    assert (written(), release_of(checkout).key) == (before, digest)


def test_a_file_that_no_step_has_made_stops(checkout: Path) -> None:
    def writing(release: Release, tell: Callable[[str], None]) -> Outcome:
        release.dist_dir.mkdir(parents=True)
        for name in ("made", "leftover.bin"):
            release.artifact(name).touch()
        return Outcome({}, [release.artifact("made")])

    steps = [Step("write", "artifact", "write files", writing), step_of("sbom")]
    with pytest.raises(PackagingError, match=r"now has made leftover\.bin in .*: remove it"):
        run_steps(release_of(checkout), steps)


def test_the_notes_are_written_anew_when_there_are_other_files(checkout: Path) -> None:
    def writing(release: Release, tell: Callable[[str], None]) -> Outcome:
        release.dist_dir.mkdir(parents=True, exist_ok=True)
        release.artifact("more.deb").touch()
        return Outcome({}, [release.artifact("more.deb")])

    steps = [Step("deb", "artifact", "write a file", writing), step_of("notes")]
    release = release_of(checkout)
    for skip, is_named in ((("deb",), False), ((), True)):
        run_steps(release, steps, skip=skip)
        assert ("| more.deb |" in release.artifact("RELEASE-NOTES.md").read_text()) == is_named


def test_the_provenance_names_what_only_and_skip_left_out(checkout: Path, root: Path) -> None:
    shutil.copy(root / "pyproject.toml", checkout)
    steps = [step_of(name) for name in ("changelog", "clean", "licences", "sums", "provenance")]
    release = release_of(checkout)
    release.dist_dir.mkdir(parents=True)
    run_steps(release, steps, only=("changelog", "sums", "provenance"), skip=("licences",))
    statement = json.loads(release.artifact("colibri-0.1.0.intoto.json").read_text())
    parameters = statement["predicate"]["buildDefinition"]["externalParameters"]
    assert parameters == {"version": "0.1.0", "skip": ["clean", "licences"], "tag": "untagged"}


def test_the_last_release_is_that_of_semver(checkout: Path) -> None:
    (checkout / "meson.build").write_text("project('colibri', 'c', version : '1.0.0')\n")
    release = release_of(checkout)
    for version in ("0.9.0", "1.0.0-rc.1", "1.0.0-alpha", "1.0.1-rc.1"):
        path = release.dist_dir.parent / version / "release.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"version": version}))
    last = gates.last_release(release)
    assert last is not None
    assert last["version"] == "1.0.0-rc.1"


def test_dpkg_takes_a_pre_release_for_older(
    checkout: Path, require_program: Callable[[str], Path]
) -> None:
    (checkout / "meson.build").write_text("project('colibri', 'c', version : '1.0.0-rc.1')\n")
    version = deb.debian_version(release_of(checkout))
    run([require_program("dpkg"), "--compare-versions", version, "lt", "1.0.0"])
    assert version == "1.0.0~rc.1"


def test_a_source_without_licence_stops(checkout: Path) -> None:
    (checkout / "bare.c").write_text("int x;\n")
    commit(checkout)
    with pytest.raises(PackagingError, match=r"no SPDX licence stands in bare\.c$"):
        passes(checkout, gates.licences)


def test_a_link_in_the_checkout_stops(checkout: Path) -> None:
    (checkout / "link").symlink_to("one.c")
    commit(checkout)
    with pytest.raises(PackagingError, match="link is neither a file nor a program"):
        read_tree(checkout)


def test_a_package_in_another_version_stops(root: Path) -> None:
    with pytest.raises(PackagingError, match=r"is not installed, and releases are made with"):
        passes(root, gates.pins)


def test_tests_run_unless_they_passed_for_this_commit(checkout: Path) -> None:
    stamp = checkout.parent / "build/tested"
    stamp.parent.mkdir()
    for said in ("", git(checkout, "rev-parse", "HEAD")[:-1] + "x"):
        stamp.write_text(said + "\n")
        with pytest.raises(PackagingError, match="make test fails"):
            passes(checkout, gates.tests)
    stamp.write_text(git(checkout, "rev-parse", "HEAD") + "\n")
    passes(checkout, gates.tests)


def test_a_step_runs_again_only_when_something_has_changed(checkout: Path) -> None:
    runs: list[str] = []

    def writing(release: Release, tell: Callable[[str], None]) -> Outcome:
        runs.append(release.tree.commit)
        release.dist_dir.mkdir(parents=True, exist_ok=True)
        release.artifact("file").write_text("content")
        return Outcome({"n": 1}, [release.artifact("file")])

    steps = [Step("write", "artifact", "write a file", writing)]
    assert run_steps(release_of(checkout), steps)["write"].status == "done"
    assert run_steps(release_of(checkout), steps)["write"].status == "kept"
    release_of(checkout).artifact("file").write_text("damaged")
    assert run_steps(release_of(checkout), steps)["write"].status == "done"
    (checkout / "one.c").write_text("// SPDX-License-Identifier: Apache-2.0\n\n")
    assert run_steps(release_of(checkout), steps)["write"].status == "done"
    assert run_steps(release_of(checkout), steps, skip=["write"])["write"].status == "skipped"
    assert len(runs) == 3
    with pytest.raises(PackagingError, match="there is no step writ; the steps are write"):
        run_steps(release_of(checkout), steps, only=["writ"])
