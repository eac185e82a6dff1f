# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""GraniteMoE: fused experts, factors everywhere (transformers' `modeling_granitemoe.py`)."""

from __future__ import annotations

import functools

from colibri_deploy.families import decoder
from colibri_deploy.families.family import WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.model_config import ModelConfig


class GraniteMoe(decoder.Decoder):
    """GraniteMoeForCausalLM."""

    architecture = "granitemoe"
    hub_architecture = "GraniteMoeForCausalLM"
    defaults = decoder.Defaults(n_kv_heads=None, norm_eps=1e-6, max_positions=2048)

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        n_experts, top_k = decoder.read_experts(hub, 8, 2, "num_local_experts", "num_experts")
        return decoder.read_config(
            hub,
            self.architecture,
            self.defaults,
            decoder.read_heads(hub, self.defaults),
            ffn_size=hub.integer("intermediate_size"),
            n_experts=n_experts,
            top_k=top_k,
            attention_scale=hub.number("attention_multiplier", 1.0),
            embedding_scale=hub.number("embedding_multiplier", 1.0),
            residual_scale=hub.number("residual_multiplier", 1.0),
            logit_scale=1 / hub.number("logits_scaling", 1.0),
        )

    def sections(
        self, hub: HubConfig, config: ModelConfig, tied: bool
    ) -> tuple[WeightSection, ...]:
        """See `Family`."""
        bias = hub.boolean("attention_bias", False)
        experts, size, hidden = config.n_experts, config.ffn_size, config.hidden_size
        moe = "block_sparse_moe"
        into, out = f"{moe}.input_linear.weight", f"{moe}.output_linear.weight"
        fused = (experts, 2 * size, hidden)  # the rows of gate, then those of up
        matrix = functools.partial(decoder.slabs, config)
        return (
            *decoder.before_ffn(config, decoder.attention(config, bias=bias, output_bias=bias)),
            decoder.router(config, f"{moe}.router.layer.weight"),
            matrix("gate_weights", into, fused, lambda raw: raw[:size], (size, hidden)),
            matrix("up_weights", into, fused, lambda raw: raw[size:], (size, hidden)),
            matrix("down_weights", out, (experts, hidden, size), lambda raw: raw, (hidden, size)),
            *decoder.after_ffn(config, tied),
        )
