# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What boards say of themselves: detect.sh in real shells, on this machine and on planted trees."""

from __future__ import annotations

import ast
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from planted_boards import PLANTED, plant

from colibri_deploy.asking import parse_answers
from colibri_deploy.detect import (
    ISA_FEATURES,
    Facts,
    Finding,
    compare,
    facts_in,
    matching_targets,
    script_for,
)
from colibri_deploy.process import run
from colibri_deploy.targets import load_targets, machine_arch

MARK = "0123456789abcdef"
SHELLS = ("sh", "bash", "busybox")


@pytest.fixture
def detect_in(require_program: Callable[[str], Path], tmp_path: Path) -> Callable[..., Facts]:
    """`detect_in(shell, planted=None, workdir="x")` runs the script in a shell.

    `busybox` is its ash with BusyBox' own tools only. `planted` is a name of PLANTED.
    """

    def detect_it(shell: str, planted: str | None = None, workdir: str = "x") -> Facts:
        argv: list[str | Path] = [require_program(shell), "-s"]
        env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        if shell == "busybox":
            tools = tmp_path / "busybox"
            tools.mkdir()
            run([argv[0], "--install", "-s", tools])
            argv.insert(1, "ash")
            env["PATH"] = str(tools)
        if planted is not None:
            env |= plant(tmp_path / "planted", planted, env["PATH"])
        script = tmp_path / "script"
        # BusyBox' ash may prefer its own uname to any in PATH, but not to a function.
        uname = f"uname() {{ echo {PLANTED[planted].arch}; }}\n" if planted else ""
        script.write_text(uname + script_for(workdir, MARK))
        done = run(["sh", "-c", 'exec "$@" <script', "sh", *argv], cwd=tmp_path, env=env)
        assert done.stderr == ""
        answers = parse_answers(done.stdout, MARK)
        assert answers is not None
        return facts_in(answers)

    return detect_it


@pytest.mark.parametrize("shell", SHELLS)
def test_this_machine_says_what_python_sees(shell: str, detect_in: Callable[..., Facts]) -> None:
    facts = detect_in(shell)
    assert facts.arch == machine_arch()
    assert facts.kernel == platform.release()
    assert facts.system == platform.freedesktop_os_release()["PRETTY_NAME"]
    assert facts.page_bytes == os.sysconf("SC_PAGE_SIZE")
    assert facts.ram_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert facts.cpu is not None
    assert sum(map(int, re.findall(r"(\d+) x ", facts.cpu))) == os.cpu_count()
    assert {"cat", "dd", "sed", "uname", "sha256sum"} <= set(facts.tools)
    assert facts.free_bytes is not None
    assert facts.free_bytes > 0


def test_the_isa_level_is_the_one_that_the_engine_chooses(
    detect_in: Callable[..., Facts], run_engine: Callable[..., object]
) -> None:
    done = run_engine(machine_arch(), "--version")
    assert f"isa chosen: {detect_in('sh').isa}\n" in done.stdout  # type: ignore[attr-defined]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", PLANTED)
def test_planted_boards(name: str, shell: str, root: Path, detect_in: Callable[..., Facts]) -> None:
    facts = detect_in(shell, name)
    board = PLANTED[name]
    assert (facts.arch, facts.cpu, facts.isa) == (board.arch, board.cpu, board.isa)
    assert (facts.model, facts.compatible) == (board.model, board.compatible)
    assert (facts.kernel, facts.system) == (board.kernel, "Debian GNU/Linux 12 (bookworm)")
    assert facts.page_bytes == board.page_kib * 1024
    assert (facts.ram_bytes, facts.swap_bytes) == (board.ram_kib * 1024, 102396 * 1024)
    found = matching_targets(facts, load_targets(root))
    assert tuple(target.name for target in found) == board.targets


def test_the_work_directory_may_have_any_name(detect_in: Callable[..., Facts]) -> None:
    for workdir in ('it\'s "here" $(touch planted)', "/tmp/a b/c;touch planted", "~/x", "-n"):
        assert detect_in("sh", workdir=workdir).free_bytes is not None


def test_a_script_that_ends_early_gives_no_facts() -> None:
    whole = f"noise\n{MARK}\nmachine x86_64\nend\n"
    assert parse_answers(whole, MARK) is not None
    for cut in range(len(whole)):
        assert parse_answers(whole[:cut], MARK) is None


def test_a_board_that_says_nothing_has_no_facts() -> None:
    answers = parse_answers(f"\n{MARK}\nend\n", MARK)
    assert answers is not None
    assert facts_in(answers) == Facts(
        "unknown", None, None, None, (), None, None, None, None, None, None, ()
    )


def test_the_features_of_the_levels_are_those_of_the_templates(root: Path) -> None:
    """/proc/cpuinfo has an underscore where the manuals have a dot or nothing."""
    spelled = {"sse4.1": "sse4_1", "sse4.2": "sse4_2", "avx512vnni": "avx512_vnni"}
    found = {}
    for path in (root / "templates/isa").glob("*.j2"):
        (needs,) = re.findall(r"'needs': (\[.*?\]),\n", path.read_text(), re.DOTALL)
        names = [name for name, *_ in ast.literal_eval(needs)]
        found[path.stem] = {
            spelled.get(name, name)
            for name in names
            if name != "osxsave" and not name.endswith("-state")
        }
    levels = {level: needs for levels in ISA_FEATURES.values() for level, needs in levels.items()}
    assert levels == found


GOOD = Facts(
    arch="aarch64",
    kernel="6.12.25+rpt-rpi-2712",
    system=None,
    model="Raspberry Pi 5 Model B Rev 1.0",
    compatible=("raspberrypi,5-model-b", "brcm,bcm2712"),
    cpu="4 x Cortex-A76",
    isa="neon_dotprod",
    ram_bytes=8 << 30,
    swap_bytes=None,
    page_bytes=16384,
    free_bytes=1 << 30,
    tools=tuple(
        "cat chmod cmp cksum dd df du find grep head ln ls mkdir mv readlink rm rmdir sed sync tr "
        "uname".split()
    ),
)


def test_a_board_that_fits_its_target(root: Path) -> None:
    targets = load_targets(root)
    assert compare(GOOD, targets["rpi5"], targets) == [
        Finding("architecture", "ok", "aarch64"),
        Finding("target", "ok", "Raspberry Pi 5 Model B Rev 1.0"),
        Finding("ISA level", "ok", "neon_dotprod"),
        Finding("RAM", "ok", "8.0 GiB"),
        Finding("page size", "ok", "16384 bytes"),
        Finding("tools", "ok", "all that a push needs"),
    ]


@pytest.mark.parametrize(
    ("target", "change", "finding"),
    [
        ("bpi-f3", {}, Finding("architecture", "wrong", "aarch64; bpi-f3 is riscv64")),
        (
            "rpi4",
            {},
            Finding(
                "target",
                "wrong",
                "Raspberry Pi 5 Model B Rev 1.0 (raspberrypi,5-model-b): rpi5",
            ),
        ),
        (
            "rpi4",  # which has the same chip
            {"model": None, "compatible": ("raspberrypi,4-compute-module", "brcm,bcm2711")},
            Finding(
                "target", "wrong", "no model is named (raspberrypi,4-compute-module): rpi-cm4"
            ),
        ),
        (
            "rpi5",
            {"model": None, "compatible": ()},
            Finding("target", "note", "no model is named; without a device tree it cannot be told"),
        ),
        (
            "rpi5",
            {"isa": "neon"},
            Finding("ISA level", "wrong", "neon; the target expects neon_dotprod"),
        ),
        ("rpi5", {"isa": "neon_i8mm"}, Finding("ISA level", "ok", "neon_i8mm")),
        (
            "rpi5",
            {"isa": None},
            Finding("ISA level", "note", "/proc/cpuinfo cannot tell; smoke does"),
        ),
        (
            "rpi5",
            {"ram_bytes": 31 << 30},
            Finding("RAM", "wrong", "31.0 GiB; the target has at most 16"),
        ),
        (
            "rpi5",
            {"page_bytes": 4096},
            Finding("page size", "note", "4096 bytes; usually 16384 here"),
        ),
        (
            "rpi5",
            {"tools": tuple(set(GOOD.tools) - {"sed", "cksum"})},
            Finding("tools", "wrong", "a push needs sed, sha256sum or cksum"),
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_found(
    target: str, change: dict[str, object], finding: Finding, root: Path
) -> None:
    targets = load_targets(root)
    facts = Facts(**{**vars(GOOD), **change})
    assert finding in compare(facts, targets[target], targets)
