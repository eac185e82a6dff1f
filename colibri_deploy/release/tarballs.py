# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The tarballs: one for each architecture, one with its debug information, and the sources."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from colibri_deploy.golden_model import SHA256, load_goldens
from colibri_deploy.release import binaries
from colibri_deploy.release.archive import write_tar
from colibri_deploy.release.elf import read_elf
from colibri_deploy.release.pipeline import Outcome, Release, Tell
from colibri_deploy.store import ENGINE_NAME, cksum

_COMPRESSED = (".tar.gz", ".tar.zst")
_HERE = Path(__file__).parent

_README = """\
Colibri {version} for Linux on {arch}: Mixture-of-Experts language models on boards.

The program is static: it needs no library and runs where it lies. Try it:

    bin/colibri --model share/colibri/golden --prompt "{prompt}" --num_tokens {n} \\
        --ignore_eos --kv {kv} --logits_hash

This has to print

    logits_hash: {logits_hash} kv:{kv}

on every board; another hash means that the board, or what was copied to it, is damaged. The model
itself is not damaged if `bin/colibri --sha256 share/colibri/golden/model.bin` prints

    {model_sha256}

bin/colibri                the program; man -l share/man/man1/colibri.1
include/, lib/             colibri.h and libcolibri.a:
                           PKG_CONFIG_PATH=lib/pkgconfig pkg-config --cflags --libs colibri
share/colibri/golden/      a small model, trained for the purpose
share/                     man pages and completions of colibri and colibri-deploy
install.sh [DIRECTORY]     puts the program where `colibri-deploy push` would put it: ~/colibri

Licence: Apache-2.0, and those of what is linked into the program, in share/doc/colibri/.
"""


def programs(release: Release, tell: Tell) -> Outcome:
    """colibri-<version>-linux-<arch>, as .tar.gz and .tar.zst."""
    files = []
    for arch in binaries.ARCHITECTURES:
        tell(f"packing {arch}")
        members = binaries.payload(release, arch)
        members["README"] = (0o644, _readme(release, arch).encode())
        members["install.sh"] = (0o755, installer(release, arch).encode())
        members["share/colibri/board.sh"] = (0o644, _HERE.parent / "board.sh")
        files += _pack(release, f"colibri-{release.version}-linux-{arch}", members)
    return Outcome({}, files)


def debuginfo(release: Release, tell: Tell) -> Outcome:
    """The programs with their symbols, where a debugger looks for their build ids."""
    files = []
    for arch in binaries.ARCHITECTURES:
        tell(f"packing the debug information of {arch}")
        path = binaries.debug_program(release, arch)
        build_id = read_elf(path).build_id
        name = f"lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        members: binaries.Members = {name: (0o644, path)}
        files += _pack(release, f"colibri-{release.version}-linux-{arch}-debuginfo", members)
    return Outcome({}, files)


def sources(release: Release, tell: Tell) -> Outcome:
    """Every file of the commit; `meson dist` would put the present time into its archive."""
    tell("packing the sources")
    root = release.tree.root
    members: binaries.Members = {
        path: (mode, root / path) for path, mode in release.tree.files.items()
    }
    return Outcome({}, _pack(release, f"colibri-{release.version}-src", members))


def _pack(release: Release, stem: str, members: binaries.Members) -> list[Path]:
    release.dist_dir.mkdir(parents=True, exist_ok=True)
    inside = [(f"{stem}/{name}", mode, content) for name, (mode, content) in members.items()]
    written = []
    for suffix in _COMPRESSED:
        written.append(release.artifact(stem + suffix))
        write_tar(written[-1], inside, release.tree.epoch)
    return written


def _readme(release: Release, arch: str) -> str:
    golden = load_goldens()[0]
    return _README.format(
        version=release.version,
        arch=arch,
        prompt=golden.prompt.value,
        n=golden.prompt.n_tokens,
        kv=golden.kv,
        logits_hash=golden.logits_hash,
        model_sha256=SHA256["model.bin"],
    )


def installer(release: Release, arch: str) -> str:
    """install.sh for the program of an architecture: what it puts on the board, it verifies."""
    content = binaries.program(release, arch).read_bytes()
    facts = {
        "version": release.version,
        "machine": arch,
        "engine": ENGINE_NAME,
        "sha256": hashlib.sha256(content).hexdigest(),
        "cksum": cksum(content),
    }
    return fill((_HERE / "install.sh").read_text(encoding="utf-8"), facts.items())


def fill(text: str, facts: Iterable[tuple[str, str]]) -> str:
    """`text` with each @name@ replaced by its value."""
    for name, value in facts:
        text = text.replace(f"@{name}@", value)
    return text
