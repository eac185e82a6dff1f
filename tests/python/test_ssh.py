# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Connections to boards: host keys, logins, and what a user is told when there is none."""

from __future__ import annotations

import shlex
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from board_fixtures import Place
from loopback import free_port

from colibri_deploy import ssh
from colibri_deploy.board import parse_address
from colibri_deploy.errors import BoardConnectionError
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.process import Completed, run
from colibri_deploy.ssh import Connection

Deploy = Callable[..., Completed]


def fingerprint(key: Path) -> str:
    """What ssh-keygen says of a key."""
    return run(["ssh-keygen", "-lf", key]).stdout.split()[1]


def option(place: Place, name: str) -> str:
    """The value that the place's arguments give to an option."""
    value = place.arguments[place.arguments.index(name) + 1]
    assert isinstance(value, str)
    return value


def without(place: Place, name: str) -> list[str]:
    """The place's arguments without an option."""
    at = place.arguments.index(name)
    return [*place.arguments[:at], *place.arguments[at + 2 :]]


def test_an_unknown_host_key_is_refused_with_the_command_that_accepts_it(
    sshd: Callable[..., Place], deploy: Deploy, tmp_path: Path
) -> None:
    place = sshd("desk-orin")
    known = tmp_path / "known_hosts"
    line = known.read_text()
    known.unlink()
    shown = fingerprint(tmp_path / "sshd" / "host.pub")
    refused = deploy("push", *place.arguments)
    assert refused.status == 30
    first, *others = refused.stderr.splitlines()
    assert first == (
        f"error: the host key of desk-orin, ssh-ed25519 {shown}, is not in {tmp_path}/known_hosts"
    )
    assert others[0] == "compare it with what the board itself says:"
    assert not place.root.exists()
    wrong = deploy("push", *place.arguments, "--accept-host-key", "SHA256:wrong")
    assert wrong.status == 30
    assert not known.exists()
    program, *command = shlex.split(others[-1])
    assert program == "colibri-deploy"
    assert wrong.stderr.splitlines()[-1] == others[-1]
    done = deploy(*command)
    assert done.status == 0, done.stderr
    words = line.split()
    assert known.read_text().split() == words[:3]
    assert deploy("push", *place.arguments).status == 0


def test_a_changed_host_key_is_refused_with_both_fingerprints(
    sshd: Callable[..., Place], deploy: Deploy, new_key: Callable[..., Path], tmp_path: Path
) -> None:
    place = sshd("desk-orin")
    shown = fingerprint(tmp_path / "sshd" / "host.pub")
    old = new_key("old")
    known = tmp_path / "known_hosts"
    name, *_ = known.read_text().split()
    known.write_text(f"{name} {old.with_suffix('.pub').read_text()}")
    before = known.read_text()
    for more in ((), ("--accept-host-key", shown)):
        done = deploy("push", *place.arguments, *more)
        assert done.status == 31
        assert done.stderr == (
            f"error: the host key of desk-orin has changed: it shows ssh-ed25519 {shown}, line 1 "
            f"of {known} has ssh-ed25519 {fingerprint(old)}; if the board was installed anew, "
            "remove that line, otherwise somebody else answers\n"
        )
    assert known.read_text() == before
    assert not place.root.exists()


def test_the_host_key_of_an_emulated_board_is_checked_too(
    sim: Callable[..., Place], deploy: Deploy, tmp_path: Path
) -> None:
    place = sim()
    (tmp_path / "empty").touch()
    assert deploy("push", *place.arguments, "--known-hosts", tmp_path / "empty").status == 30


def test_the_known_type_of_key_is_asked_for(
    sshd: Callable[..., Place], deploy: Deploy, tmp_path: Path
) -> None:
    """The server has an ECDSA key, too; only that one is known."""
    run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", tmp_path / "second"])
    place = sshd("desk-orin", host_keys=(tmp_path / "second",))
    known = tmp_path / "known_hosts"
    name, *_ = known.read_text().split()
    known.write_text(f"{name} {(tmp_path / 'second.pub').read_text()}")
    assert deploy("push", *place.arguments).status == 0


def test_a_board_that_is_not_there(deploy: Deploy) -> None:
    port = free_port()
    done = deploy("push", "--host", f"user@127.0.0.1:{port}", "--target", "host")
    assert done.status == 29
    assert done.stderr == (
        f"error: user@127.0.0.1:{port} cannot be reached at port {port}: Connection refused\n"
    )
    done = deploy("smoke", "--host", "user@board.invalid", "--target", "host")
    assert done.status == 29
    assert done.stderr.startswith("error: user@board.invalid: no address is known for board.invali")
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_does_not_speak_ssh(
    silent_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ssh, "CONNECT_SECONDS", 0.3)
    board = parse_address(f"user@127.0.0.1:{silent_port}")
    with pytest.raises(BoardConnectionError) as caught:
        Connection.open(board, KnownHosts(tmp_path / "known_hosts"))
    assert caught.value.message == (
        f"no SSH connection to {board.name}: nothing speaks SSH there within 0.3 s"
    )


def test_a_key_that_the_board_does_not_know(
    sim: Callable[..., Place], deploy: Deploy, new_key: Callable[..., Path]
) -> None:
    place = sim()
    other = new_key("other")
    done = deploy("push", *place.arguments, "--key", other)
    assert done.status == 32
    assert done.stderr == (
        f"error: {option(place, '--host')} does not let 'colibri' in with {other}: "
        "install your key there with ssh-copy-id, or name another with --key\n"
    )


def test_no_key_at_all(sim: Callable[..., Place], deploy: Deploy) -> None:
    place = sim()
    done = deploy("push", *without(place, "--key"))
    assert done.status == 32
    assert done.stderr == (
        f"error: no key to log in to {option(place, '--host')}: name one with --key, load one into "
        "the agent with ssh-add, or make ~/.ssh/id_ed25519 with ssh-keygen\n"
    )


def test_a_key_that_is_missing_or_locked(
    sim: Callable[..., Place], deploy: Deploy, new_key: Callable[..., Path], tmp_path: Path
) -> None:
    place = sim()
    done = deploy("push", *place.arguments, "--key", tmp_path / "none")
    assert done.status == 3
    assert done.stderr == (
        f"error: the key {tmp_path}/none cannot be read: No such file or directory\n"
    )
    locked = new_key("locked", passphrase="a passphrase")
    done = deploy("push", *place.arguments, "--key", locked)
    assert done.status == 32
    assert done.stderr == (
        f"error: a passphrase protects the key {locked}: load it into the agent with ssh-add, "
        "answer the prompt in a terminal, or use --password-fd\n"
    )


def test_the_default_key_is_used(sim: Callable[..., Place], deploy: Deploy, tmp_path: Path) -> None:
    place = sim()
    (tmp_path / ".ssh").mkdir()
    shutil.copy(option(place, "--key"), tmp_path / ".ssh" / "id_ed25519")
    done = deploy("push", *without(place, "--key"))
    assert done.status == 0, done.stderr


def test_the_agents_keys_are_used(
    sim: Callable[..., Place],
    deploy: Deploy,
    new_key: Callable[..., Path],
    require_program: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    place = sim()
    agent = tmp_path / "agent"
    words = run([require_program("ssh-agent"), "-a", agent]).stdout
    process = words.partition("SSH_AGENT_PID=")[2].partition(";")[0]
    try:
        env = {"SSH_AUTH_SOCK": str(agent)}
        run(["ssh-add", "-q", new_key("other")], env=env)
        done = deploy("push", *without(place, "--key"), **env)
        assert done.status == 32
        assert "does not let 'colibri' in with the agent's key other: " in done.stderr
        run(["ssh-add", "-q", option(place, "--key")], env=env)
        done = deploy("push", *without(place, "--key"), **env)
        assert done.status == 0, done.stderr
    finally:
        run(["kill", process])


def test_a_board_that_takes_passwords_only(sshd: Callable[..., Place], deploy: Deploy) -> None:
    place = sshd("desk-orin", more="PubkeyAuthentication no\nPasswordAuthentication yes\n")
    done = deploy("push", *place.arguments)
    assert done.status == 32
    assert done.stderr.startswith("error: desk-orin takes no keys, only ")


def test_an_account_that_runs_no_commands(sshd: Callable[..., Place], deploy: Deploy) -> None:
    place = sshd("desk-orin", "echo This account is not available.; exit 1")
    done = deploy("push", *place.arguments)
    assert done.status == 34
    first, second = done.stderr.splitlines()
    assert first.startswith("error: desk-orin runs no commands for ")
    assert second == "This account is not available."
