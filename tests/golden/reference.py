# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Independent reference of the numerics `clb1`: prints the generated ids and the logits hash.

Written from docs/DESIGN.md and docs/FORMAT.md (reference_file.py) alone, without looking at the
engine, so that the two can be compared bit for bit. It evaluates one token at a time. numpy does
the elementwise `+ - * / sqrt` in float32, vectorised over the rows of a matrix; every sum that
bears on a result is an explicit loop. Here a float matrix has the shape (columns, rows).
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from reference_file import F32 as F32
from reference_file import PAIR_SIZES, Blocks, F, Matrix, check
from reference_file import Model as Model
from reference_file import load as load

Indices = npt.NDArray[np.int64]
CHUNK = 256  # positions in a chunk of attention
KV_TYPES = ("f32", "f16", "q8")


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


def clipped(x: F32, limit: np.float32, low: bool = True) -> F32:
    """Limited to -`limit` (if `low`) to `limit`; NaN stays NaN."""
    y = np.where(x < F(0) - limit, F(0) - limit, x) if low else x
    return np.where(y > limit, limit, y)


def plain_sum(x: F32) -> np.float32:
    """From left to right, starting at +0."""
    total = F(0)
    for term in x:
        total = total + term
    return total


def sigmoid(x: F32) -> F32:
    return F(1) / (F(1) + exp(F(0) - x))


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


def rope_half(x: F32, sin: F32, cos: F32) -> F32:
    """Vectors, each element of the first half rotated with one of the second."""
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def rope_pairs(x: F32, sin: F32, cos: F32) -> F32:
    """Vectors, rotated in pairs of neighbours."""
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


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


# ---- Routing ----


def best(rank: F32, n: int) -> Indices:
    """The indices of the n largest ranks, ascending; of equals the lower goes first."""
    return np.sort(np.argsort(-rank, kind="stable")[:n])


def choose(rank: F32, top_k: int, n_groups: int, top_groups: int, by_sum: bool) -> Indices:
    """The indices of the chosen experts, ascending, from the groups that are kept.

    A group's rank is the sum of its two largest, or the largest.
    """
    if n_groups > 1:
        groups = np.sort(rank.reshape(n_groups, -1), axis=1)[:, ::-1]
        group_rank = groups[:, 0]
        if by_sum and groups.shape[1] > 1:
            group_rank = groups[:, 0] + groups[:, 1]
        if not np.all(np.isfinite(group_rank)):
            raise ArithmeticError("the rank of a group is not finite")
        kept = np.isin(np.arange(n_groups), best(group_rank, top_groups))
        rank = np.where(np.repeat(kept, groups.shape[1]), rank, F(-math.inf))
    return best(rank, top_k)


def sparsemixer(logits: F32, jitter: np.float32) -> tuple[Indices, F32]:
    """The two chosen experts, ascending, and their weights."""
    weights: dict[int, np.float32] = {}
    left = np.ones(len(logits), np.bool_)
    for _ in range(2):
        expert = int(np.argmax(np.where(left, logits, F(-math.inf))))
        m = logits[expert]
        far = (m - logits) / maximum(np.abs(logits), m) > F(2) * jitter
        total = sum16(np.where(left & ~far, exp(logits - m), F(0)))
        weights[expert] = np.float32(1 / total)
        left[expert] = False
    experts = np.array(sorted(weights))
    return experts, np.array([weights[int(expert)] for expert in experts], F)


# ---- The model ----

Merged = tuple[F32, F32, F32]  # m, l and o of attention, or those of one chunk


def merge(one: Merged, other: Merged) -> Merged:
    (m, l, o), (mc, lc, oc) = one, other  # noqa: E741
    mn = maximum(m, mc)
    a, b = exp(m - mn), exp(mc - mn)
    return mn, l * a + lc * b, o * a + oc * b


class State:
    """A sequence: the key/value cache and the position."""

    def __init__(self, model: Model, kv: str, capacity: int) -> None:
        c = model.config
        self.model, self.position = model, 0
        self.kv = kv
        key_dim = value_dim = c["head_dim"]
        if c["kv_rank"]:
            key_dim, value_dim = c["kv_rank"] + c["rope_dim"], c["kv_rank"]
        shape = (c["n_layers"], c["n_kv_heads"], capacity)
        self.keys = np.zeros((*shape, key_dim), F)  # the integers, if kv is q8
        self.values = np.zeros((*shape, value_dim), F)
        self.key_scales = np.zeros((*shape, -(-key_dim // 32)), F)  # q8 only
        self.value_scales = np.zeros((*shape, -(-value_dim // 32)), F)

    def product(self, name: str, x: F32, layer: int = 0, expert: int = 0) -> F32:
        """A matrix times x, plus the bias if there is one."""
        y = linear(self.model.matrix(name, layer, expert), x)
        return self.biased(name.removesuffix("_weights"), y, layer, expert)

    def biased(self, name: str, y: F32, layer: int = 0, expert: int = 0) -> F32:
        name = f"{name}_bias"
        return y + self.model.vector(name, layer, expert) if name in self.model.sections else y

    def norm(self, name: str, x: F32, layer: int = 0, eps: str = "norm_eps") -> F32:
        """A layer norm if there is a bias."""
        w, c = self.model.vector(name, layer), self.model.config
        if f"{name}_bias" in self.model.sections:
            return layer_norm(x, w, self.model.vector(f"{name}_bias", layer), c[eps])
        return norm(x, w, c[eps])

    def store(self, layer: int, keys: F32, values: F32) -> None:
        """Put the keys and values (heads, dim) of the current position into the cache."""
        at = layer, slice(None), self.position
        if self.kv == "q8":
            dims = keys.shape[1], values.shape[1]
            (keys, key_scales), (values, self.value_scales[at]) = quantise(keys), quantise(values)
            self.key_scales[at] = key_scales.astype(np.float16)
            keys = keys.reshape(len(keys), -1)[:, : dims[0]]
            values = values.reshape(len(values), -1)[:, : dims[1]]
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
        c, p = self.model.config, self.position
        window = c["sliding_window"] if layer in c["window_layers"] else 0
        low = max(0, p - window + 1) if window else 0  # the oldest valid position
        merged: Merged | None = None
        for start in range(low // CHUNK * CHUNK, p + 1, CHUNK):
            end = min(p + 1, start + CHUNK)
            s = self.scores(layer, q, start, end)
            valid = np.arange(start, end) >= low
            mc: F32 = np.max(s[:, :, valid], axis=2, keepdims=True)
            e = np.where(valid & (s != F(-math.inf)), exp(s - mc), F(0))
            lc, oc = sum16(e)[:, :, None], np.zeros((*q.shape[:2], self.values.shape[3]), F)
            for j in range(start, end):  # the product with an e of 0 is NaN if v is not finite
                oc += self.weighted(layer, j, e[:, :, j - start])
            merged = merge(merged, (mc, lc, oc)) if merged else (mc, lc, oc)
        assert merged is not None
        if "attention_sinks" in self.model.sections:
            sinks = self.model.vector("attention_sinks", layer).reshape(*q.shape[:2], 1)
            merged = merge(merged, (sinks, np.ones_like(sinks), np.zeros_like(merged[2])))
        return merged[2] * (F(1) / merged[1])

    def rotate(self, x: F32) -> F32:
        """RoPE of all elements of each of the vectors x."""
        c = self.model.config
        if not c["rope_dim"]:
            return x
        sin, cos = sines(self.position, self.model.vector("rope"), c["rope_scale"])
        return (rope_half if c["rope_kind"] == "half" else rope_pairs)(x, sin, cos)

    def heads(self, layer: int, which: str, h: F32) -> F32:
        """The q, k or v (heads, dim), of attention that is not latent."""
        c = self.model.config
        x = self.product(f"attention_{which}", h, layer).reshape(-1, c["head_dim"])
        name = f"attention_{which}_norm"
        if name in self.model.sections:
            whole = self.model.sections[name].cols == x.size
            vectors = x.reshape(1, -1) if whole else x
            x = np.stack([self.norm(name, one, layer) for one in vectors]).reshape(x.shape)
        if c["qk_clip"] is not None:
            x = clipped(x, c["qk_clip"])
        if which == "v":
            return x
        first, others = x[:, : c["rope_dim"]], x[:, c["rope_dim"] :]
        return np.concatenate([self.rotate(first), others], axis=1)

    def latent(self, layer: int, h: F32) -> tuple[F32, F32]:
        """The key (1, kv_rank + rope_dim) and the queries (heads, kv_rank + rope_dim)."""
        c, rank = self.model.config, self.model.config["kv_rank"]
        u = self.product("attention_kv_a", h, layer)
        latent = self.norm("attention_kv_a_norm", u[:rank], layer, "latent_norm_eps")
        key = np.concatenate([latent, self.rotate(u[rank:])])[None]
        if c["q_rank"]:
            a = self.product("attention_q_a", h, layer)
            h = self.norm("attention_q_a_norm", a, layer, "latent_norm_eps")
        queries = []
        q = self.product("attention_q", h, layer).reshape(c["n_heads"], -1)
        for head, one in enumerate(q):
            plain, rotated = np.split(one, [c["head_dim"] - c["rope_dim"]])
            absorbed = self.product("attention_k_b", plain, layer, head)
            queries.append(np.concatenate([absorbed, self.rotate(rotated)]))
        return key, np.stack(queries)

    def attention(self, layer: int, h: F32) -> F32:
        c = self.model.config
        if c["kv_rank"]:
            key, q = self.latent(layer, h)
            self.store(layer, key, key[:, : c["kv_rank"]])
        else:
            q, k, v = (self.heads(layer, which, h) for which in "qkv")
            self.store(layer, k, v)
        q = q * c["attention_scale"]
        o = self.attend(layer, q.reshape(c["n_kv_heads"], -1, q.shape[1]))
        if c["kv_rank"]:
            heads = enumerate(o.reshape(c["n_heads"], -1))
            o = np.stack([self.product("attention_v_b", one, layer, head) for head, one in heads])
        return self.product("attention_o", o.reshape(-1), layer)

    def route(self, layer: int, h: F32) -> tuple[Indices, F32]:
        """The chosen experts in ascending order, and their weights."""
        c = self.model.config
        if not c["n_experts"]:
            return np.zeros(1, np.int64), np.ones(1, F)
        logits = self.product("router", h, layer)
        if not np.all(np.isfinite(logits)):
            raise ArithmeticError("a router logit is not finite")
        over_all = c["router_weights"] == "all"
        groups = c["n_groups"], c["top_groups"]
        if c["router_score"] == "sparsemixer":
            chosen, weights = sparsemixer(logits, c["router_jitter"])
        elif c["router_score"] == "sigmoid":
            score = rank = sigmoid(logits)
            if "router_correction" in self.model.sections:
                rank = score + self.model.vector("router_correction", layer)
            chosen = choose(rank, c["top_k"], *groups, by_sum=True)
            weights = score[chosen]
            if not over_all:
                weights = weights / (plain_sum(weights) + F(1e-20))
        else:
            chosen = choose(logits, c["top_k"], *groups, by_sum=False)
            if over_all:
                e = exp(logits - np.max(logits))
                weights = (e / sum16(e))[chosen]
            else:
                e = exp(logits[chosen] - np.max(logits[chosen]))
                weights = e / plain_sum(e)
        return chosen, weights * c["router_scale"]

    def ffn(self, kind: str, h: F32, layer: int, expert: int = 0) -> F32:
        """One FFN; `kind` is "", "dense_" or "shared_"."""
        c = self.model.config
        up = self.product(f"{kind}up_weights", h, layer, expert)
        gated = f"{kind}gate_weights" in self.model.sections
        gate = self.product(f"{kind}gate_weights", h, layer, expert) if gated else up
        if c["activation"] == "swiglu_oai":
            gate = clipped(gate, c["activation_limit"], low=False)
            up = clipped(up, c["activation_limit"])
            a = silu(gate * F(1.702)) * ((up + F(1)) * F(1 / 1.702))
        else:
            a = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}[c["activation"]](gate)
            a = a * up if gated else a
        return self.product(f"{kind}down_weights", a, layer, expert)

    def mixture(self, layer: int, h: F32) -> F32:
        """The experts of a layer, counted from 0 among the layers that have some."""
        acc = np.zeros_like(h)
        for expert, weight in zip(*self.route(layer, h), strict=True):
            acc = acc + weight * self.ffn("", h, layer, int(expert))
        if self.model.config["shared_ffn_size"]:
            s = self.ffn("shared_", h, layer)
            if "shared_router" in self.model.sections:
                z = self.product("shared_router", h, layer)
                if len(z) == 1:
                    s = sigmoid(z) * s
                else:
                    e = exp(z - maximum(z[:1], z[1:]))
                    acc = acc * (e[1] / (e[0] + e[1]))
                    s = (e[0] / (e[0] + e[1])) * s
            acc = acc + s
        return acc

    def embedding(self, token: int) -> F32:
        model, c = self.model, self.model.config
        table = model.matrix("embeddings")
        if isinstance(table, Blocks):
            blocks = table.integers[:, token] * table.scales[:, token, None]
            x: F32 = blocks.reshape(-1)[: c["hidden_size"]]
        else:
            x = table[:, token]
        x = x * c["embedding_scale"]
        if "position_embeddings" in model.sections:
            x = x + model.vector("position_embeddings", row=self.position)
        return x

    def feed(self, token: int) -> F32:
        """Evaluate a token; the result is the residual stream after the last layer."""
        c = self.model.config
        check(0 <= token < c["vocab_size"], f"token {token} is not in the vocabulary")
        check(self.position < c["max_positions"], "the sequence is too long")
        x = self.embedding(token)
        n_dense = 0
        for layer in range(c["n_layers"]):
            h = self.norm("attention_norm", x, layer)
            x = x + c["residual_scale"] * self.attention(layer, h)
            h = self.norm("ffn_norm", x, layer)
            if layer in c["dense_layers"]:
                acc = np.zeros_like(h) + self.ffn("dense_", h, n_dense)
                n_dense += 1
            else:
                acc = self.mixture(layer - n_dense, h)
            x = x + c["residual_scale"] * acc
        self.position += 1
        return x

    def logits(self, x: F32) -> F32:
        name = "lm_head" if "lm_head" in self.model.sections else "embeddings"
        result: F32 = linear(self.model.matrix(name), self.norm("final_norm", x))
        result = self.biased("lm_head", result) * self.model.config["logit_scale"]
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
