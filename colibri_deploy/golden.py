# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A prompt and what a model makes of it: the same, bit for bit, on every board."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from colibri_deploy.coverage import Coverage, proved_experts
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

    def arguments(self) -> tuple[str, ...]:
        """The engine's arguments but those that name the model."""
        words = (f"--{self.option}", self.value, "--num_tokens", str(self.n_tokens))
        return (*words, "--ignore_eos", "--logits_hash", "--format", "json")


@dataclass(frozen=True)
class Numbers:
    """What a model makes of a prompt, wherever it runs."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]  # generated
    text: str | None  # the same decoded; None: the model has no tokenizer
    logits_hash: str  # "clb1:<64 hex>", of the logits after the prompt and after each of ids
    kv: str  # type of the key/value cache, part of what the hash means

    def difference(self, golden: Numbers) -> str | None:
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


@dataclass(frozen=True)
class Generation(Numbers):
    """What an engine generated, how fast, and what that took."""

    isa: str
    threads: int
    prefill_seconds: float
    decode_seconds: float
    load_seconds: float | None = None  # these are None where the engine does not tell
    peak_rss_bytes: int | None = None
    page_faults: int | None = None  # that had to wait for storage
    read_bytes: int | None = None  # from storage

    @property
    def tokens_per_s(self) -> float:
        """Speed of decoding."""
        return len(self.ids) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def figures(self) -> dict[str, float | None]:
        """What is recorded of a generation and never judged."""
        prefill_s = self.prefill_seconds
        return {
            "prompt_tokens": len(self.prompt_ids),
            "prefill_tokens_per_s": len(self.prompt_ids) / prefill_s if prefill_s > 0 else 0.0,
            "decode_tokens_per_s": self.tokens_per_s,
            "load_seconds": self.load_seconds,
            "peak_rss_bytes": self.peak_rss_bytes,
            "page_faults": self.page_faults,
            "read_bytes": self.read_bytes,
        }

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
                load_seconds=data.get("load_seconds"),
                peak_rss_bytes=data.get("peak_rss_bytes"),
                page_faults=data.get("page_faults"),
                read_bytes=data.get("read_bytes"),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise BoardError(
                "the engine prints no result that can be read", details=text[:2000]
            ) from error


def golden_generation(
    engine: Path, model: Path, prompt: Prompt
) -> tuple[Generation, Coverage | None]:
    """What this machine's engine makes of a prompt, and the experts that its hash proves.

    None: the model is dense. Raises ProcessError and the errors of `Model.open`.
    """
    config = Model.open(model).config
    command: list[str | Path] = [engine, "--model", model, *prompt.arguments()]
    if not config.n_experts:
        return Generation.parse(run(command).stdout), None
    with tempfile.TemporaryDirectory(prefix="colibri-") as scratch:
        trace = Path(scratch) / "trace"
        golden = Generation.parse(run([*command, "--trace_routing", trace]).stdout)
        routes = trace.read_text(encoding="utf-8")
    proved = proved_experts(routes, len(golden.prompt_ids), config.n_layers)
    return golden, Coverage(len(proved), config.n_layers * config.n_experts)
