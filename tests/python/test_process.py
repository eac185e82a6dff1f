# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The process runner: what comes back, and what a failure says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from colibri_deploy.errors import ProcessError
from colibri_deploy.process import run, stream


def test_output_and_status_come_back() -> None:
    done = run(["sh", "-c", "echo out; echo err >&2; exit 3"], check=False)
    assert (done.status, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_a_word_is_never_read_by_a_shell() -> None:
    assert run(["printf", "%s", "$HOME; *"]).stdout == "$HOME; *"


def test_stdin_is_empty() -> None:
    assert run(["cat"], timeout_s=100).stdout == ""


def test_undecodable_output_is_replaced() -> None:
    assert run(["printf", r"a\377b"]).stdout == "a\ufffdb"


def test_a_failure_names_the_command_and_the_last_lines(tmp_path: Path) -> None:
    script = "i=0; while [ $i -lt 30 ]; do i=$((i + 1)); echo line $i; done; exit 7"
    with pytest.raises(ProcessError) as caught:
        run(["sh", "-c", script], cwd=tmp_path)
    assert caught.value.message == f"sh -c '{script}' (in {tmp_path}) failed with status 7"
    assert caught.value.details.splitlines() == [f"line {i}" for i in range(11, 31)]
    assert caught.value.status == 7


def test_a_signal_is_named() -> None:
    with pytest.raises(ProcessError, match=r"failed with status 132, SIGILL$"):
        run(["sh", "-c", "kill -ILL $$"])


def test_a_missing_program_is_an_error_of_its_own() -> None:
    with pytest.raises(ProcessError) as caught:
        run(["/nonexistent/program"])
    assert (
        caught.value.message == "/nonexistent/program cannot be started: No such file or directory"
    )
    assert caught.value.status is None


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=r"cannot be started in .*/gone: no such directory"):
        run(["true"], cwd=tmp_path / "gone")


def test_a_program_that_takes_too_long_is_ended() -> None:
    with pytest.raises(ProcessError, match=r"^sleep 60 took longer than 0\.2 s$"):
        run(["sleep", "60"], timeout_s=0.2)


def test_a_stream_goes_to_the_callback_and_the_log(tmp_path: Path) -> None:
    log, lines = tmp_path / "log", list[str]()
    stream(["sh", "-c", "echo one; echo two >&2"], log=log, on_line=lines.append)
    stream(["echo", "three"], log=log, on_line=lines.append)
    assert lines == ["one", "two", "three"]
    assert log.read_text() == "$ sh -c 'echo one; echo two >&2'\none\ntwo\n$ echo three\nthree\n"


def test_a_failed_stream_raises_after_the_last_line(tmp_path: Path) -> None:
    lines = list[str]()
    with pytest.raises(ProcessError) as caught:
        stream([sys.executable, "-c", "raise KeyError"], log=tmp_path / "log", on_line=lines.append)
    assert lines[-1] == "KeyError"
    assert caught.value.details.splitlines()[-1] == "KeyError"
