# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Phi-MoE: sparsemixer, layer norms, biases (transformers' `modeling_phimoe.py`)."""

from __future__ import annotations

from typing import Any

from colibri_deploy.families import decoder
from colibri_deploy.families.family import WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.families.rope import RopeDefaults, positive
from colibri_deploy.model_config import ModelConfig

_NO_JITTER = 1e-20  # below the ratio of any two floats that differ


class Phimoe(decoder.Decoder):
    """PhimoeForCausalLM."""

    architecture = "phimoe"
    hub_architecture = "PhimoeForCausalLM"
    defaults = decoder.Defaults(
        n_kv_heads=8,
        norm_eps=1e-5,
        max_positions=131072,
        rope=RopeDefaults(theta=1000000.0, kinds=("default", "longrope")),
    )

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        name = "num_local_experts"
        n_experts = hub.integer(name, 16)
        if n_experts < 2:
            raise hub.refuse(name, "sparsemixer chooses two experts")
        jitter = "router_jitter_noise"
        return decoder.read_config(
            hub,
            self.architecture,
            self.defaults,
            decoder.read_heads(hub, self.defaults) | self._magnitude(hub),
            ffn_size=hub.integer("intermediate_size"),
            n_experts=n_experts,
            top_k=2,  # whatever num_experts_per_tok says
            router_score="sparsemixer",
            router_jitter=hub.number(jitter, 0.01, zero=_NO_JITTER),
            sliding_window=hub.integer("sliding_window", 0, minimum=0),
        )

    def _magnitude(self, hub: HubConfig) -> dict[str, Any]:
        """Phi-MoE does not derive the factor of cosines and sines from the lengths."""
        parameters = hub.rope()
        if parameters["rope_type"] != "longrope":
            return {}
        return {"rope_scale": positive(parameters, "short_mscale")}

    def sections(
        self, hub: HubConfig, config: ModelConfig, tied: bool
    ) -> tuple[WeightSection, ...]:
        """See `Family`."""
        bias = hub.boolean("attention_bias", False)
        attention = decoder.attention(config, bias=bias, output_bias=bias)
        head_bias, moe = hub.boolean("lm_head_bias", False), "block_sparse_moe"
        return (
            *decoder.before_ffn(config, attention, norm_bias=True),
            decoder.router(config, f"{moe}.gate.weight"),
            *decoder.experts(config, f"{moe}.experts", ("w1", "w3", "w2")),
            *decoder.after_ffn(config, tied, norm_bias=True, head_bias=head_bias),
        )
