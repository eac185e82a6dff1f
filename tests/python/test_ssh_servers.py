# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Connections to a real OpenSSH server and a real dropbear, and through the one to the other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from board_fixtures import Place
from loopback import free_port, wait_until
from ssh_servers import KINDS, NewKey, Server, says

from colibri_deploy import ssh, ssh_line
from colibri_deploy.board import Board, parse_address
from colibri_deploy.board_shell import BoardShell
from colibri_deploy.errors import (
    BoardConnectionError,
    ChangedHostKeyError,
    ConnectionLostError,
    UnknownHostKeyError,
)
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.ssh import Connection

pytestmark = pytest.mark.usefixtures("client_home")

NewServer = Callable[..., Server]
Known = Callable[..., KnownHosts]

both = pytest.mark.parametrize("kind", KINDS)


def pending_login(port: int) -> socket.socket:
    """A connection on which the server waits for a login."""
    taken: list[socket.socket] = []

    def is_let_in() -> bool:  # it may not have noticed yet that the one before has gone
        sock = socket.create_connection(("127.0.0.1", port))
        if sock.recv(4) == b"SSH-":
            taken.append(sock)
        else:
            sock.close()
        return bool(taken)

    wait_until(is_let_in, "the server lets nobody begin to log in")
    return taken[0]


@both
def test_a_login_name_and_a_path_with_spaces_and_quotes(
    kind: str, ssh_server: NewServer, known_hosts: Known, new_key: NewKey
) -> None:
    board = ssh_server(kind, user="""o'b "x" $(id) &""")
    key = new_key("a 'key'; \"$HOME\"")
    board.lets_in(key)
    workdir = board.home / """it's "a" $(reboot) `b`; *"""
    with Connection.open(
        replace(board.with_key(key), workdir=str(workdir)), known_hosts(board)
    ) as it:
        assert says(it, 'printf %s "$USER"') == """o'b "x" $(id) &"""
        assert ["root", *str(workdir).split(" ")] in BoardShell(it).call("probe")


@both
def test_noise_of_startup_files_is_dropped(
    kind: str, ssh_server: NewServer, known_hosts: Known, new_key: NewKey
) -> None:
    board = ssh_server(kind, shell="/bin/bash")
    noise = "echo Welcome; printf 'no newline'; echo careful >&2\n"
    for name in (".bashrc", ".profile"):
        (board.home / name).write_text(noise)
    key = new_key("key")
    board.lets_in(key)
    with Connection.open(board.with_key(key), known_hosts(board)) as connection:
        assert says(connection) == "Welcome\nno newlinehello\n"
        probed = BoardShell(connection).attempt("probe")
        assert probed.status == 0
        assert b"machine " in probed.stdout
        assert b"elcome" not in probed.stdout + probed.stderr
        assert b"careful" not in probed.stderr


@both
def test_a_board_whose_shell_is_busybox(
    kind: str,
    ssh_server: NewServer,
    known_hosts: Known,
    new_key: NewKey,
    require_program: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    ash = tmp_path / "ash"
    ash.symlink_to(require_program("busybox"))
    if kind == "openssh":
        board = ssh_server(kind, shell=str(ash))
    else:  # which knows the shells of this machine only
        board = ssh_server(kind, "-c", f'exec {ash} -c "$SSH_ORIGINAL_COMMAND"')
    key = new_key("key")
    board.lets_in(key)
    with Connection.open(board.with_key(key), known_hosts(board)) as connection:
        assert says(connection, "readlink /proc/$$/exe") == f"{ash.resolve()}\n"
        assert BoardShell(connection).attempt("probe").status == 0


WAYS = [("openssh", "dropbear"), ("dropbear", "openssh")]


@pytest.mark.parametrize(("outer_kind", "inner_kind"), WAYS)
def test_every_hop_is_checked(
    outer_kind: str,
    inner_kind: str,
    ssh_server: NewServer,
    known_hosts: Known,
    new_key: NewKey,
    tmp_path: Path,
) -> None:
    outer, inner = ssh_server(outer_kind), ssh_server(inner_kind)
    key = new_key("key")
    outer.lets_in(key)
    inner.lets_in(key)
    board = replace(inner.with_key(key), jump=(outer.with_key(key),))
    hosts = known_hosts(outer, inner)
    with Connection.open(board, hosts) as connection:
        assert says(connection, 'printf %s "$HOME"') == str(inner.home)

    logins = inner.log.count("ucceeded for") + inner.log.count("Accepted ")
    with pytest.raises(UnknownHostKeyError) as caught:
        Connection.open(board, known_hosts(outer), patience_s=60)
    assert caught.value.message.startswith(f"the host key of {inner_kind}, ssh-ed25519 SHA256:")
    with pytest.raises(UnknownHostKeyError) as caught:
        Connection.open(board, known_hosts(inner), patience_s=60)
    assert caught.value.message.startswith(f"the host key of {outer_kind}, ssh-ed25519 SHA256:")
    (tmp_path / "known_hosts").write_text(
        f"[127.0.0.1]:{inner.port} {outer.public_key}\n{outer.known_hosts_line}"
    )
    with pytest.raises(ChangedHostKeyError):
        Connection.open(board, hosts)
    assert inner.log.count("ucceeded for") + inner.log.count("Accepted ") == logins > 0


@pytest.mark.parametrize(
    ("kind", "option"), [("openssh", "AllowTcpForwarding no"), ("dropbear", "-j")]
)
def test_a_hop_that_forwards_nothing_is_named(
    kind: str, option: str, ssh_server: NewServer, known_hosts: Known, new_key: NewKey
) -> None:
    outer = ssh_server(kind, option)
    key = new_key("key")
    outer.lets_in(key)
    board = Board("inner", "192.0.2.10", "user", 22, jump=(outer.with_key(key),))
    with pytest.raises(BoardConnectionError) as caught:
        Connection.open(board, known_hosts(outer), patience_s=60)
    assert caught.value.message == (
        f"{kind} does not let us through to inner at 192.0.2.10 port 22: it needs "
        "AllowTcpForwarding yes (OpenSSH), or dropbear without -j"
    )


@both
def test_a_hop_that_cannot_reach_the_board_is_named(
    kind: str, ssh_server: NewServer, known_hosts: Known, new_key: NewKey
) -> None:
    outer = ssh_server(kind)
    key = new_key("key")
    outer.lets_in(key)
    port = free_port()
    board = Board("inner", "127.0.0.1", "user", port, jump=(outer.with_key(key),))
    with pytest.raises(ConnectionLostError) as caught:
        Connection.open(board, known_hosts(outer))
    expected = f"{kind} cannot reach inner at 127.0.0.1 port {port}: "
    assert caught.value.message.startswith(expected)


@both
def test_a_revoked_host_key_is_refused(
    kind: str, ssh_server: NewServer, known_hosts: Known, new_key: NewKey, tmp_path: Path
) -> None:
    board = ssh_server(kind)
    key = new_key("key")
    board.lets_in(key)
    hosts = known_hosts(board)
    (tmp_path / "known_hosts").write_text(
        f"{board.known_hosts_line}@revoked * {board.public_key}\n"
    )
    with pytest.raises(ChangedHostKeyError, match="is revoked in line 2 of"):
        Connection.open(board.with_key(key), hosts, patience_s=60)


@both
def test_a_connection_that_was_cut_is_made_anew(
    kind: str, ssh_server: NewServer, known_hosts: Known, new_key: NewKey
) -> None:
    board = ssh_server(kind)
    key = new_key("key")
    board.lets_in(key)
    with Connection.open(board.with_key(key), known_hosts(board)) as connection:
        with pytest.raises(ConnectionLostError, match=f"^lost the connection to {kind}"):
            connection.run("kill -9 $PPID; sleep 20", timeout_s=100)
        with pytest.raises(ConnectionLostError):
            says(connection)
        connection.reconnect()
        assert says(connection) == "hello\n"


@both
def test_a_board_that_is_starting_is_waited_for(
    kind: str, ssh_server: NewServer, known_hosts: Known, new_key: NewKey
) -> None:
    board = ssh_server(kind)
    key = new_key("key")
    board.lets_in(key)
    with Connection.open(board.with_key(key), known_hosts(board)) as connection:
        board.stop()
        with pytest.raises(ConnectionLostError) as caught:
            connection.reconnect(0.0)
        refused = f"{kind} cannot be reached at port {board.port}: Connection refused"
        assert caught.value.message == refused
        with pytest.raises(ConnectionLostError) as caught:
            connection.reconnect(1.0)
        assert caught.value.message.startswith(f"{refused} (tried ")
        assert caught.value.message.endswith(" times in 1 s)")
        later = threading.Timer(0.5, board.start)
        later.start()
        connection.reconnect(100.0)
        assert says(connection) == "hello\n"
        later.join()


@pytest.mark.parametrize(
    ("kind", "options", "pending"),
    [("openssh", ["MaxStartups 1:100:1"], 1), ("dropbear", [], 5)],  # dropbear: MAX_UNAUTH_PER_IP
)
def test_a_server_with_too_many_logins_under_way_is_tried_again(
    kind: str,
    options: list[str],
    pending: int,
    ssh_server: NewServer,
    known_hosts: Known,
    new_key: NewKey,
) -> None:
    board = ssh_server(kind, *options)
    key = new_key("key")
    board.lets_in(key)
    hosts = known_hosts(board)
    with ExitStack() as stack:
        for _ in range(pending):
            stack.enter_context(pending_login(board.port))
        with pytest.raises(ConnectionLostError, match=f"^no SSH connection to {kind}: "):
            Connection.open(board.with_key(key), hosts)
        later = threading.Timer(0.5, stack.close)
        later.start()
        with Connection.open(board.with_key(key), hosts, patience_s=100) as connection:
            assert says(connection) == "hello\n"
        later.join()


@both
def test_a_command_has_a_deadline_and_the_connection_stays(
    kind: str, ssh_server: NewServer, known_hosts: Known, new_key: NewKey
) -> None:
    board = ssh_server(kind)
    key = new_key("key")
    board.lets_in(key)
    with Connection.open(board.with_key(key), known_hosts(board)) as connection:
        started = time.monotonic()
        with pytest.raises(BoardConnectionError) as caught:
            connection.run("sleep 100", timeout_s=0.3)
        assert time.monotonic() - started < 90
        assert not isinstance(caught.value, ConnectionLostError)
        assert caught.value.message == (
            f"{kind} does not answer: a command takes longer than 0.3 s"
        )
        assert says(connection) == "hello\n"


@both
def test_a_board_that_takes_no_more_data_is_given_up(
    kind: str,
    ssh_server: NewServer,
    known_hosts: Known,
    new_key: NewKey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssh, "STALL_SECONDS", 0.5)
    board = ssh_server(kind)
    key = new_key("key")
    board.lets_in(key)
    with Connection.open(board.with_key(key), known_hosts(board)) as connection:
        with pytest.raises(ConnectionLostError) as caught:
            connection.run("exec sleep 20", iter([bytes(1 << 23)]), timeout_s=100)
        assert caught.value.message == f"{kind} has taken no more data for 0.5 s"


@both
def test_a_board_that_falls_silent_is_noticed_and_a_busy_one_is_not(
    kind: str,
    ssh_server: NewServer,
    known_hosts: Known,
    new_key: NewKey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ssh, "KEEPALIVE_SECONDS", 0.1)
    monkeypatch.setattr(ssh, "DEAD_SECONDS", 2.0)
    for module in (ssh, ssh_line):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    board = ssh_server(kind)
    key = new_key("key")
    board.lets_in(key)
    with Connection.open(board.with_key(key), known_hosts(board)) as connection:
        assert says(connection, "sleep 3.5; echo done") == "done\n"
        try:
            with pytest.raises(ConnectionLostError, match=f"^{kind} has been silent for 2 s: "):
                connection.run("echo $PPID >pid; kill -STOP $PPID; sleep 100", timeout_s=90)
        finally:
            os.kill(int((board.home / "pid").read_text()), signal.SIGKILL)


CLIENT = """
import os
from pathlib import Path
from colibri_deploy import ssh, ssh_line
from colibri_deploy.board import load_boards
from colibri_deploy.known_hosts import KnownHosts

ssh.KEEPALIVE_SECONDS = ssh.LOOK_SECONDS = ssh_line.LOOK_SECONDS = 0.1
ssh.DEAD_SECONDS = 2.0
board = load_boards([Path("boards.yaml")])["desk"]
with ssh.Connection.open(board, KnownHosts(Path("known_hosts"))) as connection:
    sinks = ssh.Sinks(lambda data: os.write(1, data), lambda data: os.write(2, data))
    connection.stream("echo $PPID; sleep 6; echo done", b"", sinks, timeout_s=100)
"""


def test_a_machine_that_stood_still_does_not_take_the_board_for_dead(
    sshd: Callable[..., Place], tmp_path: Path
) -> None:
    """Nor where the board needs a moment longer, as here, where it is on the same machine."""
    sshd("desk")
    command = [sys.executable, "-c", CLIENT]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        server = int(child.stdout.readline())
        for process in (server, child.pid):
            os.kill(process, signal.SIGSTOP)
        time.sleep(3.5)
        child.send_signal(signal.SIGCONT)
        time.sleep(0.2)
        os.kill(server, signal.SIGCONT)
        assert child.stdout.read() == b"done\n"
    assert child.returncode == 0


def test_a_server_that_knows_only_old_key_exchanges_is_named(
    ssh_server: NewServer, known_hosts: Known, new_key: NewKey
) -> None:
    board = ssh_server("openssh", "KexAlgorithms diffie-hellman-group14-sha1")
    with pytest.raises(BoardConnectionError) as caught:
        Connection.open(board.with_key(new_key("key")), known_hosts(board), patience_s=60)
    assert not isinstance(caught.value, ConnectionLostError)
    assert caught.value.message.startswith(
        "no SSH connection to openssh: it offers nothing that is"
    )


@both
def test_the_configuration_says_everything_in_a_file_that_it_includes(
    kind: str, ssh_server: NewServer, new_key: NewKey, client_home: Path
) -> None:
    board = ssh_server(kind)
    key = new_key("a key")
    board.lets_in(key)
    (client_home / ".ssh" / "config").write_text(f"Include {client_home}/.ssh/boards\n")
    (client_home / ".ssh" / "boards").write_text(
        f"Host desk-*\n  HostName 127.0.0.1\n  Port {board.port}\n  User {board.user}\n"
        f'  IdentityFile "{key}"\n  HostKeyAlias Desk\n  UserKnownHostsFile ~/.ssh/boards_known\n'
    )
    hosts = KnownHosts(None)
    with pytest.raises(UnknownHostKeyError, match=f"is not in {client_home}/.ssh/boards_known$"):
        Connection.open(parse_address("desk-orin"), hosts)
    (client_home / ".ssh" / "boards_known").write_text(f"desk {board.public_key}\n")
    with Connection.open(parse_address("desk-orin"), hosts) as connection:
        assert says(connection) == "hello\n"
        assert connection.user == board.user


@pytest.mark.parametrize(("outer_kind", "inner_kind"), WAYS)
def test_the_configuration_names_the_hop(
    outer_kind: str,
    inner_kind: str,
    ssh_server: NewServer,
    known_hosts: Known,
    new_key: NewKey,
    client_home: Path,
) -> None:
    outer, inner = ssh_server(outer_kind), ssh_server(inner_kind)
    key = new_key("key")
    outer.lets_in(key)
    inner.lets_in(key)
    (client_home / ".ssh" / "config").write_text(
        f"Host gate\n  HostName 127.0.0.1\n  Port {outer.port}\n"
        f"Host inner\n  HostName 127.0.0.1\n  Port {inner.port}\n  ProxyJump {outer.user}@gate\n"
        f"Host *\n  User {inner.user}\n  IdentityFile {key}\n"
    )
    with pytest.raises(UnknownHostKeyError, match=r"^the host key of inner, ssh-ed25519 SHA256:"):
        Connection.open(parse_address("inner"), known_hosts(outer))
    with Connection.open(parse_address("inner"), known_hosts(outer, inner)) as connection:
        assert says(connection, 'printf %s "$HOME"') == str(inner.home)


def test_a_proxy_command_carries_the_connection_and_its_words_are_told(
    ssh_server: NewServer,
    known_hosts: Known,
    new_key: NewKey,
    client_home: Path,
    require_program: Callable[[str], Path],
) -> None:
    board = ssh_server("openssh")
    key = new_key("key")
    board.lets_in(key)
    config = client_home / ".ssh" / "config"
    config.write_text(f"Host *\n  ProxyCommand {require_program('busybox')} nc %h %p\n")
    with Connection.open(board.with_key(key), known_hosts(board)) as connection:
        assert says(connection) == "hello\n"
    config.write_text("Host *\n  ProxyCommand sh -c 'echo no gate to %h >&2; exit 1'\n")
    with pytest.raises(ConnectionLostError) as caught:
        Connection.open(board.with_key(key), known_hosts(board))
    assert caught.value.details == "no gate to 127.0.0.1"
