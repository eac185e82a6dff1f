# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""An OCI image archive: the program alone, for all architectures, as one image.

The layout: https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

from colibri_deploy.release import binaries
from colibri_deploy.release.archive import compress, tar_bytes, write_tar
from colibri_deploy.release.pipeline import Outcome, Release, Tell

PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64"}  # Go's names
_MEDIA_TYPE = "application/vnd.oci.image."


class _Blobs:
    """Content by its SHA-256."""

    def __init__(self) -> None:
        self.members: list[tuple[str, int, bytes]] = []

    def add(self, kind: str, content: bytes) -> dict[str, Any]:
        """A descriptor of the content, which is stored once."""
        digest = hashlib.sha256(content).hexdigest()
        member = (f"blobs/sha256/{digest}", 0o644, content)
        if member not in self.members:
            self.members.append(member)
        return {
            "mediaType": _MEDIA_TYPE + kind,
            "digest": f"sha256:{digest}",
            "size": len(content),
        }


def image(release: Release, tell: Tell) -> Outcome:
    """colibri-<version>-oci.tar, for `podman load`, `docker load`, `skopeo copy oci-archive:`."""
    blobs = _Blobs()
    manifests = []
    for arch, platform in PLATFORMS.items():
        tell(f"packing the image of {arch}")
        manifest = _manifest(release, arch, platform, blobs)
        described = blobs.add("manifest.v1+json", _json(manifest))
        manifests.append({**described, "platform": {"architecture": platform, "os": "linux"}})
    index = {"schemaVersion": 2, "mediaType": f"{_MEDIA_TYPE}index.v1+json", "manifests": manifests}
    whole = blobs.add("index.v1+json", _json(index))
    whole["annotations"] = {"org.opencontainers.image.ref.name": release.version}
    members = [
        *((name, 0o755, b"") for name in ("blobs/", "blobs/sha256/")),
        *blobs.members,
        ("oci-layout", 0o644, _json({"imageLayoutVersion": "1.0.0"})),
        ("index.json", 0o644, _json({**index, "manifests": [whole]})),
    ]
    release.dist_dir.mkdir(parents=True, exist_ok=True)
    path = release.artifact(f"colibri-{release.version}-oci.tar")
    write_tar(path, members, release.tree.epoch)
    return Outcome({}, [path])


def _manifest(release: Release, arch: str, platform: str, blobs: _Blobs) -> dict[str, Any]:
    layer = tar_bytes(_layer(release, arch), release.tree.epoch)
    created = datetime.fromtimestamp(release.tree.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.revision": release.tree.commit,
        "org.opencontainers.image.title": "colibri",
        "org.opencontainers.image.version": release.version,
    }
    config = {
        "created": created,
        "architecture": platform,
        "os": "linux",
        "config": {"Entrypoint": ["/usr/bin/colibri"], "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": created, "created_by": "colibri-deploy release"}],
    }
    return {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA_TYPE}manifest.v1+json",
        "config": blobs.add("config.v1+json", _json(config)),
        "layers": [blobs.add("layer.v1.tar+gzip", compress(layer, ".gz"))],
        "annotations": labels,
    }


def _layer(release: Release, arch: str) -> list[tuple[str, int, Any]]:
    """The whole file system: the program, and the licences of what is in it."""
    texts = binaries.licence_texts(release)
    folders = ("usr/", "usr/bin/", "usr/share/", "usr/share/doc/", "usr/share/doc/colibri/")
    return [
        *((name, 0o755, b"") for name in folders),
        ("usr/bin/colibri", 0o755, binaries.program(release, arch)),
        *((f"usr/share/doc/colibri/{name}", 0o644, path) for name, path in texts.items()),
    ]


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
