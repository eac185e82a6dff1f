# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The checkout that a release is made of, as git knows it."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from colibri_deploy.errors import PackagingError, ProcessError
from colibri_deploy.process import run

_VERSION = re.compile(r"version\s*:\s*'([^']+)'")  # the first in meson.build is project()'s
_TAG = re.compile(r"v(\d+\.\d+\.\d+\S*)")


@dataclass(frozen=True)
class SourceTree:
    """A checkout. Its files are those that git tracks."""

    root: Path
    version: str  # of meson.build
    commit: str  # 40 hex digits
    tags: tuple[str, ...]  # versions that tags on this commit name, without the "v"
    epoch: int  # time of the commit, in seconds since 1970: SOURCE_DATE_EPOCH
    files: dict[str, int]  # path to mode, 0o644 or 0o755, in the order of the paths
    changes: tuple[str, ...]  # what is not as in the commit, as `git status --porcelain` says it

    @functools.cached_property
    def digest(self) -> str:
        """A hash over commit and files: what is made of an equal tree need not be made again."""
        digest = hashlib.sha256(f"{self.commit} {self.epoch}".encode())
        for path, mode in self.files.items():
            content = hashlib.sha256((self.root / path).read_bytes()).hexdigest()
            digest.update(f"{content} {mode:o} {path}\n".encode())
        return digest.hexdigest()

    @property
    def changelog(self) -> str | None:
        """The text below the version's heading in CHANGELOG.md; None: there is no such section."""
        text = (self.root / "CHANGELOG.md").read_text(encoding="utf-8")
        for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
            heading, _, body = section.partition("\n")
            if heading.split()[:1] == [self.version] and body.strip():
                return body.strip()
        return None


def read_tree(root: Path) -> SourceTree:
    """What git says of the checkout in `root`. Raises PackagingError if there is none."""

    def git(*words: str) -> str:
        try:
            return run(["git", "-C", root, *words]).stdout
        except ProcessError as error:
            raise PackagingError(
                f"a release is made in a git checkout, with git installed; {root} is none",
                details=error.details,
            ) from error

    if not (root / ".git").exists():
        raise PackagingError(f"a release is made in a git checkout, and {root} is none")
    version = _VERSION.search((root / "meson.build").read_text(encoding="utf-8"))
    if version is None:
        raise PackagingError(f"{root / 'meson.build'} names no version")
    tags = (_TAG.fullmatch(tag) for tag in git("tag", "--points-at", "HEAD").split())
    files = {}
    for entry in git("ls-files", "-z", "--stage").split("\0")[:-1]:
        facts, _, path = entry.partition("\t")
        mode = facts.split()[0]
        if mode not in ("100644", "100755"):
            raise PackagingError(
                f"{path} is neither a file nor a program: a release holds no links"
            )
        if (root / path).is_file():  # else it is among the changes
            files[path] = 0o755 if mode == "100755" else 0o644
    return SourceTree(
        root=root,
        version=version[1],
        commit=git("rev-parse", "HEAD").strip(),
        tags=tuple(tag[1] for tag in tags if tag),
        epoch=int(git("log", "-1", "--format=%ct")),
        files=dict(sorted(files.items())),
        changes=tuple(git("status", "--porcelain").splitlines()),
    )
