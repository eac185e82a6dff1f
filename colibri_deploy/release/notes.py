# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What is written about a release: notes for people, release.json for programs."""

from __future__ import annotations

import json
from typing import Any

from colibri_deploy.file_hash import file_sha256
from colibri_deploy.golden_model import load_goldens
from colibri_deploy.release.pipeline import Outcome, Release, Tell, artifacts
from colibri_deploy.release.sums import RECORD_NAME

NOTES_NAME = "RELEASE-NOTES.md"


def notes(release: Release, tell: Tell) -> Outcome:
    """RELEASE-NOTES.md: what is new, from CHANGELOG.md, and what the files are."""
    golden = load_goldens()[0]
    lines = [f"| {path.name} | {path.stat().st_size:,} |" for path in artifacts(release)]
    text = "\n".join(
        [
            f"# Colibri {release.version}",
            "",
            release.tree.changelog or "",
            "",
            "## Files",
            "",
            "| file | bytes |",
            "| --- | --- |",
            *lines,
            "",
            f"Made of commit {release.tree.commit}. `colibri-deploy release verify DIR` checks all",
            f"files. On every board the golden model gives `{golden.logits_hash}`.",
            "",
        ]
    )
    release.dist_dir.mkdir(parents=True, exist_ok=True)
    path = release.artifact(NOTES_NAME)
    path.write_text(text, encoding="utf-8")
    return Outcome({}, [path])


def record(release: Release, tell: Tell) -> Outcome:
    """release.json: what was released and with what; the same wherever it is made."""
    content: dict[str, Any] = {
        "version": release.version,
        "commit": release.tree.commit,
        "source_date_epoch": release.tree.epoch,
        "compiler": {
            "name": release.toolchain.compiler,
            "version": release.toolchain.compiler_version,
        },
        "packages": dict(release.versions),
        "programs": release.facts("compile"),
        "artifacts": [
            {"name": path.name, "bytes": path.stat().st_size, "sha256": file_sha256(path)}
            for path in artifacts(release)
        ],
    }
    path = release.artifact(RECORD_NAME)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return Outcome({}, [path])
