# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""src/size_budget.py fails where a part is too large, and where it cannot tell."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from colibri_deploy.process import Completed, run
from colibri_deploy.targets import machine_arch

TOKENIZER = tuple("bpe chat decoder encoder normalizer pretokenizer tokenizer unicode".split())
# A word of the lines of each part in the linker's map.
PARTS = {
    "engine": "libcolibri.a(transformer.c.o)",
    "tokenizer": "libcolibri.a(bpe.c.o)",
    "program": "/main.c.o)",
    "libc": "/pthread_create.o)",
    "kernels scalar": "_scalar.c.o)",
}


class Linked(NamedTuple):
    """A build: the linker's map, the program, the report, and the levels inside."""

    map: str
    program: Path
    report: str
    levels: list[str]


@pytest.fixture(scope="module")
def linked(meson_build: Callable[[str], Path]) -> Linked:
    """The build for this machine."""
    build = meson_build(machine_arch())
    inside = run([build / "colibri", "--version"]).stdout.partition("isa inside:")[2]
    text = (build / "colibri.map").read_text(errors="replace")
    report = (build / "sizes.txt").read_text(encoding="utf-8")
    return Linked(text, build / "colibri", report, inside.splitlines()[0].split())


@pytest.fixture
def budget(root: Path, linked: Linked, tmp_path: Path) -> Callable[..., Completed]:
    """A function from the text of a map to what size_budget.py makes of it."""

    def check(text: str, program: Path | None = None) -> Completed:
        (tmp_path / "report").unlink(missing_ok=True)
        (tmp_path / "map").write_text(text)
        command: list[str | Path] = [sys.executable, root / "src/size_budget.py", tmp_path / "map"]
        command += [program or linked.program, tmp_path / "report", "--tokenizer", *TOKENIZER]
        result = run([*command, "--levels", *linked.levels], check=False)
        assert (tmp_path / "report").exists() == (result.status == 0)
        return result

    return check


def test_the_build_is_within_its_budget(
    linked: Linked, budget: Callable[..., Completed], tmp_path: Path
) -> None:
    result = budget(linked.map)
    assert (result.status, result.stderr) == (0, "")
    assert result.stdout == linked.report == (tmp_path / "report").read_text(encoding="utf-8")
    for part in (*PARTS, *(f"kernels {level}" for level in linked.levels)):
        assert any(line.startswith(f"{part} ") for line in result.stdout.splitlines())


@pytest.mark.parametrize(
    "text", ["", "\n", "             VMA              LMA     Size Align Out\n"]
)
def test_an_empty_map_is_an_error(text: str, budget: Callable[..., Completed]) -> None:
    result = budget(text)
    assert result.status == 1
    assert result.stderr.startswith("error: ")


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_the_map_lacks_is_an_error(
    part: str, linked: Linked, budget: Callable[..., Completed]
) -> None:
    lines = linked.map.splitlines()
    kept = "\n".join(line for line in lines if not of_part(line, part))
    assert len(kept) < len(linked.map)
    result = budget(kept)
    assert result.status == 1
    assert part in result.stderr


def test_a_map_that_lacks_much_is_an_error(
    linked: Linked, budget: Callable[..., Completed]
) -> None:
    lines = linked.map.splitlines()
    first = next(line for line in lines if of_part(line, "libc"))
    result = budget("\n".join(x for x in lines if x == first or not of_part(x, "libc")))
    assert result.status == 1
    assert f"does not account for {linked.program}" in result.stderr


def of_part(line: str, part: str) -> bool:
    """Whether a line of the map belongs to a part."""
    tokenizer = any(f"libcolibri.a({name}.c.o)" in line for name in TOKENIZER)
    library = "libcolibri.a(" in line
    program = "libprogram.a(" in line
    if part == "tokenizer":
        return library and tokenizer
    if part == "engine":
        table = "_kernels.c.o)" in line or "_router_select.c.o)" in line
        return library and not tokenizer and ("meson-generated_" not in line or table)
    if part == "program":
        return program
    if part == "libc":
        return ("crt1.o" in line or ".a(" in line) and not library and not program
    return PARTS[part] in line


@pytest.mark.parametrize("part", PARTS)
def test_a_part_over_its_budget_is_named(
    part: str, linked: Linked, budget: Callable[..., Completed]
) -> None:
    lines = linked.map.splitlines()
    number, line = next(
        (number, line)
        for number, line in enumerate(lines)
        if PARTS[part] in line and ":(.text" in line
    )
    size = line.split()[2]
    before, _, behind = line.partition(f" {size} ")
    lines[number] = f"{before} {int(size, 16) + 100_000:x} {behind}"
    result = budget("\n".join(lines))
    assert result.status == 1
    assert result.stderr.startswith(f"error: {part} is ")
    assert result.stderr.endswith(" bytes over its budget\n")
    assert result.stderr.count("\n") == 1


def test_a_program_over_the_budget_of_the_whole(
    linked: Linked, budget: Callable[..., Completed], tmp_path: Path
) -> None:
    for size, status in ((204_800, 0), (204_801, 1)):
        data = linked.program.read_bytes()
        # What the map does not know of may be a small part only.
        lines = linked.map.splitlines()
        number = next(i for i, line in enumerate(lines) if "<internal>" in line)
        columns = lines[number].split()
        grown = f"{int(columns[2], 16) + size - len(data):x}"
        before, _, behind = lines[number].partition(f" {columns[2]} ")
        lines[number] = f"{before} {grown} {behind}"
        (tmp_path / "colibri").write_bytes(data.ljust(size, b"\0"))
        result = budget("\n".join(lines), tmp_path / "colibri")
        assert result.status == status, result.stderr
    assert result.stderr == "error: colibri is 1 bytes over its budget\n"
