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
from colibri_deploy.golden import Prompt

CHECKPOINT = Path(__file__).parent


@dataclass(frozen=True)
class Golden:
    """A prompt and what the golden model makes of it, as literals."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]  # generated greedily, past an end-of-sequence token
    text: str  # the generated ids decoded
    logits_hash: str  # "clb1:<64 hex>", of the logits after the prompt and after each of ids
    kv: str  # type of the key/value cache, which logits_hash depends on
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
