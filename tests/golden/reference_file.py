# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Reads `model.bin` and `config.json` for reference.py, and checks them to the letter.

Written from docs/FORMAT.md alone. Here a float matrix has the shape (columns, rows).
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F = np.float32
DTYPES = ("f32", "f16", "bf16", "q8", "q4", "mxfp4", "u8")
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "u8": 1}
PAIR_SIZES = {"q8": 1088, "q4": 576, "mxfp4": 576}
SCALE_TYPES = {"q8": "f16", "q4": "f16", "mxfp4": "bf16"}
MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], F)


def check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


# ---- config.json ----

REQUIRED = set(
    "config_version architecture n_layers hidden_size n_heads n_kv_heads head_dim ffn_size "
    "vocab_size n_experts top_k max_positions sliding_window norm_eps attention_scale rope_scale "
    "bos_id eos_ids".split()
)
# What stands for a key that is absent; None where the model does without.
OPTIONAL: dict[str, Any] = {
    "window_layers": None,  # all, see `load_config`
    "rope_dim": None,  # head_dim
    "rope_kind": "half",
    "qk_clip": None,
    "embedding_scale": 1,
    "residual_scale": 1,
    "logit_scale": 1,
    "activation": "silu",
    "activation_limit": None,
    "router_score": "softmax",
    "router_weights": "chosen",
    "router_scale": 1,
    "router_jitter": None,
    "n_groups": 1,
    "top_groups": 1,
    "dense_layers": [],
    "dense_ffn_size": 0,
    "shared_ffn_size": 0,
    "kv_rank": 0,
    "q_rank": 0,
    "v_dim": 0,
    "latent_norm_eps": None,
}
CHOICES = {
    "rope_kind": ("half", "pairs"),
    "activation": ("silu", "gelu", "gelu_tanh", "swiglu_oai"),
    "router_score": ("softmax", "sigmoid", "sparsemixer"),
    "router_weights": ("chosen", "all"),
}
NUMBERS = set(
    "norm_eps attention_scale rope_scale qk_clip embedding_scale residual_scale logit_scale "
    "activation_limit router_scale router_jitter latent_norm_eps".split()
)


def load_config(path: Path) -> dict[str, Any]:
    """The hyperparameters, those that the file leaves out among them; numbers as float32."""
    given = json.loads(path.read_text(encoding="utf-8"))
    check(given["config_version"] == 1, "config_version")
    check(set(given) >= REQUIRED, f"keys {REQUIRED - set(given)} are missing")
    check(set(given) <= REQUIRED | set(OPTIONAL), f"keys {set(given) - REQUIRED - set(OPTIONAL)}")
    c: dict[str, Any] = OPTIONAL | given
    layers = range(c["n_layers"])
    for key, default in (("window_layers", list(layers)), ("rope_dim", c["head_dim"])):
        c[key] = default if c[key] is None else c[key]
    for key, choices in CHOICES.items():
        check(c[key] in choices, key)
    for key in NUMBERS:
        if c[key] is not None:
            c[key] = F(c[key])
            check(0 < float(c[key]) < 1e30, f"{key}: not in range in float32")
    for key in ("window_layers", "dense_layers"):
        check(c[key] == sorted(set(c[key]) & set(layers)), key)
    check(c["n_heads"] % c["n_kv_heads"] == 0, "n_kv_heads")
    check(c["rope_dim"] % 2 == 0 and 0 <= c["rope_dim"] <= c["head_dim"], "rope_dim")
    check((c["activation"] == "swiglu_oai") == (c["activation_limit"] is not None), "activation")
    check((c["router_score"] == "sparsemixer") == (c["router_jitter"] is not None), "router_jitter")
    check(c["router_score"] != "sparsemixer" or c["top_k"] == 2, "sparsemixer")
    check(c["router_score"] != "sparsemixer" or c["n_groups"] == 1, "sparsemixer in groups")
    check(c["n_experts"] % c["n_groups"] == 0 and c["top_groups"] <= c["n_groups"], "groups")
    check(c["top_k"] <= c["top_groups"] * (c["n_experts"] // c["n_groups"]), "top_k")
    check(c["n_experts"] > 0 or c["shared_ffn_size"] == 0, "shared_ffn_size without experts")
    check(bool(c["dense_layers"]) == (c["dense_ffn_size"] > 0), "dense_ffn_size")
    check(len(c["dense_layers"]) < c["n_layers"], "dense_layers")
    latent = c["kv_rank"] > 0
    check(latent == (c["v_dim"] > 0) == (c["latent_norm_eps"] is not None), "kv_rank")
    check(c["n_kv_heads"] == 1 if latent else c["q_rank"] == 0, "latent attention")
    check(not latent or c["qk_clip"] is None, "qk_clip with latent attention")
    return c


# ---- The sections that follow from it ----

Kind = Literal["matrix", "exact", "vector"]  # any type in tiles, f32 in tiles, f32 in rows


@dataclass(frozen=True)
class Shape:
    """What a section of some name is."""

    kind: Kind
    n_layers: int
    n_experts: int
    rows: int
    cols: int


def shapes(c: dict[str, Any]) -> Iterator[tuple[str, bool, Shape]]:
    """Name, whether a model must have it, and shape of all sections but the tokenizer.

    The norms of q and k are given as those of each head.
    """
    hidden, heads, dim, vocab = c["hidden_size"], c["n_heads"], c["head_dim"], c["vocab_size"]
    rope, rank, q_size = c["rope_dim"], c["kv_rank"], c["n_heads"] * c["head_dim"]
    n, n_dense = c["n_layers"], len(c["dense_layers"])
    n_moe, n_experts = n - n_dense, max(1, c["n_experts"])

    def matrix(rows: int, cols: int, layers: int = n, experts: int = 1) -> Shape:
        return Shape("matrix", layers, experts, rows, cols)

    def vector(size: int, layers: int = n, experts: int = 1) -> Shape:
        return Shape("vector", layers, experts, 1, size)

    yield "embeddings", True, matrix(vocab, hidden, 1)
    yield "lm_head", False, matrix(vocab, hidden, 1)
    yield "lm_head_bias", False, vector(vocab, 1)
    yield "position_embeddings", False, Shape("vector", 1, 1, c["max_positions"], hidden)
    if rope:
        yield "rope", True, vector(rope // 2, 1)
    for name, layers in (("attention_norm", n), ("ffn_norm", n), ("final_norm", 1)):
        yield name, True, vector(hidden, layers)
        yield f"{name}_bias", False, vector(hidden, layers)
    yield "attention_q", True, matrix(q_size, c["q_rank"] or hidden)
    yield "attention_q_bias", False, vector(q_size)
    yield "attention_o", True, matrix(hidden, heads * c["v_dim"] if rank else q_size)
    yield "attention_o_bias", False, vector(hidden)
    yield "attention_sinks", False, vector(heads)
    if rank:
        if c["q_rank"]:
            yield "attention_q_a", True, matrix(c["q_rank"], hidden)
            yield "attention_q_a_norm", True, vector(c["q_rank"])
        yield "attention_kv_a", True, matrix(rank + rope, hidden)
        yield "attention_kv_a_norm", True, vector(rank)
        yield "attention_k_b", True, matrix(rank, dim - rope, experts=heads)
        yield "attention_v_b", True, matrix(c["v_dim"], rank, experts=heads)
    else:
        for name in ("attention_k", "attention_v"):
            yield name, True, matrix(c["n_kv_heads"] * dim, hidden)
            yield f"{name}_bias", False, vector(c["n_kv_heads"] * dim)
        yield "attention_q_norm", False, vector(dim)
        yield "attention_k_norm", False, vector(dim)
    if c["n_experts"]:
        yield "router", True, Shape("exact", n_moe, 1, n_experts, hidden)
        yield "router_bias", False, vector(n_experts, n_moe)
        if c["router_score"] == "sigmoid":
            yield "router_correction", False, vector(n_experts, n_moe)
    ffns = [("", c["ffn_size"], n_moe, n_experts)]
    if n_dense:
        ffns.append(("dense_", c["dense_ffn_size"], n_dense, 1))
    if c["shared_ffn_size"]:
        ffns.append(("shared_", c["shared_ffn_size"], n_moe, 1))
        for rows in (1, 2):
            yield "shared_router", False, Shape("exact", n_moe, 1, rows, hidden)
            yield "shared_router_bias", False, vector(rows, n_moe)
    for prefix, size, layers, experts in ffns:
        for part in ("gate", "up", "down"):
            rows, cols = (hidden, size) if part == "down" else (size, hidden)
            yield f"{prefix}{part}_weights", part != "gate", matrix(rows, cols, layers, experts)
            yield f"{prefix}{part}_bias", False, vector(rows, layers, experts)


def check_sections(c: dict[str, Any], sections: dict[str, Section]) -> None:
    """The sections are those that the config calls for, or may have."""
    wanted: dict[str, list[Shape]] = {}
    for name, must, shape in shapes(c):
        check(not must or name in sections, f"{name} is missing")
        wanted.setdefault(name, []).append(shape)
    for name, n_heads in (("attention_q_norm", "n_heads"), ("attention_k_norm", "n_kv_heads")):
        for of_head in wanted.get(name, [])[:]:
            whole = c[n_heads] * of_head.cols
            wanted[name].append(Shape("vector", of_head.n_layers, 1, 1, whole))
    tied = "lm_head" not in sections
    for name, s in sections.items():
        if name == "tokenizer":
            continue
        check(name in wanted, f"{name}: a section that this model does not have")
        kind: Kind = "vector"
        if s.tiled:
            kind = wanted[name][0].kind
            check(kind != "vector", f"{name}: in tiles")
        elif name == "embeddings":
            kind = "matrix"
            check(not tied, "embeddings: in rows, though the head is tied to them")
        check(s.dtype == "f32" or (kind == "matrix" and s.dtype != "u8"), f"{name}: dtype")
        shape = Shape(kind, s.n_layers, s.n_experts, s.rows, s.cols)
        check(shape in wanted[name], f"{name}: {shape}, not {wanted[name]}")
    for prefix in ("", "dense_", "shared_"):
        gated = f"{prefix}gate_weights" in sections
        there = f"{prefix}up_weights" in sections
        check(gated or not there or c["activation"].startswith("gelu"), f"{prefix}gate_weights")
        check(gated or f"{prefix}gate_bias" not in sections, f"{prefix}gate_bias")


# ---- model.bin ----


def widened(raw: npt.NDArray[np.uint8], dtype: str) -> F32:
    """Stored f32, f16 or bf16, exactly."""
    if dtype == "bf16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(F)
    return raw.view("<f2" if dtype == "f16" else "<f4").astype(F)


@dataclass
class Blocks:
    """A q8, q4 or mxfp4 matrix: integers (blocks, rows, 32) held as f32, scales (blocks, rows)."""

    integers: F32
    scales: F32


Matrix = F32 | Blocks


@dataclass
class Section:
    name: str
    dtype: str
    tiled: bool
    n_layers: int
    n_experts: int
    rows: int
    cols: int
    offset: int
    layer_stride: int
    expert_stride: int
    item_size: int
    first_crc: int

    def start(self, layer: int, expert: int) -> int:
        return self.offset + layer * self.layer_stride + expert * self.expert_stride

    def implied_size(self) -> int:
        rows, cols = -(-self.rows // 16) * 16, -(-self.cols // 64) * 64
        if self.dtype in PAIR_SIZES:
            return rows // 16 * (cols // 64) * PAIR_SIZES[self.dtype]
        count = rows * cols if self.tiled else self.rows * self.cols
        return count * SIZES[self.dtype]


@dataclass
class Model:
    config: dict[str, Any]
    sections: dict[str, Section]
    data: npt.NDArray[np.uint8]
    cache: dict[tuple[str, int, int], Matrix] = field(default_factory=dict)

    def matrix(self, name: str, layer: int = 0, expert: int = 0) -> Matrix:
        key = (name, layer, expert)
        if key not in self.cache:
            self.cache[key] = self._decode(self.sections[name], layer, expert)
        return self.cache[key]

    def vector(self, name: str, layer: int = 0, expert: int = 0, row: int = 0) -> F32:
        matrix = self.matrix(name, layer, expert)
        assert not isinstance(matrix, Blocks)
        return matrix[:, row]

    def _decode(self, s: Section, layer: int, expert: int) -> Matrix:
        start = s.start(layer, expert)
        raw = self.data[start : start + s.item_size]
        tiles = -(-s.rows // 16)
        if s.dtype in PAIR_SIZES:
            pairs = raw.reshape(tiles, -1, PAIR_SIZES[s.dtype])
            scales = widened(np.ascontiguousarray(pairs[:, :, :64]), SCALE_TYPES[s.dtype])
            scales = scales.reshape(tiles, -1, 2, 16).transpose(1, 2, 0, 3)
            packed = np.ascontiguousarray(pairs[:, :, 64:])
            if s.dtype == "q8":
                integers = packed.view(np.int8).astype(F)
            else:
                packed = packed.reshape(-1, 64)  # to the 64 low halves, then the 64 high ones
                codes = np.concatenate([packed % 16, packed // 16], axis=1)
                integers = MXFP4[codes] if s.dtype == "mxfp4" else codes.astype(F) - F(8)
            integers = integers.reshape(tiles, -1, 2, 8, 16, 4).transpose(1, 2, 0, 4, 3, 5)
            return Blocks(
                integers.reshape(-1, tiles * 16, 32)[:, : s.rows],
                scales.reshape(-1, tiles * 16)[:, : s.rows],
            )
        values = widened(raw, s.dtype)
        if s.tiled:
            values = values.reshape(tiles, -1, 16).transpose(1, 0, 2).reshape(-1, tiles * 16)
            return np.ascontiguousarray(values[: s.cols, : s.rows])
        return np.ascontiguousarray(values.reshape(s.rows, s.cols).T)


def load_sections(data: npt.NDArray[np.uint8]) -> dict[str, Section]:
    check(len(data) >= 128 and bytes(data[:16]) == b"COLIBRIv1" + bytes(7), "magic")
    header = struct.unpack("<IIIIQQQII60xI", data[16:128].tobytes())
    version, order, n_sections, n_items, size, sections_at, crcs_at = header[:7]
    check(zlib.crc32(data[:124].tobytes()) == header[9], "header CRC")
    check(version == 1 and order == 0x01020304 and 1 <= n_sections <= 256, "header")
    check(size == len(data), "file size")
    check(sections_at == 128 and crcs_at == 128 + 128 * n_sections, "table offsets")
    table, items = data[128:crcs_at].tobytes(), data[crcs_at : crcs_at + 4 * n_items].tobytes()
    check(zlib.crc32(table) == header[7], "section table CRC")
    check(zlib.crc32(items) == header[8], "CRC table CRC")
    crcs = np.frombuffer(items, "<u4")
    sections: dict[str, Section] = {}
    next_crc = 0
    for entry in struct.iter_unpack("<32s6I4QI36x", table):
        name = entry[0].rstrip(b"\0").decode("ascii")
        check(entry[1] < len(DTYPES) and entry[2] < 2 and name not in sections, f"{name}: entry")
        s = Section(name, DTYPES[entry[1]], entry[2] == 1, *entry[3:])
        check(s.tiled or s.dtype not in PAIR_SIZES, f"{name}: dtype")
        check(s.item_size == s.implied_size(), f"{name}: item size")
        check(s.first_crc == next_crc, f"{name}: first_crc")
        for i in range(s.n_layers * s.n_experts):
            start = s.start(*divmod(i, s.n_experts))
            check(start % (4096 if s.tiled else 64) == 0, f"{name}: alignment of item {i}")
            check(start + s.item_size <= size, f"{name}: item {i} beyond the end")
            crc = zlib.crc32(data[start : start + s.item_size].tobytes())
            check(crc == crcs[next_crc + i], f"{name}: CRC of item {i}")
        next_crc += s.n_layers * s.n_experts
        sections[name] = s
    check(next_crc == n_items, "n_items")
    return sections


def load(directory: str | Path) -> Model:
    """Raises ValueError, with the name of what is not as docs/FORMAT.md says."""
    config = load_config(Path(directory, "config.json"))
    data = np.memmap(Path(directory, "model.bin"), np.uint8, "r")
    sections = load_sections(data)
    check_sections(config, sections)
    return Model(config, sections, data)
