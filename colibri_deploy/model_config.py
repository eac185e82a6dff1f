# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The hyperparameters of a model: `config.json` (docs/FORMAT.md)."""

from __future__ import annotations

import dataclasses
import decimal
import json
import math
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from colibri_deploy.errors import ConfigError, FileMissingError

CONFIG_VERSION = 1
MAX_BYTES = 1 << 20
# The smallest and the largest value of each integer that the engine takes (src/config.c).
LIMITS = {
    "n_layers": (1, 1024),
    "hidden_size": (1, 1 << 20),
    "n_heads": (1, 1 << 12),
    "n_kv_heads": (1, 1 << 12),
    "head_dim": (2, 1 << 12),
    "ffn_size": (1, 1 << 20),
    "vocab_size": (1, 1 << 24),
    "n_experts": (0, 512),
    "top_k": (0, 16),
    "max_positions": (1, 1 << 28),
    "sliding_window": (0, 1 << 28),
    "rope_dim": (0, 1 << 12),
    "n_groups": (1, 512),
    "top_groups": (1, 16),
    "dense_ffn_size": (0, 1 << 20),
    "shared_ffn_size": (0, 1 << 20),
    "kv_rank": (0, 1 << 16),
    "q_rank": (0, 1 << 16),
    "v_dim": (0, 1 << 12),
}
MAX_FLOAT = 1e30
MAX_DIGITS = 15  # of a number, without leading zeros and its exponent
MAX_POWER = 22  # of ten, by which those digits are multiplied or divided
MAX_EOS = 16
MAX_NAME = 31  # characters of `architecture`

RopeKind = Literal["half", "pairs"]
Activation = Literal["silu", "gelu", "gelu_tanh", "swiglu_oai"]
RouterScore = Literal["softmax", "sigmoid", "sparsemixer"]
RouterWeights = Literal["chosen", "all"]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What `config.json` says; floats are read as float32.

    `config.json` has a key that may be absent only where its value is not the default.
    """

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
    window_layers: tuple[int, ...] | None = None  # None: all
    rope_dim: int | None = None  # None: `head_dim`
    rope_kind: RopeKind = "half"
    qk_clip: float | None = None
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    activation: Activation = "silu"
    activation_limit: float | None = None
    router_score: RouterScore = "softmax"
    router_weights: RouterWeights = "chosen"
    router_scale: float = 1.0
    router_jitter: float | None = None
    n_groups: int = 1
    top_groups: int = 1
    dense_layers: tuple[int, ...] = ()
    dense_ffn_size: int = 0
    shared_ffn_size: int = 0
    kv_rank: int = 0  # above 0: latent attention
    q_rank: int = 0
    v_dim: int = 0
    latent_norm_eps: float | None = None

    @property
    def rotated(self) -> int:
        """Elements of a head that RoPE rotates."""
        return self.head_dim if self.rope_dim is None else self.rope_dim

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """The layers that `dense_layers` does not name."""
        return tuple(layer for layer in range(self.n_layers) if layer not in self.dense_layers)

    def __post_init__(self) -> None:
        """Raises ConfigError if the values contradict the format or each other."""
        name = self.architecture
        _require(1 <= len(name) <= MAX_NAME, "architecture", name, f"1 to {MAX_NAME} characters")
        for name, (least, limit) in LIMITS.items():
            value = getattr(self, name)
            if value is not None:
                _require(least <= value <= limit, name, value, f"{least} to {limit}")
        for name in _FLOATS:
            value = getattr(self, name)
            if value is not None:
                with np.errstate(over="ignore", under="ignore"):
                    fits = 0 < np.float32(value) < MAX_FLOAT
                _require(bool(fits), name, value, f"a float32 above 0 and below {MAX_FLOAT:g}")
                _require_short(name, decimal.Decimal(json.dumps(_shortest(value))))
        for name, words in _CHOICES.items():
            value = getattr(self, name)
            _require(value in words, name, value, f"one of {', '.join(words)}")
        _require(-1 <= self.bos_id < self.vocab_size, "bos_id", self.bos_id, "a token id or -1")
        for token in self.eos_ids:
            _require(0 <= token < self.vocab_size, "eos_ids", token, "token ids")
        if len(self.eos_ids) > MAX_EOS:
            raise ConfigError(f"eos_ids has {len(self.eos_ids)} entries, at most {MAX_EOS} fit")
        self._check_attention()
        self._check_experts()

    def _check_attention(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"n_heads ({self.n_heads}) is no multiple of n_kv_heads ({self.n_kv_heads})"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}, RoPE needs an even number")
        if self.rotated % 2 or self.rotated > self.head_dim:
            raise ConfigError(
                f"rope_dim is {self.rotated}, expected an even number up to head_dim "
                f"({self.head_dim})"
            )
        if self.window_layers is not None:
            self._check_layers("window_layers", self.window_layers)
        latent = self.kv_rank > 0
        if latent != (self.v_dim > 0) or latent != (self.latent_norm_eps is not None):
            raise ConfigError("kv_rank, v_dim and latent_norm_eps go together")
        if self.q_rank and not latent:
            raise ConfigError(f"q_rank is {self.q_rank}, but there is no kv_rank")
        if latent and self.n_kv_heads != 1:
            raise ConfigError(f"n_kv_heads is {self.n_kv_heads}, expected 1 with kv_rank")
        if latent and self.rotated == self.head_dim:
            raise ConfigError(f"rope_dim is {self.rotated}, expected less than head_dim")
        if latent and self.qk_clip is not None:
            raise ConfigError("qk_clip does not go with kv_rank")

    def _check_experts(self) -> None:
        if self.top_k > self.n_experts or (self.top_k == 0) != (self.n_experts == 0):
            raise ConfigError(f"top_k ({self.top_k}) does not fit n_experts ({self.n_experts})")
        kept = self.n_experts // self.n_groups * self.top_groups
        if self.n_experts % self.n_groups or self.top_groups > self.n_groups or self.top_k > kept:
            raise ConfigError(
                f"n_groups ({self.n_groups}) and top_groups ({self.top_groups}) do not fit "
                f"n_experts ({self.n_experts}) and top_k ({self.top_k})"
            )
        if (self.router_score == "sparsemixer") != (self.router_jitter is not None):
            raise ConfigError("router_jitter and the router_score sparsemixer go together")
        if self.router_score == "sparsemixer" and self.top_k != 2:
            raise ConfigError(f"top_k is {self.top_k}, expected 2 with sparsemixer")
        if self.router_score == "sparsemixer" and self.n_groups > 1:
            raise ConfigError(f"n_groups is {self.n_groups}, expected 1 with sparsemixer")
        if (self.activation == "swiglu_oai") != (self.activation_limit is not None):
            raise ConfigError("activation_limit and the activation swiglu_oai go together")
        self._check_layers("dense_layers", self.dense_layers)
        if bool(self.dense_layers) != (self.dense_ffn_size > 0):
            raise ConfigError("dense_layers and dense_ffn_size go together")
        if self.dense_layers and (not self.n_experts or len(self.dense_layers) == self.n_layers):
            raise ConfigError("dense_layers are those without experts in a model that has them")
        if self.shared_ffn_size and not self.n_experts:
            raise ConfigError(
                f"shared_ffn_size is {self.shared_ffn_size}, but there are no experts"
            )

    def _check_layers(self, name: str, layers: tuple[int, ...]) -> None:
        if list(layers) != sorted({layer for layer in layers if 0 <= layer < self.n_layers}):
            raise ConfigError(f"{name} are not layers below {self.n_layers} in ascending order")

    def to_json(self) -> str:
        """The text of `config.json`; float32 values in the fewest digits that give them back."""
        values: dict[str, object] = {"config_version": CONFIG_VERSION}
        absent = {"rope_dim": self.head_dim, "window_layers": tuple(range(self.n_layers))}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value in (field.default, absent.get(field.name)):
                continue
            values[field.name] = _shortest(value) if field.name in _FLOATS else value
        return json.dumps(values, indent=2) + "\n"

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
            values = json.loads(
                text,
                object_pairs_hook=_unique,
                parse_constant=_refuse_constant,
                parse_float=decimal.Decimal,  # as it is written
            )
        except json.JSONDecodeError as error:
            raise ConfigError(f"no JSON: {error.msg}, line {error.lineno}") from None
        except RecursionError:
            raise ConfigError("no JSON that can be read: nested too deeply") from None
        if not isinstance(values, dict):
            raise ConfigError("not a JSON object")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        kinds = {"config_version": "int"} | {name: str(one.type) for name, one in fields.items()}
        for name in values:
            if name not in kinds:
                raise ConfigError(
                    f"unknown key {json.dumps(name)}: it may change what the model computes"
                )
        for name in kinds:
            required = name not in fields or fields[name].default is dataclasses.MISSING
            if required and name not in values:
                raise ConfigError(f"the key {name} is missing")
        checked = {name: _typed(name, value, kinds[name]) for name, value in values.items()}
        version = checked.pop("config_version")
        if version != CONFIG_VERSION:
            raise ConfigError(f"config_version is {version}, this version reads {CONFIG_VERSION}")
        config = cls(**checked)  # type: ignore[arg-type]  # _typed has checked each
        for name in _FLOATS:
            if name in values:
                _require_short(name, decimal.Decimal(values[name]))
        return config


_FLOATS = (
    "norm_eps",
    "attention_scale",
    "rope_scale",
    "qk_clip",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "activation_limit",
    "router_scale",
    "router_jitter",
    "latent_norm_eps",
)
_CHOICES: dict[str, tuple[str, ...]] = {
    "rope_kind": get_args(RopeKind),
    "activation": get_args(Activation),
    "router_score": get_args(RouterScore),
    "router_weights": get_args(RouterWeights),
}


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {value}, expected {expected}")


def _require_short(name: str, value: decimal.Decimal) -> None:
    """Refuse a number that the engine cannot read with one exact operation."""
    _, digits, power = value.as_tuple()
    short = len(digits) <= MAX_DIGITS and isinstance(power, int) and abs(power) <= MAX_POWER
    _require(
        short, name, value, f"{MAX_DIGITS} digits and a power of ten within 1e-22 and 1e22 at most"
    )


def _typed(name: str, value: object, kind: str) -> object:
    """A value of the kind that `ModelConfig` says, of which `| None` is for keys left out."""

    def is_integer(number: object) -> bool:
        return isinstance(number, int) and not isinstance(number, bool)

    good, wanted = False, ""
    match kind.removesuffix(" | None"):
        case "int":
            good, wanted = is_integer(value), "an integer"
        case "float":
            good = is_integer(value) or (
                isinstance(value, decimal.Decimal) and math.isfinite(float(value))
            )
            wanted = "a number"
        case "tuple[int, ...]":
            good = isinstance(value, list) and all(is_integer(item) for item in value)
            wanted = "an array of integers"
        case _:
            good, wanted = isinstance(value, str), "a string"
    if not good:
        shown = json.dumps(value, default=float)
        raise ConfigError(f"{name} is {shown[:40]}, expected {wanted}")
    if isinstance(value, list):
        return tuple(value)
    if kind.startswith("float"):
        assert isinstance(value, int | decimal.Decimal)
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
