# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of a release in their order, and remembers which are done.

    build/release/state.json    what each step has found and written
    build/release/<arch>/       what is packed
    dist/<version>/             the release

A step is run again when the commit, a file or a tool's version has changed, or what it wrote. A
check is quick, looks also at what else lies around, and is run each time; a record is written anew.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from colibri_deploy.errors import PackagingError
from colibri_deploy.file_hash import file_sha256
from colibri_deploy.release.tree import SourceTree
from colibri_deploy.toolchain import Toolchain

Kind = Literal["check", "gate", "build", "artifact", "record"]
_ANEW = ("check", "record")  # what these look at is no part of the release's key
Status = Literal["done", "kept", "skipped"]  # kept: done before, and nothing has changed


@dataclass(frozen=True)
class Release:
    """What is to be released, with what, and where to."""

    tree: SourceTree
    toolchain: Toolchain
    versions: Mapping[str, str]  # of the packages that decide bytes
    documents: Mapping[str, bytes]  # path below the prefix to content: what the CLI says of itself
    build_dir: Path
    dist_dir: Path
    ssh_key: Path | None = None  # to sign with; neither is part of what is released
    minisign_key: Path | None = None
    results: dict[str, StepResult] = field(default_factory=dict)  # of the steps before, by name

    @property
    def version(self) -> str:
        """The version, without a "v"."""
        return self.tree.version

    @property
    def work(self) -> Path:
        """Where what is packed lies."""
        return self.build_dir / "release"

    @functools.cached_property
    def key(self) -> str:
        """A hash over everything that a step depends on."""
        documents = {
            name: hashlib.sha256(text).hexdigest() for name, text in self.documents.items()
        }
        facts = (self.tree.digest, dict(self.versions), documents, str(self.tree.root))
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def artifact(self, name: str) -> Path:
        """Where a file of the release goes."""
        return self.dist_dir / name

    def facts(self, step: str) -> Mapping[str, Any]:
        """What a step before has found. Raises PackagingError if it has not run."""
        if step not in self.results or self.results[step].status == "skipped":
            raise PackagingError(f"this needs the step {step}: run it, too")
        return self.results[step].facts


@dataclass(frozen=True)
class Outcome:
    """What a step found, and the files that it wrote."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[Path] = ()
    skipped: str = ""  # why it did nothing


Tell = Callable[[str], None]  # told what takes long


@dataclass(frozen=True)
class Step:
    """One step: a gate or check that must be passed, or something that is made."""

    name: str
    kind: Kind
    about: str
    run: Callable[[Release, Tell], Outcome]


@dataclass(frozen=True)
class StepResult:
    """What became of a step."""

    status: Status
    facts: Mapping[str, Any]
    files: tuple[Path, ...]
    seconds: float
    reason: str = ""  # why it was skipped


class Observer:
    """Told how a release goes on."""

    def begin(self, step: Step) -> None:
        """A step is run now."""

    def tell(self, what: str) -> None:
        """What the running step does."""

    def end(self, step: Step, result: StepResult) -> None:
        """A step is done, was done before, or is skipped."""


def choose(steps: Sequence[Step], only: Collection[str], skip: Collection[str]) -> None:
    """Raises PackagingError if a name in `only` or `skip` is that of no step."""
    known = [step.name for step in steps]
    for name in (*only, *skip):
        if name not in known:
            raise PackagingError(f"there is no step {name}; the steps are {', '.join(known)}")


def run_steps(
    release: Release,
    steps: Sequence[Step],
    *,
    only: Collection[str] = (),
    skip: Collection[str] = (),
    observer: Observer | None = None,
) -> dict[str, StepResult]:
    """Runs the steps and returns what became of each.

    With `only`, the steps that are not named count as they were done before. Raises PackagingError
    and what the steps raise; what was done until then is remembered.
    """
    watch = observer or Observer()
    choose(steps, only, skip)
    state = State(release)
    for step in steps:
        if step.name in skip:
            result = StepResult("skipped", {}, (), 0.0, "asked for with --skip")
        elif kept := state.kept(step):
            result = kept
        elif only and step.name not in only:
            if step.kind != "record":  # what it left out stands in the provenance
                release.results[step.name] = StepResult("skipped", {}, (), 0.0, "not in --only")
            continue
        else:
            watch.begin(step)
            start = time.monotonic()
            outcome = step.run(release, watch.tell)
            seconds = round(time.monotonic() - start, 1)
            status: Status = "skipped" if outcome.skipped else "done"
            result = StepResult(
                status, outcome.facts, tuple(outcome.files), seconds, outcome.skipped
            )
            if step.kind not in _ANEW:
                state.remember(step, result)
        release.results[step.name] = result
        watch.end(step, result)
    return release.results


class State:
    """The steps that are done for this key."""

    def __init__(self, release: Release) -> None:
        self._release = release
        self._path = release.work / "state.json"
        try:
            self._steps: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._steps = {}

    def kept(self, step: Step) -> StepResult | None:
        """What the step found when it ran; None: it has to run."""
        entry = self._steps.get(step.name)
        if step.kind in _ANEW or entry is None or entry["key"] != self._key(step):
            return None
        files = {Path(path): sha256 for path, sha256 in entry["files"].items()}
        if any(not path.is_file() or file_sha256(path) != sha for path, sha in files.items()):
            return None
        return StepResult("kept", entry["facts"], tuple(files), entry["seconds"])

    def _key(self, step: Step) -> str:
        """What the step depends on; artifacts lie where they were asked for."""
        where = f" {self._release.dist_dir}" if step.kind == "artifact" else ""
        return self._release.key + where

    def remember(self, step: Step, result: StepResult) -> None:
        """Notes that a step is done."""
        self._steps[step.name] = {
            "key": self._key(step),
            "facts": result.facts,
            "files": {str(path): file_sha256(path) for path in result.files},
            "seconds": result.seconds,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self._steps, indent=2), encoding="utf-8")
        partial.replace(self._path)


def artifacts(release: Release) -> Iterator[Path]:
    """The files in dist/<version>/ that steps so far have written, in the order of their names."""
    files = (path for result in release.results.values() for path in result.files)
    yield from sorted(path for path in files if path.parent == release.dist_dir)
