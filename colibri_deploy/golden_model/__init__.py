# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The golden model: a small Mixture of Experts that every board must compute bit for bit.

The checkpoint lies beside this file, as do the prompts and what they must give. README.md there
says where both come from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from colibri_deploy.convert import ConversionPlan, convert_checkpoint
from colibri_deploy.coverage import Coverage
from colibri_deploy.golden import Numbers, Prompt
from colibri_deploy.model_dir import CONFIG_NAME, MODEL_NAME

CHECKPOINT = Path(__file__).parent

# What it is converted to, wherever that is done.
SHA256 = {
    MODEL_NAME: "52108e6d353f27639362f82d15b14d4d381eca2d0a15880c66d00a47a705f941",
    CONFIG_NAME: "64ca971a01ac88245dfd77b4e36bd10f143d526d292c4921484a536edab5e4cf",
}


@dataclass(frozen=True)
class Golden(Numbers):
    """What the golden model makes of a prompt, as literals."""

    prompt: Prompt
    experts: tuple[tuple[int, ...], ...]  # per layer: those that bear on logits_hash, ascending


def convert_golden_model(destination: Path) -> ConversionPlan:
    """Writes the golden model's directory, about 2 MB in a tenth of a second.

    A model that is there already is replaced. Raises ConversionError.
    """
    return convert_checkpoint(CHECKPOINT, destination, force=True)


def load_goldens() -> tuple[Golden, ...]:
    """All prompts; every expert of every layer bears on one of their hashes."""
    text = (CHECKPOINT / "goldens.json").read_text(encoding="utf-8")
    return tuple(
        Golden(
            prompt=Prompt("prompt", entry["prompt"], len(entry["ids"])),
            prompt_ids=tuple(entry["prompt_ids"]),
            ids=tuple(entry["ids"]),
            text=entry["text"],
            logits_hash=entry["logits_hash"],
            kv=entry["kv"],
            experts=tuple(map(tuple, entry["experts"])),
        )
        for entry in json.loads(text)["prompts"]
    )


def golden_coverage(goldens: tuple[Golden, ...]) -> Coverage:
    """How many experts the hashes prove, by the literals."""
    proved = {
        (layer, expert)
        for golden in goldens
        for layer, experts in enumerate(golden.experts)
        for expert in experts
    }
    config = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    return Coverage(len(proved), config["num_hidden_layers"] * config["num_local_experts"])
