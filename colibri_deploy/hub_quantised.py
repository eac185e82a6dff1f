# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Quantised weights of a hub checkpoint: FP8 with a scale for each block, and MXFP4.

`quantization_config` of config.json says which (transformers' quantizers). What a stored tensor
means is a tensor under the name that it has in a checkpoint that is not quantised.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from colibri_deploy.errors import ConversionError
from colibri_deploy.mapped_tensor import Raw, Rows, Tensor, View, matrix_rows
from colibri_deploy.source import StoredTensor
from colibri_deploy.tiles import BLOCK_COLS, DType, FloatArray

KEY = "quantization_config"
_SCALE = "_scale_inv"
_BLOCKS, _SCALES = "_blocks", "_scales"
_MXFP4_BIAS = 128  # of the exponent, for integers of twice the elements' values
_MXFP4_INTEGERS = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


def _e4m3_values() -> FloatArray:
    """The values of the 256 codes of e4m3fn: a sign, 4 bits of exponent, 3 of fraction, no Inf."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    magnitude = np.where(
        exponent == 0,
        np.ldexp(fraction / 8, -6),
        np.ldexp(1 + fraction / 8, exponent - 7),
    )
    values = np.where(codes < 128, magnitude, -magnitude).astype(np.float32)
    values[[0x7F, 0xFF]] = np.nan
    return values


_E4M3 = _e4m3_values()


@dataclasses.dataclass(frozen=True)
class Fp8Tensor:
    """Implements `StoredTensor`: e4m3 values, each times the scale of its block."""

    codes: Tensor  # [rows, cols]
    scales: Tensor  # [blocks of rows, blocks of columns]
    block: tuple[int, int]  # rows and columns; those at the edges may be smaller

    @property
    def name(self) -> str:
        """See `StoredTensor`."""
        return self.codes.name

    @property
    def stored(self) -> str:
        """See `StoredTensor`."""
        return self.codes.stored

    @property
    def shape(self) -> tuple[int, ...]:
        """See `StoredTensor`."""
        return self.codes.shape

    @property
    def dtype(self) -> DType | None:
        """See `StoredTensor`: a product has more digits than any type of two bytes."""
        return None

    def rows(self, view: View | None, rows: Rows, n_rows: int) -> FloatArray:
        """See `StoredTensor`; already multiplied. A view needs the whole tensor in memory."""
        if view is not None:
            return matrix_rows(_whole(self), view, rows, n_rows)
        return self._values(np.arange(n_rows)[rows])

    def _values(self, rows: Raw) -> FloatArray:
        """Some rows, float32 [len(rows), cols]: one float32 product each."""
        row_size, col_size = self.block
        scales = self.scales.widen(self.scales.raw())[rows // row_size]
        values = _E4M3[self.codes.elements()[rows]]
        values *= np.repeat(scales, col_size, axis=1)[:, : values.shape[1]]
        return values

    def widen(self, raw: Raw) -> FloatArray:
        """See `StoredTensor`."""
        return raw

    def blocks(self, raw: Raw) -> tuple[Raw, Raw]:
        """See `StoredTensor`; its blocks are not those of any type here."""
        raise TypeError(f"{self.name} has no blocks of {BLOCK_COLS}")


@functools.lru_cache(maxsize=1)  # many items are views of one tensor, one after another
def _whole(tensor: Fp8Tensor) -> FloatArray:
    return tensor._values(np.arange(tensor.shape[0]))


@dataclasses.dataclass(frozen=True)
class Mxfp4Tensor:
    """Implements `StoredTensor`: experts' matrices in blocks of 32, with power-of-two scales.

    `codes` [experts, out, in / 32, 16] has two codes a byte, the low half first; `scales`
    [experts, out, in / 32] is a power of two. The tensor that they stand for is
    [experts, in, out]: a view may do what it likes with experts and `out`, but must leave the
    runs along `in` whole, which are rows here.
    """

    name: str
    codes: Tensor
    scales: Tensor
    stored: str = "MXFP4"

    @property
    def shape(self) -> tuple[int, ...]:
        """See `StoredTensor`."""
        experts, n_out, n_blocks = self.scales.shape
        return experts, n_blocks * BLOCK_COLS, n_out

    @property
    def dtype(self) -> DType:
        """See `StoredTensor`."""
        return DType.mxfp4

    def rows(self, view: View | None, rows: Rows, n_rows: int) -> Raw:
        """See `StoredTensor`: [some, bytes of codes and then of scales]."""
        codes, scales = self.codes.elements(), self.scales.elements()
        flat = codes.reshape(*scales.shape[:2], -1)
        parts = [one.transpose(0, 2, 1) for one in (flat, scales)]
        return np.concatenate([matrix_rows(one, view, rows, n_rows) for one in parts], axis=1)

    def blocks(self, raw: Raw) -> tuple[Raw, FloatArray]:
        """See `StoredTensor`."""
        n_blocks = self.scales.shape[2]
        packed, exponents = raw[:, :-n_blocks], raw[:, -n_blocks:]
        codes = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=2)
        scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - _MXFP4_BIAS)
        return codes.reshape(len(raw), n_blocks, BLOCK_COLS), scales

    def widen(self, raw: Raw) -> FloatArray:
        """See `StoredTensor`."""
        codes, scales = self.blocks(raw)
        with np.errstate(over="ignore"):  # Inf is found later, with the tensor's name
            return (_MXFP4_INTEGERS[codes] * scales[:, :, None]).reshape(len(raw), -1)


def dequantised(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """Config and tensors as if the checkpoint were not quantised; nothing is read yet.

    Raises ConversionError, naming the key or the tensor, for every other kind of quantisation.
    """
    plain = {name: value for name, value in config.items() if name != KEY}
    quantisation = config.get(KEY)
    if quantisation is None:
        return plain, dict(tensors)
    if not isinstance(quantisation, dict):
        raise ConversionError(f"config.json: {KEY} is {quantisation!r:.60}, not an object")
    method = quantisation.get("quant_method")
    if method == "fp8":
        return plain, _fp8(quantisation, tensors)
    if method == "mxfp4":
        return plain, _mxfp4(tensors)
    raise ConversionError(
        f"config.json: {KEY}.quant_method is {method!r:.60}, only fp8 and mxfp4 are supported; "
        "take the checkpoint that is not quantised"
    )


def _fp8(quantisation: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, StoredTensor]:
    for name, wanted in (("fmt", "e4m3"), ("activation_scheme", "dynamic")):
        found = quantisation.get(name, wanted)
        if found != wanted:
            raise ConversionError(
                f"config.json: {KEY}.{name} is {found!r:.60}, only {wanted} is supported"
            )
    block = quantisation.get("weight_block_size")
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(type(size) is int and size > 0 for size in block)
    ):
        raise ConversionError(
            f"config.json: {KEY}.weight_block_size is {block!r:.60}, expected rows and columns"
        )
    found_tensors: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        if tensor.stored == "F8_E4M3":
            scales = tensors.get(name + _SCALE)
            if scales is None:
                raise ConversionError(f"tensors are missing: {name}{_SCALE}, the scales of {name}")
            found_tensors[name] = _fp8_tensor(tensor, scales, (block[0], block[1]))
        elif tensors.get(name.removesuffix(_SCALE), tensor).stored != "F8_E4M3":
            found_tensors[name] = tensor
    return found_tensors


def _fp8_tensor(codes: Tensor, scales: Tensor, block: tuple[int, int]) -> Fp8Tensor:
    if len(codes.shape) != 2:
        raise ConversionError(f"{codes.name} is FP8 of shape {list(codes.shape)}, not a matrix")
    expected = tuple(-(-size // step) for size, step in zip(codes.shape, block, strict=True))
    if scales.shape != expected:
        raise ConversionError(
            f"{scales.name} has shape {list(scales.shape)}, "
            f"blocks of {block[0]} x {block[1]} imply {list(expected)}"
        )
    _ = scales.dtype  # floats
    return Fp8Tensor(codes, scales, block)


def _mxfp4(tensors: Mapping[str, Tensor]) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_BLOCKS) and name.removesuffix(_BLOCKS) + _SCALES in tensors:
            whole = name.removesuffix(_BLOCKS)
            found[whole] = _mxfp4_tensor(whole, tensor, tensors[whole + _SCALES])
        elif not (name.endswith(_SCALES) and name.removesuffix(_SCALES) + _BLOCKS in tensors):
            found[name] = tensor
    return found


def _mxfp4_tensor(name: str, codes: Tensor, scales: Tensor) -> Mxfp4Tensor:
    for tensor in (codes, scales):
        if tensor.stored != "U8":
            raise ConversionError(f"{tensor.name} is stored as {tensor.stored}, MXFP4 is U8")
    if len(scales.shape) != 3 or codes.shape != (*scales.shape, BLOCK_COLS // 2):
        raise ConversionError(
            f"{codes.name} has shape {list(codes.shape)}, {scales.name} {list(scales.shape)}; "
            "expected [experts, rows, blocks, 16] and [experts, rows, blocks]"
        )
    return Mxfp4Tensor(name, codes, scales)
