# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""GPT-OSS: sinks, fused experts, biases everywhere (transformers' `modeling_gpt_oss.py`)."""

from __future__ import annotations

import functools

from colibri_deploy.families import decoder
from colibri_deploy.families.family import Kind, WeightSection
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.families.rope import RopeDefaults
from colibri_deploy.model_config import ModelConfig

_ALPHA = 1.702  # of the engine's swiglu_oai


class GptOss(decoder.Decoder):
    """GptOssForCausalLM."""

    architecture = "gpt_oss"
    hub_architecture = "GptOssForCausalLM"
    defaults = decoder.Defaults(
        n_kv_heads=8,
        norm_eps=1e-5,
        max_positions=131072,
        bos_id=None,
        eos_id=None,
        head_dim=64,
        rope=RopeDefaults(
            theta=150000.0,
            absent={
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
        ),
    )

    def read_config(self, hub: HubConfig) -> ModelConfig:
        """See `Family`."""
        if hub.number("swiglu_alpha", _ALPHA) != _ALPHA:
            raise hub.refuse("swiglu_alpha", f"only {_ALPHA} is supported")
        if hub.text("hidden_act", "silu") != "silu":
            raise hub.refuse("hidden_act", "only silu is supported")
        n_experts, top_k = decoder.read_experts(hub, 128, 4, "num_local_experts", "num_experts")
        usual = range(0, hub.integer("num_hidden_layers"), 2)
        window = hub.integer("sliding_window", 128)
        return decoder.read_config(
            hub,
            self.architecture,
            self.defaults,
            decoder.read_heads(hub, self.defaults),
            ffn_size=hub.integer("intermediate_size"),
            n_experts=n_experts,
            top_k=top_k,
            activation="swiglu_oai",
            activation_limit=hub.number("swiglu_limit", 7.0),
            **decoder.windows(hub, window, usual),
        )

    def sections(
        self, hub: HubConfig, config: ModelConfig, tied: bool
    ) -> tuple[WeightSection, ...]:
        """See `Family`."""
        bias, layers = hub.boolean("attention_bias", True), range(config.n_layers)
        sinks = (config.n_heads,)
        return (
            *decoder.before_ffn(config, decoder.attention(config, bias=bias, output_bias=bias)),
            decoder.per_layer("attention_sinks", Kind.vector, layers, "self_attn.sinks", sinks),
            decoder.router(config, "mlp.router.weight"),
            decoder.per_layer(
                "router_bias", Kind.vector, layers, "mlp.router.bias", (config.n_experts,)
            ),
            *self._experts(config),
            *decoder.after_ffn(config, tied),
        )

    def _experts(self, config: ModelConfig) -> tuple[WeightSection, ...]:
        """Matrices are [experts, in, out]; gate and up alternate in the output."""
        experts, size, hidden = config.n_experts, config.ffn_size, config.hidden_size
        into, out = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
        fused = (experts, hidden, 2 * size)
        matrix = functools.partial(decoder.slabs, config)
        vector = functools.partial(decoder.slabs, config, kind=Kind.vector)
        both = (experts, 2 * size)
        return (
            matrix("gate_weights", into, fused, lambda raw: raw[:, 0::2].T, (size, hidden)),
            vector("gate_bias", f"{into}_bias", both, lambda raw: raw[None, 0::2], (1, size)),
            matrix("up_weights", into, fused, lambda raw: raw[:, 1::2].T, (size, hidden)),
            vector("up_bias", f"{into}_bias", both, lambda raw: raw[None, 1::2], (1, size)),
            matrix("down_weights", out, (experts, size, hidden), lambda raw: raw.T, (hidden, size)),
            vector(
                "down_bias", f"{out}_bias", (experts, hidden), lambda raw: raw[None], (1, hidden)
            ),
        )
