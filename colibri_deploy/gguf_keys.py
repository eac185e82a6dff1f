# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The metadata of a GGUF file, typed; what nobody asked for is refused."""

from __future__ import annotations

from typing import Any

from colibri_deploy.errors import ConversionError
from colibri_deploy.families.hub_config import is_number
from colibri_deploy.gguf_file import GgufFile

# Keys that say nothing about the numbers.
_SILENT = ("tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length")
# Keys whose value must be the one that changes nothing.
_NEUTRAL: dict[str, Any] = {
    "use_parallel_residual": False,
    "attention.sliding_window": 0,
    "attention.clamp_kqv": 0,
    "attention.causal": True,
    "expert_shared_count": 0,
    "logit_scale": 1,
    "residual_scale": 1,
    "embedding_scale": 1,
    "rope.scaling.attn_factor": 1,
}

_ENDS = ("eos", "eot", "eom")  # tokens that end a text, a turn, a message


class Keys:
    """Typed access to the keys `<architecture>.*`; remembers which were asked for."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file = file
        self.prefix = f"{architecture}."
        self._known = {*_SILENT}

    def refuse(self, name: str, why: str) -> ConversionError:
        """An error about a key, to be raised."""
        value = self.file.metadata.get(name)
        shown = "missing" if value is None else f"{value!r:.60}"
        return ConversionError(f"{self.file.path}: {name} is {shown}: {why}")

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.file.metadata

    def get(self, name: str, default: Any = None) -> Any:
        """A value, or `default`; one for all layers, if it is a list of equal ones."""
        self._known.add(name)
        value = self.file.metadata.get(self.prefix + name)
        if isinstance(value, list) and value and all(one == value[0] for one in value):
            value = value[0]  # one value a layer
        return default if value is None else value

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """Raises ConversionError for anything else."""
        value = self.get(name, default)
        if type(value) is not int or value < minimum:
            raise self.refuse(self.prefix + name, f"expected an integer of at least {minimum}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive one. Raises ConversionError for anything else."""
        value = self.get(name, default)
        if not is_number(value) or value <= 0:
            raise self.refuse(self.prefix + name, "expected a positive number")
        return float(value)

    def equal(self, name: str, value: Any, why: str) -> None:
        """Refuse any value but this one; the key may be absent."""
        if self.get(name, value) != value:
            raise self.refuse(self.prefix + name, why)

    def refuse_rest(self) -> None:
        """Every other key may change what the model computes."""
        for name, neutral in _NEUTRAL.items():
            if name not in self._known:
                self.equal(name, neutral, "not supported")
        for name in self.file.metadata:
            if name.startswith(self.prefix) and name.removeprefix(self.prefix) not in self._known:
                raise self.refuse(name, "a key that is not known; it may change the numbers")


def first_token(file: GgufFile, vocab_size: int) -> int:
    """The token that begins a text, or -1."""
    return _token(file.metadata, "bos", vocab_size)


def last_tokens(file: GgufFile, vocab_size: int) -> tuple[int, ...]:
    """The tokens that end a text."""
    found = (_token(file.metadata, name, vocab_size) for name in _ENDS)
    return tuple(dict.fromkeys(token for token in found if token >= 0))


def _token(metadata: dict[str, Any], name: str, vocab_size: int) -> int:
    """The token that the tokenizer's metadata name, or -1."""
    token = metadata.get(f"tokenizer.ggml.{name}_token_id", -1)
    return token if type(token) is int and 0 <= token < vocab_size else -1
