# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Independent reference of the numerics `clb1`: prints the generated ids and the logits hash.

Written from docs/DESIGN.md and docs/FORMAT.md alone, without looking at the engine, so that the two
can be compared bit for bit. It evaluates one token at a time. numpy does the elementwise
`+ - * / sqrt` in float32, vectorised over the rows of a matrix; every sum that bears on a result is
an explicit loop. Here a float matrix has the shape (columns, rows).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F = np.float32
CHUNK = 256  # positions in a chunk of attention
DTYPES = ("f32", "f16", "bf16", "q8", "q4", "mxfp4", "u8")
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "u8": 1}
PAIR_SIZES = {"q8": 1088, "q4": 576, "mxfp4": 576}
SCALE_TYPES = {"q8": "f16", "q4": "f16", "mxfp4": "bf16"}
MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], F)
KV_TYPES = ("f32", "f16", "q8")
CONFIG_KEYS = set(
    "config_version architecture n_layers hidden_size n_heads n_kv_heads head_dim ffn_size "
    "vocab_size n_experts top_k max_positions sliding_window norm_eps attention_scale rope_scale "
    "bos_id eos_ids".split()
)


def check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


# ---- The two files ----


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

    def vector(self, name: str, layer: int = 0) -> F32:
        matrix = self.matrix(name, layer)
        assert not isinstance(matrix, Blocks)
        return matrix[:, 0]

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
    config = json.loads(Path(directory, "config.json").read_text(encoding="utf-8"))
    check(set(config) == CONFIG_KEYS, f"config.json: keys {set(config) ^ CONFIG_KEYS}")
    check(config["config_version"] == 1, "config_version")
    check(config["architecture"] in ("mixtral", "llama"), "architecture")
    for key in ("norm_eps", "attention_scale", "rope_scale"):
        check(0 < float(F(config[key])) < math.inf, f"{key}: not positive and finite in float32")
    data = np.memmap(Path(directory, "model.bin"), np.uint8, "r")
    return Model(config, load_sections(data), data)


# ---- The elementary functions ----


def sum16(x: F32) -> F32:
    """The Sum16 over the last axis."""
    padded = np.zeros((*x.shape[:-1], -(-x.shape[-1] // 16) * 16), F)
    padded[..., : x.shape[-1]] = x
    lanes = np.zeros((*x.shape[:-1], 16), F)
    for i in range(0, padded.shape[-1], 16):
        lanes = lanes + padded[..., i : i + 16]
    for width in (8, 4, 2, 1):
        lanes = lanes[..., :width] + lanes[..., width:]
    return np.asarray(lanes[..., 0], F)


def quantise(x: F32) -> tuple[F32, F32]:
    """The integers (..., blocks, 32), held as float32, and the scales (..., blocks) of vectors."""
    blocks = np.zeros((*x.shape[:-1], -(-x.shape[-1] // 32), 32), F)
    blocks.reshape(*x.shape[:-1], -1)[..., : x.shape[-1]] = x
    amax = np.max(np.abs(blocks), axis=-1)  # NaN if one is
    normal = np.isfinite(amax) & (amax >= F(2.0**-100))
    divisor = np.where(normal, amax, F(1))
    q = np.where(normal[..., None], np.rint(blocks * (F(127) / divisor)[..., None]), F(0))
    scale = np.where(normal, divisor / F(127), np.where(np.isfinite(amax), F(0), F(math.nan)))
    return q, scale


def linear(w: Matrix, x: F32) -> F32:
    """Matrix times vector."""
    if isinstance(w, Blocks):
        q, scale = quantise(x)
        n = len(q)  # a last block that is all padding adds nothing
        # Exact in any order: the sums of 32 products of 8-bit integers stay below 2^24.
        dots = np.matmul(w.integers[:n], q[:, :, None])[:, :, 0]
        terms = dots * (w.scales[:n] * scale[:, None])
        acc = np.zeros(w.integers.shape[1], F)
    else:
        terms = w * x[:, None]
        acc = np.zeros(w.shape[1], F)
    for term in terms:
        acc += term
    return acc


def exp(x: F32) -> F32:
    x = np.where(F(88) < x, F(88), x)
    x = np.where(F(-87) > x, F(-87), x)
    magic = F(float.fromhex("0x1.8p+23"))
    n = (x * F(float.fromhex("0x1.715476p+0")) + magic) - magic
    r = (x - n * F(float.fromhex("0x1.62e4p-1"))) - n * F(float.fromhex("0x1.7f7d1cp-20"))
    p = np.full_like(x, float.fromhex("0x1.a0d2cep-13"))
    for c in ("0x1.6e879cp-10", "0x1.11121p-7", "0x1.555382p-5", "0x1.555554p-3", "0x1p-1"):
        p = p * r + F(float.fromhex(c))
    y = (p * (r * r) + r) + F(1)
    result: F32 = np.ldexp(y, np.where(np.isnan(n), F(0), n).astype(np.int32))
    return result


def maximum(a: F32, b: F32 | np.float32) -> F32:
    return np.where(a > b, a, b)


def silu(x: F32) -> F32:
    return x / (F(1) + exp(F(0) - x))


def norm(x: F32, w: F32, eps: np.float32) -> F32:
    f: F32 = F(1) / np.sqrt(sum16(x * x) / F(len(x)) + eps)
    return (x * f) * w


def gelu(x: F32) -> F32:
    """By the error function."""
    z = x * F(float.fromhex("0x1.6a09e6p-1"))
    a = maximum(z, F(0) - z)
    t = F(1) / (F(1) + F(0.3275911) * a)
    p = np.full_like(x, F(1.061405429))
    for c in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        p = p * t + F(c)
    tail = (p * t) * exp(F(0) - a * a)
    return maximum(x, F(0)) - maximum(x, F(0) - x) * (tail * F(0.5))


def gelu_tanh(x: F32) -> F32:
    """By the approximation with tanh."""
    u = (x + ((x * x) * x) * F(0.044715)) * F(float.fromhex("-0x1.988454p+0"))
    return x / (F(1) + exp(u))


def layer_norm(x: F32, w: F32, b: F32, eps: np.float32) -> F32:
    d = x - sum16(x) / F(len(x))
    f: F32 = F(1) / np.sqrt(sum16(d * d) / F(len(x)) + eps)
    return (d * f) * w + b


def rope_pairs(x: F32, sin: F32, cos: F32) -> F32:
    """A head, rotated in pairs."""
    a, b = x[0::2], x[1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], axis=1).reshape(-1)


def sines(position: int, inv_freq: F32, rope_scale: np.float32) -> tuple[F32, F32]:
    """The sines and cosines of a position, in f64 up to the last rounding."""
    a = (F(position) * inv_freq).astype(np.float64)
    k = np.rint(a * float.fromhex("0x1.45f306dc9c883p-1"))
    r = (a - k * float.fromhex("0x1.921fb544p+0")) - k * float.fromhex("0x1.0b4611a626331p-34")
    z = r * r
    s, c = np.full_like(z, 1 / math.factorial(13)), np.full_like(z, -1 / math.factorial(14))
    for n in (11, 9, 7, 5, 3):
        s = s * z + (-1.0) ** (n // 2) / math.factorial(n)
    for n in (12, 10, 8, 6, 4, 2):
        c = c * z + (-1.0) ** (n // 2) / math.factorial(n)
    s, c = r + (r * z) * s, 1.0 + z * c
    quadrant = [np.mod(k, 4) == i for i in range(4)]
    sine, cosine = np.select(quadrant, [s, c, -s, -c]), np.select(quadrant, [c, -s, -c, s])
    return sine.astype(F) * rope_scale, cosine.astype(F) * rope_scale


# ---- The model ----


class State:
    """A sequence: the key/value cache and the position."""

    def __init__(self, model: Model, kv: str, capacity: int) -> None:
        c = model.config
        self.model, self.position = model, 0
        self.kv = kv
        shape = (c["n_layers"], c["n_kv_heads"], capacity)
        self.keys = np.zeros((*shape, c["head_dim"]), F)  # the integers, if kv is q8
        self.values = np.zeros_like(self.keys)
        self.key_scales = np.zeros((*shape, -(-c["head_dim"] // 32)), F)  # q8 only
        self.value_scales = np.zeros_like(self.key_scales)
        self.eps = F(c["norm_eps"])

    def store(self, layer: int, keys: F32, values: F32) -> None:
        """Put the keys and values (heads, dim) of the current position into the cache."""
        at = layer, slice(None), self.position
        if self.kv == "q8":
            dim = keys.shape[1]
            (keys, key_scales), (values, self.value_scales[at]) = quantise(keys), quantise(values)
            self.key_scales[at] = key_scales.astype(np.float16)
            keys, values = (one.reshape(len(one), -1)[:, :dim] for one in (keys, values))
        kv_type = np.float16 if self.kv == "f16" else F
        self.keys[at], self.values[at] = keys.astype(kv_type), values.astype(kv_type)

    def scores(self, layer: int, q: F32, start: int, end: int) -> F32:
        """The s (key/value heads, heads of each, end - start) of the queries."""
        keys, s = self.keys[layer, :, start:end], np.zeros((*q.shape[:2], end - start), F)
        if self.kv == "q8":
            integers, scales = quantise(q)
            for block in range(scales.shape[2]):
                part = keys[:, :, 32 * block : 32 * block + 32]
                # Exact in any order, as in `linear`.
                dots = np.matmul(integers[:, :, block, : part.shape[2]], part.swapaxes(1, 2))
                key_scales = self.key_scales[layer, :, None, start:end, block]
                s += dots * (key_scales * scales[:, :, block, None])
        else:
            for d in range(q.shape[2]):
                s += keys[:, None, :, d] * q[:, :, d, None]
        return s

    def weighted(self, layer: int, j: int, e: F32) -> F32:
        """The terms of oc (key/value heads, heads of each, dim) of position j, for its e."""
        weights = e[:, :, None]
        if self.kv == "q8":
            scales = np.repeat(self.value_scales[layer, :, None, j], 32, axis=2)
            weights = weights * scales[:, :, : self.values.shape[3]]
        return self.values[layer, :, None, j] * weights

    def attend(self, layer: int, q: F32) -> F32:
        """The heads' outputs for the queries q (key/value heads, heads of each, dim)."""
        window, p = self.model.config["sliding_window"], self.position
        low = max(0, p - window + 1) if window else 0  # the oldest valid position
        merged: tuple[F32, F32, F32] | None = None
        for start in range(low // CHUNK * CHUNK, p + 1, CHUNK):
            end = min(p + 1, start + CHUNK)
            s = self.scores(layer, q, start, end)
            valid = np.arange(start, end) >= low
            mc: F32 = np.max(s[:, :, valid], axis=2, keepdims=True)
            e = np.where(valid & (s != F(-math.inf)), exp(s - mc), F(0))
            lc, oc = sum16(e)[:, :, None], np.zeros_like(q)
            for j in range(start, end):  # the product with an e of 0 is NaN if v is not finite
                oc += self.weighted(layer, j, e[:, :, j - start])
            if merged is None:
                merged = mc, lc, oc
            else:
                m, l, o = merged  # noqa: E741
                mn = np.where(m > mc, m, mc)
                a, b = exp(m - mn), exp(mc - mn)
                merged = mn, l * a + lc * b, o * a + oc * b
        assert merged is not None
        return merged[2] * (F(1) / merged[1])

    def attention(self, layer: int, h: F32) -> F32:
        model, c, p = self.model, self.model.config, self.position
        sin, cos = sines(p, model.vector("rope"), F(c["rope_scale"]))

        def heads(name: str) -> F32:
            return linear(model.matrix(name, layer), h).reshape(-1, c["head_dim"])

        def rotate(x: F32) -> F32:
            a, b = np.split(x, 2, axis=1)
            return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)

        self.store(layer, rotate(heads("attention_k")), heads("attention_v"))
        q = rotate(heads("attention_q")) * F(c["attention_scale"])
        o = self.attend(layer, q.reshape(c["n_kv_heads"], -1, c["head_dim"]))
        return linear(model.matrix("attention_o", layer), o.reshape(-1))

    def experts(self, layer: int, h: F32) -> list[tuple[int, np.float32]]:
        """The chosen experts in ascending order, with their weights."""
        if not self.model.config["n_experts"]:
            return [(0, F(1))]
        router = linear(self.model.matrix("router", layer), h)
        if not np.all(np.isfinite(router)):
            raise ArithmeticError("a router logit is not finite")
        chosen = np.sort(np.argsort(-router, kind="stable")[: self.model.config["top_k"]])
        e = exp(router[chosen] - np.max(router[chosen]))
        total = F(0)
        for term in e:
            total = total + term
        return [(int(expert), weight) for expert, weight in zip(chosen, e / total, strict=True)]

    def ffn(self, layer: int, h: F32) -> F32:
        matrix, acc = self.model.matrix, np.zeros_like(h)
        for expert, weight in self.experts(layer, h):
            gate = linear(matrix("gate_weights", layer, expert), h)
            up = linear(matrix("up_weights", layer, expert), h)
            y = linear(matrix("down_weights", layer, expert), silu(gate) * up)
            acc = acc + weight * y
        return acc

    def feed(self, token: int) -> F32:
        """Evaluate a token; the result is the residual stream after the last layer."""
        model, c = self.model, self.model.config
        check(0 <= token < c["vocab_size"], f"token {token} is not in the vocabulary")
        check(self.position < c["max_positions"], "the sequence is too long")
        table = model.matrix("embeddings")
        if isinstance(table, Blocks):
            blocks = table.integers[:, token] * table.scales[:, token, None]
            x = blocks.reshape(-1)[: c["hidden_size"]]
        else:
            x = table[:, token]
        for layer in range(c["n_layers"]):
            h = norm(x, model.vector("attention_norm", layer), self.eps)
            x = x + self.attention(layer, h)
            h = norm(x, model.vector("ffn_norm", layer), self.eps)
            x = x + self.ffn(layer, h)
        self.position += 1
        return x

    def logits(self, x: F32) -> F32:
        name = "lm_head" if "lm_head" in self.model.sections else "embeddings"
        result = linear(self.model.matrix(name), norm(x, self.model.vector("final_norm"), self.eps))
        if not np.all(np.isfinite(result)):
            raise ArithmeticError("a logit is not finite")
        return result


def default_kv(model: Model) -> str:
    return "f16" if any(s.dtype in PAIR_SIZES for s in model.sections.values()) else "f32"


@np.errstate(all="ignore")
def logits(model: Model, tokens: Sequence[int], kv: str | None = None) -> F32:
    """The logits after the last one of the tokens."""
    state = State(model, kv or default_kv(model), len(tokens))
    return state.logits([state.feed(token) for token in tokens][-1])


@np.errstate(all="ignore")
def run(
    model: Model, tokens: Sequence[int], num_tokens: int, kv: str | None, ignore_eos: bool = False
) -> tuple[list[int], str]:
    """Generate greedily: the generated ids and the hash of the logits as hex digits."""
    state = State(model, kv or default_kv(model), len(tokens) + num_tokens)
    current = state.logits([state.feed(token) for token in tokens][-1])
    digest = hashlib.sha256(current.astype("<f4").tobytes())
    ids: list[int] = []
    for _ in range(num_tokens):
        token = int(np.argmax(current))  # the lowest of equals
        if token in model.config["eos_ids"] and not ignore_eos:
            break
        ids.append(token)
        current = state.logits(state.feed(token))
        digest.update(current.astype("<f4").tobytes())
    return ids, digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="directory with model.bin and config.json")
    parser.add_argument("--tokens", required=True, help="the prompt as ids, comma separated")
    parser.add_argument("--num_tokens", type=int, default=8)
    parser.add_argument("--kv", choices=KV_TYPES, help="default: f16 with any integers")
    parser.add_argument("--ignore_eos", action="store_true")
    args = parser.parse_args()
    model = load(args.model)
    kv = args.kv or default_kv(model)
    tokens = [int(token) for token in args.tokens.split(",")]
    ids, digest = run(model, tokens, args.num_tokens, kv, args.ignore_eos)
    print(",".join(map(str, ids)))
    print(f"logits_hash: clb1:{digest} kv:{kv}")


if __name__ == "__main__":
    main()
