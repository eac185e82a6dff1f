# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The release binary: static, small, with nothing that can be written and executed."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ARCHITECTURES = ("x86_64", "aarch64", "riscv64")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_binary_is_static_stripped_and_within_its_budget(
    arch: str, engine: Callable[[str], Path], require_program: Callable[[str], Path]
) -> None:
    binary = engine(arch)
    assert binary.stat().st_size <= 204_800
    readelf: list[str | Path] = [require_program("readelf"), "--wide"]
    headers = subprocess.run(
        [*readelf, "--program-headers", "--section-headers", "--symbols", binary],
        check=True,
        text=True,
        capture_output=True,
    ).stdout
    for unwanted in ("INTERP", "DYNAMIC", ".symtab", ".dynsym"):
        assert unwanted not in headers
    segments = re.findall(r"^\s+(LOAD|GNU_STACK)\s.*?\s([R ][W ][E ])\s+0x", headers, re.MULTILINE)
    assert {name for name, _ in segments} == {"LOAD", "GNU_STACK"}
    assert all("E" not in flags for name, flags in segments if name == "GNU_STACK")
    assert not any("W" in flags and "E" in flags for _, flags in segments)
