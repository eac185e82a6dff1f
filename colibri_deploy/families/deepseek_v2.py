# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V2: latent attention, softmax routing (transformers' `modeling_deepseek_v2.py`)."""

from __future__ import annotations

from typing import Any

from colibri_deploy.families import decoder, deepseek
from colibri_deploy.families.family import WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.tiles import FloatArray


class DeepseekV2(decoder.Decoder):
    """DeepseekV2ForCausalLM."""

    architecture = "deepseek_v2"
    hub_architecture = "DeepseekV2ForCausalLM"
    defaults = decoder.Defaults(n_kv_heads=None, norm_eps=1e-6, max_positions=2048)

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        hub.refuse_if_set("mlp_bias")
        if hub.text("scoring_func", "softmax") != "softmax":
            raise hub.refuse("scoring_func", "only softmax is supported")
        n_experts, top_k = decoder.read_experts(hub, 64, 6, *deepseek.EXPERTS)
        return decoder.read_config(
            hub,
            self.architecture,
            self.defaults,
            deepseek.read_heads(hub, self.defaults, "pairs"),
            ffn_size=hub.integer("moe_intermediate_size"),
            n_experts=n_experts,
            top_k=top_k,
            router_weights="all",  # whatever norm_topk_prob says
            router_scale=hub.number("routed_scaling_factor", 1.0),
            **self._groups(hub),
            **deepseek.shared_size(hub, 2),
            **deepseek.dense_layers(hub, 0),
        )

    def _groups(self, hub: HubConfig) -> dict[str, Any]:
        method = hub.text("topk_method", "greedy")
        if method == "greedy":
            return {}
        if method != "group_limited_greedy":
            raise hub.refuse("topk_method", "only greedy and group_limited_greedy are supported")
        return {"n_groups": hub.integer("n_group"), "top_groups": hub.integer("topk_group")}

    def sections(
        self, hub: HubConfig, config: ModelConfig, tied: bool
    ) -> tuple[WeightSection, ...]:
        """See `Family`."""
        return (
            *decoder.before_ffn(config, deepseek.attention(config)),
            *deepseek.experts(config, correction=False),
            *decoder.after_ffn(config, tied),
        )

    def computed(self, hub: HubConfig, config: ModelConfig) -> dict[str, FloatArray]:
        """See `Family`."""
        return deepseek.computed(hub, config, self.defaults)

    def ignored(self, hub: HubConfig, config: ModelConfig) -> tuple[str, ...]:
        """See `Family`."""
        return deepseek.ignored(config)
