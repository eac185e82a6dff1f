# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""src/threads.c under the thread sanitizer, which knows the memory model of C.

threads_driver.c runs thousands of short jobs. That it notices is shown with changed orders: of
memory accesses, and of two lines.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.process import Completed, run

SOURCES = ("profile", "usage", "error", "print", "decimal")
Driver = Callable[[str], Path]


@pytest.fixture
def driver(root: Path, require_program: Callable[[str], Path], tmp_path: Path) -> Driver:
    """`driver(text)` is the program with `text` as its src/threads.c."""

    def built(text: str) -> Path:
        (tmp_path / "threads.c").write_text(text, encoding="utf-8")
        command: list[str | Path] = [require_program("clang"), "-fsanitize=thread", "-g", "-O1"]
        command += ["-std=c17", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror"]
        command += ["-I", root / "src", root / "tests/engine/threads_driver.c"]
        command += [tmp_path / "threads.c", *(root / f"src/{name}.c" for name in SOURCES)]
        run([*command, "-o", tmp_path / "driver", "-lpthread", "-lm"])
        return tmp_path / "driver"

    return built


def drive(program: Path, n_threads: int) -> Completed:
    """Runs all jobs, without names for addresses in reports, which take seconds."""
    command: list[str | Path] = ["env", "TSAN_OPTIONS=symbolize=0", program, str(n_threads)]
    return run(command, check=False)


def test_every_item_runs_once_and_sees_the_job_before(root: Path, driver: Driver) -> None:
    program = driver((root / "src/threads.c").read_text(encoding="utf-8"))
    for n_threads in (1, 2, 3, 7):
        result = drive(program, n_threads)
        assert (result.status, result.stdout, result.stderr) == (0, "", "")


REPORT_DONE = "        change(&p->finished, done);\n"
STOP_CLOCK = "        clb_clock_turn(clock_of(p, w.index), CLB_WAITING);\n"


@pytest.mark.parametrize(
    ("here", "instead"),
    [
        ("memory_order_acquire", "memory_order_relaxed"),
        (
            "atomic_fetch_add(&s->value, by)",
            "atomic_fetch_add_explicit(&s->value, by, memory_order_relaxed)",
        ),
        (STOP_CLOCK + REPORT_DONE, REPORT_DONE + STOP_CLOCK),
    ],
    ids=["no acquire", "no release", "done before the clock stops"],
)
def test_a_wrong_order_is_noticed(here: str, instead: str, root: Path, driver: Driver) -> None:
    text = (root / "src/threads.c").read_text(encoding="utf-8")
    assert here in text
    result = drive(driver(text.replace(here, instead)), 2)
    assert result.status == 66  # the sanitizer's
    assert "WARNING: ThreadSanitizer: data race" in result.stderr
