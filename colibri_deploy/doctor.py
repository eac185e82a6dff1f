# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What ails a board, or this machine, what comes of it, and which command mends it."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from colibri_deploy.board import Board
from colibri_deploy.checkup import CHECKS, HERE, OPTIONAL, Diagnosis, Subject
from colibri_deploy.condition import (
    condition_here,
    condition_of,
    storage_speed,
    storage_speed_here,
)
from colibri_deploy.detect import ISA_FEATURES, Facts, Finding, compare, detect, detect_here
from colibri_deploy.errors import BuildError, ColibriDeployError, ToolchainError
from colibri_deploy.ssh import Connection
from colibri_deploy.targets import ARCHITECTURES, Target
from colibri_deploy.toolchain import find_toolchain

_SPEAKS_WELL = (2020, 79)  # dropbear: Ed25519 host keys, RSA with SHA-2, ChaCha20


def examine_board(
    connection: Connection,
    target: Target,
    targets: Mapping[str, Target],
    levels: tuple[str, ...],
    model_bytes: int | None,
    *,
    with_storage: bool,
    is_emulated: bool = False,
) -> dict[str, Diagnosis]:
    """What was found on a board, by the name of the check; `levels` as in `Subject`.

    `with_storage` writes there, and removes what it wrote. Raises BoardConnectionError and
    BoardError.
    """
    subject = Subject(
        name=connection.board.name,
        facts=detect(connection),
        condition=condition_of(connection),
        levels=levels,
        target=target,
        model_bytes=model_bytes,
        storage=storage_speed(connection) if with_storage else None,
    )
    return {
        "SSH server": _server(connection.server_version),
        **_fits_target(
            compare(subject.facts, target, targets, is_emulated=is_emulated),
            subject.facts,
            connection.board,
        ),
        **_examine(subject),
    }


def examine_here(
    directory: Path,
    levels: tuple[str, ...],
    model: Path | None,
    model_bytes: int | None,
    *,
    with_storage: bool,
) -> dict[str, Diagnosis]:
    """The same for this machine; `directory` is where builds lie. Raises BoardError."""
    subject = Subject(
        name=HERE,
        facts=detect_here(directory),
        condition=condition_here(directory),
        levels=levels,
        model_bytes=model_bytes,
        storage=storage_speed_here(directory) if with_storage else None,
    )
    places = {"builds": directory} | ({"model": model} if model else {})
    return {
        "architecture": _architecture(subject.facts),
        "compiler": _compiler(),
        "emulators": _emulators(subject.facts),
        "SSH client": _client(),
        **_examine(subject),
        **(_windows(places) if "microsoft" in (subject.facts.kernel or "").lower() else {}),
    }


def build_levels(build_dir: Path, target: Target) -> tuple[str, ...]:
    """The ISA levels of a target's build, or of the one that is still to be made, weakest first.

    Raises BuildError if build.json is damaged.
    """
    record = build_dir / target.name / "build.json"
    if record.is_file():
        try:
            return tuple(json.loads(record.read_text(encoding="utf-8"))["isas"])
        except (ValueError, KeyError) as error:
            raise BuildError(f"{record} is damaged: remove it and build again") from error
    return target.facts.isas or tuple(ISA_FEATURES[target.arch])


def unreachable(address: str, error: ColibriDeployError) -> dict[str, Diagnosis]:
    """What to say of a board that cannot be asked."""
    advice = error.details.strip().splitlines()
    remedy = advice[-1].strip() if advice else f"ssh -v {shlex.quote(address)}"
    return {"connection": Diagnosis("error", error.message, "nothing can be done there", remedy)}


def _examine(subject: Subject) -> dict[str, Diagnosis]:
    found = {name: check(subject) for name, check in CHECKS.items()}
    told = {name: diagnosis for name, diagnosis in found.items() if diagnosis is not None}
    untold = [name for name in found if name not in (*told, *OPTIONAL)]
    if untold:
        told["not told"] = Diagnosis(
            "note",
            ", ".join(untold),
            "what is wrong there goes unseen",
            "ls /proc /sys  # an emulated board has none of its own, a container not all",
        )
    return told


# What comes of a fact that does not fit the target, by what `compare` calls it.
_UNFIT = {
    "architecture": "the engine for this target does not start there",
    "target": "the engine may be built for other instructions than the board has",
    "RAM": "it is another board than its entry says",
    "page size": "speeds do not compare with those of the usual kernel",
    "tools": "nothing can be pushed",
}


def _fits_target(findings: list[Finding], facts: Facts, board: Board) -> dict[str, Diagnosis]:
    name, address = shlex.quote(board.name), shlex.quote(board.address)
    again = f"colibri-deploy boards remove {name} && colibri-deploy boards add {name} {address}"
    remedies = {
        "page size": "uname -r  # and start the maker's usual kernel",
        "tools": "sudo apt install coreutils diffutils findutils grep sed  # or BusyBox",
    }
    untold = {"RAM": facts.ram_bytes is None, "page size": facts.page_bytes is None}
    fit = {}
    for finding in findings:
        what = finding.what
        if what == "ISA level" or untold.get(what):
            continue  # CHECKS looks at it more closely, or says that it is not told
        if finding.verdict == "ok":
            fit[what] = Diagnosis("ok", finding.detail)
        elif what == "target" and finding.verdict == "note":
            fit[what] = Diagnosis(
                "note", finding.detail, "it may be another board", "cat /proc/device-tree/model"
            )
        else:
            fit[what] = Diagnosis(
                "note" if finding.verdict == "note" else "error",
                finding.detail,
                _UNFIT[what],
                remedies.get(what, again if board.target else "colibri-deploy targets"),
            )
    return fit


def _server(said: str) -> Diagnosis:
    name = said.removeprefix("SSH-2.0-")
    version = re.match(r"dropbear_(\d+)\.(\d+)", name)
    if version is None or (int(version[1]), int(version[2])) >= _SPEAKS_WELL:
        return Diagnosis("ok", name)
    return Diagnosis(
        "warning",
        name,
        "its key exchange and signatures are of an age that newer clients refuse",
        "sudo apt install dropbear  # 2020.79 or later, or OpenSSH",
    )


def _architecture(facts: Facts) -> Diagnosis:
    if facts.arch in ARCHITECTURES:
        return Diagnosis("ok", facts.arch)
    return Diagnosis(
        "warning",
        facts.arch,
        "no engine runs here, and so there are no golden numbers to compare boards with",
        "colibri-deploy targets",
    )


def _compiler() -> Diagnosis:
    try:
        tools = find_toolchain()
    except ToolchainError as error:
        found, _, remedy = error.message.partition(": ")
        return Diagnosis("error", found, "the engine cannot be built", remedy)
    return Diagnosis(
        "ok", f"{tools.compiler} {tools.compiler_version}, Meson {tools.meson_version}"
    )


def _emulators(facts: Facts) -> Diagnosis:
    foreign = [arch for arch in ARCHITECTURES if arch != facts.arch]
    lacking = [
        arch
        for arch in foreign
        if not any(map(shutil.which, (f"qemu-{arch}-static", f"qemu-{arch}")))
    ]
    if not lacking:
        return Diagnosis("ok", f"qemu-user for {' and '.join(foreign)}")
    return Diagnosis(
        "note",
        f"no qemu-user for {' and '.join(lacking)}",
        "sim: boards of that kind cannot be started",
        "sudo apt install qemu-user-static",
    )


def _client() -> Diagnosis:
    if shutil.which("ssh"):
        return Diagnosis("ok", "OpenSSH")
    return Diagnosis(
        "note",
        "no OpenSSH",
        "~/.ssh/config is refused if it has Include, Match exec or ProxyCommand",
        "sudo apt install openssh-client",
    )


def _windows(places: Mapping[str, Path]) -> dict[str, Diagnosis]:
    """Under WSL2 the drives of Windows are file servers."""
    found = {}
    for what, place in places.items():
        mount = condition_here(place).mount
        path = place.resolve()
        found[f"WSL2, {what}"] = (
            Diagnosis(
                "warning",
                f"{path} lies on a drive of Windows",
                "it is read at a small part of the disk's speed",
                f"cp -r {shlex.quote(str(path))} ~/",
            )
            if mount is not None and mount.kind in ("9p", "drvfs")
            else Diagnosis("ok", f"{path} lies on Linux' own disk")
        )
    return found
