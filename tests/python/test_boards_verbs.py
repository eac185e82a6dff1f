# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`boards` as a user meets it: real servers, whose boards are planted trees."""

from __future__ import annotations

import functools
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from board_fixtures import Place, report_of
from ssh_servers import KINDS, NewKey, Server

from colibri_deploy.process import Completed, run

Boards = Callable[..., Completed]


@pytest.fixture
def boards(at_home: Callable[..., Completed]) -> Boards:
    """`boards(*words)` runs `colibri-deploy boards` in the client's home directory, any status."""
    return functools.partial(at_home, "boards")


@pytest.fixture
def fingerprint(tmp_path: Path) -> Callable[[Server], str]:
    """The fingerprint of a server's host key, by ssh-keygen."""

    def of(server: Server) -> str:
        path = tmp_path / "host key"
        path.write_text(server.public_key)
        return run(["ssh-keygen", "-lf", path]).stdout.split()[1]

    return of


def address(server: Server) -> str:
    """What to type."""
    return f"{server.user}@127.0.0.1:{server.port}"


def entry(server: Server, name: str, target: str, key: str, more: str = "") -> str:
    """What is to stand in boards.yaml."""
    return (
        f"  {name}:\n    target: {target}\n    host: 127.0.0.1\n    user: {server.user}\n"
        f"    port: {server.port}\n    key: {key}\n{more}"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_board_is_added_once_its_host_key_is_accepted(
    kind: str,
    boards: Boards,
    planted_server: Callable[..., Server],
    fingerprint: Callable[[Server], str],
    client_home: Path,
    tmp_path: Path,
) -> None:
    server = planted_server(kind, "pi5")
    shown = fingerprint(server)
    file = client_home / ".config" / "colibri" / "boards.yaml"
    words = ("add", "desk-pi", address(server), "--key", tmp_path / "key", "--tag", "lab")

    for accept in ((), ("--accept-host-key", "SHA256:other")):
        done = boards(*words, *accept)
        assert (done.status, done.stdout) == (30, "")
        assert f"error: the host key of desk-pi, ssh-ed25519 {shown}, is not in" in done.stderr
        command = done.stderr.splitlines()[-1]
        assert command.endswith(f"--key {tmp_path}/key --tag lab --accept-host-key {shown}")
        assert not file.exists()

    done = boards(*words, "--accept-host-key", shown, "--dry-run")
    assert done.status == 0
    assert f"dry run, this would be added to {file}:" in done.stdout
    assert not file.exists()

    done = boards(*words)
    assert (done.status, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"desk-pi ({address(server)}) shows the host key ssh-ed25519 {shown}"
    rows = [" ".join(line.split()) for line in lines]
    for row in (
        "model Raspberry Pi 5 Model B Rev 1.0",
        "target rpi5: Raspberry Pi 5",
        "CPU 4 x Cortex-A76",
        "RAM 7.9 GiB",
        "page size 16384 bytes",
        "kernel 6.12.25+rpt-rpi-2712",
    ):
        assert row in rows
    written = entry(server, "desk-pi", "rpi5", f"{tmp_path}/key", "    tags: [lab]\n")
    assert file.read_text() == f"boards:\n{written}"
    assert done.stdout.endswith(f"this was added to {file}:\n{written}")

    done = boards("check")
    assert (done.status, done.stderr) == (0, "")
    findings = [line.split() for line in done.stdout.splitlines() if "desk-pi" in line]
    assert len(findings) == 6
    assert all("ok" in finding for finding in findings)

    done = boards(*words)
    assert done.status == 27
    assert "has a board desk-pi already" in done.stderr


def test_what_is_added_as_json_and_to_which_file(
    boards: Boards,
    planted_server: Callable[..., Server],
    fingerprint: Callable[[Server], str],
    client_home: Path,
    new_key: NewKey,
    tmp_path: Path,
) -> None:
    server = planted_server("openssh", "visionfive2")
    behind = planted_server("dropbear", "pi4")
    known = (server.known_hosts_line, behind.known_hosts_line)
    (client_home / ".ssh" / "known_hosts").write_text("".join(known))
    key = new_key("client/mine")
    server.lets_in(key)
    behind.lets_in(key)
    words = ("add", "--json", "--key", "mine", "--file", "project")
    done = boards(*words, "a", address(server), "--dry-run")
    record = json.loads(done.stdout)
    assert record["written"] is False
    assert record["host_key"] == f"ssh-ed25519 {fingerprint(server)}"
    assert (record["entry"]["target"], record["facts"]["arch"]) == ("visionfive2", "riscv64")
    assert {finding["verdict"] for finding in record["findings"]} == {"ok"}
    file = client_home / "boards.yaml"
    assert not file.exists()
    assert boards(*words, "a", address(server)).status == 0
    assert boards("add", "b", address(behind), "--key", "mine", "--jump", "a").status == 0
    assert file.read_text() == (
        "boards:\n"
        + entry(server, "a", "visionfive2", "~/mine")
        + entry(behind, "b", "rpi4", "~/mine", "    jump: a\n")
    )
    assert boards("add", "c", address(server), "--jump", "d").status == 28
    assert not (client_home / ".config").exists()


def answer_at_terminal(command: list[str], answer: str, home: Path) -> tuple[int, str]:
    """Runs a command at a terminal, where a person types `answer`; its status and what it shows."""
    near, far = pty.openpty()
    env = {**os.environ, "XDG_CONFIG_HOME": ""}
    child = subprocess.Popen(command, stdin=far, stdout=far, stderr=far, cwd=home, env=env)
    os.close(far)
    shown = ""
    try:
        while data := os.read(near, 4096):
            shown += data.decode()
            if shown.endswith("[y/N]: "):
                os.write(near, answer.encode())
    except OSError:  # how a terminal ends
        pass
    os.close(near)
    return child.wait(), shown


def test_a_person_at_a_terminal_is_asked(
    planted_server: Callable[..., Server],
    fingerprint: Callable[[Server], str],
    client_home: Path,
    tmp_path: Path,
) -> None:
    server = planted_server("openssh", "pi4")
    command = [sys.executable, "-m", "colibri_deploy", "boards", "add", "pi", address(server)]
    command += ["--key", str(tmp_path / "key")]
    for answer in ("\n", "n\n", "\x04"):
        status, shown = answer_at_terminal(command, answer, client_home)
        assert status == 1
        assert fingerprint(server) in shown
        assert not (client_home / ".ssh" / "known_hosts").exists()
    status, shown = answer_at_terminal(command, "y\n", client_home)
    assert status == 0
    assert (client_home / ".ssh" / "known_hosts").read_text() == server.known_hosts_line
    assert (client_home / ".config/colibri/boards.yaml").is_file()


def test_a_board_that_could_be_several_targets_is_not_guessed(
    boards: Boards, planted_server: Callable[..., Server], client_home: Path, tmp_path: Path
) -> None:
    server = planted_server("openssh", "a K1 with the vendor's kernel")
    (client_home / ".ssh" / "known_hosts").write_text(server.known_hosts_line)
    words = ("add", "k1", address(server), "--key", tmp_path / "key")
    done = boards(*words)
    assert (done.status, done.stdout) == (28, "")
    assert done.stderr == (
        "error: k1 says that it is riscv64, spacemit k1-x deb1 board, spacemit,k1-x: "
        "bpi-f3 or milkv-jupiter; name one with --target\n"
    )
    done = boards(*words, "--target", "rpi5")
    assert (done.status, done.stdout) == (33, "")
    assert done.stderr == "error: k1 is riscv64, and rpi5 is aarch64\n"
    assert boards(*words, "--target", "rpi-5").status == 20
    done = boards(*words, "--target", "milkv-jupiter")
    assert done.status == 0
    assert "\nnote: ISA level: /proc/cpuinfo cannot tell; smoke does\n" in done.stdout
    assert "    target: milkv-jupiter\n" in done.stdout


def test_a_board_without_a_shell_is_not_added(
    boards: Boards, ssh_server: Callable[..., Server], client_home: Path, new_key: NewKey
) -> None:
    server = ssh_server("openssh", "ForceCommand echo This account is closed")
    server.lets_in(new_key("key"))
    (client_home / ".ssh" / "known_hosts").write_text(server.known_hosts_line)
    done = boards("add", "desk", address(server), "--key", client_home.parent / "key")
    assert (done.status, done.stdout) == (34, "")
    assert done.stderr == (
        "error: desk does not run a shell script to its end\nThis account is closed\n"
    )


RACK = """\
# Ours.
boards:
  pi-1: {target: rpi5, host: 127.0.0.1, user: USER, port: PORT, key: KEY, tags: [lab]}
  # not there any more
  pi-2:
    target: rpi4
    host: 127.0.0.1
    port: 1
    tags: [lab, old]
    workdir: /data/colibri
    limits: {threads: 2, push_mb_per_s: 0.5}
  orin:
    target: jetson-orin
    host: 192.0.2.10
    user: nvidia
    jump: [gate@gate.example, pi-2]
"""


@pytest.fixture
def rack(planted_server: Callable[..., Server], client_home: Path, tmp_path: Path) -> Path:
    """boards.yaml with three boards, of which pi-1 is there, and is a Raspberry Pi 4."""
    server = planted_server("dropbear", "pi4")
    (client_home / ".ssh" / "known_hosts").write_text(server.known_hosts_line)
    file = client_home / "boards.yaml"
    text = RACK.replace("USER", server.user).replace("PORT", str(server.port))
    file.write_text(text.replace("KEY", str(tmp_path / "key")))
    return file


def test_check_says_which_board_is_not_what_its_entry_says(boards: Boards, rack: Path) -> None:
    done = boards("check", "--tag", "lab")
    assert done.status == 41
    assert done.stderr == "error: 2 of 2 boards: pi-1, pi-2\n"
    rows = [" ".join(line.split()) for line in done.stdout.splitlines() if "wrong" in line]
    assert rows == [
        "pi-1 target wrong Raspberry Pi 4 Model B Rev 1.1 (raspberrypi,4-model-b): rpi4",
        "pi-1 ISA level wrong neon; the target expects neon_dotprod",
        "pi-2 answer wrong pi-2 cannot be reached at port 1: Connection refused",
    ]
    done = boards("check", "pi-*", "--json")
    first, second = json.loads(done.stdout)
    assert (first["board"], first["ok"], first["facts"]["isa"]) == ("pi-1", False, "neon")
    assert (second["board"], second["ok"], second["facts"]) == ("pi-2", False, None)
    rack.write_text(rack.read_text().replace("target: rpi5", "target: rpi4"))
    assert boards("check", "pi-1").status == 0


def test_check_says_how_to_accept_an_unknown_host_key(
    boards: Boards, rack: Path, client_home: Path
) -> None:
    (client_home / ".ssh" / "known_hosts").unlink()
    done = boards("check", "pi-1")
    assert done.status == 41
    assert "colibri-deploy boards check pi-1 --accept-host-key SHA256:" in done.stderr


def test_an_emulated_board_does_not_speak_for_this_machine(
    boards: Boards, require_program: Callable[[str], Path]
) -> None:
    require_program("qemu-riscv64-static")
    done = boards("check", "sim:bpi-f3", "--json")
    assert done.status == 0
    (board,) = json.loads(done.stdout)
    facts = board["facts"]
    assert (facts["arch"], facts["isa"], facts["cpu"]) == ("riscv64", None, None)
    assert (facts["ram_bytes"], facts["model"]) == (None, None)
    assert {"what": "target", "verdict": "ok", "detail": "emulated"} in board["findings"]


def test_list_and_show(boards: Boards, rack: Path, client_home: Path) -> None:
    rows = [line.split() for line in boards("list").stdout.splitlines() if line.strip()]
    assert [row[0] for row in rows[2:]] == ["orin", "pi-1", "pi-2"]
    assert rows[2] == [
        "orin", "jetson-orin", "nvidia@192.0.2.10", "gate@gate.example,", "pi-2", "-",
        "boards.yaml",
    ]  # fmt: skip
    (orin,) = json.loads(boards("list", "or*", "--json").stdout)
    assert orin == {
        "name": "orin",
        "target": "jetson-orin",
        "address": "nvidia@192.0.2.10",
        "host": "192.0.2.10",
        "user": "nvidia",
        "port": None,
        "key": None,
        "workdir": ".local/share/colibri",
        "jump": ["gate@gate.example", "127.0.0.1:1"],
        "tags": [],
        "limits": {},
        "file": "boards.yaml",
    }
    assert [one["name"] for one in json.loads(boards("list", "--tag", "old", "--json").stdout)] == [
        "pi-2"
    ]
    done = boards("list", "x*")
    assert done.status == 28
    shown = boards("show", "pi-2").stdout
    for words in ("/data/colibri", "lab old", "rpi4: Raspberry Pi 4", "Needs a 64-bit system"):
        assert words in shown
    assert "threads 2, push_mb_per_s 0.5" in shown
    record = json.loads(boards("show", "pi-2", "--json").stdout)
    assert (record["workdir"], record["facts"]["arch"]) == ("/data/colibri", "aarch64")
    assert record["limits"] == {"threads": 2, "push_mb_per_s": 0.5}
    assert boards("show", "pi-3").status == 28
    rack.unlink()
    empty = f"no boards yet in boards.yaml or {client_home}/.config/colibri/boards.yaml"
    assert boards("list").stdout.startswith(empty)
    assert json.loads(boards("list", "--json").stdout) == []


def test_the_limits_of_a_board_hold(
    sshd: Callable[..., Place],
    deploy: Callable[..., Completed],
    small_model: Path,
    tmp_path: Path,
) -> None:
    desk = sshd("desk")
    threads = (os.cpu_count() or 1) + 1  # never the default
    with (tmp_path / "boards.yaml").open("a") as file:
        file.write(f"    limits: {{threads: {threads}, push_mb_per_s: 0.5}}\n")
    words = (*desk.arguments, "--model", small_model, "--num-tokens", "3", "--json")
    pushed = report_of(deploy("push", *desk.arguments, "--model", small_model, "--json"), "push")
    assert pushed["bytes_sent"] > 1_000_000
    assert pushed["seconds"] > pushed["bytes_sent"] / 0.5e6
    smoke = report_of(deploy("smoke", *words), "smoke")
    assert (smoke["ok"], smoke["generated"]["threads"]) == (True, threads)


def test_remove_takes_one_entry_out(boards: Boards, rack: Path) -> None:
    before = rack.read_text()
    done = boards("remove", "pi-1")
    assert (done.status, done.stdout) == (0, "removed pi-1 from boards.yaml\n")
    assert rack.read_text() == "".join(
        line for line in before.splitlines(keepends=True) if "pi-1:" not in line
    )
    done = boards("remove", "pi-2")
    assert done.status == 0
    assert boards("list").status == 27  # orin goes through it
    assert boards("remove", "pi-1").status == 27


def test_names_and_tags_complete(boards: Boards, rack: Path) -> None:
    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": f"colibri-deploy {line}", "COMP_CWORD": str(len(line.split()))}
        done = boards(_COLIBRI_DEPLOY_COMPLETE="bash_complete", **words)
        return [one.partition(",")[2] for one in done.stdout.splitlines()]

    assert completed("boards show pi") == ["pi-1", "pi-2"]
    assert completed("boards check sim:rpi-") == ["sim:rpi-cm4"]
    assert completed("push --tag o") == ["old"]
    assert completed("boards re") == ["remove"]
    assert completed("bench --isa neon_") == ["neon_dotprod", "neon_i8mm"]


def test_a_verb_for_one_board_refuses_several(rack: Path, client_home: Path) -> None:
    command = [sys.executable, "-m", "colibri_deploy", "rollback"]
    for words in (["--board", "pi-*"], ["--board", "pi-1", "--board", "pi-2"], ["--tag", "lab"]):
        done = run([*command, *words], cwd=client_home, check=False)
        assert done.status == 2
        assert "rollback takes one board, and these match: pi-1, pi-2" in done.stderr
