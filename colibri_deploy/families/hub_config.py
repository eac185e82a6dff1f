# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint's `config.json`, read the way transformers reads it.

Both styles are understood: the hub's older one (`rope_theta`, `rope_scaling`, `torch_dtype`) and
that of transformers 5 (`rope_parameters`, `dtype`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from colibri_deploy.errors import ConversionError

_REQUIRED: Any = object()


class HubConfig:
    """Typed access to a checkpoint's config; every error names the key and what it holds."""

    def __init__(
        self,
        config: Mapping[str, Any],
        generation: Mapping[str, Any] | None = None,
        where: str = "config.json",
    ) -> None:
        """`generation` is generation_config.json, if there is one; `where` opens error texts."""
        self._config = config
        self._generation = generation or {}
        self.where = where

    def refuse(self, name: str, why: str) -> ConversionError:
        """An error about the key `name`, to be raised."""
        shown = json.dumps(self._config.get(name), default=str)
        return ConversionError(f"{self.where}: {name} is {shown[:100]}: {why}")

    def has(self, name: str) -> bool:
        """Whether the key is there and not null."""
        return self._config.get(name) is not None

    def integer(self, name: str, default: int = _REQUIRED, minimum: int = 1) -> int:
        """An integer of at least `minimum`; `default` if it is absent or null."""
        value = self._value(name, default)
        if type(value) is not int or value < minimum:
            raise self.refuse(name, f"expected an integer of at least {minimum}")
        return value

    def number(self, name: str, default: float = _REQUIRED, *, zero: float | None = None) -> float:
        """A positive finite number; `default` if it is absent or null, `zero` if it is 0."""
        value = self._value(name, default)
        if zero is not None and type(value) in (int, float) and value == 0:
            return zero
        if not is_number(value) or value <= 0:
            raise self.refuse(name, "expected a positive number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """A truth value; `default` if it is absent or null."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "expected true or false")
        return value

    def text(self, name: str, default: str) -> str:
        """A string; `default` if it is absent or null."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.refuse(name, "expected a string")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if it is absent or null."""
        values = self._config.get(name) or []
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.refuse(name, "expected a list of names")
        return tuple(values)

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers; empty if it is absent or null."""
        values = self._config.get(name) or []
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            raise self.refuse(name, "expected a list of integers")
        return tuple(values)

    def first(self, *names: str) -> str:
        """The first of these keys that is there and not null; the first one if none is."""
        return next((name for name in names if self.has(name)), names[0])

    def rope(self, absent: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """RoPE's parameters in the style of transformers 5, `rope_type` filled in.

        `rope_theta` and the lengths are there if the config has them anywhere. `absent` stands
        for parameters that the config does not have at all.
        """
        name = "rope_scaling" if self.has("rope_scaling") else "rope_parameters"
        parameters = self._config.get(name)
        if parameters is None:
            parameters = absent or {}
        if not isinstance(parameters, Mapping) or any(
            isinstance(value, dict) for value in parameters.values()
        ):
            raise self.refuse(name, "expected one set of parameters for all layers")
        parameters = dict(parameters)
        parameters.setdefault("rope_type", parameters.get("type", "default"))
        for key in ("rope_theta", "partial_rotary_factor", "max_position_embeddings"):
            if self.has(key):
                parameters.setdefault(key, self._config[key])
        original = "original_max_position_embeddings"
        if self.has(original):
            parameters[original] = self._config[original]
        elif self.has("max_position_embeddings"):
            parameters.setdefault(original, self._config["max_position_embeddings"])
        return parameters

    def refuse_if_set(self, name: str, allowed: tuple[object, ...] = (None, False)) -> None:
        """Raise ConversionError if the key holds anything but an `allowed` value."""
        if not any(self._config.get(name) is value for value in allowed):
            raise self.refuse(name, "not supported")

    def token_ids(self, name: str, default: int | None) -> tuple[int, ...]:
        """One id, several, or none (null), as transformers' `generate` sees them.

        generation_config.json goes first, then config.json, then the class's default.
        """
        for source in (self._generation, self._config):
            value = source.get(name)
            if value is not None:
                break
        else:
            value = None if name in self._config else default
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int for token in ids):
            raise self.refuse(name, "expected token ids")
        return tuple(dict.fromkeys(ids))

    def _value(self, name: str, default: Any) -> Any:
        value = self._config.get(name)
        if value is None:
            if default is _REQUIRED:
                raise self.refuse(name, "it must be given")
            return default
        return value


def is_number(value: object) -> bool:
    """Whether a JSON value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
