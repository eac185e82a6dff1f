# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Synthetic mixtures of experts as GGUF files, and what Colibri makes of them.

Random weights of Mixtral's architecture, which llama.cpp and Colibri both know. The bytes depend on
the shape, the type and the seed alone. Every matrix but the router has the file's type, and the
conversion keeps it: both engines read equal bits per weight.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.gguf_file import GgufFile
from colibri_deploy.model import Model
from colibri_deploy.sections import Section

Type = Literal["q8", "q4", "f16"]

_GGML = {
    "q8": GGMLQuantizationType.Q8_0,
    "q4": GGMLQuantizationType.Q4_0,
    "f16": GGMLQuantizationType.F16,
    "f32": GGMLQuantizationType.F32,
}
_BLOCK = 32
_BLOCKS = {
    "q8": np.dtype([("scale", "<f2"), ("weights", "i1", _BLOCK)]),
    "q4": np.dtype([("scale", "<f2"), ("weights", "u1", _BLOCK // 2)]),
}
# Standard deviation of the integers: uniform in -127 to 127, and in -7 to 7 with 0 twice as often.
_DEVIATION = {"q8": 73.6, "q4": 4.18}
_AT_ONCE = 1 << 20  # blocks, or values, made at a time


@dataclass(frozen=True)
class Shape:
    """The hyperparameters of a model; the head size is hidden / heads."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    experts: int
    top_k: int
    vocab: int
    positions: int = 32768

    def macs_per_token(self, head: bool) -> int:
        """Multiplications and additions by weights for a token; a prompt's have no head."""
        kv = self.hidden // self.heads * self.kv_heads
        attention = 2 * self.hidden * (self.hidden + kv)
        experts = self.top_k * 3 * self.hidden * self.ffn
        layer = attention + experts + self.experts * self.hidden
        return self.layers * layer + head * self.vocab * self.hidden

    def cache_bytes(self, positions: int) -> int:
        """Keys and values in f16 of so many positions: what one more token reads of them."""
        kv = self.hidden // self.heads * self.kv_heads
        return self.layers * positions * 2 * kv * 2


SHAPES = {
    "S": Shape(1024, 8, 16, 4, 3584, 8, 2, 32000),
    "M": Shape(2048, 8, 32, 8, 1024, 64, 8, 50304),
    "demo": Shape(576, 30, 9, 3, 1536, 4, 2, 49152),  # as `make demo` upcycles SmolLM2-135M
}


@dataclass(frozen=True)
class Tensor:
    """A matrix, or one for each expert, whose values deviate by `gain` / sqrt(columns)."""

    name: str
    shape: tuple[int, ...]
    kind: str  # a type, or "norm": values around 1, in f32
    gain: float = 1.0


def tensors(shape: Shape, kind: Type) -> list[Tensor]:
    """All tensors of a model, in the order in which they are written.

    Activations keep their size from layer to layer; router and head are wider, so that choices are
    clear and tokens spread over the experts.
    """
    hidden, ffn, experts = shape.hidden, shape.ffn, shape.experts
    kv = hidden // shape.heads * shape.kv_heads
    found = [
        Tensor("token_embd", (shape.vocab, hidden), kind, math.sqrt(hidden)),
        Tensor("output_norm", (hidden,), "norm"),
        Tensor("output", (shape.vocab, hidden), kind, 2.0),
    ]
    for layer in (f"blk.{number}" for number in range(shape.layers)):
        found += [
            Tensor(f"{layer}.attn_norm", (hidden,), "norm"),
            Tensor(f"{layer}.attn_q", (hidden, hidden), kind, 1.5),
            Tensor(f"{layer}.attn_k", (kv, hidden), kind, 1.5),
            Tensor(f"{layer}.attn_v", (kv, hidden), kind),
            Tensor(f"{layer}.attn_output", (hidden, hidden), kind),
            Tensor(f"{layer}.ffn_norm", (hidden,), "norm"),
            Tensor(f"{layer}.ffn_gate_inp", (experts, hidden), "f32", 2.0),
            Tensor(f"{layer}.ffn_gate_exps", (experts, ffn, hidden), kind),
            Tensor(f"{layer}.ffn_up_exps", (experts, ffn, hidden), kind),
            Tensor(f"{layer}.ffn_down_exps", (experts, hidden, ffn), kind),
        ]
    return found


def values(tensor: Tensor, seed: int) -> npt.NDArray[np.generic]:
    """The tensor as it is stored: bytes [rows, bytes of a row] for blocks, else numbers."""
    # The raw stream of a bit generator is the same in every version of numpy.
    stream = np.random.PCG64([seed, zlib.crc32(tensor.name.encode())])
    total, cols = math.prod(tensor.shape), tensor.shape[-1]
    if tensor.kind not in _BLOCKS:
        half = tensor.kind == "f16"
        numbers = np.empty(total, "<f2" if half else "<f4")
        for first in range(0, total, _AT_ONCE):
            part = numbers[first : first + _AT_ONCE]
            unit = _integers(stream, part.size) * np.float32(2.0**-31)  # -1 to 1
            norm = tensor.kind == "norm"
            spread = 0.25 if norm else tensor.gain * math.sqrt(3 / cols)
            part[:] = unit * np.float32(spread) + np.float32(norm)
        return numbers.reshape(tensor.shape)
    blocks = np.empty(total // _BLOCK, _BLOCKS[tensor.kind])
    scale = np.float32(tensor.gain / math.sqrt(cols) / _DEVIATION[tensor.kind])
    for first in range(0, blocks.size, _AT_ONCE):
        part = blocks[first : first + _AT_ONCE]
        unit = _integers(stream, part.size) * np.float32(2.0**-33)  # -1/4 to 1/4
        part["scale"] = scale * (1 + unit)
        size = part["weights"].itemsize * part["weights"][0].size * part.size
        raw = stream.random_raw(size // 8).astype("<u8", copy=False)
        part["weights"] = raw.view(part["weights"].dtype).reshape(part["weights"].shape)
        if tensor.kind == "q8":  # no quantiser gives -128
            np.maximum(part["weights"], -127, out=part["weights"])
        else:  # a mean that is not 0 would be one direction for all matrices, and grow with each
            part["weights"] |= _zero_for_least(part["weights"])
    return blocks.view(np.uint8).reshape(*tensor.shape[:-1], -1)


def _zero_for_least(weights: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The bits that make 8, a weight of 0, of each nibble that is 0, a weight of -8."""
    low = np.where(weights & 0x0F, 0, 0x08)
    return np.where(weights & 0xF0, low, low | 0x80).astype(np.uint8)


def _integers(stream: np.random.PCG64, count: int) -> npt.NDArray[np.float32]:
    """Random integers of 32 bits with a sign."""
    return (stream.random_raw(count) >> np.uint64(32)).astype("<u4").view("<i4").astype(np.float32)


def write_gguf(path: Path, shape: Shape, kind: Type, seed: int = 1) -> None:
    """Write a model, one tensor in memory at a time. There is no tokenizer in it."""
    part = path.with_name(path.name + ".part")
    writer = GGUFWriter(part, "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.hidden // shape.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.top_k)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("no_vocab")
    all_tensors = tensors(shape, kind)
    for tensor in all_tensors:
        stored = _GGML["f32" if tensor.kind == "norm" else tensor.kind]
        size = math.prod(tensor.shape) * _bytes_per_block(tensor) // _block_of(tensor)
        writer.add_tensor_info(
            f"{tensor.name}.weight", tensor.shape, np.dtype(np.float32), size, stored
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in all_tensors:
        writer.write_tensor_data(values(tensor, seed))
    writer.close()
    part.replace(path)


def is_current(path: Path, shape: Shape, kind: Type) -> bool:
    """Whether a file has the weights that `write_gguf` gives it now, by one of its matrices."""
    (expected,) = (one for one in tensors(shape, kind) if one.name == "blk.0.attn_k")
    return any(
        np.array_equal(found.data, values(expected, 1))
        for found in GGUFReader(path).tensors
        if found.name == f"{expected.name}.weight"
    )


def _block_of(tensor: Tensor) -> int:
    return _BLOCK if tensor.kind in _BLOCKS else 1


def _bytes_per_block(tensor: Tensor) -> int:
    if tensor.kind in _BLOCKS:
        return _BLOCKS[tensor.kind].itemsize
    return 2 if tensor.kind == "f16" else 4


# Sections of model.bin, by the end of the tensor's name
_SECTIONS = {
    "token_embd": "embeddings",
    "output_norm": "final_norm",
    "output": "lm_head",
    "attn_norm": "attention_norm",
    "attn_q": "attention_q",
    "attn_k": "attention_k",
    "attn_v": "attention_v",
    "attn_output": "attention_o",
    "ffn_norm": "ffn_norm",
    "ffn_gate_inp": "router",
    "ffn_gate_exps": "gate_weights",
    "ffn_up_exps": "up_weights",
    "ffn_down_exps": "down_weights",
}
_DTYPES = {"Q8_0": "q8", "Q4_0": "q4", "F16": "f16", "F32": "f32"}


class UnequalError(Exception):
    """The two files do not hold equal bits per weight."""


def convert(gguf: Path, model: Path) -> None:
    """What `colibri-deploy convert` does."""
    convert_checkpoint(gguf, model)


def check_conversion(gguf: Path, model: Path) -> tuple[int, int]:
    """The bytes that one token reads, of the GGUF file and of `model`.

    Raises UnequalError if a tensor has another type there, or if the two differ by a percent.
    """
    converted = Model.open(model)
    experts, top_k = converted.config.n_experts, converted.config.top_k
    theirs = ours = 0
    for tensor in GgufFile.open(gguf).tensors.values():
        section = converted.file.section(_SECTIONS[tensor.name.split(".")[-2]])
        if section.dtype.name != _DTYPES[tensor.stored]:
            raise UnequalError(f"{tensor.name} is {tensor.stored}, {section.name} is not")
        size = tensor.size
        if section.name == "embeddings":  # one row
            size //= section.rows
        elif section.n_experts > 1:
            size = size * top_k // experts
        theirs += size
        ours += _read_of_layer(section, top_k)
    if not 0.99 < ours / theirs < 1.01:
        raise UnequalError(f"{gguf} has {theirs:,} bytes for a token, {model} has {ours:,}")
    return theirs, ours


def _read_of_layer(section: Section, top_k: int) -> int:
    """Bytes that a token reads of a section, in one layer."""
    if section.name == "embeddings":
        return section.item_size // section.rows
    return section.item_size * (top_k if section.n_experts > 1 else 1)
