# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""How a long step tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told how far a long step is."""

    def start(self, what: str, total: int) -> None:
        """A step begins that will read or write `total` bytes."""

    def advance(self, n_bytes: int) -> None:
        """`n_bytes` more are done."""


class NoProgress:
    """Ignores everything."""

    def start(self, what: str, total: int) -> None:
        """See `Progress`."""

    def advance(self, n_bytes: int) -> None:
        """See `Progress`."""
