# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Llama: dense, GQA, SwiGLU (transformers' `modeling_llama.py`)."""

from __future__ import annotations

from colibri_deploy.families import decoder
from colibri_deploy.families.family import Kind, Piece, WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.families.rope import inverse_frequencies
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.tiles import FloatArray

_THETA = 10000.0  # the class's default


class Llama:
    """LlamaForCausalLM."""

    architecture = "llama"
    hub_architecture = "LlamaForCausalLM"
    has_experts = False
    ignored = decoder.IGNORED

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        hub.refuse_if_set("mlp_bias")
        return decoder.read_config(
            hub,
            self.architecture,
            decoder.Defaults(n_kv_heads=None, norm_eps=1e-6, max_positions=2048),
            n_experts=0,
            top_k=0,
            sliding_window=0,
        )

    def sections(self, config: ModelConfig, tied: bool) -> tuple[WeightSection, ...]:
        """See `Family`."""
        size, hidden = config.ffn_size, config.hidden_size

        def ffn(name: str, tensor: str, rows: int, cols: int) -> WeightSection:
            def source(layer: int, expert: int) -> Piece:
                return Piece(f"model.layers.{layer}.mlp.{tensor}.weight", (rows, cols))

            return WeightSection(
                name, Kind.matrix, config.n_layers, 1, rows, cols, source, group="experts"
            )

        return (
            *decoder.sections_before_ffn(config),
            ffn("gate_weights", "gate_proj", size, hidden),
            ffn("up_weights", "up_proj", size, hidden),
            ffn("down_weights", "down_proj", hidden, size),
            *decoder.sections_after_ffn(config, tied),
        )

    def computed(self, hub: HubConfig, config: ModelConfig) -> dict[str, FloatArray]:
        """See `Family`."""
        return {"rope": inverse_frequencies(hub, config.head_dim, _THETA)[None, :]}
