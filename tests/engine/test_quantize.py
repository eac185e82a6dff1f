# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""--quantize at load gives the bits that a conversion to q8 gives."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.dtype_choice import parse_dtypes
from colibri_deploy.process import Completed

Run = Callable[..., Completed]

FFN = "gate:int8,up:int8,down:int8"
ATTENTION = "q:int8,attention_k:int8,v:int8,attention_o:int8"


def run(run_engine: Run, model: Path, *options: str) -> Completed:
    named: list[str | Path] = ["--model", model, "--tokens", "8,36,48,4", "--num_tokens", "4"]
    return run_engine("x86_64", *named, "--format", "ids", "--logits_hash", *options)


def round_values(checkpoint: Path, stored: str) -> None:
    """Makes every value of a checkpoint one that `stored` holds."""
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    for name, values in tensors.items():
        if stored == "f16":
            tensors[name] = values.astype(np.float16).astype(np.float32)
        elif stored == "bf16":
            tensors[name] = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.parametrize("stored", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    ("dtype", "sections"),
    [("ffn=q8", FFN), ("attn=q8", ATTENTION), ("ffn=q8,attn=q8", f"{FFN},{ATTENTION}")],
)
def test_the_hash_is_that_of_a_conversion(
    stored: str, dtype: str, sections: str, checkpoint: Path, run_engine: Run, tmp_path: Path
) -> None:
    round_values(checkpoint, stored)
    rest = ",".join(
        f"{kind}={stored}" for kind in ("ffn", "attn", "embed", "head") if kind not in dtype
    )
    convert_checkpoint(checkpoint, tmp_path / "converted", parse_dtypes(f"{dtype},{rest}"))
    convert_checkpoint(checkpoint, tmp_path / "floats", parse_dtypes(stored))
    converted = run(run_engine, tmp_path / "converted")
    quantized = run(run_engine, tmp_path / "floats", "--quantize", sections)
    floats = run(run_engine, tmp_path / "floats", "--kv", "f16")
    assert (converted.status, quantized.status) == (0, 0), quantized.stderr
    assert "kv:f16" in quantized.stdout
    assert quantized.stdout == converted.stdout != floats.stdout


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ("up", '"up" is no list like up:int8,down:int8'),
        ("up:int4", '"up:int4" is no list like up:int8,down:int8'),
        ("up:int8,sideways:int8", "has no matrix of floats that is called sideways"),
        ("router:int8", "has no matrix of floats that is called router"),
        ("embeddings:int8", "has no matrix of floats that is called embeddings"),
        ("up:int8,up:int8", "has no matrix of floats that is called up"),
    ],
)
def test_what_cannot_be_quantized(
    sections: str, message: str, checkpoint: Path, run_engine: Run, tmp_path: Path
) -> None:
    convert_checkpoint(checkpoint, tmp_path / "floats", "f16")
    result = run(run_engine, tmp_path / "floats", "--quantize", sections)
    assert (result.status, result.stdout) == (2, "")
    assert message in result.stderr
