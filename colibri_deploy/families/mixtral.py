# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Mixtral: softmax top-k of SwiGLU experts (transformers' `modeling_mixtral.py`)."""

from __future__ import annotations

from colibri_deploy.families import decoder
from colibri_deploy.families.family import WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.families.rope import RopeDefaults
from colibri_deploy.model_config import ModelConfig


class Mixtral(decoder.Decoder):
    """MixtralForCausalLM."""

    architecture = "mixtral"
    hub_architecture = "MixtralForCausalLM"
    defaults = decoder.Defaults(
        n_kv_heads=8, norm_eps=1e-5, max_positions=131072, rope=RopeDefaults(theta=1000000.0)
    )

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        hub.refuse_if_set("attention_bias")
        n_experts, top_k = decoder.read_experts(hub, 8, 2, "num_local_experts", "num_experts")
        return decoder.read_config(
            hub,
            self.architecture,
            self.defaults,
            decoder.read_heads(hub, self.defaults),
            ffn_size=hub.integer("intermediate_size"),
            n_experts=n_experts,
            top_k=top_k,
            sliding_window=hub.integer("sliding_window", 0, minimum=0),
        )

    def sections(
        self, hub: HubConfig, config: ModelConfig, tied: bool
    ) -> tuple[WeightSection, ...]:
        """See `Family`."""
        moe = "block_sparse_moe"
        return (
            *decoder.before_ffn(config, decoder.attention(config)),
            decoder.router(config, f"{moe}.gate.weight"),
            *decoder.experts(config, f"{moe}.experts", ("w1", "w3", "w2")),
            *decoder.after_ffn(config, tied),
        )
