# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Writes colibri_deploy/golden_model/goldens.json: the prompts and what they must give.

Token ids, text, logits and experts are those of the reference implementation, transformers, in
float32; the logits hash is that of reference.py. The engine takes no part. Takes a minute:

    pip install torch==2.13.0 transformers==5.24.0 tokenizers==0.23.3 safetensors
    PYTHONPATH=. python tests/golden/make_golden_model_goldens.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import reference
import tokenizers
import torch
import transformers

from colibri_deploy.golden_model import CHECKPOINT, convert_golden_model

# A chapter that was held out from training. Its tokens and those that follow reach over 256, the
# border between two chunks of attention.
LONG = (
    "In the beginning God created the heaven and the earth.\n"
    "And the earth was without form, and void; and darkness was upon the face of the "
    "deep. And the Spirit of God moved upon the face of the waters.\n"
    "And God said, Let there be light: and there was light.\n"
    "And God saw the light, that it was good: and God divided the light from the "
    "darkness.\n"
    "And God called the light Day, and the darkness he called Night. And the evening and "
    "the morning were the first day.\n"
    "And God said, Let there be a firmament in the midst of the waters, and let it divide "
    "the waters from the waters.\n"
    "And God made the firmament, and divided the waters which were under the firmament "
    "from the waters which were above the firmament: and it was so."
)
PROMPTS = {  # and how many tokens to generate
    "Then answered the king and said,": 32,
    "Hear, O Israel:": 32,
    "A wise man": 32,
    LONG: 32,
}
N_LOGITS = 8  # the largest ones are written
KV = "f32"
# What the engine's rounding must not turn around: the best logit's lead, and that of the last
# expert chosen over the next one, as a logit of the router.
SMALLEST_LEAD = 0.01
SMALLEST_ROUTER_LEAD = 1e-4


def largest(logits: Any) -> list[list[float]]:
    """[id, logit] of the largest ones."""
    values, ids = torch.topk(logits, N_LOGITS)
    return [[int(i), round(float(value), 5)] for i, value in zip(ids, values, strict=True)]


def golden(model: Any, tokenizer: Any, converted: reference.Model, prompt: str, n: int) -> Any:
    """The entry of a prompt. Raises SystemExit if rounding could decide what is chosen."""
    prompt_ids = tokenizer.encode(prompt).ids
    ids = list(prompt_ids)
    for _ in range(n):
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    output = model(input_ids=torch.tensor([ids]), output_router_logits=True)
    logits = output.logits[0, len(prompt_ids) - 1 :]
    best = torch.topk(logits[:-1], 2).values
    lead = float((best[:, 0] - best[:, 1]).min())
    top_k = model.config.num_experts_per_tok
    routes = [torch.topk(layer, top_k + 1) for layer in output.router_logits]
    router_lead = min(float((r.values[:, -2] - r.values[:, -1]).min()) for r in routes)
    print(f"{prompt[:50]!r}: leads {lead:.4f}, {router_lead:.6f}: {tokenizer.decode(ids)!r}")
    if lead < SMALLEST_LEAD or router_lead < SMALLEST_ROUTER_LEAD:
        raise SystemExit("that is too close: choose another prompt or number of tokens")
    chosen = [route.indices[:, :top_k] for route in routes]
    chosen[-1] = chosen[-1][len(prompt_ids) - 1 :]  # the others bear on no logits that are hashed
    by_reference, digest = reference.run(converted, prompt_ids, n, KV, ignore_eos=True)
    if by_reference != ids[len(prompt_ids) :]:
        raise SystemExit("transformers and reference.py generate different tokens")
    return {
        "prompt": prompt,
        "prompt_ids": prompt_ids,
        "ids": by_reference,
        "text": tokenizer.decode(by_reference),
        "logits_hash": f"clb1:{digest}",
        "kv": KV,
        "experts": [sorted(set(layer.flatten().tolist())) for layer in chosen],
        "logits_after_prompt": largest(logits[0]),
        "logits_at_end": largest(logits[-1]),
    }


def main() -> None:
    """Writes the file."""
    model = transformers.MixtralForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32)
    tokenizer = tokenizers.Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        convert_golden_model(Path(scratch) / "model")
        converted = reference.load(Path(scratch) / "model")
        prompts = [golden(model, tokenizer, converted, *one) for one in PROMPTS.items()]
    for layer in range(model.config.num_hidden_layers):
        used = {expert for prompt in prompts for expert in prompt["experts"][layer]}
        if len(used) < model.config.num_local_experts:
            raise SystemExit(f"the prompts use only the experts {sorted(used)} of layer {layer}")
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}, float32"
    lines = ",\n".join(json.dumps(prompt, ensure_ascii=False) for prompt in prompts)
    path = CHECKPOINT / "goldens.json"
    path.write_text(f'{{"reference": "{versions}", "prompts": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
