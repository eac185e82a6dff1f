#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Writes a seeded, random Mixtral checkpoint in the layout of the Hugging Face hub, or a Llama.

The bytes depend on the arguments alone, not on the machine or on the version of any package:
value `i` of a tensor comes from splitmix64 (https://prng.di.unimi.it/splitmix64.c) at counter `i`
of a stream that is named after the tensor, and safetensors' header is written here. The defaults
give sums that are long enough for their order to show in the last bits, and sizes that are no
multiple of a tile.

    python tests/golden/synthetic.py DIR [--seed 1] [--hidden 1056] ...
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

_CHUNK = 1 << 20  # values made at a time
_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class Shape:
    """The checkpoint's hyperparameters. The head size is hidden / heads; no experts: a Llama."""

    seed: int = 1
    hidden: int = 1056
    ffn: int = 1568
    experts: int = 12
    top_k: int = 3
    layers: int = 2
    heads: int = 12
    kv_heads: int = 4
    vocab: int = 512
    max_positions: int = 4096


# The second is for emulators: sums of 264 terms, more than eight blocks.
SHAPES = {
    "synthetic": Shape(),
    "small_synthetic": Shape(
        hidden=264, ffn=264, experts=4, top_k=2, heads=6, kv_heads=2, vocab=96
    ),
}


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One tensor: values are uniform in `centre` - `spread` to `centre` + `spread`."""

    name: str
    shape: tuple[int, ...]
    centre: float
    spread: float


def tensor_specs(shape: Shape) -> list[TensorSpec]:
    """All tensors of the checkpoint, sorted by name.

    A matrix has the variance 1 / columns, so that activations keep their size; the router and the
    head are wider, so that choices are clear.
    """
    kv_size = shape.hidden // shape.heads * shape.kv_heads

    def matrix(name: str, rows: int, cols: int, gain: float = 1.0) -> TensorSpec:
        return TensorSpec(f"{name}.weight", (rows, cols), 0.0, gain * math.sqrt(3 / cols))

    def norm(name: str) -> TensorSpec:
        return TensorSpec(f"{name}.weight", (shape.hidden,), 1.0, 0.25)

    specs = [
        TensorSpec("model.embed_tokens.weight", (shape.vocab, shape.hidden), 0.0, 1.75),
        norm("model.norm"),
        matrix("lm_head", shape.vocab, shape.hidden, 2.0),
    ]
    for layer in (f"model.layers.{index}" for index in range(shape.layers)):
        specs += [
            norm(f"{layer}.input_layernorm"),
            norm(f"{layer}.post_attention_layernorm"),
            matrix(f"{layer}.self_attn.q_proj", shape.hidden, shape.hidden, 1.5),
            matrix(f"{layer}.self_attn.k_proj", kv_size, shape.hidden, 1.5),
            matrix(f"{layer}.self_attn.v_proj", kv_size, shape.hidden),
            matrix(f"{layer}.self_attn.o_proj", shape.hidden, shape.hidden),
        ]
        if not shape.experts:
            specs += [
                matrix(f"{layer}.mlp.gate_proj", shape.ffn, shape.hidden),
                matrix(f"{layer}.mlp.up_proj", shape.ffn, shape.hidden),
                matrix(f"{layer}.mlp.down_proj", shape.hidden, shape.ffn),
            ]
            continue
        specs.append(matrix(f"{layer}.block_sparse_moe.gate", shape.experts, shape.hidden, 2.0))
        for expert in range(shape.experts):
            place = f"{layer}.block_sparse_moe.experts.{expert}"
            specs += [
                matrix(f"{place}.w1", shape.ffn, shape.hidden),
                matrix(f"{place}.w2", shape.hidden, shape.ffn),
                matrix(f"{place}.w3", shape.ffn, shape.hidden),
            ]
    return sorted(specs, key=lambda spec: spec.name)


def splitmix64(state: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """Outputs `first` to `first + count - 1` of splitmix64 started at `state`, uint64 [count]."""
    counters = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    z = np.uint64(state) + counters * np.uint64(_GAMMA)  # modulo 2^64
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def tensor_values(seed: int, spec: TensorSpec) -> Iterator[npt.NDArray[np.float32]]:
    """The values of a tensor in order, float32, flat, in pieces."""
    name = hashlib.sha256(spec.name.encode()).digest()
    state = (int.from_bytes(name[:8], "little") + seed * _GAMMA) & _MASK
    centre, spread = np.float32(spec.centre), np.float32(spec.spread)
    total = math.prod(spec.shape)
    for first in range(0, total, _CHUNK):
        bits = splitmix64(state, first, min(_CHUNK, total - first))
        # The upper 24 bits, exact in float32, to -1 (included) to 1.
        integers = (bits >> np.uint64(40)).astype(np.int32) - np.int32(1 << 23)
        unit = integers.astype(np.float32) * np.float32(2.0**-23)
        yield (centre + unit * spread).astype("<f4")


def config_of(shape: Shape) -> dict[str, object]:
    """config.json in the hub's style."""
    experts: dict[str, object] = {
        "num_experts_per_tok": shape.top_k,
        "num_local_experts": shape.experts,
    }
    return {
        "architectures": ["MixtralForCausalLM" if shape.experts else "LlamaForCausalLM"],
        "bos_token_id": None,
        "eos_token_id": None,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.max_positions,
        "model_type": "mixtral" if shape.experts else "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": shape.vocab,
    } | (experts if shape.experts else {})


def write_checkpoint(directory: Path, shape: Shape) -> None:
    """Write config.json and model.safetensors (float32) into `directory`, creating it."""
    if shape.hidden % shape.heads:
        raise ValueError(f"hidden {shape.hidden} is no multiple of {shape.heads} heads")
    specs = tensor_specs(shape)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in specs:
        end = offset + 4 * math.prod(spec.shape)
        header[spec.name] = {
            "dtype": "F32",
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_of(shape), indent=2) + "\n")
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for spec in specs:
            for values in tensor_values(shape.seed, spec):
                file.write(values.tobytes())


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("directory", type=Path)
    for field in dataclasses.fields(Shape):
        option = "--" + field.name.replace("_", "-")
        parser.add_argument(option, type=int, default=field.default, help="%(default)s")
    arguments = vars(parser.parse_args())
    write_checkpoint(arguments.pop("directory"), Shape(**arguments))


if __name__ == "__main__":
    main()
