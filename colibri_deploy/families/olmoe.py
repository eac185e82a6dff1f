# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""OLMoE: norms of q and k over all heads, clipping (transformers' `modeling_olmoe.py`)."""

from __future__ import annotations

from colibri_deploy.families import decoder
from colibri_deploy.families.family import WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.model_config import ModelConfig


class Olmoe(decoder.Decoder):
    """OlmoeForCausalLM."""

    architecture = "olmoe"
    hub_architecture = "OlmoeForCausalLM"
    defaults = decoder.Defaults(
        n_kv_heads=None, norm_eps=1e-5, max_positions=4096, bos_id=None, eos_id=50279
    )

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        n_experts, top_k = decoder.read_experts(hub, 64, 8, "num_experts", "num_local_experts")
        return decoder.read_config(
            hub,
            self.architecture,
            self.defaults,
            decoder.read_heads(hub, self.defaults),
            ffn_size=hub.integer("intermediate_size"),
            n_experts=n_experts,
            top_k=top_k,
            router_weights=decoder.router_weights(hub, False),
            qk_clip=hub.number("clip_qkv") if hub.has("clip_qkv") else None,
        )

    def sections(
        self, hub: HubConfig, config: ModelConfig, tied: bool
    ) -> tuple[WeightSection, ...]:
        """See `Family`."""
        bias = hub.boolean("attention_bias", False)
        attention = decoder.attention(config, bias=bias, output_bias=bias, norms="whole")
        return (
            *decoder.before_ffn(config, attention),
            decoder.router(config, "mlp.gate.weight"),
            *decoder.experts(config, "mlp.experts"),
            *decoder.after_ffn(config, tied),
        )
