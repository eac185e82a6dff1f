# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the fuzzers: clang with libFuzzer and the sanitizers, Meson for the library."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from colibri_deploy.process import run

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGETS = ("config", "model", "tokenizer")
SANITIZERS = "address,undefined"
FLAGS = ("-g", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


def build_library(build: Path, sanitizers: str, flags: Iterable[str]) -> None:
    """Builds src/libcolibri.a and the program in `build`: the level `scalar` alone, asserts on."""
    environment = os.environ | {"CC": "clang"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    meson = [sys.executable, "-m", "mesonbuild.mesonmain"]
    words = " ".join((*FLAGS, *flags, "-fsanitize=fuzzer-no-link"))
    options = [f"-Dc_args=-UNDEBUG {words}", f"-Dc_link_args={words}", "-Doptimization=1"]
    options += [f"-Db_sanitize={sanitizers}", "-Db_lundef=false", "-Disas=scalar"]
    run([*meson, "setup", str(build), str(ROOT), *options], env=environment)
    run([*meson, "compile", "-C", str(build), "colibri:executable"], env=environment)


def build_fuzzers(
    directory: Path, sanitizers: str = SANITIZERS, flags: Iterable[str] = ()
) -> dict[str, Path]:
    """The fuzzers by name, and the program as "colibri", built in `directory`."""
    build = directory / "build"
    build_library(build, sanitizers, flags)
    common: list[str | Path] = ["clang", "-std=c17", "-D_DEFAULT_SOURCE", "-I", ROOT / "src"]
    common += ["-Wall", "-Wextra", "-Werror", *FLAGS, *flags]
    # Checksums take most of the time, and the more with each byte's coverage: they go without.
    crc32 = directory / "crc32.o"
    run([*common, "-O2", f"-fsanitize={sanitizers}", "-c", ROOT / "src/crc32.c", "-o", crc32])
    programs = {"colibri": build / "colibri"}
    for target in TARGETS:
        programs[target] = directory / f"fuzz_{target}"
        parts = [HERE / f"fuzz_{target}.c", HERE / "memory_files.c", crc32]
        libraries: list[str | Path] = [build / "src/libcolibri.a", "-lpthread", "-lm"]
        fuzzer = [*common, "-O1", f"-fsanitize=fuzzer,{sanitizers}", *parts, *libraries]
        run([*fuzzer, "-o", programs[target]])
    return programs
