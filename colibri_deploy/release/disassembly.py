# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Which CPU features the instructions of an object file need, as objdump shows them."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from colibri_deploy.process import run

# Features that no object may use, at whatever level. A fused multiply-add rounds once instead of
# twice; an approximate reciprocal is another number on each vendor's CPU.
FORBIDDEN = {
    "fma": "which rounds once",
    "approximate": "which differs between CPUs",
    "unknown": "which objdump cannot decode",
}

# The one place that asks the CPU for more than the baseline: it has seen OSXSAVE before.
_EXCEPTIONS = {"cpu.c.o": {"xgetbv"}}

# What is there on every CPU that has another feature.
_IMPLIED = {"ssse3": "sse3"}

# A feature, named as in the `needs` of templates/isa/<level>.j2 where a level has it, and its
# mnemonics; the first that fits counts. AT&T suffixes are left to the pattern.
# What no rule knows is of the baseline, on x86-64 of what its encoding says.
_RULES: dict[str, list[tuple[str, str]]] = {
    "x86_64": [
        ("unknown", r"\(bad\)|\.byte|ud[012][a-z]?"),
        ("fma", r"vfn?m(add|sub).*|vfm(addsub|subadd).*|v4fn?madd.*"),
        ("fma", r"vf(madd)?c(madd|mul).*"),
        ("approximate", r"v?r(cp|sqrt)(14|28)?[ps][sdh]|vexp2.*|pf(rcp|rsq).*"),
        ("avx512_cd", r"vpconflict.*|vplzcnt.*|vpbroadcastm.*"),
        ("avx512_ifma", r"vpmadd52.*"),
        ("avx512_vbmi", r"vperm(i2|t2)?b|vpmultishift.*"),
        ("avx512_vbmi2", r"vp(compress|expand)[bw]|vpsh[lr]dv?[wdq]"),
        ("avx512_bitalg", r"vpopcnt.*|vpshufbit.*"),
        ("avx512_bf16", r"vdpbf16.*|vcvtne.*bf16.*|v.*p?bf16"),
        ("avx512_other", r"vp2intersect.*|vp4dp.*|v(gather|scatter)pf.*"),
        ("crypto", r"v?aes.*|v?pclmul.*|sha(1|256|512).*|v?gf2p8.*|vsm[34].*"),
        ("bmi", r"(andn|bextr|bls(i|r|msk)|bzhi|mulx|pdep|pext|rorx|sarx|sh[lr]x)[lq]?"),
        ("popcnt", r"popcnt[wlq]?"),
        ("lzcnt", r"lzcnt[wlq]?"),  # tzcnt is not here: as `rep bsf` it runs on every CPU
        ("movbe", r"movbe[wlq]?"),
        ("adx", r"ad[co]x[lq]?"),
        ("xgetbv", r"xgetbv"),
        ("other", r"rd(rand|seed|pid|tscp).*|x(save|rstor|test|begin|end|abort).*|cmpxchg16b"),
        ("other", r"clflushopt|clwb|prefetchw.*|extrq|insertq|movnts[sd]|[mu]?m?wait|monitor"),
        ("avx512f", r"k(add|andn?|mov|not|or|ortest|shift[lr]|test|unpck|x?n?or)[bwdq]{1,2}"),
        ("sse3", r"addsubp[sd]|h(add|sub)p[sd]|lddqu|movddup|movs[hl]dup|fisttp.*"),
    ],
    "aarch64": [
        ("unknown", r"\.(word|inst|byte|short)|udf|undefined"),
        ("fma", r"fn?m(add|sub)|fml[as]l?2?|fcmla"),
        ("approximate", r"f(recp|rsqrt)[esx]|u(recp|rsqrt)e"),
        ("asimddp", r"[su]dot"),
        ("i8mm", r"(s|u|us)mmla|(us|su)dot"),
        ("bf16", r"bf(dot|mmla|mlal[bt]|cvt.*)"),
        ("crypto", r"aes.*|sha(1|256|512).*|sm[34].*|pmull2?|eor3|bcax|rax1|xar"),
        ("crc32", r"crc32.*"),
        ("lse", r"(cas|swp)p?(al?|l)?[bh]?|(ld|st)(add|clr|eor|set|[su]m(ax|in))(al?|l)?[bh]?"),
        ("v8.x", r"sqrdml[as]h|fjcvtzs|fcadd|ldap.*|frint(32|64).*|cfinv|rmif|setf.*"),
        ("v8.x", r"ldra[ab]|(br|blr)a[ab]z?|ret[ab]+|[xa]xflag|sb|cpy.*|set[gmp].*"),
    ],
    "riscv64": [
        ("unknown", r"\.(insn|\d?byte|short|word|half|long)|unimp|c\.unimp|unknown"),
        ("fma", r"fn?m(add|sub)\.[hsdq]|vfw?n?m(acc|sac|add|sub).*"),
        ("approximate", r"vfrec7.*|vfrsqrt7.*|frcp.*"),
        ("v", r"v.*"),
        ("b", r"sh[123]add(\.uw)?|(add|slli)\.uw|andn|orn|xnor|c[lt]zw?|cpopw?|m(ax|in)u?"),
        ("b", r"sext\.[bh]|zext\.h|ro[lr]i?w?|orc\.b|rev8|b(clr|ext|inv|set)i?|clmul[hr]?"),
        ("zfh", r"f.*\.h(\..*)?|flh|fsh"),
        ("zicond", r"czero\..*"),
    ],
}
_PATTERNS = {
    arch: [(feature, re.compile(pattern)) for feature, pattern in rules]
    for arch, rules in _RULES.items()
}

_X86_PREFIXES = {0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3}
_X86_PREFIX_WORDS = {
    *("{evex}", "{vex}", "addr32", "bnd", "cs", "data16", "ds", "es", "fs", "gs", "lock"),
    *("notrack", "rep", "repnz", "repz", "rex", "rex.W", "ss"),
}
_LINE = re.compile(r"\s*[0-9a-f]+:\t([0-9a-f ]+?)\s*\t(.*)")


@dataclass(frozen=True)
class Instruction:
    """One line of a disassembly."""

    function: str
    code: bytes  # as objdump prints them: bytes on x86-64, elsewhere a word, highest byte first
    text: str

    def __str__(self) -> str:
        return f"{self.text.expandtabs(1)} in {self.function}"


@dataclass(frozen=True)
class Objects:
    """What was read of the object files of a build; `engine` is a level, too."""

    files: Counter[str]  # for each level
    instructions: Counter[str]
    escapes: list[str]  # a line for each instruction that is where it must not be


def read_objects(objdump: Path, root: Path, build: Path, arch: str) -> Objects:
    """Disassembles all objects of a Meson build directory, before they are linked.

    `root` is that of the sources. Raises ProcessError.
    """
    usable = usable_features(root, arch)
    objects = Objects(Counter(), Counter(), [])
    for path in sorted(build.glob("*/lib*.a.p/*.o")):
        level = path.parent.name.removesuffix(".a.p").removeprefix("libkernels_")
        if level not in usable:
            level = "engine"
        features = usable.get(level, set()) | _EXCEPTIONS.get(path.name, set())
        code = list(disassemble(objdump, path))
        objects.files[level] += 1
        objects.instructions[level] += len(code)
        objects.escapes.extend(f"{path.name}: {line}" for line in escapes(arch, features, code))
    return objects


def usable_features(root: Path, arch: str) -> dict[str, set[str]]:
    """The features that objects of each level may use: what it and those before it ask for.

    Read from the templates in `root`; levels in their order, weakest first.
    """
    plan = run([sys.executable, root / "templates/render.py", "plan", arch, ""]).stdout
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(root / "templates"))
    usable: dict[str, set[str]] = {}
    features: set[str] = set()
    for level in (line.partition(";")[0] for line in plan.splitlines()):
        facts: Any = environment.get_template(f"isa/{level}.j2").module
        names = {need[0] for need in facts.facts["needs"]}
        features = features | names | {_IMPLIED[name] for name in names if name in _IMPLIED}
        usable[level] = features
    return usable


def _x86_encoding(code: bytes) -> str:
    """The feature that the encoding asks for; empty for the baseline's.

    `avx512f` stands for F, BW, VL and DQ, `avx` for AVX2 too, `sse4.2` for all after SSE3.
    """
    i = 0
    while code[i] in _X86_PREFIXES:
        i += 1
    if code[i] & 0xF0 == 0x40:  # REX
        i += 1
    opcode = code[i : i + 3]
    if opcode[0] == 0x62:
        return "avx512_fp16" if opcode[1] & 7 in (5, 6) else "avx512f"
    if opcode[0] in (0xC4, 0xC5):
        return "avx"
    if opcode[0] == 0x8F and opcode[1] & 0x38:
        return "xop"
    if opcode[0] == 0xD5:
        return "apx"
    return "sse4.2" if opcode[:2] in (b"\x0f\x38", b"\x0f\x3a") else ""


def feature(arch: str, instruction: Instruction) -> str:
    """The CPU feature that an instruction needs beyond the baseline; empty if none."""
    words = instruction.text.split()
    while arch == "x86_64" and len(words) > 1 and words[0] in _X86_PREFIX_WORDS:
        words = words[1:]
    mnemonic = words[0] if words else "unknown"
    operands = re.sub(r"<.*?>|//.*|#.*", "", " ".join(words[1:]))
    encoding = _x86_encoding(instruction.code) if arch == "x86_64" else ""
    for name, pattern in _PATTERNS[arch]:
        if pattern.fullmatch(mnemonic):
            return name
    if re.fullmatch(r"vpdp(busd|wssd)s?", mnemonic):
        return "avx512vnni" if encoding == "avx512f" else "avx_vnni"
    if re.fullmatch(r"vpdp.*", mnemonic):
        return "avx_vnni_int8"
    if encoding == "avx" and mnemonic in ("vcvtph2ps", "vcvtps2ph"):
        return "f16c"
    if arch == "aarch64":
        if re.search(r"\b[zp]\d+\b", operands):
            return "sve"
        halves = re.search(r"\bh\d+\b|\.[48]h\b", operands)
        if halves and re.match(r"f(?!cvt[ln]?2?$)|[su]cvtf", mnemonic):
            return "fp16"
    if arch == "riscv64" and re.search(r"\bvl(enb)?\b|\bvtype\b|\bvx(rm|sat)\b", operands):
        return "v"
    return encoding


def disassemble(objdump: Path, path: Path) -> Iterator[Instruction]:
    """All instructions in the executable sections of an object file."""
    function = "?"
    for line in run([objdump, "-d", "-w", path]).stdout.splitlines():
        match = _LINE.fullmatch(line)
        if match:
            yield Instruction(function, bytes.fromhex(match[1]), match[2].strip())
        elif line.endswith(">:"):
            function = line.partition("<")[2][:-2]


def escapes(arch: str, usable: set[str], instructions: list[Instruction]) -> list[str]:
    """A line for each instruction that an object with these features must not hold."""
    found = []
    for instruction in instructions:
        name = feature(arch, instruction)
        if name in FORBIDDEN:
            found.append(f"{instruction}: {name}, {FORBIDDEN[name]}")
        elif name and name not in usable:
            found.append(f"{instruction}: {name}, beyond its level")
    return found
