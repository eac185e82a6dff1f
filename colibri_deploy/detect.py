# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What a board says of itself, which target it is therefore, and whether that fits its entry."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from colibri_deploy.asking import Answers, ask, ask_here, script_text
from colibri_deploy.ssh import Connection
from colibri_deploy.targets import Target, machine_arch

_SCRIPT = "detect.sh"

# What board.sh calls, besides one of those that verify the engine.
NEEDED_TOOLS = (
    "cat", "chmod", "cmp", "dd", "df", "du", "find", "grep", "head", "ln", "ls", "mkdir", "mv",
    "readlink", "rm", "rmdir", "sed", "sync", "tr", "uname",
)  # fmt: skip
VERIFIERS = ("sha256sum", "cksum")
_OTHER_TOOLS = ("base64", "gzip", "python3", "xz")
_VARIABLES = {"tools": " ".join((*NEEDED_TOOLS, *VERIFIERS, *_OTHER_TOOLS))}

# The engine's ISA levels by what /proc/cpuinfo calls their instructions, weakest first; each level
# needs those before it, too. templates/isa/ has the bits that the engine itself looks at.
ISA_FEATURES: dict[str, dict[str, frozenset[str]]] = {
    "aarch64": {
        "scalar": frozenset(),
        "neon": frozenset({"asimd"}),
        "neon_dotprod": frozenset({"asimddp"}),
        "neon_i8mm": frozenset({"i8mm"}),
    },
    "riscv64": {"scalar": frozenset(), "rvv": frozenset({"v"})},
    "x86_64": {
        "scalar": frozenset(),
        "sse42": frozenset({"ssse3", "sse4_1", "sse4_2"}),
        "avx2": frozenset({"avx", "f16c", "avx2"}),
        "avx512": frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl"}),
        "avx512_vnni": frozenset({"avx512_vnni"}),
    },
}

# Before, the letter V in an isa string may mean a draft of the vectors.
RATIFIED_V = (6, 5)  # Linux

# Arm's own cores by their part number (Linux, arch/arm64/include/asm/cputype.h).
_ARM_CORES = {
    0xD03: "Cortex-A53",
    0xD04: "Cortex-A35",
    0xD05: "Cortex-A55",
    0xD07: "Cortex-A57",
    0xD08: "Cortex-A72",
    0xD09: "Cortex-A73",
    0xD0A: "Cortex-A75",
    0xD0B: "Cortex-A76",
    0xD0C: "Neoverse N1",
    0xD0D: "Cortex-A77",
    0xD41: "Cortex-A78",
    0xD42: "Cortex-A78AE",
    0xD46: "Cortex-A510",
    0xD47: "Cortex-A710",
}


@dataclass(frozen=True)
class Facts:
    """What a board says of itself; None or empty where it does not."""

    arch: str  # as targets call it, "aarch64"
    kernel: str | None  # "6.12.25+rpt-rpi-v8"
    system: str | None  # "Debian GNU/Linux 12 (bookworm)"
    model: str | None  # of the device tree, on a PC of the firmware
    compatible: tuple[str, ...]  # of the device tree's root, most specific first
    cpu: str | None  # "4 x Cortex-A76"
    isa: str | None  # the engine's best level by /proc/cpuinfo; None: that cannot tell
    ram_bytes: int | None
    swap_bytes: int | None
    page_bytes: int | None
    free_bytes: int | None  # where the work directory is, or will be
    tools: tuple[str, ...]  # of those that were asked for

    @property
    def kernel_version(self) -> tuple[int, int]:
        """Linux' version as far as features depend on it, such as (6, 12)."""
        return _version(self.kernel)


@dataclass(frozen=True)
class Finding:
    """How one fact of a board fits its target."""

    what: str
    verdict: Literal["ok", "note", "wrong"]
    detail: str


def detect(connection: Connection) -> Facts:
    """Asks a board. Raises BoardConnectionError, and BoardError where it does not answer."""
    return facts_in(ask(connection, _SCRIPT, _VARIABLES))


def detect_here(directory: Path) -> Facts:
    """Asks this machine; `directory` is where the room on the disk counts."""
    return facts_in(ask_here(_SCRIPT, directory, _VARIABLES))


def script_for(workdir: str, mark: str) -> str:
    """What a board's shell has to read from its standard input."""
    return script_text(_SCRIPT, workdir, mark, _VARIABLES)


def facts_in(answers: Answers) -> Facts:
    """What the answers say."""
    arch = machine_arch(answers.first("machine") or "unknown")
    kernel = answers.first("kernel")
    cpus, name = answers.first("cpus"), answers.first("cpu_name")
    return Facts(
        arch=arch,
        kernel=kernel,
        system=(answers.first("system") or "").strip("\"'") or None,
        model=answers.first("model"),
        compatible=tuple(answers.all("compatible")),
        cpu=_cpu(cpus, name, answers.all("cpu_part")),
        isa=_isa(arch, answers.first("features"), answers.all("isa"), kernel),
        ram_bytes=answers.number("ram_kib", 1024),
        swap_bytes=answers.number("swap_kib", 1024),
        page_bytes=answers.number("page_kib", 1024) or answers.number("page_bytes"),
        free_bytes=answers.number("free_kib", 1024),
        tools=tuple(dict.fromkeys(answers.all("tool"))),
    )


def _cpu(cpus: str | None, name: str | None, parts: Iterable[str]) -> str | None:
    cores = Counter(map(_arm_core, parts))  # some kernels call every Arm core "ARMv8 Processor"
    if not cores and cpus and name:
        return f"{cpus} x {name}"
    return ", ".join(f"{count} x {core}" for core, count in cores.items()) or None


def _arm_core(part: str) -> str:
    try:
        return _ARM_CORES[int(part, 16)]
    except (KeyError, ValueError):
        return f"CPU part {part}"


def _version(kernel: str | None) -> tuple[int, int]:
    numbers = re.match(r"(\d+)\.(\d+)", kernel or "")
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def _isa(arch: str, features: str | None, isas: Iterable[str], kernel: str | None) -> str | None:
    levels = ISA_FEATURES.get(arch, {})
    if arch == "riscv64":
        letters = [isa.removeprefix("rv64").split("_")[0] for isa in isas]
        if not letters:
            return None
        found = set.intersection(*map(set, letters))
        if "v" in found and _version(kernel) < RATIFIED_V:
            return None
    elif features is None:
        return None
    else:
        found = set(features.split())
    best = None
    for level, needs in levels.items():
        if not needs <= found:
            break
        best = level
    return best


def matching_targets(facts: Facts, targets: Mapping[str, Target]) -> list[Target]:
    """The targets that a board is by what it says, the ones that say most; more than one where it
    says too little.

    A board with a device tree is a target that names the first of its strings that any names. One
    without is, of the targets without, that of the best ISA level that it has.
    """
    kinds = [
        target
        for target in targets.values()
        if target.arch == facts.arch and target.facts.arch != "native"
    ]
    for compatible in facts.compatible:
        if found := [target for target in kinds if compatible in target.facts.devicetree]:
            return found
    usable = [
        target
        for target in kinds
        if not target.facts.devicetree and reaches(facts, target.facts.expected_isa)
    ]
    ranks = list(ISA_FEATURES.get(facts.arch, ()))
    best = max((ranks.index(target.facts.expected_isa or "scalar") for target in usable), default=0)
    return [target for target in usable if target.facts.expected_isa == ranks[best]]


def reaches(facts: Facts, level: str | None) -> bool:
    """Whether a board has an ISA level."""
    ranks = list(ISA_FEATURES.get(facts.arch, ()))
    return facts.isa in ranks and level in ranks[: ranks.index(facts.isa) + 1]


def compare(
    facts: Facts, target: Target, targets: Mapping[str, Target], *, is_emulated: bool = False
) -> list[Finding]:
    """How what a board says fits the target of its entry, and whether a push can work there.

    An emulated board has no device tree of its kind, and is what it was started as.
    """
    return [
        _compare_arch(facts, target),
        Finding("target", "ok", "emulated")
        if is_emulated
        else _compare_kind(facts, target, targets),
        _compare_isa(facts, target),
        _compare_ram(facts, target),
        _compare_pages(facts, target),
        _compare_tools(facts),
    ]


def _compare_arch(facts: Facts, target: Target) -> Finding:
    if facts.arch != target.arch:
        return Finding("architecture", "wrong", f"{facts.arch}; {target.name} is {target.arch}")
    return Finding("architecture", "ok", facts.arch)


def _compare_kind(facts: Facts, target: Target, targets: Mapping[str, Target]) -> Finding:
    names = [kind.name for kind in matching_targets(facts, targets)]
    said = facts.model or "no model is named"
    if not target.facts.devicetree or target.name in names:
        return Finding("target", "ok", said)
    if facts.compatible:
        known = " or ".join(names) or "no known target"
        return Finding("target", "wrong", f"{said} ({facts.compatible[0]}): {known}")
    return Finding("target", "note", f"{said}; without a device tree it cannot be told")


def _compare_isa(facts: Facts, target: Target) -> Finding:
    expected = target.facts.expected_isa
    if facts.isa is None:
        return Finding("ISA level", "note", "/proc/cpuinfo cannot tell; smoke does")
    if expected is None or reaches(facts, expected):
        return Finding("ISA level", "ok", facts.isa)
    return Finding("ISA level", "wrong", f"{facts.isa}; the target expects {expected}")


def _compare_ram(facts: Facts, target: Target) -> Finding:
    if facts.ram_bytes is None:
        return Finding("RAM", "note", "the board does not say")
    gib = facts.ram_bytes / 2**30
    sold = target.facts.ram_gib
    if sold and gib > max(sold):
        return Finding("RAM", "wrong", f"{gib:.1f} GiB; the target has at most {max(sold)}")
    return Finding("RAM", "ok", f"{gib:.1f} GiB")


def _compare_pages(facts: Facts, target: Target) -> Finding:
    if facts.page_bytes is None:
        return Finding("page size", "note", "the board does not say")
    usual = target.facts.page_bytes
    if usual not in (None, facts.page_bytes):
        return Finding("page size", "note", f"{facts.page_bytes} bytes; usually {usual} here")
    return Finding("page size", "ok", f"{facts.page_bytes} bytes")


def _compare_tools(facts: Facts) -> Finding:
    missing = [tool for tool in NEEDED_TOOLS if tool not in facts.tools]
    if not set(VERIFIERS) & set(facts.tools):
        missing.append(" or ".join(VERIFIERS))
    if missing:
        return Finding("tools", "wrong", f"a push needs {', '.join(missing)}")
    return Finding("tools", "ok", "all that a push needs")
