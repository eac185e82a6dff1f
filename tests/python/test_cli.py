# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The command line as a user meets it: output, errors, exit codes, completion."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

from colibri_deploy.process import Completed, run
from colibri_deploy.targets import machine_arch


def deploy(*args: str | Path, cwd: Path | None = None, **env: str) -> Completed:
    """Runs colibri-deploy with `args`, any status."""
    return run(
        [sys.executable, "-m", "colibri_deploy", *args],
        cwd=cwd,
        env={**os.environ, **env},
        check=False,
    )


def test_targets_lists_every_target_once() -> None:
    done = deploy("targets")
    assert done.status == 0
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert [row[:3] for row in rows[2:]] == [
        ["bpi-f3", "riscv64", "rvv"],
        ["haswell", "x86_64", "avx2"],
        ["host", machine_arch(), "best"],
        ["jetson-orin", "aarch64", "neon_dotprod"],
        ["jetson-orin-nano", "aarch64", "neon_dotprod"],
        ["licheepi4a", "riscv64", "scalar"],
        ["milkv-jupiter", "riscv64", "rvv"],
        ["rk3588", "aarch64", "neon_dotprod"],
        ["rpi-cm4", "aarch64", "neon"],
        ["rpi4", "aarch64", "neon"],
        ["rpi5", "aarch64", "neon_dotprod"],
        ["visionfive2", "riscv64", "scalar"],
        ["x86-64", "x86_64", "sse42"],
        ["x86-avx512", "x86_64", "avx512_vnni"],
    ]


def test_targets_as_json() -> None:
    orin = json.loads(deploy("targets", "--json").stdout)[3]
    assert orin["name"] == "jetson-orin"
    assert orin["memory_bandwidth"]["gb_per_s"] == 204.8
    assert orin["ram_gib"] == [32, 64]


def test_an_unknown_target_is_one_line_and_code_20() -> None:
    done = deploy("build", "--target", "rpi-5")
    assert (done.status, done.stdout) == (20, "")
    assert done.stderr == (
        "error: no target 'rpi-5': did you mean 'rpi5'? targets are "
        "bpi-f3, haswell, host, jetson-orin, jetson-orin-nano, licheepi4a, milkv-jupiter, "
        "rk3588, rpi-cm4, rpi4, rpi5, visionfive2, x86-64, x86-avx512\n"
    )


def test_build_wants_a_target_or_all() -> None:
    for args in ((), ("--all", "--target", "host")):
        done = deploy("build", *args)
        assert done.status == 2
        assert "give either --target NAME or --all" in done.stderr


def test_a_dry_run_prints_the_commands_and_writes_nothing(tmp_path: Path) -> None:
    done = deploy("build", "--target", "rpi5", "--target", "rpi-cm4", "--dry-run", cwd=tmp_path)
    assert done.status == 0
    setup, compile_, rpi5, cm4 = done.stdout.splitlines()
    assert " setup --cross-file=" in setup
    assert "/cross/aarch64-linux-musl.ini " in setup
    assert "ninja -C " in compile_
    assert rpi5 == "# rpi5: build/rpi5/colibri"
    assert cm4 == "# rpi-cm4: build/rpi-cm4/colibri"
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_as_json(tmp_path: Path) -> None:
    done = deploy("build", "--target", "haswell", "--debug", "--dry-run", "--json", cwd=tmp_path)
    (step,) = json.loads(done.stdout)
    assert step["arch"] == "x86_64"
    assert step["outputs"] == {"haswell": f"{tmp_path}/build/haswell-debug/colibri"}
    assert "-Ddebug=true" in step["commands"][0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("colibri-deploy build --target rp", ["rpi-cm4", "rpi4", "rpi5"]),
        ("colibri-deploy build --target x", ["x86-64", "x86-avx512"]),
        ("colibri-deploy tar", ["targets"]),
    ],
)
def test_names_complete(words: str, expected: list[str]) -> None:
    done = deploy(
        _COLIBRI_DEPLOY_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
    )
    assert [line.split(",")[1] for line in done.stdout.splitlines()] == expected


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "_colibri_deploy_completion_setup;"),
        ("zsh", "#compdef colibri-deploy"),
        ("fish", "function _colibri_deploy_completion;"),
    ],
)
def test_completion_prints_the_script_of_each_shell(shell: str, line: str) -> None:
    done = deploy("completion", shell)
    assert done.status == 0
    assert line in done.stdout.splitlines()


def test_help_names_every_verb() -> None:
    done = deploy("--help")
    assert done.status == 0
    for verb in ("build", "completion", "targets"):
        assert f"\n  {verb} " in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("build --target host --build-dir /proc/foo", "/proc/foo: No such file or directory"),
        ("build --target host --build-dir /dev/null", "/dev/null/.compile: Not a directory"),
        ("smoke --board sim:host --build-dir /proc/foo", "/proc/foo: No such file or directory"),
        ("smoke --board sim:host --build-dir /dev/null", "/dev/null/sim/host/home: Not a direct"),
    ],
)
def test_a_directory_that_cannot_be_made_is_one_line_and_code_3(words: str, message: str) -> None:
    done = deploy(*words.split())
    assert (done.status, done.stdout) == (3, "")
    *progress, last = done.stderr.splitlines()
    assert last.startswith(f"error: {message}")
    assert all(line.startswith("building ") for line in progress)


@pytest.fixture(scope="module")
def model(small_model: Path) -> str:
    """A directory with a model."""
    return str(small_model)


@pytest.mark.parametrize(
    "words",
    ["targets", "targets --json", "targets schema", "inspect M", "inspect M --json", "verify M",
     "header M", "header M --json",
     "completion bash", "build --all --dry-run", "--help", "build --help", "--version"],
)  # fmt: skip
def test_results_that_nobody_takes_are_one_line_and_code_3(words: str, model: str) -> None:
    """A full disk, as a redirection meets it."""
    argv = [word if word != "M" else model for word in words.split()]
    done = through_shell('exec "$@" >/dev/full', *argv)
    assert (done.status, done.stdout) == (3, "")
    assert re.fullmatch(r"error: .*output.*: No space left on device\n", done.stderr)


def through_shell(script: str, *args: str | Path, **env: str) -> Completed:
    """Runs colibri-deploy with `args` as "$@" of a shell script, any status."""
    command = [sys.executable, "-m", "colibri_deploy", *args]
    return run(["sh", "-c", script, "sh", *command], env={**os.environ, **env}, check=False)


def test_an_error_that_nobody_takes_keeps_its_code() -> None:
    assert through_shell('exec "$@" 2>/dev/full', "build", "--target", "rpi-5").status == 20
    assert through_shell('exec "$@" >/dev/full 2>&1', "targets").status == 3


@pytest.mark.parametrize("words", ["targets", "targets --json", "--help"])
def test_a_reader_that_left_is_not_told(words: str) -> None:
    done = through_shell('{ "$@"; echo "$?" >&2; } | true', *words.split())
    assert done.stderr in ("0\n", "1\n")  # 0: all was written before the reader left


INTERRUPTS = """
import signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "paramiko":
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


def test_ctrl_c_while_the_verbs_load_is_no_traceback(tmp_path: Path, root: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS)
    done = deploy("targets", PYTHONPATH=f"{tmp_path}{os.pathsep}{root}")
    assert (done.status, done.stdout, done.stderr) == (1, "", "\nAborted!\n")
    with (root / "pyproject.toml").open("rb") as file:
        script = tomllib.load(file)["project"]["scripts"]["colibri-deploy"]
    module, _, function = script.partition(":")
    code = f"import {module}; {module}.{function}()"
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    done = run([sys.executable, "-c", code], env=env, check=False)
    assert (done.status, done.stdout, done.stderr) == (1, "", "\nAborted!\n")
