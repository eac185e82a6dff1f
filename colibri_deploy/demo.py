# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The model of the demonstration as a Mixture of Experts, converted once."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from colibri_deploy import __version__, demo_model
from colibri_deploy.convert import DTypeChoice, Progress, plan_conversion, write_model
from colibri_deploy.upcycle import Upcycling

EXPERTS = Upcycling(n_experts=4, top_k=2)
DTYPE: DTypeChoice = "q8"
PROMPT = "<|im_start|>user\nWhat is a hummingbird?<|im_end|>\n<|im_start|>assistant\n"
N_TOKENS = 24

_MADE_FROM = "made-from.json"


def _recipe() -> dict[str, object]:
    """All that decides the model's bytes: the weights, the options, and the converter."""
    package = Path(__file__).parent
    sources = hashlib.sha256()
    for path in sorted((*package.glob("*.py"), *package.glob("families/*.py"))):
        sources.update(path.read_bytes())
    return {
        "weights": demo_model.SHA256,
        "experts": EXPERTS.n_experts,
        "top_k": EXPERTS.top_k,
        "seed": EXPERTS.seed,
        "dtype": DTYPE,
        "version": __version__,
        "converter": sources.hexdigest(),
    }


def prepare_model(directory: Path, progress: Progress) -> bool:
    """Makes the model in `directory`/model; False if it is there and up to date.

    Raises DownloadError and ConversionError.
    """
    model, made_from = directory / "model", directory / _MADE_FROM
    recipe = json.dumps(_recipe(), indent=2) + "\n"
    if model.is_dir() and made_from.is_file() and made_from.read_text(encoding="utf-8") == recipe:
        return False
    weights = demo_model.obtain_demo_model()
    directory.mkdir(parents=True, exist_ok=True)
    made_from.unlink(missing_ok=True)
    plan = plan_conversion(weights, DTYPE, progress=progress, upcycling=EXPERTS)
    write_model(plan, model, True, progress)
    made_from.write_text(recipe, encoding="utf-8")
    return True
