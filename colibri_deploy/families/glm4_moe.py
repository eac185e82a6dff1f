# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""GLM-4-MoE: routing as DeepSeek-V3, GQA (transformers' `modeling_glm4_moe.py`)."""

from __future__ import annotations

from typing import Literal

from colibri_deploy.families import decoder, deepseek
from colibri_deploy.families.family import WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.families.rope import RopeDefaults
from colibri_deploy.model_config import ModelConfig


class Glm4Moe(decoder.Decoder):
    """Glm4MoeForCausalLM."""

    architecture = "glm4_moe"
    hub_architecture = "Glm4MoeForCausalLM"
    defaults = decoder.Defaults(
        n_kv_heads=8,
        norm_eps=1e-5,
        max_positions=131072,
        bos_id=None,
        eos_id=None,
        rope=RopeDefaults(partial=0.5),
    )

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        n_experts, top_k = decoder.read_experts(hub, 128, 8, *deepseek.EXPERTS)
        return decoder.read_config(
            hub,
            self.architecture,
            self.defaults,
            decoder.read_heads(hub, self.defaults),
            ffn_size=hub.integer("moe_intermediate_size"),
            n_experts=n_experts,
            top_k=top_k,
            **deepseek.sigmoid_routing(hub, n_groups=1, top_groups=1, scale=1.0),
            **deepseek.shared_size(hub, 1),
            **decoder.first_layers_without_experts(hub, 1),
        )

    def sections(
        self, hub: HubConfig, config: ModelConfig, tied: bool
    ) -> tuple[WeightSection, ...]:
        """See `Family`."""
        bias = hub.boolean("attention_bias", False)
        norms: Literal["heads", "no"] = "heads" if hub.boolean("use_qk_norm", False) else "no"
        return (
            *decoder.before_ffn(config, decoder.attention(config, bias=bias, norms=norms)),
            *deepseek.experts(config, correction=True),
            *decoder.after_ffn(config, tied),
        )

    def ignored(self, hub: HubConfig, config: ModelConfig) -> tuple[str, ...]:
        """See `Family`."""
        return (*deepseek.ignored(config), decoder.layers_after(hub, config))
