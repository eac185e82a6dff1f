# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Mixtral: softmax top-k of SwiGLU experts (transformers' `modeling_mixtral.py`)."""

from __future__ import annotations

from colibri_deploy.families import decoder
from colibri_deploy.families.family import Kind, Piece, WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.families.rope import inverse_frequencies
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.tiles import FloatArray

_THETA = 1000000.0  # the class's default


class Mixtral:
    """MixtralForCausalLM."""

    architecture = "mixtral"
    hub_architecture = "MixtralForCausalLM"
    has_experts = True
    ignored = decoder.IGNORED

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        alias = hub.has("num_experts") and not hub.has("num_local_experts")
        n_experts = hub.integer("num_experts" if alias else "num_local_experts", 8)
        top_k = hub.integer("num_experts_per_tok", 2)
        if top_k > n_experts:
            raise hub.refuse("num_experts_per_tok", f"more than the {n_experts} experts there are")
        return decoder.read_config(
            hub,
            self.architecture,
            decoder.Defaults(n_kv_heads=8, norm_eps=1e-5, max_positions=131072),
            n_experts=n_experts,
            top_k=top_k,
            sliding_window=hub.integer("sliding_window", 0, minimum=0),
        )

    def sections(self, config: ModelConfig, tied: bool) -> tuple[WeightSection, ...]:
        """See `Family`."""
        layers, experts = config.n_layers, config.n_experts
        size, hidden = config.ffn_size, config.hidden_size

        def expert_matrix(name: str, tensor: str, rows: int, cols: int) -> WeightSection:
            def source(layer: int, expert: int) -> Piece:
                moe = f"model.layers.{layer}.block_sparse_moe"
                return Piece(f"{moe}.experts.{expert}.{tensor}.weight", (rows, cols))

            return WeightSection(
                name, Kind.matrix, layers, experts, rows, cols, source, group="experts"
            )

        return (
            *decoder.sections_before_ffn(config),
            decoder.layer_matrix(
                config, "router", "block_sparse_moe.gate", experts, hidden, Kind.exact_matrix
            ),
            expert_matrix("gate_weights", "w1", size, hidden),
            expert_matrix("up_weights", "w3", size, hidden),
            expert_matrix("down_weights", "w2", hidden, size),
            *decoder.sections_after_ffn(config, tied),
        )

    def computed(self, hub: HubConfig, config: ModelConfig) -> dict[str, FloatArray]:
        """See `Family`."""
        return {"rope": inverse_frequencies(hub, config.head_dim, _THETA)[None, :]}
