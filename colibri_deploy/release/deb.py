# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Debian packages, without dpkg: an ar archive of two tarballs.

The format: deb(5), deb-control(5); what belongs where: https://www.debian.org/doc/debian-policy/.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from colibri_deploy.release import binaries
from colibri_deploy.release.archive import compress, tar_bytes
from colibri_deploy.release.pipeline import Outcome, Release, Tell
from colibri_deploy.release.tarballs import fill

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64"}
_MAINTAINER = "The Colibri authors <colibri@localhost>"
_TEXTS = Path(__file__).parent / "debian"
_DOC = "usr/share/doc/colibri"


def packages(release: Release, tell: Tell) -> Outcome:
    """colibri_<version>_<arch>.deb for each architecture."""
    release.dist_dir.mkdir(parents=True, exist_ok=True)
    files = []
    for arch, debian in ARCHITECTURES.items():
        tell(f"packing the Debian package of {debian}")
        files.append(release.artifact(f"colibri_{debian_version(release)}_{debian}.deb"))
        files[-1].write_bytes(_package(release, arch, debian))
    return Outcome({}, files)


def debian_version(release: Release) -> str:
    """The version as Debian orders it: "~" is before the end, so 1.0.0~rc.1 is before 1.0.0."""
    return release.version.replace("-", "~", 1)


def _package(release: Release, arch: str, debian: str) -> bytes:
    members = {name: (mode, _content(source)) for name, (mode, source) in _files(release, arch)}
    sums = (f"{hashlib.md5(text).hexdigest()}  {name}\n" for name, (_, text) in members.items())
    kib = sum(-(-len(text) // 1024) for _, text in members.values())
    facts = {
        "version": debian_version(release),
        "architecture": debian,
        "maintainer": _MAINTAINER,
        "kib": str(kib),
    }
    control = {
        "control": fill(_text("control"), facts.items()).encode(),
        "md5sums": "".join(sums).encode(),
    }
    epoch = release.tree.epoch
    folders = {f"{parent}/" for name in members for parent in list(Path(name).parents)[:-1]}
    data = [
        *((str(folder), 0o755, b"") for folder in folders),
        *((name, mode, text) for name, (mode, text) in members.items()),
    ]
    about = [(name, 0o644, text) for name, text in control.items()]
    return _ar(
        {
            "debian-binary": b"2.0\n",
            "control.tar.gz": compress(tar_bytes(about, epoch), ".gz"),
            "data.tar.gz": compress(tar_bytes(data, epoch), ".gz"),
        },
        epoch,
    )


def _files(release: Release, arch: str) -> list[tuple[str, tuple[int, bytes | Path]]]:
    """What the package installs: path below / to mode and content."""
    members: binaries.Members = {}
    for name, (mode, source) in binaries.payload(release, arch).items():
        match name.split("/"):
            case ["share", "man", *_]:
                members[f"usr/{name}.gz"] = (mode, compress(_content(source), ".gz"))
            case ["share", "doc", *_]:
                continue  # the file `copyright` has the licences
            case ["lib", *_]:
                # Meson's directory of libraries is Debian's without the triplet.
                triplet = f"{arch}-linux-gnu"
                text = _content(source)
                if name.endswith(".pc"):
                    text = text.replace(b"${pcfiledir}/../..", b"/usr")
                    text = text.replace(b"${prefix}/lib", b"${prefix}/lib/" + triplet.encode())
                members[f"usr/lib/{triplet}/{name.removeprefix('lib/')}"] = (mode, text)
            case _:
                members[f"usr/{name}"] = (mode, source)
    members[f"{_DOC}/changelog.gz"] = (0o644, compress(_changelog(release), ".gz"))
    members[f"{_DOC}/copyright"] = (0o644, _copyright())
    members["usr/share/lintian/overrides/colibri"] = (0o644, _text("overrides").encode())
    return sorted(members.items())


def _changelog(release: Release) -> bytes:
    """CHANGELOG.md's section in the form of deb-changelog(5)."""
    lines = re.sub(r"^", "  ", (release.tree.changelog or "").replace("\n- ", "\n* "), flags=re.M)
    when = format_datetime(datetime.fromtimestamp(release.tree.epoch, UTC))
    text = f"colibri ({debian_version(release)}) unstable; urgency=medium\n\n"
    text += f"{re.sub('^  - ', '  * ', lines)}\n\n -- {_MAINTAINER}  {when}\n"
    return text.encode()


def _copyright() -> bytes:
    """The licences in https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/."""
    texts = binaries.notices()
    facts = {
        name: "\n".join(
            f" {line}" if line.strip() else " ."
            for line in path.read_text(encoding="utf-8").splitlines()
        )
        for name, path in texts.items()
    }
    return fill(_text("copyright"), facts.items()).encode()


def _text(name: str) -> str:
    return (_TEXTS / name).read_text(encoding="utf-8")


def _content(source: bytes | Path) -> bytes:
    return source if isinstance(source, bytes) else source.read_bytes()


def _ar(members: dict[str, bytes], mtime: int) -> bytes:
    """An ar archive in the form that dpkg reads: deb(5)."""
    parts = [b"!<arch>\n"]
    for name, content in members.items():
        header = f"{name:<16}{mtime:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
        parts += [header.encode(), content, b"\n" * (len(content) % 2)]
    return b"".join(parts)
