# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The hyperparameters of a model: `config.json` (docs/FORMAT.md)."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np

from colibri_deploy.errors import ConfigError, FileMissingError

CONFIG_VERSION = 1
MAX_BYTES = 1 << 20
# The largest values that the engine takes (src/config.c).
LIMITS = {
    "n_layers": 1024,
    "hidden_size": 1 << 20,
    "n_heads": 1 << 12,
    "n_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "ffn_size": 1 << 20,
    "vocab_size": 1 << 24,
    "max_positions": 1 << 28,
    "n_experts": 512,
    "top_k": 16,
    "sliding_window": 1 << 28,
}
MAX_FLOAT = 1e30
MAX_EOS = 16


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What `config.json` says; floats are read as float32."""

    architecture: str
    n_layers: int
    hidden_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    n_experts: int  # 0: dense
    top_k: int
    max_positions: int
    sliding_window: int  # positions; 0: none
    norm_eps: float
    attention_scale: float
    rope_scale: float
    bos_id: int  # -1: none
    eos_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        """Raises ConfigError if the values contradict the format or each other."""
        for name, limit in LIMITS.items():
            value, least = getattr(self, name), 0 if name in _MAY_BE_ZERO else 1
            _require(least <= value <= limit, name, value, f"{least} to {limit}")
        for name in _FLOATS:
            value = getattr(self, name)
            with np.errstate(over="ignore", under="ignore"):
                fits = 0 < np.float32(value) < MAX_FLOAT
            _require(bool(fits), name, value, f"a float32 above 0 and below {MAX_FLOAT:g}")
        _require(-1 <= self.bos_id < self.vocab_size, "bos_id", self.bos_id, "a token id or -1")
        for token in self.eos_ids:
            _require(0 <= token < self.vocab_size, "eos_ids", token, "token ids")
        if len(self.eos_ids) > MAX_EOS:
            raise ConfigError(f"eos_ids has {len(self.eos_ids)} entries, at most {MAX_EOS} fit")
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_heads ({self.n_heads}) is no multiple of n_kv_heads ({self.n_kv_heads})"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}, RoPE needs an even number")
        if self.top_k > self.n_experts or (self.top_k == 0) != (self.n_experts == 0):
            raise ConfigError(f"top_k ({self.top_k}) does not fit n_experts ({self.n_experts})")

    def to_json(self) -> str:
        """The text of `config.json`; float32 values in the fewest digits that give them back."""
        values = dataclasses.asdict(self) | {
            name: _shortest(getattr(self, name)) for name in _FLOATS
        }
        return json.dumps({"config_version": CONFIG_VERSION} | values, indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> ModelConfig:
        """Read `config.json`. Raises FileMissingError and ConfigError."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise FileMissingError(f"{path} cannot be read: {error.strerror}") from None
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_BYTES} bytes")
        try:
            return cls.from_json(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not UTF-8: byte {error.start}") from None
        except ConfigError as error:
            raise ConfigError(f"{path}: {error.message}") from None

    @classmethod
    def from_json(cls, text: str) -> ModelConfig:
        """Parse and check the text of `config.json`. Raises ConfigError."""
        try:
            values = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            raise ConfigError(f"no JSON: {error.msg}, line {error.lineno}") from None
        except RecursionError:
            raise ConfigError("no JSON that can be read: nested too deeply") from None
        if not isinstance(values, dict):
            raise ConfigError("not a JSON object")
        fields = {field.name: str(field.type) for field in dataclasses.fields(cls)}
        known = {"config_version": "int"} | fields
        for name in values:
            if name not in known:
                raise ConfigError(
                    f"unknown key {json.dumps(name)}: it may change what the model computes"
                )
        for name in known:
            if name not in values:
                raise ConfigError(f"the key {name} is missing")
        checked = {name: _typed(name, values[name], kind) for name, kind in known.items()}
        version = checked.pop("config_version")
        if version != CONFIG_VERSION:
            raise ConfigError(f"config_version is {version}, this version reads {CONFIG_VERSION}")
        return cls(**checked)  # type: ignore[arg-type]  # _typed has checked each


_MAY_BE_ZERO = ("n_experts", "top_k", "sliding_window")
_FLOATS = ("norm_eps", "attention_scale", "rope_scale")


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value}, expected {expected}")


def _typed(name: str, value: object, kind: str) -> object:
    def is_integer(number: object) -> bool:
        return isinstance(number, int) and not isinstance(number, bool)

    good, wanted = False, ""
    match kind:
        case "int":
            good, wanted = is_integer(value), "an integer"
        case "float":
            good = is_integer(value) or (isinstance(value, float) and math.isfinite(value))
            wanted = "a number"
        case "str":
            good, wanted = isinstance(value, str), "a string"
        case _:
            good = isinstance(value, list) and all(is_integer(item) for item in value)
            wanted = "an array of integers"
    if not good:
        shown = json.dumps(value)
        raise ConfigError(f"{name} is {shown[:40]}, expected {wanted}")
    if isinstance(value, list):
        return tuple(value)
    if kind == "float":
        assert isinstance(value, int | float)
        try:
            return _shortest(float(value))
        except OverflowError:
            raise ConfigError(f"{name} is too large") from None
    return value


def _shortest(value: float) -> float:
    """The float whose decimal text is the shortest that reads back as the same float32."""
    with np.errstate(over="ignore", under="ignore"):
        return float(str(np.float32(value)))


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ConfigError("a key occurs twice")
    return values


def _refuse_constant(text: str) -> float:
    raise ConfigError(f"{text} is not JSON")
