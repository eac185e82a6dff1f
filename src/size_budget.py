# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Prints what each part of the program takes, and fails if a part or the whole is over its budget.

    size_budget.py MAP PROGRAM REPORT --tokenizer NAME... --levels NAME...

MAP is the linker's --print-map. Meson runs this after linking a release build.
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

# Bytes. The whole is what a board's flash pays: the stripped file.
WHOLE = 204_800
BUDGET = {
    "libc": 36_000,
    "engine": 53_000,
    "tokenizer": 20_000,
    "program": 28_000,
    "kernels scalar": 34_000,  # without vectors a word of the vocabulary is 16 instructions
}
LEVEL_BUDGET = 24_000

_SECTION = re.compile(r"\s*[0-9a-f]+\s+[0-9a-f]+\s+([0-9a-f]+)\s+\d+ (\s*)(\S.*)$")
_UNLOADED = ("bss", "tbss", "comment", "shstrtab", "symtab", "strtab", "debug")


def part_of(contribution: str, tokenizer: list[str], levels: list[str]) -> str:
    """The part that an input section in the map belongs to."""
    member = re.search(r"(lib\w+)\.a\((?:[^)]*/)?([^/)]+?)(?:\.c)?\.o\)", contribution)
    if not member:
        return "libc" if "crt1.o" in contribution else "strings"
    library, name = member[1], member[2]
    if library != "libcolibri":
        return "program" if library == "libprogram" else "libc"
    if not name.startswith("meson-generated_"):
        return "tokenizer" if name in tokenizer else "engine"
    level = max((x for x in levels if name.endswith("_" + x)), key=len, default="")
    return f"kernels {level}" if level else "engine"  # kernels.c: the table of levels


def parts(map_text: str, tokenizer: list[str], levels: list[str]) -> Counter[str]:
    """Bytes in the file of each part."""
    sizes: Counter[str] = Counter()
    output = ""
    for line in map_text.splitlines():
        match = _SECTION.match(line)
        if not match:
            continue
        size, indent, name = int(match[1], 16), len(match[2]), match[3]
        if indent == 0:
            output = name.lstrip(".").split(".")[0]
        elif indent == 8 and not output.startswith(_UNLOADED):
            sizes[part_of(name, tokenizer, levels)] += size
    return sizes


def main() -> int:
    """The exit status: 1 over the budget."""
    parser = argparse.ArgumentParser()
    parser.add_argument("map", type=Path)
    parser.add_argument("program", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("--tokenizer", nargs="+", required=True)
    parser.add_argument("--levels", nargs="+", required=True)
    args = parser.parse_args()

    sizes = parts(args.map.read_text(errors="replace"), args.tokenizer, args.levels)
    whole = args.program.stat().st_size
    levels = [f"kernels {level}" for level in args.levels]
    missing = sorted(name for name in {*BUDGET, *levels} if not sizes[name])
    if missing or sum(sizes.values()) < 0.9 * whole:
        sys.stderr.write(f"error: {args.map} does not account for {args.program}")
        sys.stderr.write(f": it lacks {', '.join(missing)}\n" if missing else "\n")
        return 1
    lines, over = [], []
    for name, size in sorted(sizes.items()):
        budget = BUDGET.get(name, LEVEL_BUDGET if name.startswith("kernels") else WHOLE)
        lines.append(f"{name:24}{size:9,}" + (f" of {budget:9,}" if budget < WHOLE else ""))
        if size > budget:
            over.append(f"{name} is {size - budget:,} bytes over its budget")
    lines.append(f"{'colibri, stripped':24}{whole:9,} of {WHOLE:9,}")
    if whole > WHOLE:
        over.append(f"colibri is {whole - WHOLE:,} bytes over its budget")
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if over:
        sys.stderr.write("".join(f"error: {line}\n" for line in over))
        return 1
    args.report.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
