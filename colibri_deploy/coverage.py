# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Which experts a logits hash proves: those whose output bears on the logits."""

from __future__ import annotations

import json
from dataclasses import dataclass

Expert = tuple[int, int]  # layer and number


@dataclass(frozen=True)
class Coverage:
    """How many experts of a model a hash proves."""

    proved: int
    experts: int  # of all layers

    def __str__(self) -> str:
        return f"{self.proved} of {self.experts} experts"


def proved_experts(trace: str, n_prompt: int, n_layers: int) -> frozenset[Expert]:
    """The experts behind the hash of a generation, from what --trace_routing wrote.

    The hash covers the logits after the prompt of `n_prompt` tokens and after each generated one.
    What the last of `n_layers` layers gives for earlier tokens bears on nothing.
    """
    routes = [json.loads(line) for line in trace.splitlines()]
    return frozenset(
        (route["layer"], expert)
        for route in routes
        if route["layer"] < n_layers - 1 or route["position"] >= n_prompt - 1
        for expert in route["experts"]
    )
