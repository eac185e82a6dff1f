# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Llama: dense, GQA, SwiGLU (transformers' `modeling_llama.py`)."""

from __future__ import annotations

from colibri_deploy.families import decoder
from colibri_deploy.families.family import WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.model_config import ModelConfig


class Llama(decoder.Decoder):
    """LlamaForCausalLM."""

    architecture = "llama"
    hub_architecture = "LlamaForCausalLM"
    defaults = decoder.Defaults(n_kv_heads=None, norm_eps=1e-6, max_positions=2048)

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        heads = decoder.read_heads(hub, self.defaults)
        ffn_size = hub.integer("intermediate_size")
        return decoder.read_config(hub, self.architecture, self.defaults, heads, ffn_size=ffn_size)

    def sections(
        self, hub: HubConfig, config: ModelConfig, tied: bool
    ) -> tuple[WeightSection, ...]:
        """See `Family`."""
        bias, ffn_bias = hub.boolean("attention_bias", False), hub.boolean("mlp_bias", False)
        layers = range(config.n_layers)
        return (
            *decoder.before_ffn(config, decoder.attention(config, bias=bias, output_bias=bias)),
            *decoder.ffn(config, "", layers, "mlp", config.ffn_size, bias=ffn_bias),
            *decoder.after_ffn(config, tied),
        )
