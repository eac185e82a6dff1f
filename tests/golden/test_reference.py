# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The independent reference program gives the engine's bits."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.convert import DTypeChoice
from colibri_deploy.process import Completed, run

PROMPT = [(7919 * i + 13) % 512 for i in range(270)]


@pytest.mark.parametrize(
    ("name", "dtype", "kv"),
    [
        ("mixtral", "f32", "f32"),
        ("mixtral", "keep", "f16"),
        ("mixtral", "f16", "f32"),
        ("mixtral", "q8", "f32"),
        ("mixtral", "q8", "f16"),
        ("mixtral", "q4", "f32"),
        ("starcoder_moe", "keep", "f32"),
        ("starcoder_moe", "q8", "f16"),
        ("llama", "keep", "f32"),
        ("llama", "q8", "f16"),
        ("llama", "q4", "f16"),
        ("synthetic", "q8", "f16"),
        ("synthetic", "q4", "f16"),
    ],
)
def test_a_program_written_from_the_documents_gives_the_same_hash(
    name: str,
    dtype: DTypeChoice,
    kv: str,
    root: Path,
    models: Callable[[str, DTypeChoice], Path],
    run_engine: Callable[..., Completed],
) -> None:
    arguments: list[str | Path] = [
        *("--model", models(name, dtype), "--tokens", ",".join(map(str, PROMPT))),
        *("--num_tokens", "2", "--ignore_eos", "--kv", kv),
    ]
    reference = run([sys.executable, root / "tests/golden/reference.py", *arguments])
    engine = run_engine("x86_64", *arguments, "--format", "ids", "--logits_hash")
    assert engine.stdout == reference.stdout
    assert len(engine.stdout.split("clb1:")[1]) == len(f"{64 * 'f'} kv:{kv}\n")
