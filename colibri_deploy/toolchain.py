# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The tools that compile the engine: Meson, Ninja and zig, all from the running Python."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from colibri_deploy.errors import ProcessError, ToolchainError
from colibri_deploy.process import run

# Meson adds these to every command; a binary must not depend on who built it.
_NOT_INHERITED = ("AR", "CC", "CFLAGS", "CPPFLAGS", "LD", "LDFLAGS", "NINJAFLAGS", "STRIP")

# The cross files call this compiler by this very command, through the PATH given below.
_COMPILER = ("python3", "-m", "ziglang")


@dataclass(frozen=True)
class Toolchain:
    """Meson, Ninja and the C compiler, with the environment in which they find each other."""

    meson: tuple[str, ...]
    ninja: tuple[str, ...]
    meson_version: str
    compiler: str  # "zig"
    compiler_version: str
    python: str  # that runs the tools; a build directory is tied to it
    env: Mapping[str, str]


def find_toolchain() -> Toolchain:
    """The tools of the Python that runs this.

    Raises ToolchainError, which names the missing tool and how to install it.
    """
    env = tool_environment(os.environ)
    meson = (sys.executable, "-m", "mesonbuild.mesonmain")
    ninja = shutil.which("ninja", path=env["PATH"])
    if ninja is None:
        raise ToolchainError(f"ninja is not installed: {_install('ninja')}")
    return Toolchain(
        meson=meson,
        ninja=(ninja,),
        meson_version=_version("meson", (*meson, "--version"), env),
        compiler="zig",
        compiler_version=_version("ziglang", (*_COMPILER, "version"), env),
        python=sys.executable,
        env={**env, "NINJA": ninja},
    )


def tool_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited` with this Python and its scripts first in PATH, without compiler settings."""
    env = {key: value for key, value in inherited.items() if key not in _NOT_INHERITED}
    first = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"))
    env["PATH"] = os.pathsep.join((*dict.fromkeys(first), inherited.get("PATH", os.defpath)))
    return env


def _version(package: str, argv: tuple[str, ...], env: Mapping[str, str]) -> str:
    try:
        return run(argv, env=env).stdout.strip()
    except ProcessError as error:
        raise ToolchainError(
            f"{package} does not run: {_install(package)}", details=f"{error}\n{error.details}"
        ) from error


def _install(package: str) -> str:
    return f"{sys.executable} -m pip install {package}"
