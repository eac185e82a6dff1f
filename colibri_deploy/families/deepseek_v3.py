# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3: latent attention, sigmoid routing (transformers' `modeling_deepseek_v3.py`)."""

from __future__ import annotations

from colibri_deploy.families import decoder, deepseek
from colibri_deploy.families.family import WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.model_config import ModelConfig, RopeKind
from colibri_deploy.tiles import FloatArray


class DeepseekV3(decoder.Decoder):
    """DeepseekV3ForCausalLM."""

    architecture = "deepseek_v3"
    hub_architecture = "DeepseekV3ForCausalLM"
    defaults = decoder.Defaults(
        n_kv_heads=None, norm_eps=1e-6, max_positions=4096, bos_id=0, eos_id=1
    )

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        if hub.text("scoring_func", "sigmoid") != "sigmoid":
            raise hub.refuse("scoring_func", "only sigmoid is supported")
        if hub.text("topk_method", "noaux_tc") != "noaux_tc":
            raise hub.refuse("topk_method", "only noaux_tc is supported")
        n_experts, top_k = decoder.read_experts(hub, 256, 8, *deepseek.EXPERTS)
        kind: RopeKind = "pairs" if hub.boolean("rope_interleave", True) else "half"
        return decoder.read_config(
            hub,
            self.architecture,
            self.defaults,
            deepseek.read_heads(hub, self.defaults, kind),
            ffn_size=hub.integer("moe_intermediate_size"),
            n_experts=n_experts,
            top_k=top_k,
            **deepseek.sigmoid_routing(hub, n_groups=8, top_groups=4, scale=2.5),
            **deepseek.shared_size(hub, 1),
            **deepseek.dense_layers(hub, 3),
        )

    def sections(
        self, hub: HubConfig, config: ModelConfig, tied: bool
    ) -> tuple[WeightSection, ...]:
        """See `Family`."""
        return (
            *decoder.before_ffn(config, deepseek.attention(config)),
            *deepseek.experts(config, correction=True),
            *decoder.after_ffn(config, tied),
        )

    def computed(self, hub: HubConfig, config: ModelConfig) -> dict[str, FloatArray]:
        """See `Family`."""
        return deepseek.computed(hub, config, self.defaults)

    def ignored(self, hub: HubConfig, config: ModelConfig) -> tuple[str, ...]:
        """See `Family`."""
        return (*deepseek.ignored(config), decoder.layers_after(hub, config))
