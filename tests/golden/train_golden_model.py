# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Trains the golden model of the smoke test, a small Mixture of Experts.

The text is the King James Version of the Bible, which is in the public domain, as the Debian
package bible-kjv 4.38 prints it from bible-kjv-text 4.38:

    bible -f gen1:1-rev22:21 >kjv.txt
    pip install torch==2.13.0 transformers==5.24.0 tokenizers==0.23.3 safetensors
    python tests/golden/train_golden_model.py kjv.txt colibri_deploy/golden_model

This was done once, in ten minutes on one core; the checkpoint is committed. On chapters that were
held out its loss is 2.737 a token, 1.364 bits a byte of text, and every expert of every layer is
chosen for 10 to 16 % of the choices there. Another CPU or another version of torch rounds
differently, and gives another model as good. Then run tests/golden/make_golden_model_goldens.py.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import math
import time
from pathlib import Path
from typing import Any

import tokenizers
import torch
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

TEXT_SHA256 = "cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d"
END = "<|endoftext|>"  # after every chapter
VOCAB_SIZE = 896
SEQUENCE = 320  # tokens
BATCH = 3  # sequences
MUON_RATE = 0.02
ADAM_RATE = 4e-3
WARMUP = 100  # steps
BALANCE = 0.01  # weight of each layer's balance of experts, which is at best top_k
HELD_OUT = 50  # of so many chapters one is kept for measuring


def read_chapters(path: Path) -> list[str]:
    """The chapters, a verse a line without its number."""
    text = path.read_bytes()
    if hashlib.sha256(text).hexdigest() != TEXT_SHA256:
        raise SystemExit(f"{path} is not the text that the docstring names")
    verses = (line.split(" ", 1) for line in text.decode("ascii").splitlines())
    chapters = itertools.groupby(verses, key=lambda verse: verse[0].split(":")[0])
    return ["".join(f"{words}\n" for _, words in chapter) for _, chapter in chapters]


def train_tokenizer(chapters: list[str]) -> tokenizers.Tokenizer:
    """A byte-level BPE; id 0 is END."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(chapters, trainer)
    return tokenizer


def all_experts(experts: Any, x: Any, chosen: Any, weights: Any) -> Any:
    """What the chosen experts give for x [tokens, hidden], by computing all of them.

    `chosen` and `weights` are [tokens, top_k]. With experts as small as these it is faster than
    gathering tokens.
    """
    n_experts, _, hidden = experts.gate_up_proj.shape
    by_expert = x.new_zeros(len(x), n_experts).scatter(1, chosen, weights)
    both = x @ experts.gate_up_proj.reshape(-1, hidden).T
    gate, up = both.reshape(len(x), n_experts, -1).chunk(2, dim=-1)
    inner = experts.act_fn(gate) * up * by_expert[:, :, None]
    return inner.flatten(1) @ experts.down_proj.transpose(1, 2).reshape(-1, hidden)


def new_model() -> Any:
    """The model, untrained, float32."""
    ALL_EXPERTS_FUNCTIONS.register("all_experts", all_experts)
    config = MixtralConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=96,
        intermediate_size=40,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=SEQUENCE,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        sliding_window=None,
        bos_token_id=0,
        eos_token_id=0,
        router_aux_loss_coef=0.0,
        initializer_range=0.05,
    )
    return MixtralForCausalLM._from_config(config, experts_implementation="all_experts")


def factor(step: int, steps: int) -> float:
    """Of the learning rates: linear warm-up, then linearly down to 2 %."""
    left = (steps - step) / (steps - WARMUP)
    return min((step + 1) / WARMUP, 0.02 + 0.98 * left)


def orthogonalised(matrices: Any) -> Any:
    """Matrices [..., rows, columns] with all singular values near 1: Newton-Schulz, five steps.

    From Muon, https://kellerjordan.github.io/posts/muon/.
    """
    x = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (2.0315 * square @ square - 4.7750 * square) @ x
    return x.mT if tall else x


def muon_step(matrix: Any, momentum: Any, muon_rate: float) -> None:
    """One step of Muon with the gradient of `matrix`, which is cleared."""
    momentum.lerp_(matrix.grad, 0.05)
    rows, columns = matrix.shape[-2:]
    update = orthogonalised(matrix.grad.lerp(momentum, 0.95)) * math.sqrt(max(1, rows / columns))
    matrix.mul_(1 - 0.05 * muon_rate).sub_(muon_rate * update)
    matrix.grad = None


def train(model: Any, ids: Any, steps: int) -> None:
    """Trains on random windows of ids [tokens]: matrices by Muon, the rest by Adam."""
    named = dict(model.named_parameters())
    matrices = [named[name] for name in named if name.endswith("_proj.weight") or "experts" in name]
    momenta = [torch.zeros_like(matrix) for matrix in matrices]
    others = [one for one in named.values() if all(one is not matrix for matrix in matrices)]
    adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0)
    started = time.monotonic()
    for step in range(steps):
        starts = torch.randint(len(ids) - SEQUENCE, (BATCH, 1))
        windows = ids[starts + torch.arange(SEQUENCE)]
        output = model(
            input_ids=windows, labels=windows, use_cache=False, output_router_logits=True
        )
        balances = [
            load_balancing_loss_func((logits,), model.num_experts, model.num_experts_per_tok)
            for logits in output.router_logits  # each for itself: none may leave experts unused
        ]
        (output.loss + BALANCE * sum(balances)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with torch.no_grad():
            for matrix, momentum in zip(matrices, momenta, strict=True):
                muon_step(matrix, momentum, MUON_RATE * factor(step, steps))
        adam.param_groups[0]["lr"] = ADAM_RATE * factor(step, steps)
        adam.step()
        adam.zero_grad()
        if step % 100 == 99:
            spent = f"{time.monotonic() - started:.0f} s"
            print(step + 1, f"loss {output.loss:.3f} balance {max(balances):.2f}", spent)


def measure(model: Any, ids: Any, n_bytes: int) -> str:
    """The loss on ids [tokens], which are n_bytes of text."""
    windows = ids[: len(ids) // SEQUENCE * SEQUENCE].reshape(-1, SEQUENCE)
    with torch.no_grad():
        losses = [float(model(input_ids=one[None], labels=one[None]).loss) for one in windows]
    loss = sum(losses) / len(losses)
    return f"{loss:.3f} a token, {loss / math.log(2) * len(ids) / n_bytes:.3f} bits a byte"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--steps", type=int, default=4000)
    arguments = parser.parse_args()
    torch.manual_seed(1611)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    chapters = read_chapters(arguments.text)
    tokenizer = train_tokenizer(chapters)

    def ids_of(some: list[str]) -> Any:
        return torch.tensor(tokenizer.encode("".join(one + END for one in some)).ids)

    held_out = chapters[::HELD_OUT]
    ids = ids_of([one for i, one in enumerate(chapters) if i % HELD_OUT])
    model = new_model()
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{n_parameters} parameters, {len(ids)} tokens, {arguments.steps} steps")
    train(model, ids, arguments.steps)

    held_out_ids, n_bytes = ids_of(held_out), len("".join(held_out))
    print("held-out chapters, float32:", measure(model, held_out_ids, n_bytes))
    model.to(torch.bfloat16).to(torch.float32)
    print("held-out chapters, bfloat16 values:", measure(model, held_out_ids, n_bytes))
    arguments.destination.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(arguments.destination)
    (arguments.destination / "generation_config.json").unlink()
    tokenizer.save(str(arguments.destination / "tokenizer.json"), pretty=False)


if __name__ == "__main__":
    main()
