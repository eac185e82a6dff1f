# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The last steps: what lets others check a release."""

from __future__ import annotations

from colibri_deploy.errors import PackagingError
from colibri_deploy.release import signature
from colibri_deploy.release.pipeline import Outcome, Release, Tell, artifacts
from colibri_deploy.release.provenance import write_provenance
from colibri_deploy.release.sbom import installed_packages, write_sbom
from colibri_deploy.release.sums import (
    MINISIGN_SUFFIX,
    RECORD_NAME,
    SSH_SUFFIX,
    SUMS_NAME,
    covered_sums,
    engines_name,
    provenance_name,
    sbom_name,
    write_engines,
    write_sums,
)


def sbom(release: Release, tell: Tell) -> Outcome:
    """The list of engines, and that of all parts. Raises PackagingError for foreign files."""
    version = release.version
    made = {path.name for path in artifacts(release)}
    made |= {engines_name(version), sbom_name(version), RECORD_NAME}
    strange = sorted(covered_sums(release.dist_dir).keys() - made)
    if strange:
        raise PackagingError(
            f"no step that was run now has made {', '.join(strange)} in {release.dist_dir}: "
            "remove it, or leave no step out"
        )
    engines = write_engines(release.dist_dir, version)
    parts = write_sbom(
        release.dist_dir,
        version=version,
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
    """What was built by which command; the tag, and steps that were left out, stand there."""
    results = release.results.items()
    tag = f"v{release.version}" if release.version in release.tree.tags else "untagged"
    path = write_provenance(
        release.dist_dir,
        version=release.version,
        commit=release.tree.commit,
        parameters={
            "skip": [name for name, one in results if one.status == "skipped"],
            "tag": tag,
        },
        packages=installed_packages(release.tree.root),
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
