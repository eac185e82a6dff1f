# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Which of two versions is the later one: https://semver.org/spec/v2.0.0.html, 11."""

from __future__ import annotations

import re

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


def is_version(text: str) -> bool:
    """Whether it is a version of three numbers and what may follow them."""
    return _VERSION.fullmatch(text) is not None


def is_older(version: str, other: str) -> bool:
    """Whether `version` precedes `other`. Both are versions."""
    return _precedence(version) < _precedence(other)


def _precedence(version: str) -> tuple[object, ...]:
    match = _VERSION.fullmatch(version)
    assert match is not None  # by the caller
    numbers = tuple(int(number) for number in match.groups()[:3])
    if match[4] is None:
        return (*numbers, 1)  # after all of its pre-releases
    parts = tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in match[4].split(".")
    )
    return (*numbers, 0, parts)
