# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Logging in to a real OpenSSH server and a real dropbear: keys, passphrases, passwords, agents."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ssh_servers import KINDS, PASSWORD, NewKey, Server, says

from colibri_deploy.errors import AuthenticationError
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.process import run
from colibri_deploy.ssh import Connection
from colibri_deploy.ssh_login import Secrets

pytestmark = pytest.mark.usefixtures("client_home")

NewServer = Callable[..., Server]
Known = Callable[..., KnownHosts]

both = pytest.mark.parametrize("kind", KINDS)


def answers(wanted: dict[str, str]) -> tuple[Secrets, list[str]]:
    """Secrets that know these answers, and what they were asked."""
    asked: list[str] = []

    def ask(question: str) -> str | None:
        asked.append(question)
        return wanted.get(question)

    return Secrets(ask), asked


@both
@pytest.mark.parametrize("key_type", ["ed25519", "ecdsa", "rsa"])
def test_a_key_of_each_type_logs_in_from_its_file_and_from_the_agent(
    kind: str,
    key_type: str,
    ssh_server: NewServer,
    known_hosts: Known,
    new_key: NewKey,
    ssh_agent: Callable[..., None],
) -> None:
    board = ssh_server(kind)
    key, other = new_key("key", key_type), new_key("other")
    board.lets_in(key)
    hosts = known_hosts(board)
    with Connection.open(board.with_key(key), hosts) as connection:
        assert says(connection) == "hello\n"
    ssh_agent(other, key)
    with Connection.open(board.board, hosts) as connection:
        assert says(connection) == "hello\n"
    if key_type == "rsa" and kind == "openssh":
        assert "Accepted key RSA SHA256:" in board.log


@both
def test_a_wrong_key_is_refused_at_once(
    kind: str, ssh_server: NewServer, known_hosts: Known, new_key: NewKey
) -> None:
    """However long one would be ready to try again."""
    options = ["PasswordAuthentication no"] if kind == "openssh" else ["-s"]
    board = ssh_server(kind, *options)
    board.lets_in(new_key("right"))
    wrong = new_key("wrong")
    started = time.monotonic()
    with pytest.raises(AuthenticationError) as caught:
        Connection.open(board.with_key(wrong), known_hosts(board), patience_s=1000)
    assert time.monotonic() - started < 500
    assert caught.value.message == (
        f"{kind} does not let {board.user!r} in with {wrong}: "
        "install your key there with ssh-copy-id, or name another with --key"
    )


@both
def test_a_password_is_asked_for_where_no_key_fits(
    kind: str, ssh_server: NewServer, known_hosts: Known, new_key: NewKey
) -> None:
    board = ssh_server(kind)
    hosts = known_hosts(board)
    key = new_key("key")
    question = f"password of {board.user} on {kind}"
    secrets, asked = answers({question: PASSWORD})
    for place in (board.board, board.with_key(key)):
        with Connection.open(place, hosts, secrets) as connection:
            assert says(connection) == "hello\n"
    assert asked == [question]  # once
    told = pickle.loads(pickle.dumps(secrets))  # as a worker process gets it
    with Connection.open(board.board, hosts, told) as connection:
        assert says(connection) == "hello\n"
    with pytest.raises(AuthenticationError) as caught:
        Connection.open(board.board, hosts, answers({question: "wrong"})[0])
    assert caught.value.message == f"{kind} does not take this password of {board.user!r}"
    with pytest.raises(AuthenticationError) as caught:
        Connection.open(board.with_key(key), hosts)
    assert caught.value.message == (
        f"{kind} does not let {board.user!r} in with {key}: install your key there with "
        "ssh-copy-id, or name another with --key, answer the prompt in a terminal, or use "
        "--password-fd"
    )


@both
def test_a_passphrase_is_asked_for_and_never_sent(
    kind: str,
    ssh_server: NewServer,
    known_hosts: Known,
    new_key: NewKey,
    ssh_agent: Callable[..., None],
) -> None:
    """The passphrase of one key is the password there: only by sending it one would get in."""
    board = ssh_server(kind)
    hosts = known_hosts(board)
    right, stray = new_key("right", passphrase="opens"), new_key("stray", passphrase=PASSWORD)
    board.lets_in(right)
    secrets, asked = answers({f"passphrase of {right}": "opens"})
    with Connection.open(board.with_key(right), hosts, secrets) as connection:
        assert says(connection) == "hello\n"
    assert asked == [f"passphrase of {right}"]
    with pytest.raises(AuthenticationError, match=r"^this is not the passphrase of "):
        Connection.open(board.with_key(right), hosts, Secrets(lambda wanted: "wrong"))
    with pytest.raises(AuthenticationError, match=f"does not let .* in with {stray}: "):
        Connection.open(board.with_key(stray), hosts, Secrets(lambda wanted: PASSWORD))


def test_a_locked_key_that_the_agent_holds_needs_no_passphrase(
    ssh_server: NewServer,
    known_hosts: Known,
    new_key: NewKey,
    ssh_agent: Callable[..., None],
    client_home: Path,
) -> None:
    board = ssh_server("openssh")
    key = new_key("key")
    board.lets_in(key)
    ssh_agent(new_key("other"), key)
    run(["ssh-keygen", "-q", "-p", "-N", "passphrase", "-f", key])
    secrets, asked = answers({})
    with Connection.open(board.with_key(key), known_hosts(board), secrets) as connection:
        assert says(connection) == "hello\n"
    assert asked == []
    assert board.log.count("Failed publickey") == 0  # the other key was not offered


@both
def test_a_key_that_is_named_is_the_only_one_to_be_tried(
    kind: str,
    ssh_server: NewServer,
    known_hosts: Known,
    new_key: NewKey,
    ssh_agent: Callable[..., None],
    client_home: Path,
) -> None:
    board = ssh_server(kind)
    right, wrong = new_key("right"), new_key("wrong")
    board.lets_in(right)
    ssh_agent(right)
    hosts = known_hosts(board)
    with Connection.open(board.board, hosts) as connection:
        assert says(connection) == "hello\n"
    with pytest.raises(AuthenticationError, match=f" in with {wrong}: "):
        Connection.open(board.with_key(wrong), hosts)
    config = client_home / ".ssh" / "config"
    config.write_text(f"Host *\n  IdentityFile {wrong}\n")
    with Connection.open(board.board, hosts) as connection:
        assert says(connection) == "hello\n"
    config.write_text(f"Host *\n  IdentityFile {wrong}\n  IdentitiesOnly yes\n")
    with pytest.raises(AuthenticationError, match=f" in with {wrong}: "):
        Connection.open(board.board, hosts)


def test_a_key_and_a_password_where_the_server_wants_both(
    ssh_server: NewServer, known_hosts: Known, new_key: NewKey
) -> None:
    board = ssh_server("openssh", "AuthenticationMethods publickey,password")
    key = new_key("key")
    board.lets_in(key)
    secrets = Secrets(lambda wanted: PASSWORD)
    with Connection.open(board.with_key(key), known_hosts(board), secrets) as connection:
        assert says(connection) == "hello\n"


CLIENT = """
import sys
from colibri_deploy.cli.passwords import secrets_from
secrets = secrets_from(int(sys.argv[1]) if sys.argv[1:] else None)
sys.stdout.write(f"<{secrets.get('password of user on desk')}>")
"""


def test_an_agent_that_tells_nothing_holds_no_keys(
    ssh_server: NewServer,
    known_hosts: Known,
    new_key: NewKey,
    client_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    board = ssh_server("openssh")
    key = new_key("key")
    board.lets_in(key)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(client_home / "agent"))
        stranger.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(client_home / "agent"))

        def fail() -> None:
            with stranger.accept()[0] as client:
                client.recv(5)
                client.sendall(b"\0\0\0\1\5")  # SSH_AGENT_FAILURE

        threading.Thread(target=fail).start()
        with Connection.open(board.with_key(key), known_hosts(board)) as connection:
            assert says(connection) == "hello\n"
    with Connection.open(board.with_key(key), known_hosts(board)) as connection:  # it is gone
        assert says(connection) == "hello\n"


def test_a_password_comes_from_a_file_descriptor() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"correct horse \nnot this\n")
    os.close(writer)
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, str(reader)],
        pass_fds=[reader],
        capture_output=True,
        check=True,
    )
    os.close(reader)
    assert done.stdout == b"<correct horse >"


def test_a_password_comes_from_a_terminal_without_an_echo() -> None:
    ours, theirs = os.openpty()
    words = [sys.executable, "-c", CLIENT]
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", *words],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as child:
        os.close(theirs)
        shown = b""
        while b"password of user on desk: " not in shown:
            shown += os.read(ours, 1000)
        os.write(ours, b"correct horse\n")
        assert child.stdout is not None
        assert child.stdout.read() == b"<correct horse>"
    shown += os.read(ours, 1000)
    assert b"horse" not in shown
    os.close(ours)


def test_nobody_is_asked_where_there_is_no_terminal() -> None:
    assert run([sys.executable, "-c", CLIENT]).stdout == "<None>"
