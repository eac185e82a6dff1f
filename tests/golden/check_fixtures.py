# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Compares an engine with the goldens of the reference implementation.

    python tests/golden/check_fixtures.py SHARED PART ENGINE...

SHARED holds fixtures/check.py; ENGINE is the command that starts the engine, for instance
`qemu-aarch64-static build/jetson-orin/colibri`. Weights are kept as stored; tokens, logits and
likelihoods must agree, and the ids of every prompt's text. PART is

    all     every checkpoint
    three   Mixtral, dense Llama and StarCoder-style
    sample  one prompt of one checkpoint of each kind of attention, router and activation
"""

import shlex
import subprocess
import sys
from pathlib import Path

PARTS = {
    "all": ((".*",), ""),
    "three": (("llama", "mixtral", "starcoder_moe"), ""),
    "sample": (("deepseek_v3", "gpt_oss", "phimoe", "qwen2_moe"), "ascii"),
}


def main(shared: Path, part: str, engine: list[str]) -> int:
    """The exit status of check.py."""
    fixtures, prompts = PARTS[part]
    root = shared / "fixtures"
    convert = shlex.join([sys.executable, "-m", "colibri_deploy", "convert", "--dtype", "keep"])
    run = f"{shlex.join(engine)} --model {{out}}"
    command: list[str | Path] = [
        *(sys.executable, root / "check.py", "--root", root, "--jobs", "2"),
        *("--only", f"/({'|'.join(fixtures)})$", "--prompts", prompts),
        *("--cmd", f"{run} --tokens {{ids}} --num_tokens {{n}} --ignore_eos --format ids"),
        *("--logits-cmd", f"{run} --tokens {{ids}} --logits"),
        *("--nll-cmd", f"{run} --tokens {{ids}} --nll"),
        *("--convert", f"{convert} {{ckpt}} -o {{out}}"),
        *("--tokenize-cmd", f"{run} --prompt_file {{text_file}} --tokenize"),
    ]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[2] not in PARTS:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
