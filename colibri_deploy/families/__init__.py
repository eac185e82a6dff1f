# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Model families: how each one's checkpoint maps to `model.bin` and `config.json`.

A family is one module with one class and its word in `FAMILIES`.
"""

from __future__ import annotations

from colibri_deploy.errors import ConversionError
from colibri_deploy.families.deepseek_v2 import DeepseekV2
from colibri_deploy.families.deepseek_v3 import DeepseekV3
from colibri_deploy.families.family import Family
from colibri_deploy.families.glm4_moe import Glm4Moe
from colibri_deploy.families.gpt_oss import GptOss
from colibri_deploy.families.granitemoe import GraniteMoe
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.families.llama import Llama
from colibri_deploy.families.mixtral import Mixtral
from colibri_deploy.families.olmoe import Olmoe
from colibri_deploy.families.phimoe import Phimoe
from colibri_deploy.families.qwen2_moe import Qwen2Moe
from colibri_deploy.families.qwen3_moe import Qwen3Moe

FAMILIES: tuple[Family, ...] = (
    Llama(),
    Mixtral(),
    Qwen2Moe(),
    Qwen3Moe(),
    Olmoe(),
    DeepseekV2(),
    DeepseekV3(),
    GraniteMoe(),
    Phimoe(),
    GptOss(),
    Glm4Moe(),
)


def family_of(hub: HubConfig) -> Family:
    """The family that converts a checkpoint. Raises ConversionError for an unknown one."""
    names = hub.texts("architectures")
    for family in FAMILIES:
        # Phi's own checkpoints write PhiMoEForCausalLM.
        if [name.lower() for name in names] == [family.hub_architecture.lower()]:
            return family
    found = ", ".join(names) if names else "no architecture"
    known = ", ".join(family.hub_architecture for family in FAMILIES)
    raise ConversionError(f"config.json names {found}; this version converts {known}")
