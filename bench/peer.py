# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The other engine: llama.cpp as in one release of llama-cpp-python, built here from its source."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REQUIREMENT = "llama-cpp-python==0.3.36"
COMMIT = "0c1e57098"  # of llama.cpp in that release
# On x86-64 llama.cpp's build for any AVX2 machine: it has AVX2, FMA, F16C, BMI2 and repacking. For
# the machine's own CPU it would take AMX where there is some, and crash at its first instruction
# (https://github.com/ggml-org/llama.cpp/issues/20824).
FLAGS = "-DGGML_NATIVE=OFF" if platform.machine() == "x86_64" else "-DGGML_NATIVE=ON"

_DRIVER = Path(__file__).resolve().parent / "peer_driver.py"


class PeerError(Exception):
    """There is no peer that a comparison would be honest with."""


@dataclass(frozen=True)
class PeerFacts:
    """What is printed beside every figure of the peer's."""

    version: str
    commit: str
    flags: str
    system_info: str  # as llama.cpp prints it


def build_peer(directory: Path) -> Path:
    """The Python of an environment that has the peer; built on the first call, in minutes."""
    python = directory / "bin" / "python"
    ready = directory / ".ready"
    wanted = f"{REQUIREMENT} {FLAGS}\n"
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        words = ["install", "--quiet", "--no-cache-dir", "--no-binary", "llama-cpp-python"]
        environment = os.environ | {"CMAKE_ARGS": FLAGS}
        command: list[str | Path] = [python, "-m", "pip", *words, REQUIREMENT]
        subprocess.run(command, check=True, env=environment)
        ready.write_text(wanted, encoding="utf-8")
    return python


def peer_facts(python: Path) -> PeerFacts:
    """What the peer says of itself. Raises PeerError if it is not the one to compare with."""
    result = subprocess.run([python, _DRIVER, "facts"], capture_output=True, text=True, check=True)
    answer = json.loads(result.stdout)
    facts = PeerFacts(answer["version"], COMMIT, FLAGS, answer["system_info"])
    check_peer(facts, platform.machine())
    return facts


def check_peer(facts: PeerFacts, machine: str) -> None:
    """Raises PeerError for another release, and for one without AVX2 or repacking."""
    if f"llama-cpp-python=={facts.version}" != REQUIREMENT:
        raise PeerError(f"the peer is llama-cpp-python {facts.version}, not {REQUIREMENT}")
    needed = ["REPACK = 1", *(["AVX2 = 1"] if machine == "x86_64" else [])]
    for feature in needed:
        if feature not in facts.system_info.replace("|", " | "):
            raise PeerError(
                f"the peer was built without {feature.split()[0]} (its system_info: "
                f"{facts.system_info}); remove its directory and build it again"
            )
