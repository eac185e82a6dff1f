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
        check(not must or name in sections, f"name: no section {name}")
        wanted.setdefault(name, []).append(shape)
    for name in sections:
        known = name in wanted or name == "tokenizer"
        check(known, f"name: this model has no section {name}")
    for name, n_heads in (("attention_q_norm", "n_heads"), ("attention_k_norm", "n_kv_heads")):
        for of_head in wanted.get(name, [])[:]:
            whole = c[n_heads] * of_head.cols
            wanted[name].append(Shape("vector", of_head.n_layers, 1, 1, whole))
    tied = "lm_head" not in sections
    for name, s in sections.items():
        if name == "tokenizer":
            continue
        kind: Kind = "vector"
        if s.tiled:
            kind = wanted[name][0].kind
            check(kind != "vector", f"{name}: layout: in tiles")
        elif name == "embeddings":
            kind = "matrix"
            check(not tied, "embeddings: layout: in rows, though the head is tied to them")
        else:
            check(wanted[name][0].kind == "vector", f"{name}: layout: in rows")
        check(s.dtype == "f32" or (kind == "matrix" and s.dtype != "u8"), f"{name}: dtype")
        shape = Shape(kind, s.n_layers, s.n_experts, s.rows, s.cols)
        wrong = [
            key
            for key in ("n_layers", "n_experts", "rows", "cols")
            if getattr(shape, key) not in {getattr(one, key) for one in wanted[name]}
        ]
        check(shape in wanted[name], f"{name}: {' '.join(wrong)}: {shape}, not {wanted[name]}")
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

    def is_within(self, sections: dict[str, Section]) -> bool:
        """Whether another section at a multiple of 65,536 strides through the same extent."""
        return any(
            s.offset % 65536 == 0
            and s.offset < self.offset < s.offset + (s.expert_stride or s.layer_stride)
            and (s.layer_stride, s.expert_stride) == (self.layer_stride, self.expert_stride)
            for s in sections.values()
        )

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
        if s.dtype in PAIR_SIZES:
            codes, scales = unpacked_blocks(raw, s)
            integers = MXFP4[codes] if s.dtype == "mxfp4" else codes.astype(F)
            if s.dtype == "q4":
                integers -= F(8)
            return Blocks(integers[:, : s.rows], scales[:, : s.rows])
        return np.ascontiguousarray(unpacked(raw, s)[: s.cols, : s.rows])

    def check_item(self, s: Section, layer: int, expert: int) -> None:
        """All values are finite, and the padding is as it should be."""
        start = s.start(layer, expert)
        raw = self.data[start : start + s.item_size]
        where = f"{s.name}: item of layer {layer}, expert {expert}, or dtype"
        if s.dtype in PAIR_SIZES:
            codes, scales = unpacked_blocks(raw, s)
            check(bool(np.isfinite(scales).all()), f"{where}: a scale is not finite")
            check(not scales[:, s.rows :].any(), f"{where}: padding of the rows, scale")
            check(not scales[-(-s.cols // 32) :].any(), f"{where}: padding of the columns, scale")
            zero = 8 if s.dtype == "q4" else 0
            by_column = codes.transpose(0, 2, 1).reshape(-1, codes.shape[1])
            check(bool((by_column[:, s.rows :] == zero).all()), f"{where}: padding of the rows")
            check(bool((by_column[s.cols :] == zero).all()), f"{where}: padding of the columns")
        elif s.dtype != "u8":
            values = unpacked(raw, s)
            check(bool(np.isfinite(values).all()), f"{where}: a value is not finite")
            check(not values[:, s.rows :].any(), f"{where}: padding of the rows")
            check(not values[s.cols :].any(), f"{where}: padding of the columns")


def unpacked(raw: npt.NDArray[np.uint8], s: Section) -> F32:
    """The values of an item (columns, rows), padding included."""
    values = widened(raw, s.dtype)
    if not s.tiled:
        return values.reshape(s.rows, s.cols).T
    tiles = -(-s.rows // 16)
    return values.reshape(tiles, -1, 16).transpose(1, 0, 2).reshape(-1, tiles * 16)


def unpacked_blocks(raw: npt.NDArray[np.uint8], s: Section) -> tuple[npt.NDArray[Any], F32]:
    """Stored integers (blocks, rows, 32) and scales (blocks, rows), padding included."""
    tiles = -(-s.rows // 16)
    pairs = raw.reshape(tiles, -1, PAIR_SIZES[s.dtype])
    scales = widened(np.ascontiguousarray(pairs[:, :, :64]), SCALE_TYPES[s.dtype])
    scales = scales.reshape(tiles, -1, 2, 16).transpose(1, 2, 0, 3)
    packed = np.ascontiguousarray(pairs[:, :, 64:])
    codes: npt.NDArray[Any] = packed.view(np.int8)
    if s.dtype != "q8":
        packed = packed.reshape(-1, 64)  # to the 64 low halves, then the 64 high ones
        codes = np.concatenate([packed % 16, packed // 16], axis=1)
    codes = codes.reshape(tiles, -1, 2, 8, 16, 4).transpose(1, 2, 0, 4, 3, 5)
    return codes.reshape(-1, tiles * 16, 32), scales.reshape(-1, tiles * 16)


def load_sections(data: npt.NDArray[np.uint8]) -> dict[str, Section]:
    check(len(data) >= 128, "the file is shorter than a header")
    magic, version, order, n_sections, n_items, size, *rest = struct.unpack(
        "<16s4I3Q2I60sI", data[:128].tobytes()
    )
    sections_at, crcs_at, sections_crc, crcs_crc, reserved, header_crc = rest
    check(magic == b"COLIBRIv1" + bytes(7), "header: magic")
    check(version <= 1, "header: version: a newer one")
    check(zlib.crc32(data[:124].tobytes()) == header_crc, "header: header_crc")
    check(version == 1, "header: version")
    check(order == 0x01020304, "header: byte_order")
    check(1 <= n_sections <= 256, "header: n_sections")
    check(size == len(data), "header: file_size")
    check(sections_at == 128, "header: sections_offset")
    check(crcs_at == 128 + 128 * n_sections, "header: crcs_offset, or n_sections")
    check(not any(reserved), "header: reserved")
    check(n_items <= 4_194_304 and crcs_at + 4 * n_items <= size, "header: n_items")
    table, items = data[128:crcs_at].tobytes(), data[crcs_at : crcs_at + 4 * n_items].tobytes()
    check(zlib.crc32(table) == sections_crc, "header: sections_crc")
    check(zlib.crc32(items) == crcs_crc, "header: crcs_crc")
    sections: dict[str, Section] = {}
    next_crc = 0
    for entry in struct.iter_unpack("<32s6I4QI36s", table):
        s = parse_entry(entry, size)
        check(s.name not in sections, f"{s.name}: name: twice")
        check(
            s.first_crc == next_crc,
            f"{s.name}: first_crc, or n_layers or n_experts of the section before",
        )
        next_crc += s.n_layers * s.n_experts
        sections[s.name] = s
    check(next_crc == n_items, "header: n_items, or n_layers or n_experts of the last section")
    check_places(sections, data, crcs_at + 4 * n_items, np.frombuffer(items, "<u4"))
    return sections


def parse_entry(entry: tuple[Any, ...], size: int) -> Section:
    """A section, checked as far as that can be done without the others."""
    raw, dtype, layout, *numbers, reserved = entry
    name = raw.rstrip(b"\0")
    printable = all(0x21 <= byte <= 0x7E for byte in name)
    check(printable and 0 < len(name) < 32, f"{raw!r}: name")
    check(dtype < len(DTYPES), f"{name.decode()}: dtype")
    check(layout < 2, f"{name.decode()}: layout")
    s = Section(name.decode(), DTYPES[dtype], layout == 1, *numbers)
    check(not any(reserved), f"{s.name}: reserved")
    for field_name in ("n_layers", "n_experts", "rows", "cols"):
        check(getattr(s, field_name) > 0, f"{s.name}: {field_name}")
    check(s.tiled or s.dtype not in PAIR_SIZES, f"{s.name}: dtype or layout: blocks in rows")
    check(not s.tiled or s.dtype != "u8", f"{s.name}: dtype or layout: bytes in tiles")
    implied = s.implied_size()
    check(s.item_size == implied, f"{s.name}: item_size, dtype, layout, rows or cols")
    check(s.n_layers > 1 or not s.layer_stride, f"{s.name}: layer_stride, n_layers is 1")
    check(s.n_experts > 1 or not s.expert_stride, f"{s.name}: expert_stride, n_experts is 1")
    for field_name in ("offset", "layer_stride", "expert_stride"):
        multiple = getattr(s, field_name) % (4096 if s.tiled else 64)
        check(multiple == 0, f"{s.name}: {field_name}: alignment")
    end = s.start(s.n_layers - 1, s.n_experts - 1) + s.item_size
    check(
        end <= size,
        f"{s.name}: offset, layer_stride, expert_stride, n_layers or n_experts: beyond the end",
    )
    return s


def check_places(
    sections: dict[str, Section],
    data: npt.NDArray[np.uint8],
    tables_end: int,
    crcs: npt.NDArray[np.uint32],
) -> None:
    """Where the items lie, what lies between them, and their checksums."""
    places = sorted(
        (s.start(layer, expert), s.name, layer, expert)
        for s in sections.values()
        for layer in range(s.n_layers)
        for expert in range(s.n_experts)
    )
    end, before = tables_end, "the tables"
    for start, name, layer, expert in places:
        s = sections[name]
        where = f"{name}: item of layer {layer}, expert {expert}"
        place = "offset, layer_stride or expert_stride"
        check(start >= end, f"{where}: {place}: overlaps {before}")
        gap = f"the bytes between {before} and {where} are not zero"
        check(not data[end:start].any(), f"{gap}, or {place} is wrong")
        end, before = start + s.item_size, where
        crc = zlib.crc32(data[start:end].tobytes())
        number = s.first_crc + layer * s.n_experts + expert
        check(crc == crcs[number], f"{where}: CRC32, or {place}")
    check(end == len(data), "header: file_size: not the end of the last item")
    for s in sections.values():
        check(s.offset % 65536 == 0 or s.is_within(sections), f"{s.name}: offset: not at 65,536")


def load(directory: str | Path) -> Model:
    """Raises ValueError, with the name of what is not as docs/FORMAT.md says."""
    config = load_config(Path(directory, "config.json"))
    data = np.memmap(Path(directory, "model.bin"), np.uint8, "r")
    sections = load_sections(data)
    check_sections(config, sections)
    model = Model(config, sections, data)
    for s in sections.values():
        for item in range(s.n_layers * s.n_experts):
            model.check_item(s, *divmod(item, s.n_experts))
    return model
