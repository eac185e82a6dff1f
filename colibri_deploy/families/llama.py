# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Llama: dense, GQA, SwiGLU (transformers' `modeling_llama.py`)."""

from __future__ import annotations

from colibri_deploy.families import decoder
from colibri_deploy.families.family import WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.model_config import ModelConfig
from colibri_deploy.tiles import FloatArray

_DEFAULTS = decoder.Defaults(n_kv_heads=None, norm_eps=1e-6, max_positions=2048)


class Llama:
    """LlamaForCausalLM."""

    architecture = "llama"
    hub_architecture = "LlamaForCausalLM"

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        heads = decoder.read_heads(hub, _DEFAULTS)
        ffn_size = hub.integer("intermediate_size")
        return decoder.read_config(hub, self.architecture, _DEFAULTS, heads, ffn_size=ffn_size)

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

    def computed(self, hub: HubConfig, config: ModelConfig) -> dict[str, FloatArray]:
        """See `Family`."""
        return decoder.computed(hub, _DEFAULTS)

    def ignored(self, hub: HubConfig, config: ModelConfig) -> tuple[str, ...]:
        """See `Family`."""
        return decoder.IGNORED
