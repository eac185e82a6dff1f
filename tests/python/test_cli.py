# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The command line as a user meets it: output, errors, exit codes, completion."""

from __future__ import annotations

import json
import os
import sys
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
        ["haswell", "x86_64", "avx2"],
        ["host", machine_arch(), "best"],
        ["jetson-orin", "aarch64", "neon_dotprod"],
        ["rpi-cm4", "aarch64", "neon"],
        ["rpi5", "aarch64", "neon_dotprod"],
        ["visionfive2", "riscv64", "scalar"],
        ["x86-64", "x86_64", "sse42"],
    ]


def test_targets_as_json() -> None:
    orin = json.loads(deploy("targets", "--json").stdout)[2]
    assert orin["name"] == "jetson-orin"
    assert orin["memory_bandwidth"]["gb_per_s"] == 204.8
    assert orin["ram_gib"] == [32, 64]


def test_an_unknown_target_is_one_line_and_code_20() -> None:
    done = deploy("build", "--target", "rpi4")
    assert (done.status, done.stdout) == (20, "")
    assert done.stderr == (
        "error: no target 'rpi4': did you mean 'rpi5'? targets are "
        "haswell, host, jetson-orin, rpi-cm4, rpi5, visionfive2, x86-64\n"
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
        ("colibri-deploy build --target rp", ["rpi-cm4", "rpi5"]),
        ("colibri-deploy build --target x", ["x86-64"]),
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
