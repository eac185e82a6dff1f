# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A prompt and what a model makes of it: the same, bit for bit, on every board."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from colibri_deploy.errors import BoardError
from colibri_deploy.model import TOKENIZER, Model
from colibri_deploy.process import run

DEFAULT_TEXT = "Once upon a time"
DEFAULT_IDS = 8  # length of the prompt of a model without a tokenizer
DEFAULT_TOKENS = 16  # to generate


@dataclass(frozen=True)
class Prompt:
    """What to generate from, and how much. Greedy, and past an end-of-sequence token."""

    option: str  # "prompt" or "tokens", of the engine
    value: str
    n_tokens: int = DEFAULT_TOKENS

    @classmethod
    def fitting(cls, model: Model, n_tokens: int = DEFAULT_TOKENS) -> Prompt:
        """A prompt that any model takes: a text, or token ids if it has no tokenizer."""
        if model.file.has_section(TOKENIZER):
            return cls("prompt", DEFAULT_TEXT, n_tokens)
        ids = (str(i % model.config.vocab_size) for i in range(1, DEFAULT_IDS + 1))
        return cls("tokens", ",".join(ids), n_tokens)

    def arguments(self, model: str) -> tuple[str, ...]:
        """The engine's arguments for the model in a directory."""
        words = (f"--{self.option}", self.value, "--num_tokens", str(self.n_tokens))
        return ("--model", model, *words, "--ignore_eos", "--logits_hash", "--format", "json")


@dataclass(frozen=True)
class Generation:
    """What an engine generated, and how fast."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str | None  # None: the model has no tokenizer
    logits_hash: str  # "clb1:<64 hex>"
    kv: str  # type of the key/value cache, part of what the hash means
    isa: str
    threads: int
    prefill_seconds: float
    decode_seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Speed of decoding."""
        return len(self.ids) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @classmethod
    def parse(cls, text: str) -> Generation:
        """What the engine prints as JSON. Raises BoardError."""
        try:
            data = json.loads(text)
            return cls(
                prompt_ids=tuple(data["prompt_ids"]),
                ids=tuple(data["ids"]),
                text=data.get("text"),
                logits_hash=data["logits_hash"],
                kv=data["kv"],
                isa=data["isa"],
                threads=data["threads"],
                prefill_seconds=data["prefill_seconds"],
                decode_seconds=data["decode_seconds"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise BoardError(
                "the engine prints no result that can be read", details=text[:2000]
            ) from error

    def difference(self, golden: Generation) -> str | None:
        """The first way in which this is not the golden one, in words; None: it is the same."""
        for name, of in (("token ids of the prompt", "prompt_ids"), ("generated ids", "ids")):
            ours, theirs = getattr(self, of), getattr(golden, of)
            if ours != theirs:
                at = next(
                    (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                    min(len(ours), len(theirs)),
                )
                return f"the {name} differ from position {at} on: {ours[at:]} for {theirs[at:]}"
        for name, of in (("KV type", "kv"), ("text", "text"), ("logits hash", "logits_hash")):
            if getattr(self, of) != getattr(golden, of):
                return f"the {name} is {getattr(self, of)!r}, golden is {getattr(golden, of)!r}"
        return None


def golden_generation(engine: Path, model: Path, prompt: Prompt) -> Generation:
    """What this machine's engine makes of a prompt. Raises ProcessError."""
    return Generation.parse(run([engine, *prompt.arguments(str(model))]).stdout)
