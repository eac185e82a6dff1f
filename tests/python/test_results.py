# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`test`, `push` and `smoke` on many boards over real SSH: what failed where, what stops them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from xml.etree import ElementTree

import pytest
from board_fixtures import Place, report_of
from loopback import wait_until
from ssh_servers import KINDS, PASSWORD, Server
from test_vm import need_system, places  # noqa: F401 # fixtures

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.errors import BoardFullError, SmokeError
from colibri_deploy.many import BoardRun, StoppedWorkError, run_all
from colibri_deploy.process import Completed, run
from colibri_deploy.results import BoardResult, Step, junit, verdict

Deploy = Callable[..., Completed]

STEPS = ["connect", "push", "version", "sha256", "verify", "selftest", "golden", "model"]
FEW = ("--num-tokens", "3")


@pytest.fixture
def rack(
    sshd: Callable[..., Place],
    engine: Callable[[str], Path],
    require_program: Callable[[str], Path],
    build_dir: Path,
) -> tuple[str, ...]:
    """Arguments for three boards: OpenSSH on this machine, aarch64 and riscv64 under qemu-user."""
    words = [*sshd("desk").arguments]
    for target, arch in (("jetson-orin", "aarch64"), ("visionfive2", "riscv64")):
        require_program(f"qemu-{arch}-static")
        (build_dir / target).mkdir()
        (build_dir / target / "colibri").symlink_to(engine(target))
        words += ["--board", f"sim:{target}"]
    return tuple(words)


def read_junit(path: Path) -> dict[str, dict[str, str]]:
    """What became of each step of each board."""
    kinds = {"system-out": "passed", "failure": "failed", "skipped": "skipped", "error": "stopped"}
    suites = ElementTree.parse(path).getroot()
    assert suites.tag == "testsuites"
    found: dict[str, dict[str, str]] = {}
    for suite in suites:
        cases = suite.findall("testcase")
        found[suite.attrib["name"]] = {case.attrib["name"]: kinds[case[0].tag] for case in cases}
        assert {case.attrib["classname"] for case in cases} == {suite.attrib["name"]}
        assert int(suite.attrib["tests"]) == len(cases)
        assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
        assert int(suite.attrib["errors"]) == len(suite.findall("testcase/error"))
    return found


def test_three_boards_of_three_architectures(
    rack: tuple[str, ...], deploy: Deploy, small_model: Path, tmp_path: Path
) -> None:
    outputs = ("--junit", "out.xml", "--json", "out.json")
    done = deploy("test", *rack, "--model", small_model, *FEW, *outputs)
    assert done.status == 0, done.stderr
    boards = ["desk", "sim:jetson-orin", "sim:visionfive2"]
    rows = [line.split() for line in done.stdout.splitlines() if "passed" in line]
    assert [row[0] for row in rows] == boards
    assert all(row[4] == "verified," and "tokens/s" in row for row in rows)
    assert read_junit(tmp_path / "out.xml") == {
        board: dict.fromkeys(STEPS, "passed") for board in boards
    }
    record = json.loads((tmp_path / "out.json").read_text())
    assert (record["verb"], record["ok"], len(record["build"])) == ("test", True, 3)
    assert [board["board"] for board in record["boards"]] == boards
    hashes = {board["smoke"]["generated"]["logits_hash"] for board in record["boards"]}
    assert len(hashes) == 1
    for board in record["boards"]:
        assert (board["outcome"], board["error"]) == ("passed", None)
        assert [step["name"] for step in board["steps"]] == STEPS
        assert board["push"]["release"] == board["smoke"]["release"]


def test_a_whole_system_between_two_emulated_cpus(
    need_system: Callable[[str], None],  # noqa: F811 # the fixture
    places: dict[str, str],  # noqa: F811
    require_program: Callable[[str], Path],
    engine: Callable[[str], Path],
    deploy: Deploy,
    small_model: Path,
    build_dir: Path,
    tmp_path: Path,
) -> None:
    need_system("aarch64")
    boards = ["sim:jetson-orin", "sim:visionfive2", "vm:rpi4,ram_mib=192,disk_mib=40"]
    words = []
    for board in boards:
        target = board.partition(":")[2].partition(",")[0]
        (build_dir / target).mkdir()
        (build_dir / target / "colibri").symlink_to(engine(target))
        words += ["--board", board]
    for arch in ("aarch64", "riscv64"):
        require_program(f"qemu-{arch}-static")
    outputs = ("--junit", "out.xml", "--json", "out.json")
    done = deploy("test", *words, "--model", small_model, *FEW, *outputs, **places)
    assert done.status == 0, done.stderr
    found = read_junit(tmp_path / "out.xml")
    assert found == {board: dict.fromkeys(STEPS, "passed") for board in boards}
    record = json.loads((tmp_path / "out.json").read_text())
    hashes = {board["smoke"]["generated"]["logits_hash"] for board in record["boards"]}
    assert (record["ok"], len(hashes)) == (True, 1)


def test_a_partial_failure_names_boards_and_steps(
    rack: tuple[str, ...], deploy: Deploy, small_model: Path, build_dir: Path, tmp_path: Path
) -> None:
    assert deploy("push", *rack, "--model", small_model).status == 0
    home = build_dir / "sim/jetson-orin/home/.local/share/colibri"
    path = (home / "current/model.bin").resolve()
    data = bytearray(path.read_bytes())
    data[524_288 + 5] ^= 1
    path.write_bytes(data)
    (tmp_path / "on board/current").unlink()
    outputs = ("--junit", "out.xml", "--json")
    done = deploy("smoke", *rack, "--model", small_model, *FEW, *outputs)
    assert done.status == 45
    assert "\nsim:visionfive2: passed, verified, " in done.stderr
    error = done.stderr[done.stderr.index("error: ") :]
    assert "sim:jetson-orin at sha256, verify" in error
    assert "\nnothing was pushed to desk: there is no release under " in error
    assert "\nsim:jetson-orin fails the smoke test at sha256: " in error
    record = json.loads(done.stdout)
    outcomes = [board["outcome"] for board in record["boards"]]
    assert (record["ok"], outcomes) == (False, ["failed", "failed", "passed"])
    assert [board["error"] and board["error"]["code"] for board in record["boards"]] == [
        37, 37, None,
    ]  # fmt: skip
    found = read_junit(tmp_path / "out.xml")
    assert found["sim:jetson-orin"]["sha256"] == "failed"
    assert set(found["sim:visionfive2"].values()) == {"passed"}


def gone(tmp_path: Path) -> tuple[str, ...]:
    """Arguments for a board that nobody answers for, added to boards.yaml."""
    path = tmp_path / "boards.yaml"
    text = path.read_text() if path.exists() else "boards:\n"
    path.write_text(text + "  gone: {target: host, host: 127.0.0.1, port: 1}\n")
    return ("--board", "gone")


def test_fail_fast_begins_no_more_boards(deploy: Deploy, tmp_path: Path) -> None:
    words = (*gone(tmp_path), "--board", "sim:host", "--jobs", "1")
    done = deploy("push", *words, "--junit", "out.xml")
    assert done.status == 45
    assert read_junit(tmp_path / "out.xml") == {
        "gone": {"connect": "failed"},
        "sim:host": {"connect": "passed", "push": "passed"},
    }
    done = deploy("push", *words, "--fail-fast", "--junit", "out.xml")
    assert done.status == 45
    assert done.stderr.endswith(
        "error: 1 of 2 boards failed: gone at connect\n"
        "gone cannot be reached at port 1: Connection refused\n"
        "not finished: sim:host\n"
    )
    assert read_junit(tmp_path / "out.xml") == {
        "gone": {"connect": "failed"},
        "sim:host": {"connect": "stopped"},
    }


def test_fail_fast_stops_those_that_run(deploy: Deploy, small_model: Path, tmp_path: Path) -> None:
    """The slow one would take longer than `deploy` waits."""
    words = ("--board", "sim:host,mb_per_s=0.004", *gone(tmp_path), "--fail-fast", "--json")
    done = deploy("push", *words, "--model", small_model)
    assert done.status == 45
    other, slow = json.loads(done.stdout)["boards"]
    assert (other["outcome"], slow["outcome"]) == ("failed", "stopped")


def test_one_board_alone_has_its_own_code(deploy: Deploy, tmp_path: Path) -> None:
    done = deploy("push", *gone(tmp_path), "--json")
    assert (done.status, done.stderr.count("\n")) == (29, 1)
    (board,) = json.loads(done.stdout)["boards"]
    assert board["error"]["message"] == "gone cannot be reached at port 1: Connection refused"


def test_a_board_that_takes_too_long_has_failed_and_the_next_push_goes_on(
    deploy: Deploy, small_model: Path, tmp_path: Path
) -> None:
    for seconds, mb_per_s in (4, "0.15"), (16, "0.04"), (64, "0.01"):  # where this machine is slow
        slow = f"sim:host,mb_per_s={mb_per_s}"
        words = ("--board", slow, "--model", small_model, "--timeout", str(seconds))
        done = deploy("push", *words, "--junit", "out.xml")
        assert done.status == 46
        assert done.stderr == f"error: {slow} takes longer than {seconds} s\n"
        steps = read_junit(tmp_path / "out.xml")
        if "push" in steps[slow]:
            break
    assert steps == {slow: {"connect": "passed", "push": "failed"}}
    done = deploy("push", "--board", "sim:host", "--model", small_model, "--json")
    assert done.status == 0, done.stderr
    assert any(file["resumed_at"] for file in report_of(done, "push")["files"])


def is_owned(root: Path) -> bool:
    return (root / "lock").exists()


@pytest.fixture
def client(build_dir: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`client(*words)` starts colibri-deploy."""
    children = []

    def start(verb: str, *words: str | Path) -> subprocess.Popen[str]:
        home = {"HOME": str(tmp_path), "SSH_AUTH_SOCK": "", "XDG_CONFIG_HOME": ""}
        command = [sys.executable, "-m", "colibri_deploy", verb, "--build-dir", build_dir, *words]
        child = subprocess.Popen(
            list(map(str, command)),
            cwd=tmp_path,
            env={**os.environ, **home},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        with child:
            child.kill()


def test_ctrl_c_ends_connections_names_boards_and_leaves_the_old_release(
    client: Callable[..., subprocess.Popen[str]],
    deploy: Deploy,
    small_model: Path,
    build_dir: Path,
    tmp_path: Path,
    sshd: Callable[..., Place],
) -> None:
    desk = sshd("desk")
    slow = "sim:host,mb_per_s=0.03"
    assert deploy("push", "--board", "sim:host").status == 0
    root = build_dir / "sim/host/home/.local/share/colibri"
    before = (root / "current").readlink()
    outputs = ("--junit", "out.xml", "--json", "out.json")
    boards = (*desk.arguments, "--board", slow, *gone(tmp_path))
    child = client("push", *boards, "--jobs", "2", "--model", small_model, *outputs)
    assert child.stderr is not None
    shown = [child.stderr.readline() for _ in range(2)]  # of the two that have ended
    wait_until(lambda: is_owned(root) and any(root.glob("store/.*.partial")), "nothing is sent")
    child.send_signal(signal.SIGINT)
    said = "".join((*shown, child.stderr.read()))
    assert child.wait(100) == 130
    assert f"stopping {slow}; Ctrl-C again leaves at once\n" in said
    assert said.endswith(f"error: stopped; not finished: {slow}\nfailed: gone at connect\n")
    assert "Traceback" not in said
    found = read_junit(tmp_path / "out.xml")
    assert found["desk"] == {"connect": "passed", "push": "passed"}
    assert found[slow] == {"connect": "passed", "push": "stopped"}
    record = json.loads((tmp_path / "out.json").read_text())
    assert [board["outcome"] for board in record["boards"]] == ["passed", "failed", "stopped"]
    assert (root / "current").readlink() == before
    assert run([root / "current/colibri", "--version"]).stdout.startswith("colibri ")
    done = deploy("push", "--board", "sim:host", "--model", small_model, "--json")
    assert done.status == 0, done.stderr


def test_another_model_here_is_no_reason_to_go_back(
    sim: Callable[..., Place],
    deploy: Deploy,
    small_model: Path,
    make_checkpoint: Callable[..., Path],
    tmp_path: Path,
) -> None:
    convert_checkpoint(make_checkpoint(tmp_path / "checkpoint", vocab=51), tmp_path / "other")
    place = sim()
    assert deploy("push", *place.arguments).status == 0
    done = deploy("push", *place.arguments, "--model", small_model, "--json")
    release = report_of(done, "push")["release"]
    done = deploy("smoke", *place.arguments, "--model", tmp_path / "other", "--json")
    assert done.status == 37
    assert "rollback" not in done.stdout + done.stderr
    assert place.current.resolve().name == release


def test_a_release_before_that_is_damaged_does_not_come_back(
    sim: Callable[..., Place], deploy: Deploy, small_model: Path
) -> None:
    place = sim()
    assert deploy("push", *place.arguments).status == 0
    done = deploy("push", *place.arguments, "--model", small_model, "--json")
    release = report_of(done, "push")["release"]
    engine = place.stored("colibri")
    engine.write_bytes(engine.read_bytes() + b"\0")  # which both releases have
    done = deploy("smoke", *place.arguments, "--model", small_model, "--json")
    assert done.status == 37
    (board,) = json.loads(done.stdout)["boards"]
    rollback = board["steps"][-1]
    assert (rollback["name"], rollback["outcome"]) == ("rollback", "failed")
    assert rollback["detail"].startswith("colibri of release ")
    assert place.current.resolve().name == release


def test_results_that_cannot_be_written(deploy: Deploy, tmp_path: Path) -> None:
    done = deploy("push", "--board", "sim:host", "--json", tmp_path / "nowhere" / "out.json")
    assert done.status == 3
    assert done.stderr == (
        f"error: {tmp_path}/nowhere/out.json cannot be written: No such file or directory\n"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_person_is_asked_for_a_password_while_a_bar_is_shown(
    kind: str, ssh_server: Callable[..., Server], client_home: Path, build_dir: Path
) -> None:
    server = ssh_server(kind)
    (client_home / ".ssh" / "known_hosts").write_text(server.known_hosts_line)
    command = [sys.executable, "-m", "colibri_deploy", "push", "--build-dir", str(build_dir)]
    command += ["--host", f"{server.user}@127.0.0.1:{server.port}", "--target", "host"]
    near, far = pty.openpty()
    child = subprocess.Popen(command, stdin=far, stdout=far, stderr=far, cwd=client_home)
    os.close(far)
    shown, answered = "", False
    with contextlib.suppress(OSError):  # how a terminal ends
        while select.select([near], [], [], 100)[0] and (data := os.read(near, 4096)):
            shown += data.decode(errors="replace")
            if len(shown) > 20_000:
                break  # bars are drawn over the question
            if not answered and shown.endswith(": ") and "password of" in shown:
                asked = shown
                time.sleep(0.5)  # a bar that is drawn now would hide the question
                os.write(near, f"{PASSWORD}\n".encode())
                answered = True
    os.close(near)
    if not answered:
        child.kill()
    assert (child.wait(), answered) == (0, True), shown[-2000:]
    assert shown.startswith(f"{asked}\r\n")
    assert PASSWORD not in shown
    assert "is current" in shown
    assert (server.home / ".local/share/colibri/current/colibri").is_file()


def test_a_terminal_echoes_again_when_ctrl_c_ends_the_question_for_a_password(
    ssh_server: Callable[..., Server], client_home: Path
) -> None:
    server = ssh_server("openssh")
    (client_home / ".ssh" / "known_hosts").write_text(server.known_hosts_line)
    command = ["setsid", "--ctty", "--wait", sys.executable, "-m", "colibri_deploy", "push"]
    command += ["--host", f"{server.user}@127.0.0.1:{server.port}", "--target", "host"]
    near, far = pty.openpty()
    before = termios.tcgetattr(far)

    def read_to(end: str) -> None:
        shown = ""
        while end not in shown:
            assert select.select([near], [], [], 100)[0], shown
            shown += os.read(near, 4096).decode(errors="replace")

    with subprocess.Popen(command, stdin=far, stdout=far, stderr=far, cwd=client_home) as child:
        try:
            read_to("password of")
            assert not termios.tcgetattr(far)[3] & termios.ECHO
            os.write(near, b"\x03")
            read_to("Ctrl-C again leaves at once")
            os.write(near, b"\x03")
            child.wait(100)
        finally:
            child.kill()
    assert termios.tcgetattr(far) == before
    os.close(near)
    os.close(far)


# The structure, and the threads ----------------------------------------------------------------

GOOD = BoardResult("a", "rpi5", (Step("connect", "passed", "a@b", 0.25),), 1.5)
FULL = BoardResult(
    "b",
    "rpi4",
    (Step("connect", "passed", "", 0.1), Step("push", "failed", "no\x00room <&\x1b[0m", 1.0)),
    1.1,
    error=BoardFullError("no room"),
)
CUT = BoardResult("c", "rpi4", (Step("connect", "stopped", "not begun", 0.0),), 0.0)
UNFIT = BoardResult(
    "d", "rpi4", (Step("golden", "failed", "x", 0.0),), 0.0, error=SmokeError("d fails", "more")
)


def test_what_boards_say_is_valid_xml_whatever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "out.xml"
    path.write_text(junit("push", [GOOD, FULL, CUT]), encoding="utf-8")
    assert read_junit(path) == {
        "a": {"connect": "passed"},
        "b": {"connect": "passed", "push": "failed"},
        "c": {"connect": "stopped"},
    }
    suites = ElementTree.parse(path).getroot()
    assert suites.attrib == {
        "name": "colibri-deploy push", "tests": "4", "failures": "1", "errors": "1",
        "skipped": "0", "time": "2.600",
    }  # fmt: skip
    (failure,) = suites.iter("failure")
    assert failure.attrib["message"] == "no\ufffdroom <&\ufffd[0m"
    assert failure.text == "b: no room"


def test_what_the_program_ends_with() -> None:
    def of(*results: BoardResult, interrupted: bool = False) -> tuple[int, str, str] | None:
        error = verdict(results, interrupted)
        return None if error is None else (error.exit_code, error.message, error.details)

    assert of() is None
    assert of(GOOD) is None
    assert of(GOOD, GOOD, interrupted=True) is None
    assert of(UNFIT) == (37, "d fails", "more")
    assert of(GOOD, FULL, UNFIT) == (
        45, "2 of 3 boards failed: b at push; d at golden", "b: no room\nd fails\nmore",
    )  # fmt: skip
    assert of(FULL, CUT) == (45, "1 of 2 boards failed: b at push", "b: no room\nnot finished: c")
    assert of(GOOD, CUT, interrupted=True) == (130, "stopped; not finished: c", "")
    assert of(FULL, CUT, interrupted=True) == (
        130, "stopped; not finished: c", "failed: b at push",
    )  # fmt: skip


def run_tasks(works: list[Callable[[BoardRun], None]], **options: Any) -> list[BoardResult]:
    tasks = [(BoardRun(str(number), "host"), work) for number, work in enumerate(works)]
    defaults: dict[str, Any] = {"jobs": 2, "timeout_s": None, "fail_fast": False}
    run_all(
        tasks,
        on_end=lambda result: None,
        on_interrupt=lambda names: None,
        **{**defaults, **options},
    )
    return [one.result() for one, _ in tasks]


@pytest.mark.parametrize("jobs", [1, 3])
def test_as_many_boards_at_a_time_as_jobs(jobs: int) -> None:
    lock, full = threading.Lock(), threading.Event()
    now, most = 0, 0

    def work(one: BoardRun) -> None:
        nonlocal now, most
        with one.step("connect"):
            with lock:
                now += 1
                most = max(most, now)
            if now == jobs:
                full.set()
            full.wait(100)
            time.sleep(0.05)
            with lock:
                now -= 1

    results = run_tasks([work] * 7, jobs=jobs)
    assert most == jobs
    assert [result.board for result in results] == list("0123456")
    assert {result.outcome for result in results} == {"passed"}


def test_an_error_that_nobody_knows_is_not_hidden() -> None:
    def work(one: BoardRun) -> None:
        with one.step("push"):
            raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError):
        run_tasks([work])


def test_ctrl_c_at_any_moment_waits_for_no_board_that_has_ended() -> None:
    """It is pressed at each line of `run_all` in turn."""

    def late(*_: object) -> None:
        raise TimeoutError("a board is waited for that has ended")

    def run_and_press(at: int) -> bool:
        """Whether the line was reached."""
        left = at

        def on_line(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if event == "line":
                left -= 1
                if left == 0:
                    signal.raise_signal(signal.SIGINT)
            return on_line

        def on_call(frame: FrameType, event: str, _: object) -> Any:
            return on_line if frame.f_code is run_all.__code__ else None

        with contextlib.suppress(KeyboardInterrupt):  # where the boards are not begun, or done
            sys.settrace(on_call)
            try:
                run_tasks([lambda one: None] * 2, jobs=2)
            finally:
                sys.settrace(None)
        return left <= 0

    before = signal.signal(signal.SIGALRM, late)
    try:
        for at in itertools.count(1):
            signal.alarm(60)
            if not run_and_press(at):
                break
        assert at > 15
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_work_that_was_stopped_ends_at_its_next_step() -> None:
    reached = []

    def work(one: BoardRun) -> None:
        with one.step("connect"), contextlib.suppress(StoppedWorkError):
            while True:
                one.check()
                time.sleep(0.01)
        with one.step("push"):
            reached.append("push")

    (result,) = run_tasks([work], timeout_s=0.2)
    assert reached == []
    assert [(step.name, step.outcome) for step in result.steps] == [
        ("connect", "passed"),
        ("push", "failed"),
    ]
    assert result.error is not None
    assert (result.error.exit_code, result.error.message) == (46, "0 takes longer than 0.2 s")
