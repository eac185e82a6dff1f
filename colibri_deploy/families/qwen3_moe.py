# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen3-MoE: norms of q and k in each head (transformers' `modeling_qwen3_moe.py`)."""

from __future__ import annotations

from colibri_deploy.families import decoder
from colibri_deploy.families.family import WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.model_config import ModelConfig


class Qwen3Moe(decoder.Decoder):
    """Qwen3MoeForCausalLM."""

    architecture = "qwen3_moe"
    hub_architecture = "Qwen3MoeForCausalLM"
    defaults = decoder.Defaults(
        n_kv_heads=4, norm_eps=1e-6, max_positions=32768, bos_id=None, eos_id=None
    )

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        n_experts, top_k = decoder.read_experts(hub, 128, 8, "num_experts", "num_local_experts")
        windowed = hub.boolean("use_sliding_window", False)
        return decoder.read_config(
            hub,
            self.architecture,
            self.defaults,
            decoder.read_heads(hub, self.defaults),
            ffn_size=hub.integer("moe_intermediate_size"),
            n_experts=n_experts,
            top_k=top_k,
            router_weights=decoder.router_weights(hub, False),
            sliding_window=hub.integer("sliding_window", 4096) if windowed else 0,
            **decoder.layers_without_experts(hub),
        )

    def sections(
        self, hub: HubConfig, config: ModelConfig, tied: bool
    ) -> tuple[WeightSection, ...]:
        """See `Family`."""
        bias = hub.boolean("attention_bias", False)
        attention = decoder.attention(config, bias=bias, output_bias=bias, norms="heads")
        return (
            *decoder.before_ffn(config, attention),
            decoder.router(config, "mlp.gate.weight"),
            *decoder.experts(config, "mlp.experts"),
            *decoder.dense_ffn(config),
            *decoder.after_ffn(config, tied),
        )
