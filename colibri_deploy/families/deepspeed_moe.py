# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed-MoE: the GPT of Megatron-DeepSpeed, some of whose FFNs are DeepSpeed's MoE layer.

Sources: `megatron/model/transformer.py` and `language_model.py` of Megatron-DeepSpeed, and
`deepspeed/moe/layer.py` and `sharded_moe.py`. The config is the training program's arguments; what
they leave open follows from the tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from colibri_deploy.errors import ConfigError, ConversionError
from colibri_deploy.families import decoder
from colibri_deploy.families.family import Kind, Order, Piece, WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.mapped_tensor import Raw
from colibri_deploy.model_config import Activation, ModelConfig

ARCHITECTURE = "deepspeed_moe"
GATE = "mlp.deepspeed_moe.gate.wg.weight"
_LAYERS = "language_model.encoder.layers"
_EMBEDDINGS = "language_model.embedding.word_embeddings.weight"
_POSITIONS = "language_model.embedding.position_embeddings.weight"
HEAD = "language_model.output_layer.weight"
_COEFFICIENT = "mlp.coefficient.weight"

Shapes = Mapping[str, tuple[int, ...]]


def read_config(args: HubConfig, shapes: Shapes) -> ModelConfig:
    """What the arguments and the tensors' shapes say.

    Raises ConversionError, with the argument's name, for everything that the engine does not do.
    """
    for name in (
        "apply_layernorm_1p",
        "apply_residual_connection_post_layernorm",
        "embed_layernorm",
        "squared_relu",
        "swiglu",
        "use_rotary_position_embeddings",
    ):
        args.refuse_if_set(name)
    args.refuse_if_set("add_bias_linear", (None, True))
    args.refuse_if_set("tensor_model_parallel_size", (None, 1))
    if args.text("normalization", "layernorm").lower() != "layernorm":
        raise args.refuse("normalization", "only layernorm is supported")
    if args.text("position_embedding_type", "learned_absolute") != "learned_absolute":
        raise args.refuse("position_embedding_type", "only learned_absolute is supported")
    top_k = args.integer("topk", 1)
    if top_k > 2:
        raise args.refuse("topk", "only top-1 and top-2 gates are supported")
    n_layers, n_heads = args.integer("num_layers"), args.integer("num_attention_heads")
    hidden = args.integer("hidden_size")
    if args.integer("num_key_value_heads", n_heads) != n_heads:
        raise args.refuse("num_key_value_heads", f"expected {n_heads}, as there are heads")
    head_dim = args.integer("kv_channels", hidden // n_heads)
    ffn_size = args.integer("ffn_hidden_size", 4 * hidden)
    layers = [f"{_LAYERS}.{layer}." for layer in range(n_layers)]
    gates = [shapes.get(layer + GATE) for layer in layers]
    n_experts = {gate[0] for gate in gates if gate}
    if len(n_experts) != 1:
        raise args.refuse("num_experts", f"{len(n_experts)} numbers of experts, expected one")
    dense = tuple(layer for layer, gate in enumerate(gates) if gate is None)
    residual = {shapes.get(layer + _COEFFICIENT) for layer in layers} != {None}
    vocab_size = shapes[_EMBEDDINGS][0] if _EMBEDDINGS in shapes else 0
    eos_ids = args.token_ids("eos_token_id", None)
    try:
        return ModelConfig(
            architecture=ARCHITECTURE,
            n_layers=n_layers,
            hidden_size=hidden,
            n_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=head_dim,
            ffn_size=ffn_size,
            vocab_size=args.integer("padded_vocab_size", vocab_size),
            n_experts=n_experts.pop(),
            top_k=top_k,
            max_positions=args.integer("max_position_embeddings"),
            sliding_window=0,
            norm_eps=args.number("layernorm_epsilon", 1e-5),
            attention_scale=float(np.float32(1) / np.sqrt(np.float32(head_dim))),
            rope_scale=1.0,
            bos_id=next(iter(args.token_ids("bos_token_id", None)), -1),
            eos_ids=eos_ids,
            rope_dim=0,
            activation=_activation(args),
            router_weights="all" if top_k == 1 else "chosen",
            dense_layers=dense,
            dense_ffn_size=ffn_size if dense else 0,
            shared_ffn_size=ffn_size if residual else 0,
        )
    except ConfigError as error:
        raise ConversionError(f"{args.where} cannot be converted: {error.message}") from None


def _activation(args: HubConfig) -> Activation:
    """Megatron's fused kernel and OpenAI's gelu approximate by tanh."""
    fused = args.boolean("bias_gelu_fusion", False) or args.boolean("openai_gelu", False)
    return "gelu_tanh" if fused else "gelu"


def sections(args: HubConfig, config: ModelConfig, tied: bool) -> tuple[WeightSection, ...]:
    """All sections but `tokenizer`; no `lm_head` if `tied`."""
    vocab, hidden = config.vocab_size, config.hidden_size
    every, experts = range(config.n_layers), config.expert_layers
    positions, final = (config.max_positions, hidden), "language_model.encoder.final_layernorm"
    gate, expert = (config.n_experts, hidden), "mlp.deepspeed_moe.experts.deepspeed_experts.{}"
    found = [
        decoder.single("embeddings", Kind.embeddings, _EMBEDDINGS, (vocab, hidden)),
        decoder.single("position_embeddings", Kind.vector, _POSITIONS, positions),
        *_norm("attention_norm", every, "input_layernorm", hidden),
        *_attention(args, config),
        *_norm("ffn_norm", every, "post_attention_layernorm", hidden),
        _section("router", Kind.exact_matrix, experts, GATE, gate),
        *_ffn("", experts, expert, hidden, config.ffn_size, config.n_experts),
    ]
    if config.dense_layers:
        found += _ffn("dense_", config.dense_layers, "mlp", hidden, config.dense_ffn_size)
    if config.shared_ffn_size:
        found += _ffn("shared_", experts, "mlp.mlp", hidden, config.shared_ffn_size)
        found += _coefficients(config)
    found.append(decoder.single("final_norm", Kind.vector, f"{final}.weight", (hidden,)))
    found.append(decoder.single("final_norm_bias", Kind.vector, f"{final}.bias", (hidden,)))
    if not tied:
        found.append(decoder.single("lm_head", Kind.matrix, HEAD, (vocab, hidden)))
    return tuple(found)


def _section(
    name: str,
    kind: Kind,
    layers: Sequence[int],
    tensor: str,
    shape: tuple[int, ...],
    *,
    n_experts: int = 1,
    size: tuple[int, int] | None = None,
    view: Callable[[Raw], Raw] | None = None,
    order: Order | None = None,
) -> WeightSection:
    """A tensor, or what `view` and `order` make of it, of each layer and expert."""
    rows, cols = size or (1, *shape)[-2:]

    def source(layer: int, expert: int) -> Piece:
        place = f"{_LAYERS}.{layers[layer]}"
        return Piece(f"{place}.{tensor.format(expert)}", shape, view=view, rows=order)

    group = "experts" if n_experts > 1 and kind is Kind.matrix else None
    return WeightSection(name, kind, len(layers), n_experts, rows, cols, source, group)


def _attention(args: HubConfig, config: ModelConfig) -> list[WeightSection]:
    """q, k and v are one matrix, whose order of rows changed with Megatron's versions."""
    size, hidden, layers = (
        config.n_heads * config.head_dim,
        config.hidden_size,
        range(config.n_layers),
    )
    version = args.number("checkpoint_version", 3.0, zero=0.0)
    found = []
    for index, part in enumerate("qkv"):
        tensor, name = "self_attention.query_key_value", f"attention_{part}"
        order = _fused_rows(config, index, version)
        found.append(
            _section(
                name,
                Kind.matrix,
                layers,
                f"{tensor}.weight",
                (3 * size, hidden),
                size=(size, hidden),
                view=lambda raw: raw,
                order=order,
            )
        )
        found.append(
            _section(
                f"{name}_bias",
                Kind.vector,
                layers,
                f"{tensor}.bias",
                (3 * size,),
                size=(1, size),
                view=functools.partial(_vector_part, order),
            )
        )
    return [
        *found,
        _section("attention_o", Kind.matrix, layers, "self_attention.dense.weight", (hidden, size)),
        _section("attention_o_bias", Kind.vector, layers, "self_attention.dense.bias", (hidden,)),
    ]


def _vector_part(order: Order, raw: Raw) -> Raw:
    return raw[order()][None]


def _fused_rows(config: ModelConfig, part: int, version: float) -> Order:
    """The rows of q, k or v (`part` 0, 1, 2); since version 2 each head has its three together."""
    n_heads, size = config.n_heads, config.head_dim

    def order() -> npt.NDArray[np.intp]:
        rows = np.arange(3 * n_heads * size, dtype=np.intp)
        if version >= 2:
            rows = rows.reshape(n_heads, 3, size)[:, part]
        elif version >= 1:
            rows = rows.reshape(n_heads, size, 3)[:, :, part]
        else:
            rows = rows.reshape(3, n_heads, size)[part]
        return rows.ravel()

    return order


def _ffn(
    prefix: str, layers: Sequence[int], tensor: str, hidden: int, size: int, n_experts: int = 1
) -> list[WeightSection]:
    found = []
    for part, name, rows, cols in (
        ("up", "dense_h_to_4h", size, hidden),
        ("down", "dense_4h_to_h", hidden, size),
    ):
        for end, kind, parameter, shape in (
            ("weights", Kind.matrix, "weight", (rows, cols)),
            ("bias", Kind.vector, "bias", (rows,)),
        ):
            stem = f"{tensor}.{name}.{parameter}"
            section = f"{prefix}{part}_{end}"
            found.append(_section(section, kind, layers, stem, shape, n_experts=n_experts))
    return found


def _coefficients(config: ModelConfig) -> list[WeightSection]:
    """How much of the experts (first) and of the FFN beside them; the engine's order is reverse."""
    layers, tensor = config.expert_layers, "mlp.coefficient"
    both, name = (2, config.hidden_size), "shared_router"
    weights, bias = f"{tensor}.weight", f"{tensor}.bias"
    return [
        _section(name, Kind.exact_matrix, layers, weights, both, view=lambda raw: raw[::-1]),
        _section(
            f"{name}_bias",
            Kind.vector,
            layers,
            bias,
            (2,),
            size=(1, 2),
            view=lambda raw: raw[None, ::-1],
        ),
    ]


def _norm(name: str, layers: Sequence[int], tensor: str, size: int) -> list[WeightSection]:
    return [
        _section(f"{name}{end}", Kind.vector, layers, f"{tensor}.{parameter}", (size,))
        for end, parameter in (("", "weight"), ("_bias", "bias"))
    ]
