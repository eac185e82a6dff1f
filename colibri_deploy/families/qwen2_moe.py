# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen2-MoE: a shared expert with a gate, biases (transformers' `modeling_qwen2_moe.py`)."""

from __future__ import annotations

from typing import Any

from colibri_deploy.families import decoder
from colibri_deploy.families.family import Kind, WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.model_config import ModelConfig


class Qwen2Moe(decoder.Decoder):
    """Qwen2MoeForCausalLM."""

    architecture = "qwen2_moe"
    hub_architecture = "Qwen2MoeForCausalLM"
    defaults = decoder.Defaults(
        n_kv_heads=16, norm_eps=1e-6, max_positions=32768, bos_id=None, eos_id=None
    )

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        n_experts, top_k = decoder.read_experts(hub, 60, 4, "num_experts", "num_local_experts")
        return decoder.read_config(
            hub,
            self.architecture,
            self.defaults,
            decoder.read_heads(hub, self.defaults),
            ffn_size=hub.integer("moe_intermediate_size"),
            n_experts=n_experts,
            top_k=top_k,
            router_weights=decoder.router_weights(hub, False),
            shared_ffn_size=hub.integer("shared_expert_intermediate_size"),
            **decoder.layers_without_experts(hub),
            **self._windows(hub),
        )

    def _windows(self, hub: HubConfig) -> dict[str, Any]:
        """Every other layer below `max_window_layers`, or as `layer_types` says."""
        if not hub.boolean("use_sliding_window", False):
            if "sliding_attention" in hub.texts("layer_types"):
                raise hub.refuse("layer_types", "use_sliding_window is not true")
            return {}
        below = hub.integer("max_window_layers", 28, minimum=0)
        n_layers = hub.integer("num_hidden_layers")
        usual = [layer for layer in range(n_layers) if layer % 2 == 0 and layer < below]
        return decoder.windows(hub, hub.integer("sliding_window", 4096), usual)

    def sections(
        self, hub: HubConfig, config: ModelConfig, tied: bool
    ) -> tuple[WeightSection, ...]:
        """See `Family`."""
        hidden, layers = config.hidden_size, config.expert_layers
        shared = "mlp.shared_expert"
        return (
            *decoder.before_ffn(
                config, decoder.attention(config, bias=hub.boolean("qkv_bias", True))
            ),
            decoder.router(config, "mlp.gate.weight"),
            *decoder.experts(config, "mlp.experts"),
            *decoder.ffn(config, "shared_", layers, shared, config.shared_ffn_size),
            decoder.per_layer(
                "shared_router", Kind.exact_matrix, layers, f"{shared}_gate.weight", (1, hidden)
            ),
            *decoder.dense_ffn(config),
            *decoder.after_ffn(config, tied),
        )
