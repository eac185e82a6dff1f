# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The last steps: what lets others check a release."""

from __future__ import annotations

from colibri_deploy.release import signature
from colibri_deploy.release.pipeline import Outcome, Release, Tell
from colibri_deploy.release.provenance import write_provenance
from colibri_deploy.release.sbom import write_sbom
from colibri_deploy.release.sums import (
    MINISIGN_SUFFIX,
    SSH_SUFFIX,
    SUMS_NAME,
    provenance_name,
    write_engines,
    write_sums,
)


def sbom(release: Release, tell: Tell) -> Outcome:
    """The list of engines, and that of all parts."""
    engines = write_engines(release.dist_dir, release.version)
    parts = write_sbom(
        release.dist_dir,
        version=release.version,
        commit=release.tree.commit,
        epoch=release.tree.epoch,
        root=release.tree.root,
        toolchain=release.toolchain,
    )
    return Outcome({}, [engines, parts])


def sums(release: Release, tell: Tell) -> Outcome:
    """SHA256SUMS; signatures of an earlier one are removed."""
    for suffix in (SSH_SUFFIX, MINISIGN_SUFFIX):
        for path in release.dist_dir.glob(f"*{suffix}"):
            path.unlink()
    return Outcome({}, [write_sums(release.dist_dir)])


def provenance(release: Release, tell: Tell) -> Outcome:
    """What was built by which command; steps that were left out stand there."""
    results = release.results.items()
    path = write_provenance(
        release.dist_dir,
        version=release.version,
        commit=release.tree.commit,
        parameters={"skip": [name for name, one in results if one.status == "skipped"]},
        packages=release.versions,
    )
    return Outcome({}, [path])


def sign(release: Release, tell: Tell) -> Outcome:
    """Signatures of SHA256SUMS and of the provenance, by the keys that are given."""
    if release.ssh_key is None and release.minisign_key is None:
        return Outcome(skipped="no key was given with --ssh-key or --minisign-key")
    names = (SUMS_NAME, provenance_name(release.version))
    made = signature.sign(
        [release.artifact(name) for name in names],
        ssh_key=release.ssh_key,
        minisign_key=release.minisign_key,
    )
    return Outcome({}, made)
