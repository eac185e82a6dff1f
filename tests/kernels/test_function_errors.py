# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The two constants of src/selftest.c that no comment there derives are what is measured."""

import re
from collections.abc import Callable
from pathlib import Path

from colibri_deploy.process import Completed, run
from colibri_deploy.targets import machine_arch


def test_the_measured_bounds_hold_for_every_f32(
    root: Path, meson: Callable[..., Completed], meson_build: Callable[[str], Path]
) -> None:
    build = meson_build(machine_arch())
    meson("compile", "-C", build, "function_errors")
    report = run([build / "tests/function_errors"]).stdout
    line = re.compile(r"^(\w+): (\S+) u at \S+, the largest of (\d+)$", re.MULTILINE)
    found = line.findall(report)
    assert [(name, int(n)) for name, _, n in found] == [("exp", 543_162_370), ("gelu", 417_333_250)]
    source = (root / "src/selftest.c").read_text(encoding="utf-8")
    for name, error, _ in found:
        constant = re.search(rf"{name.upper()}_ERROR = (\S+) \* 0x1p-24;", source)
        assert constant
        assert 0 <= float(constant[1]) - float(error) < 0.01
        assert f"{error} u" in source  # the comment
