# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the fuzzers: Debian's clang with libFuzzer and the sanitizers, Meson for the library."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from colibri_deploy.process import run

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent
TARGETS = ("config", "model", "tokenizer")
SANITIZERS = "address,undefined"
COVERAGE = ("-fprofile-instr-generate", "-fcoverage-mapping")


def build_library(build: Path, flags: list[str], sanitizers: str, *targets: str) -> None:
    """Builds targets of Meson with clang, asserts on, the level `scalar` alone."""
    environment = os.environ | {"CC": "clang"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    meson = [sys.executable, "-m", "mesonbuild.mesonmain"]
    options = [
        "-Disas=scalar",
        "-Doptimization=1",
        f"-Db_sanitize={sanitizers}",
        "-Db_lundef=false",
    ]
    words = " ".join(["-g", "-UNDEBUG", *flags])
    setup = [*meson, "setup", str(build), str(ROOT), *options, f"-Dc_args={words}"]
    run([*setup, f"-Dc_link_args={' '.join(flags)}"], env=environment)
    run([*meson, "compile", "-C", str(build), *targets], env=environment)


def build_fuzzers(directory: Path) -> dict[str, Path]:
    """The fuzzers by name, built in `directory`."""
    build = directory / "build"
    flags = ["-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    build_library(
        build, [*flags, "-fsanitize=fuzzer-no-link"], SANITIZERS, "src/colibri:static_library"
    )
    # Checksums take most of the time, and the more with each byte's coverage: they go without.
    crc32 = directory / "crc32.o"
    common: list[str | Path] = ["clang", "-std=c17", "-g", "-D_DEFAULT_SOURCE", "-I", ROOT / "src"]
    common += ["-Wall", "-Wextra", "-Werror", *flags]
    run([*common, "-O2", f"-fsanitize={SANITIZERS}", "-c", ROOT / "src/crc32.c", "-o", crc32])
    programs = {}
    for target in TARGETS:
        programs[target] = directory / f"fuzz_{target}"
        sources = [HERE / f"fuzz_{target}.c", HERE / "memory_files.c", crc32]
        linked: list[str | Path] = [
            build / "src/libcolibri.a",
            "-lpthread",
            "-lm",
            "-o",
            programs[target],
        ]
        run([*common, "-O1", f"-fsanitize=fuzzer,{SANITIZERS}", *sources, *linked])
    return programs
