# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What is compiled, and what goes with it into every package.

build/release/<arch>/root/     what `meson install` installs, below usr/local
build/release/<arch>/debug     the program with its symbols and debug information
build/release/golden/          the golden model, converted
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colibri_deploy.build import Compilation, build, plan
from colibri_deploy.errors import PackagingError
from colibri_deploy.file_hash import file_sha256
from colibri_deploy.golden_model import SHA256, convert_golden_model
from colibri_deploy.model_dir import CONFIG_NAME, MODEL_NAME
from colibri_deploy.process import run
from colibri_deploy.release.completions import completions, engine_options
from colibri_deploy.release.elf import read_elf
from colibri_deploy.release.pipeline import Outcome, Release, Tell
from colibri_deploy.targets import load_targets, machine_arch

ARCHITECTURES = ("x86_64", "aarch64", "riscv64")
PREFIX = "usr/local"  # Meson's default

Members = dict[str, tuple[int, bytes | Path]]  # path below a prefix to mode and content


def program(release: Release, arch: str) -> Path:
    """The stripped program."""
    return _root(release, arch) / PREFIX / "bin" / "colibri"


def debug_program(release: Release, arch: str) -> Path:
    """The same program with its symbols and debug information."""
    return release.work / arch / "debug"


def golden_model(release: Release) -> Path:
    """The directory of the golden model, as the engine reads it."""
    return release.work / "golden"


def _root(release: Release, arch: str) -> Path:
    return release.work / arch / "root"


def compilation_of(release: Release, arch: str) -> Compilation:
    """The build directory with all ISA levels of an architecture."""
    targets = load_targets(release.tree.root).values()
    target = next(one for one in targets if one.arch == arch and not one.facts.isas)
    (compilation,) = plan(
        [target],
        root=release.tree.root,
        build_root=release.build_dir,
        toolchain=release.toolchain,
    )
    return compilation


def compile_all(release: Release, tell: Tell) -> Outcome:
    """Compiles, installs and links once more with debug information; converts the golden model."""
    facts: dict[str, Any] = {}
    files = []
    for arch in ARCHITECTURES:
        compilation = compilation_of(release, arch)
        (built,) = build(
            compilation,
            release.toolchain,
            lambda at, arch=arch: tell(f"compiling for {arch}: {at.done} of {at.total}"),  # type: ignore[misc]
        )
        root = _root(release, arch)
        shutil.rmtree(root, ignore_errors=True)
        install = ("install", "--quiet", "--no-rebuild", "-C", compilation.directory)
        run([*release.toolchain.meson, *install, "--destdir", root], env=release.toolchain.env)
        link_with_debug(release, compilation.directory, arch)
        files += [*_installed(release, arch).values(), debug_program(release, arch)]
        elf = read_elf(program(release, arch))
        facts[arch] = {
            "bytes": built.record.bytes,
            "build_id": elf.build_id,
            "sections": elf.sizes,
            "isas": list(built.record.isas),
            "flags": built.record.flags,
            "options": built.record.options,
        }
    convert_golden_model(golden_model(release))
    for name, sha256 in SHA256.items():
        files.append(golden_model(release) / name)
        if file_sha256(files[-1]) != sha256:
            raise PackagingError(f"the golden model is converted to another {name} than elsewhere")
    return Outcome(facts, files)


def link_with_debug(release: Release, directory: Path, arch: str) -> None:
    """Links the objects of a Meson build directory again, without stripping.

    The same objects and libraries, and the build id of the stripped program: so what is loaded is
    the same, byte for byte. Asked by ZIG_VERBOSE_LINK, zig says what it gives to its linker.
    """
    ninja = release.toolchain.ninja
    commands = run([*ninja, "-C", directory, "-t", "commands", "-s", "colibri"]).stdout
    again = shlex.split(commands.strip().splitlines()[-1])
    again[again.index("-o") + 1] = str(directory / "colibri.again")
    env = {**release.toolchain.env, "ZIG_VERBOSE_LINK": "1"}
    said = run(again, cwd=directory, env=env)
    link = next(
        (line for line in (said.stdout + said.stderr).splitlines() if line.startswith("ld.lld ")),
        "",
    )
    words = shlex.split(link)
    output = debug_program(release, arch)
    output.parent.mkdir(parents=True, exist_ok=True)
    if not {"-s", "--build-id=sha1", "-o"} <= set(words):
        raise PackagingError("the compiler does not say how it links the program", details=link)
    words.remove("-s")
    words[words.index("--build-id=sha1")] = f"--build-id=0x{_build_id(release, arch)}"
    words[words.index("-o") + 1] = str(output)
    compiler = again[: again.index("cc")]
    run([*compiler, *words], cwd=directory, env=release.toolchain.env)


def _build_id(release: Release, arch: str) -> str:
    return read_elf(program(release, arch)).build_id


def _installed(release: Release, arch: str) -> dict[str, Path]:
    """What Meson installs: path below the prefix to file."""
    prefix = _root(release, arch) / PREFIX
    found = (path for path in sorted(prefix.rglob("*")) if path.is_file())
    return {str(path.relative_to(prefix)): path for path in found}


def payload(release: Release, arch: str) -> Members:
    """What every package for an architecture holds, by its path below the prefix."""
    members: Members = {}
    for name, path in _installed(release, arch).items():
        members[name] = (0o755 if name.startswith("bin/") else 0o644, path)
    for name, text in release.documents.items():
        members[name] = (0o644, text)
    for name, script in completions(engine_options(_engine_help(release))).items():
        members[name] = (0o644, script.encode())
    for name in (MODEL_NAME, CONFIG_NAME):
        members[f"share/colibri/golden/{name}"] = (0o644, golden_model(release) / name)
    for name, path in licence_texts(release).items():
        members[f"share/doc/colibri/{name}"] = (0o644, path)
    return members


def _engine_help(release: Release) -> str:
    """What the program says of itself; that for this machine's architecture says it here."""
    return run([program(release, machine_arch()), "--help"]).stdout


def licence_texts(release: Release) -> Mapping[str, Path]:
    """The project's licence, and the notices of what is linked into the program."""
    return {"LICENSE": release.tree.root / "LICENSE", **notices()}


def notices() -> Mapping[str, Path]:
    """The licences of musl and of zig's runtime, as they come with the compiler.

    Raises PackagingError if they are not where the pinned compiler has them.
    """
    spec = importlib.util.find_spec("ziglang")
    home = Path(spec.origin).parent if spec and spec.origin else Path()
    found = {"LICENSE.musl": home / "lib/libc/musl/COPYRIGHT", "LICENSE.zig": home / "LICENSE"}
    missing = [str(path) for path in found.values() if not path.is_file()]
    if missing:
        raise PackagingError(f"the licence of what is linked is missing: {', '.join(missing)}")
    return found
