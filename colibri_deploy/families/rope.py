# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""RoPE's inverse frequencies, as transformers computes them (`modeling_rope_utils.py`, 5.x).

Every operation is one float32 operation of the reference. Only the power is taken with the digits
of `decimal` and then rounded: a libm's `powf` differs from machine to machine in the last bit,
and the bits of `model.bin` must not.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from colibri_deploy.errors import ConversionError
from colibri_deploy.families.hub_config import HubConfig, is_number
from colibri_deploy.tiles import FloatArray


def inverse_frequencies(hub: HubConfig, head_dim: int, default_theta: float) -> FloatArray:
    """Inverse frequencies [head_dim / 2] of a checkpoint, scaling included.

    Raises ConversionError for a kind of scaling, or a rotated part of the head, that the engine
    does not know.
    """
    parameters = hub.rope()
    kind = parameters["rope_type"]
    if not isinstance(kind, str) or kind not in _SCALINGS:
        raise ConversionError(
            f"config.json: RoPE scaling of type {kind!r} is not supported, "
            f"only {', '.join(_SCALINGS)}"
        )
    if parameters.get("partial_rotary_factor", 1) != 1:
        factor = parameters["partial_rotary_factor"]
        raise ConversionError(
            f"config.json: partial_rotary_factor is {factor}, only 1 is supported"
        )
    theta = _number(parameters, "rope_theta", default_theta)
    return _SCALINGS[kind](_unscaled(theta, head_dim), parameters)


def _unscaled(theta: float, head_dim: int) -> FloatArray:
    """1 / theta ** (arange(0, D, 2) / D)."""
    exponents = np.arange(0, head_dim, 2).astype(np.float32) / np.float32(head_dim)
    base = decimal.Decimal(float(np.float32(theta)))
    with decimal.localcontext(decimal.Context(prec=40)):
        powers = [float(base ** decimal.Decimal(float(exponent))) for exponent in exponents]
    return np.float32(1) / np.array(powers, dtype=np.float32)


def _linear(frequencies: FloatArray, parameters: Mapping[str, Any]) -> FloatArray:
    return frequencies / np.float32(_number(parameters, "factor"))


def _llama3(frequencies: FloatArray, parameters: Mapping[str, Any]) -> FloatArray:
    """Llama 3.1: long wavelengths are slowed down, short ones kept, smoothly between."""
    factor = np.float32(_number(parameters, "factor"))
    low, high = _number(parameters, "low_freq_factor"), _number(parameters, "high_freq_factor")
    length = _number(parameters, "original_max_position_embeddings")
    if high <= low:
        raise ConversionError(
            f"config.json: RoPE high_freq_factor {high} is not above low_freq_factor {low}"
        )
    one = np.float32(1)
    wavelengths = (one / frequencies) * np.float32(2 * math.pi)  # a scalar / tensor in torch
    is_long = wavelengths > np.float32(length / low)
    is_short = wavelengths < np.float32(length / high)
    scaled = np.where(is_long, frequencies / factor, frequencies)
    smooth = ((one / wavelengths) * np.float32(length) - np.float32(low)) / np.float32(high - low)
    between = (one - smooth) * scaled / factor + smooth * scaled
    return np.where(~is_short & ~is_long, between, scaled).astype(np.float32)


_SCALINGS: dict[str, Callable[[FloatArray, Mapping[str, Any]], FloatArray]] = {
    "default": lambda frequencies, parameters: frequencies,
    "linear": _linear,
    "llama3": _llama3,
}


def _number(parameters: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = parameters.get(name, default)
    if not is_number(value) or value <= 0:
        raise ConversionError(f"config.json: RoPE {name} is {value!r}, expected a positive number")
    return float(value)
