# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""RoPE's inverse frequencies, as transformers computes them (`modeling_rope_utils.py`, 5.x).

Every operation is one float32 operation of the reference. Only powers and logarithms are taken with
the digits of `decimal` and then rounded: a libm's differ from machine to machine in the last bit,
and the bits of `model.bin` must not.
"""

from __future__ import annotations

import dataclasses
import decimal
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from colibri_deploy.errors import ConversionError
from colibri_deploy.families.hub_config import HubConfig, is_number
from colibri_deploy.tiles import FloatArray


@dataclasses.dataclass(frozen=True)
class Rope:
    """What a checkpoint's config says about RoPE."""

    frequencies: FloatArray  # [rotated / 2], inverse, scaling included
    scale: float = 1.0  # of cosines and sines
    longest: int | None = None  # the longest sequence that they hold for; None: any


@dataclasses.dataclass(frozen=True)
class RopeDefaults:
    """What a family's class in transformers assumes."""

    theta: float = 10000.0
    partial: float | None = None  # `partial_rotary_factor`; None: heads are rotated as a whole
    kinds: tuple[str, ...] = ("default", "linear", "llama3", "yarn", "longrope")
    absent: Mapping[str, Any] | None = None  # parameters where the config has none


def read_rope(hub: HubConfig, head_dim: int, defaults: RopeDefaults) -> Rope:
    """RoPE of heads of `head_dim` elements.

    Raises ConversionError, naming the key, for scalings that the family does not compute, and for a
    rotated part of the head where it rotates all.
    """
    parameters = hub.rope(defaults.absent)
    kind, kinds = parameters["rope_type"], defaults.kinds
    if kind not in kinds:
        raise ConversionError(
            f"config.json: RoPE scaling of type {kind!r} is not supported, only {', '.join(kinds)}"
        )
    rotated = head_dim
    if defaults.partial is not None:
        part = positive(parameters, "partial_rotary_factor", defaults.partial)
        rotated = int(head_dim * part)
    elif parameters.get("partial_rotary_factor", 1) != 1:
        factor = parameters["partial_rotary_factor"]
        raise ConversionError(
            f"config.json: partial_rotary_factor is {factor}, only 1 is supported"
        )
    if not 0 < rotated <= head_dim:
        raise ConversionError(
            f"config.json: partial_rotary_factor rotates {rotated} of {head_dim} elements"
        )
    if kind == "yarn" and rotated % 2:
        raise ConversionError(f"config.json: yarn needs an even number of elements, not {rotated}")
    theta = positive(parameters, "rope_theta", defaults.theta)
    powers = _powers(theta, rotated)
    plain = np.float32(1) / powers
    match kind:
        case "linear":
            return Rope(_linear(plain, parameters))
        case "llama3":
            return Rope(_llama3(plain, parameters))
        case "yarn":
            return _yarn(powers, theta, rotated, parameters)
        case "longrope":
            return _longrope(powers, parameters)
        case _:
            return Rope(plain)


def inverse_frequencies(hub: HubConfig, head_dim: int, default_theta: float) -> FloatArray:
    """Inverse frequencies [head_dim / 2] of `read_rope`."""
    return read_rope(hub, head_dim, RopeDefaults(default_theta)).frequencies


def yarn_magnitude(factor: float, weight: float) -> float:
    """By how much YaRN enlarges q and k for a context that is `factor` times as long."""
    return 1.0 if factor <= 1 else 0.1 * weight * _log(factor) + 1.0


def yarn_factor(parameters: Mapping[str, Any]) -> float:
    """How many times as long as in training a context may be."""
    if parameters.get("factor") is not None:
        return positive(parameters, "factor")
    original = positive(parameters, "original_max_position_embeddings")
    return positive(parameters, "max_position_embeddings") / original


def _powers(theta: float, rotated: int) -> FloatArray:
    """theta ** (arange(0, rotated, 2) / rotated)."""
    exponents = np.arange(0, rotated, 2).astype(np.float32) / np.float32(rotated)
    base = decimal.Decimal(float(np.float32(theta)))
    with decimal.localcontext(decimal.Context(prec=40)):
        powers = [float(base ** decimal.Decimal(float(exponent))) for exponent in exponents]
    return np.array(powers, dtype=np.float32)


def _log(value: float) -> float:
    with decimal.localcontext(decimal.Context(prec=40)):
        return float(decimal.Decimal(value).ln())


def _linear(frequencies: FloatArray, parameters: Mapping[str, Any]) -> FloatArray:
    return frequencies / np.float32(positive(parameters, "factor"))


def _llama3(frequencies: FloatArray, parameters: Mapping[str, Any]) -> FloatArray:
    """Llama 3.1: long wavelengths are slowed down, short ones kept, smoothly between."""
    factor = np.float32(positive(parameters, "factor"))
    low, high = positive(parameters, "low_freq_factor"), positive(parameters, "high_freq_factor")
    length = positive(parameters, "original_max_position_embeddings")
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


def _yarn(powers: FloatArray, theta: float, rotated: int, parameters: Mapping[str, Any]) -> Rope:
    """YaRN (https://arxiv.org/abs/2309.00071): long wavelengths slowed down, short ones kept."""
    factor = yarn_factor(parameters)
    length = positive(parameters, "original_max_position_embeddings")
    scale = parameters.get("attention_factor")
    if scale is not None:
        scale = positive(parameters, "attention_factor")
    elif parameters.get("mscale") and parameters.get("mscale_all_dim"):
        scale = yarn_magnitude(factor, positive(parameters, "mscale"))
        scale /= yarn_magnitude(factor, positive(parameters, "mscale_all_dim"))
    else:
        scale = yarn_magnitude(factor, 1.0)

    def dimension(rotations: float) -> float:
        """The element that turns so often within the original length."""
        return rotated * _log(length / (rotations * 2 * math.pi)) / (2 * _log(theta))

    low = dimension(positive(parameters, "beta_fast", 32.0))
    high = dimension(positive(parameters, "beta_slow", 1.0))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    if low == high:
        high += 0.001
    one = np.float32(1)
    positions = np.arange(rotated // 2, dtype=np.float32)
    ramp = ((positions - np.float32(low)) / np.float32(high - low)).clip(0, 1)
    kept = one - ramp
    slowed = one / (np.float32(factor) * powers)
    return Rope((slowed * (one - kept) + (one / powers) * kept).astype(np.float32), scale)


def _longrope(powers: FloatArray, parameters: Mapping[str, Any]) -> Rope:
    """LongRoPE's short factors, which hold up to the original length.

    The long ones would change the keys of a sequence that grows beyond it.
    """
    factors = parameters.get("short_factor")
    if not isinstance(factors, list) or len(factors) != len(powers):
        raise ConversionError(f"config.json: RoPE short_factor is not {len(powers)} numbers")
    if not all(is_number(one) and one > 0 for one in factors):
        raise ConversionError("config.json: RoPE short_factor holds what is no positive number")
    length = positive(parameters, "original_max_position_embeddings")
    if parameters.get("attention_factor") is not None:
        scale = positive(parameters, "attention_factor")
    else:
        factor = yarn_factor(parameters)
        scale = 1.0 if factor <= 1 else math.sqrt(1 + _log(factor) / _log(length))
    frequencies = np.float32(1) / (np.array(factors, dtype=np.float32) * powers)
    return Rope(frequencies, scale, int(length))


def positive(parameters: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """One of RoPE's parameters. Raises ConversionError if it is no positive number."""
    value: Any = parameters.get(name)
    if value is None:
        value = default
    if not is_number(value) or value <= 0:
        raise ConversionError(f"config.json: RoPE {name} is {value!r}, expected a positive number")
    return float(value)
