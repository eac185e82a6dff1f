# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Building: what is shared, what lies where, what a failure says.

On a tiny engine with the project's own cross files, because only its failures can be provoked.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from colibri_deploy.build import Built, Progress, build, failure_excerpt, plan
from colibri_deploy.errors import BuildError, ToolchainError
from colibri_deploy.process import Completed
from colibri_deploy.targets import Target, TargetFile, machine_arch
from colibri_deploy.toolchain import Toolchain, find_toolchain, tool_environment

MESON = """\
project('colibri', 'c', version : '1.2.3', default_options : ['buildtype=release'])
executable('colibri', 'main.c', c_args : ['-DWORD="hi"'], link_args : ['-static', '-s'])
"""
RENDER = """\
import sys
assert sys.argv[1] == "plan", sys.argv
print("scalar;\\nsimd;-msimd\\nadd mul" if sys.argv[3] == "" else "scalar;\\nadd mul")
"""
MAIN = """\
#include <stdio.h>
int main(void) { puts(WORD); return 0; }
"""


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    return find_toolchain()


@pytest.fixture
def tree(root: Path, tmp_path: Path) -> Path:
    """The sources of an engine of one line."""
    tree = tmp_path / "tree"
    shutil.copytree(root / "cross", tree / "cross")
    (tree / "templates").mkdir()
    (tree / "templates" / "render.py").write_text(RENDER)
    (tree / "meson.build").write_text(MESON)
    (tree / "meson_options.txt").write_text("option('isas', type : 'array', value : [])\n")
    (tree / "main.c").write_text(MAIN)
    return tree


def board(name: str, arch: str = "x86_64", *isas: str) -> Target:
    return Target(name, arch, TargetFile(description="A board", arch="native", isas=isas))


def build_all(
    tree: Path, toolchain: Toolchain, *targets: Target, debug: bool = False
) -> dict[str, Built]:
    compilations = plan(
        targets, root=tree, build_root=tree / "build", toolchain=toolchain, debug=debug
    )
    return {one.record.target: one for each in compilations for one in build(each, toolchain)}


def test_targets_that_need_the_same_compilation_share_it(tmp_path: Path, root: Path) -> None:
    boards = [board("a"), board("b", "aarch64"), board("c"), board("d", "x86_64", "scalar")]
    compilations = plan(boards, root=root, build_root=tmp_path, toolchain=find_toolchain())
    assert [each.targets for each in compilations] == [("a", "c"), ("b",), ("d",)]
    assert len({each.directory for each in compilations}) == 3
    assert list(tmp_path.iterdir()) == []


def test_another_toolchain_or_axis_is_another_compilation(
    tmp_path: Path, root: Path, toolchain: Toolchain
) -> None:
    def directory(toolchain: Toolchain, debug: bool) -> Path:
        (one,) = plan(
            [board("a")], root=root, build_root=tmp_path, toolchain=toolchain, debug=debug
        )
        return one.directory

    newer = replace(toolchain, compiler_version="99")
    found = {directory(toolchain, False), directory(toolchain, True), directory(newer, False)}
    assert len(found) == 3
    assert directory(toolchain, False) in found


def test_an_architecture_without_a_cross_file_is_refused(
    tmp_path: Path, root: Path, toolchain: Toolchain
) -> None:
    with pytest.raises(BuildError) as caught:
        plan([board("a", "vax")], root=root, build_root=tmp_path, toolchain=toolchain)
    assert caught.value.message == (
        f"vax cannot be built: there is no cross file {root}/cross/vax-linux-musl.ini"
    )


def test_a_build_lies_where_the_manual_says(tree: Path, toolchain: Toolchain) -> None:
    steps: list[Progress] = []
    (compilation,) = plan(
        [board("a"), board("b")], root=tree, build_root=tree / "build", toolchain=toolchain
    )
    first, second = build(compilation, toolchain, steps.append)
    assert first.binary == tree / "build" / "a" / "colibri"
    assert second.binary == tree / "build" / "b" / "colibri"
    assert first.binary.read_bytes() == second.binary.read_bytes()
    if machine_arch() == "x86_64":
        assert subprocess.run([first.binary], capture_output=True, check=True).stdout == b"hi\n"

    record = json.loads((tree / "build" / "a" / "build.json").read_text())
    digest = subprocess.run(["sha256sum", first.binary], capture_output=True, check=True).stdout
    assert record["sha256"] == digest.split()[0].decode()
    assert record["bytes"] == first.binary.stat().st_size
    assert record["target"] == "a"
    assert record["arch"] == "x86_64"
    assert record["version"] == "1.2.3"
    assert record["debug"] is False
    assert record["isas"] == ["scalar", "simd"]
    assert '-DWORD="hi"' in record["flags"]["colibri"]
    assert record["options"]["isas"] == []
    assert record["options"]["debug"] is False
    assert record["toolchain"] == {"name": "zig", "version": "0.17.1"}
    assert record["meson"] == toolchain.meson_version

    assert steps[0] == Progress(compilation, 0, 0, "configuring")
    assert (steps[-1].done, steps[-1].total) == (2, 2)

    compiled = (compilation.directory / "colibri").stat().st_mtime_ns
    assert build(compilation, toolchain) == (first, second)
    assert (compilation.directory / "colibri").stat().st_mtime_ns == compiled


def test_a_debug_build_has_a_directory_of_its_own(tree: Path, toolchain: Toolchain) -> None:
    built = build_all(tree, toolchain, board("a"), debug=True)["a"]
    assert built.binary == tree / "build" / "a-debug" / "colibri"
    assert built.record.debug is True
    assert built.record.options["debug"] is True
    assert not (tree / "build" / "a").exists()


def test_changed_defaults_reach_the_next_build(tree: Path, toolchain: Toolchain) -> None:
    """Meson keeps the defaults of a build directory's creation: another one is needed."""

    def built() -> tuple[Path, dict[str, object]]:
        (one,) = plan([board("a")], root=tree, build_root=tree / "build", toolchain=toolchain)
        return one.directory, build(one, toolchain)[0].record.options

    first, options = built()
    assert (options["optimization"], options["isas"]) == ("3", [])
    (tree / "meson.build").write_text(MESON + "message('more')\n")
    assert built() == (first, options)
    (tree / "meson.build").write_text(MESON.replace("=release", "=release', 'optimization=1"))
    second, options = built()
    assert options["optimization"] == "1"
    option = "option('isas', type : 'array', value : ['scalar'])\n"
    (tree / "meson_options.txt").write_text(option + "option('new', type : 'boolean')\n")
    third, options = built()
    assert options["new"] is True
    assert len({first, second, third}) == 3


def test_levels_reach_meson_and_the_record(tree: Path, toolchain: Toolchain) -> None:
    built = build_all(tree, toolchain, board("a", "x86_64", "scalar"))["a"]
    assert built.record.isas == ("scalar",)
    assert built.record.options["isas"] == ["scalar"]


def test_flags_of_the_environment_do_not_reach_the_binary(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFLAGS", "-DBROKEN=")
    monkeypatch.setenv("CC", "false")
    built = build_all(tree, find_toolchain(), board("a"))["a"]
    assert "BROKEN" not in json.dumps(built.record.flags)


def test_a_compiler_error_is_shown_with_the_log(tree: Path, toolchain: Toolchain) -> None:
    (tree / "main.c").write_text("int main(void)\n{\n    return undeclared;\n}\n")
    with pytest.raises(BuildError) as caught:
        build_all(tree, toolchain, board("a"), board("b"))
    start = "the engine does not compile for x86_64 (a, b); the full log is "
    assert caught.value.message.startswith(start)
    log = Path(caught.value.message.removeprefix(start))
    assert "main.c:3:12: error: use of undeclared identifier 'undeclared'" in caught.value.details
    assert caught.value.details.splitlines()[-1] == "1 error generated."
    assert "use of undeclared identifier 'undeclared'" in log.read_text()

    (tree / "main.c").write_text(MAIN)
    assert set(build_all(tree, toolchain, board("a"))) == {"a"}


def test_an_error_in_meson_build_is_shown(tree: Path, toolchain: Toolchain) -> None:
    (tree / "meson.build").write_text(MESON + "nonsense()\n")
    with pytest.raises(BuildError, match="the engine does not configure for x86_64") as caught:
        build_all(tree, toolchain, board("a"))
    assert caught.value.details.endswith('meson.build:3:0: ERROR: Unknown function "nonsense".')

    (tree / "meson.build").write_text(MESON)
    build_all(tree, toolchain, board("a"))
    (tree / "meson.build").write_text(MESON + "nonsense()\n")
    with pytest.raises(BuildError) as caught:
        build_all(tree, toolchain, board("a"))
    assert caught.value.details.endswith('meson.build:3:0: ERROR: Unknown function "nonsense".')


def test_a_build_without_the_binary_is_an_error(tree: Path, toolchain: Toolchain) -> None:
    (tree / "meson.build").write_text(MESON.replace("'colibri', 'main.c'", "'other', 'main.c'"))
    with pytest.raises(BuildError, match=r"the build made no .*/colibri; the full log is "):
        build_all(tree, toolchain, board("a"))


def test_only_the_failed_command_speaks_in_the_excerpt() -> None:
    output = [
        "ninja: Entering directory `build'",
        "[1/3] Compiling a.c",
        "a.c:1:1: warning: of no interest",
        "[2/3] Compiling b.c",
        "FAILED: [code=1] b.o",
        "python3 -m ziglang cc -c b.c",
        "b.c:7:3: error: no",
        "1 error generated.",
        "[3/3] Compiling c.c",
        "ninja: build stopped: subcommand failed.",
    ]
    assert failure_excerpt(output) == [
        "FAILED: [code=1] b.o",
        "b.c:7:3: error: no",
        "1 error generated.",
    ]


def test_the_running_python_comes_first_for_the_cross_files() -> None:
    env = tool_environment({"PATH": "/usr/bin", "CFLAGS": "-O0", "LDFLAGS": "-g", "HOME": "/h"})
    assert env["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert env["PATH"].split(":")[-1] == "/usr/bin"
    assert set(env) == {"PATH", "HOME"}


def test_a_python_without_the_compiler_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\necho "No module named ziglang" >&2\nexit 1\n')
    python.chmod(0o755)
    ninja = shutil.which("ninja", path=str(Path(sys.executable).parent))
    assert ninja is not None
    (tmp_path / "ninja").symlink_to(ninja)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ToolchainError) as caught:
        find_toolchain()
    assert caught.value.message == f"meson does not run: {python} -m pip install meson"
    assert "No module named ziglang" in caught.value.details


ELF_MACHINE = {"x86_64": 62, "aarch64": 183, "riscv64": 243}  # e_machine, from elf.h


@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "riscv64"])
def test_the_engine_is_a_static_program_for_its_architecture(
    arch: str, engine: Callable[[str], Path]
) -> None:
    content = engine(arch).read_bytes()
    assert content[:6] == b"\x7fELF\x02\x01"  # 64 bits, little endian
    assert int.from_bytes(content[18:20], "little") == ELF_MACHINE[arch]
    assert b"ld-musl" not in content  # static
    assert b".symtab" not in content  # stripped
    assert len(content) <= 204_800


@pytest.mark.parametrize("arch", ["x86_64", "aarch64", "riscv64"])
def test_the_engine_runs_on_its_architecture(
    arch: str, run_engine: Callable[..., Completed]
) -> None:
    done = run_engine(arch, "--version")
    assert (done.status, done.stderr) == (0, "")
    assert "0.1.0" in done.stdout
