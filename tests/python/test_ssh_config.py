# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What ~/.ssh/config says of a board, as OpenSSH reads it, and as is read without OpenSSH."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.board import Board, parse_address
from colibri_deploy.errors import SshConfigError
from colibri_deploy.process import run
from colibri_deploy.ssh_config import Endpoint, route

Write = Callable[[str], Path]


@pytest.fixture
def config(client_home: Path) -> Write:
    """Writes ~/.ssh/config."""

    def write(text: str) -> Path:
        path = client_home / ".ssh" / "config"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def no_openssh(client_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no `ssh` to be found."""
    monkeypatch.setenv("PATH", str(client_home))


@pytest.fixture(params=["openssh", "paramiko"])
def reader(request: pytest.FixtureRequest, require_program: Callable[[str], Path]) -> None:
    """Either of the two readers."""
    if request.param == "paramiko":
        request.getfixturevalue("no_openssh")
    else:
        require_program("ssh")


@pytest.mark.usefixtures("reader")
def test_a_board_without_a_configuration(
    client_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    key = client_home / ".ssh" / "id_ed25519"
    key.touch()
    assert route(parse_address("Desk-Orin")) == (
        Endpoint(
            name="Desk-Orin",
            host="desk-orin",
            port=22,
            user=getpass.getuser(),
            known_as="desk-orin",
            keys=(key,),
            keys_only=False,
            agent="/run/agent",
            known_hosts=(
                client_home / ".ssh/known_hosts",
                client_home / ".ssh/known_hosts2",
                Path("/etc/ssh/ssh_known_hosts"),
                Path("/etc/ssh/ssh_known_hosts2"),
            ),
            proxy_command=None,
        ),
    )


FULL = """
# Lab
Host gate
    HostName gate.example
    User=guard
Host desk-*
    HostName %h.example
    Port 2222
    User "nvidia"
    HostKeyAlias Desk
    IdentitiesOnly yes
    IdentityFile ~/.ssh/%r@%h
    IdentityFile ~/.ssh/none
    IdentityAgent ~/agent
    ProxyJump gate
    UserKnownHostsFile ~/.ssh/boards "/srv/the lab/boards"
    GlobalKnownHostsFile none
Match host desk-orin.example user nvidia
    ProxyJump never.example
Host *
    User nobody
    Port 2200
"""


@pytest.mark.usefixtures("reader")
def test_a_board_of_which_the_configuration_says_everything(
    config: Write, client_home: Path
) -> None:
    key = config(FULL).with_name("nvidia@desk-orin.example")
    key.touch()
    gate, board = route(parse_address("desk-orin"))
    assert (gate.name, gate.host, gate.port, gate.user) == ("gate", "gate.example", 2200, "guard")
    assert gate.known_as == "[gate.example]:2200"
    assert board == Endpoint(
        name="desk-orin",
        host="desk-orin.example",
        port=2222,
        user="nvidia",
        known_as="desk",
        keys=(key,),
        keys_only=True,
        agent=str(client_home / "agent"),
        known_hosts=(client_home / ".ssh/boards", Path("/srv/the lab/boards")),
        proxy_command=None,
    )


@pytest.mark.usefixtures("reader")
def test_what_boards_yaml_says_counts_more(config: Write) -> None:
    config(FULL + "Match user admin\n  IdentityAgent none\n")
    hops = (parse_address("a@first:1"), parse_address("b@second"))
    mine = Path("/keys/mine")
    first, second, board = route(Board("desk", "desk-orin", "admin", 22, key=mine, jump=hops))
    assert (first.user, first.host, first.port) == ("a", "first", 1)
    assert (second.user, second.host, second.port) == ("b", "second", 2200)
    assert (board.user, board.host, board.port) == ("admin", "desk-orin.example", 22)
    assert (board.keys, board.keys_only) == ((mine,), True)


@pytest.mark.usefixtures("reader")
def test_a_board_of_which_the_configuration_has_no_say(config: Write) -> None:
    config("Host *\n  ProxyJump gate\n  Port 1\n  User other\n  HostName other\n")
    (board,) = route(Board("sim:host", "127.0.0.1", ssh_config=False))
    assert (board.host, board.port, board.user) == ("127.0.0.1", 22, getpass.getuser())


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    ("jump", "hops"),
    [
        ("a,b@c:33,d", ["b0", "a", "b@c:33", "d"]),
        ("ssh://b@c:33", ["b@c:33"]),
        ("b@[2001:db8::1]:33", ["b@[2001:db8::1]:33"]),
        ("none", []),
    ],
)
def test_hops_are_gone_through_in_order(config: Write, jump: str, hops: list[str]) -> None:
    """The first hop's own way is gone as well; the others are reached through the one before."""
    config(f"Host board\n  ProxyJump {jump}\nHost a\n  ProxyJump b0\nHost d\n  ProxyJump x\n")
    assert [hop.name for hop in route(parse_address("board"))] == [*hops, "board"]


@pytest.mark.usefixtures("reader")
def test_a_way_that_leads_in_a_circle(config: Write) -> None:
    config("Host board b\n  ProxyJump a\nHost a\n  ProxyJump b\n")
    with pytest.raises(SshConfigError) as caught:
        route(parse_address("board"))
    assert caught.value.message == ("the way to board leads in a circle: board -> a -> b -> a")
    assert caught.value.exit_code == 40


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    ("value", "agent"),
    [("none", None), ("SSH_AUTH_SOCK", "/run/agent"), ("$LAB_AGENT", "/run/lab"), ("/a b", "/a b")],
)
def test_the_agent_of_the_configuration(
    config: Write, monkeypatch: pytest.MonkeyPatch, value: str, agent: str | None
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("LAB_AGENT", "/run/lab")
    config(f'Host *\n  IdentityAgent "{value}"\n')
    (board,) = route(parse_address("board"))
    assert board.agent == agent


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("HostName -oproxycommand=x", "the ssh configuration has '-oproxycommand=x' as the HostN"),
        ("HostName a:22", "the ssh configuration has 'a:22' as the HostName of board, which is ne"),
        ("ProxyJump gate,-x", "the ProxyJump 'gate,-x' of board cannot be used: '-x' is no addre"),
        ("BindAddress 192.0.2.1", "the ssh configuration sets bindaddress for board, which is not"),
        ("RevokedHostKeys /etc/x", "the ssh configuration sets revokedhostkeys for board, which i"),
        ("KnownHostsCommand /bin/x", "the ssh configuration sets knownhostscommand for board, wh"),
    ],
)
def test_what_is_not_done_here_is_refused(config: Write, line: str, message: str) -> None:
    config(f"Host board\n  {line}\n")
    with pytest.raises(SshConfigError) as caught:
        route(parse_address("board"))
    assert caught.value.message.startswith(message)
    assert len(route(parse_address("other"))) == 1


def test_what_openssh_refuses_is_told_in_its_words(
    config: Write, require_program: Callable[[str], Path]
) -> None:
    require_program("ssh")
    path = config("Host board\n  Prot 22\n")
    with pytest.raises(SshConfigError) as caught:
        route(parse_address("board"))
    assert caught.value.message == "ssh cannot tell how to reach board"
    assert f"{path}: line 2: Bad configuration option: prot" in caught.value.details


def test_a_login_name_that_a_shell_would_read_reaches_no_proxy_command(
    config: Write, require_program: Callable[[str], Path]
) -> None:
    require_program("ssh")
    config("Host *\n  ProxyCommand connect %r %h %p %%\n")
    (board,) = route(Board("board", "192.0.2.10", "nvidia", 2222))
    assert board.proxy_command == "connect nvidia 192.0.2.10 2222 %"
    with pytest.raises(SshConfigError) as caught:
        route(Board("board", "192.0.2.10", "$(reboot)"))
    assert caught.value.message == (
        "no ProxyCommand is run for 192.0.2.10: a shell would see the login name '$(reboot)'"
    )


@pytest.mark.usefixtures("no_openssh")
@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("Include boards", "Include"),
        ("\tinclude=boards", "Include"),
        ("Match host board exec true", "Match Exec"),
        ('Match !exec "true"', "Match Exec"),
        ("ProxyCommand nc %h %p", "Proxycommand"),
    ],
)
def test_without_openssh_what_would_be_misread_is_refused(
    config: Write, line: str, what: str
) -> None:
    """Even where it is about another host: nobody can tell."""
    path = config(f"# Lab\nHost other\n{line}\n")
    with pytest.raises(SshConfigError) as caught:
        route(parse_address("board"))
    assert caught.value.message == (
        f"{path}, line 3: {what} is understood by OpenSSH's client only, "
        "which is not installed here: install the package openssh-client"
    )


@pytest.mark.usefixtures("no_openssh")
def test_without_openssh_a_line_that_is_none_is_refused(config: Write) -> None:
    path = config("Host\n")
    with pytest.raises(SshConfigError, match=f"^{path} cannot be read: "):
        route(parse_address("board"))


def test_another_ssh_is_not_asked(
    config: Write, client_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dropbear's client may have that name, and reads no configuration."""
    program = client_home / "ssh"
    program.write_text("#!/bin/sh\necho 'Dropbear v2022.83' >&2\n[ $1 = -V ]\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(client_home))
    config("Host board\n  Port 2222\n")
    assert route(parse_address("board"))[0].port == 2222


ROUTE = """
import sys
from colibri_deploy.board import parse_address
from colibri_deploy.errors import SshConfigError
from colibri_deploy.ssh_config import route
try:
    (board,) = route(parse_address(sys.argv[1]))
    print(board.user, board.host, board.port)
except SshConfigError as error:
    print(error.message)
"""


def test_a_user_without_an_account_has_to_have_a_name(
    config: Write, require_program: Callable[[str], Path]
) -> None:
    """As in a container that was started with a user id alone; ssh itself refuses to run then."""
    require_program("ssh")
    unshare = require_program("unshare")
    nameless = {**os.environ, **dict.fromkeys(("LOGNAME", "USER", "LNAME", "USERNAME"), "")}

    def routed(name: str) -> str:
        as_nobody = (unshare, "--user", "--map-user", "54321", sys.executable, "-c", ROUTE)
        return run([*as_nobody, "board"], env={**nameless, "USER": name}).stdout.strip()

    path = config("Host board\n  HostName 192.0.2.10\n  Port 2222\n")
    assert routed("me") == "me 192.0.2.10 2222"
    assert routed("") == (
        "user id 54321 has no account here, and ssh configurations are read by name: set USER"
    )
    config("Include boards\n")
    assert routed("me") == (
        f"{path}, line 1: Include is understood by OpenSSH's client only, "
        "which needs an account, and user id 54321 has none here"
    )
