# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Compares an engine with the goldens of the reference implementation.

    python tests/golden/check_fixtures.py SHARED ENGINE...

SHARED holds fixtures/check.py; ENGINE is the command that starts the engine, for instance
`qemu-aarch64-static build/jetson-orin/colibri`. Weights are kept as stored; tokens, tokenisation,
logits and likelihoods must agree.
"""

import shlex
import subprocess
import sys
from pathlib import Path

FAMILIES = ("mixtral", "starcoder_moe", "llama")


def main(shared: Path, engine: list[str]) -> int:
    """The exit status of check.py."""
    fixtures = shared / "fixtures"
    convert = [sys.executable, "-m", "colibri_deploy", "convert", "--dtype", "keep"]
    run = f"{shlex.join(engine)} --model {{out}}"
    command: list[str | Path] = [
        *(sys.executable, fixtures / "check.py", "--root", fixtures, "--jobs", "2"),
        *("--only", f"/({'|'.join(FAMILIES)})$"),
        *("--convert", f"{shlex.join(convert)} {{ckpt}} -o {{out}}"),
        *("--cmd", f"{run} --tokens {{ids}} --num_tokens {{n}} --ignore_eos --format ids"),
        *("--tokenize-cmd", f"{run} --prompt_file {{text_file}} --tokenize"),
        *("--logits-cmd", f"{run} --tokens {{ids}} --logits"),
        *("--nll-cmd", f"{run} --tokens {{ids}} --nll"),
    ]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
