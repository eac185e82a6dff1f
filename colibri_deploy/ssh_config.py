# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The way to a board: what boards.yaml leaves open, ~/.ssh/config says.

OpenSSH's own client resolves it (`ssh -G`), so that every line means what it means to ssh. Where
that is not installed paramiko's parser does, and what it would misread is refused.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import paramiko

from colibri_deploy.account import account_home, user_name
from colibri_deploy.board import SSH_PORT, Board, parse_address
from colibri_deploy.errors import SshConfigError, UnknownBoardError
from colibri_deploy.process import run

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
_SSH_SECONDS = 30.0  # a `Match exec` may take its time

_Settings = dict[str, tuple[str, ...]]  # lower-case keyword -> its values

_DEFAULTS: _Settings = {
    "port": (str(SSH_PORT),),
    "identitiesonly": ("no",),
    "identityfile": ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"),
    "userknownhostsfile": ("~/.ssh/known_hosts", "~/.ssh/known_hosts2"),
    "globalknownhostsfile": ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"),
}

# Where a connection ends and whom it trusts depends on these, and they are not done here.
_REFUSED = ("bindaddress", "bindinterface", "knownhostscommand", "revokedhostkeys")

# Login names that OpenSSH takes on its command line, and that every shell takes as they are.
_PLAIN_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@+-]*")


@dataclass(frozen=True)
class Endpoint:
    """An SSH server: a board, or a host on the way to one."""

    name: str  # what messages call it
    host: str
    port: int
    user: str
    known_as: str  # in known_hosts
    keys: tuple[Path, ...]  # private keys to try
    keys_only: bool  # of the agent's keys none but these
    agent: str | None  # the agent's socket
    known_hosts: tuple[Path, ...]  # new keys are recorded in the first
    proxy_command: str | None  # for /bin/sh; its stdin and stdout are the line to the server


def route(board: Board) -> tuple[Endpoint, ...]:
    """The hosts to go through, first to last; the board itself is the last.

    Raises SshConfigError.
    """
    return _route(board, ())


def _route(board: Board, before: tuple[str, ...]) -> tuple[Endpoint, ...]:
    if board.address in before:
        circle = " -> ".join((*before, board.address))
        raise SshConfigError(f"the way to {before[0]} leads in a circle: {circle}")
    settings = _look_up(board)
    jumps = board.jump or _jumps(board, settings)
    if not jumps:
        return (_endpoint(board, settings, direct=True),)
    first, *others = jumps  # as with ssh -J: the others are reached through the one before
    return (
        *_route(first, (*before, board.address)),
        *(_endpoint(hop, _look_up(hop), direct=False) for hop in others),
        _endpoint(board, settings, direct=False),
    )


def _endpoint(board: Board, settings: _Settings, *, direct: bool) -> Endpoint:
    host, port, user = _place(board, settings)
    (alias,) = settings.get("hostkeyalias", ("",))
    keys = tuple(filter(Path.is_file, map(_path, settings["identityfile"])))
    known_hosts = (*settings["userknownhostsfile"], *settings["globalknownhostsfile"])
    (command,) = settings.get("proxycommand", ("none",))
    return Endpoint(
        name=board.name,
        host=host,
        port=port,
        user=user,
        known_as=alias.lower() or (host if port == SSH_PORT else f"[{host}]:{port}"),
        keys=(board.key,) if board.key else keys,
        keys_only=board.key is not None or settings["identitiesonly"] == ("yes",),
        agent=_agent(settings),
        known_hosts=tuple(_path(path) for path in known_hosts if path != "none"),
        proxy_command=_or_none(command) if direct else None,
    )


def _path(value: str) -> Path:
    return Path(value).expanduser()


def _agent(settings: _Settings) -> str | None:
    (value,) = settings.get("identityagent", ("SSH_AUTH_SOCK",))
    if value == "none":
        return None
    if value == "SSH_AUTH_SOCK" or value.startswith("$"):
        return os.environ.get(value.removeprefix("$"))
    return str(_path(value))


def _or_none(value: str) -> str | None:
    return None if value == "none" else value


def _place(board: Board, settings: _Settings) -> tuple[str, int, str]:
    """Address, port and login name."""
    (host,) = settings["hostname"]
    try:
        sound = parse_address(host).host == host
    except UnknownBoardError:
        sound = False
    if not sound:
        raise SshConfigError(
            f"the ssh configuration has {host!r} as the HostName of {board.host}, "
            "which is neither a host name nor an IP address"
        )
    return host.lower(), board.port or int(settings["port"][0]), board.user or settings["user"][0]


def _jumps(board: Board, settings: _Settings) -> tuple[Board, ...]:
    (value,) = settings.get("proxyjump", ("none",))
    if value == "none":
        return ()
    try:
        return tuple(parse_address(hop.strip().removeprefix("ssh://")) for hop in value.split(","))
    except UnknownBoardError as error:
        raise SshConfigError(
            f"the ProxyJump {value!r} of {board.host} cannot be used: {error}"
        ) from error


def _look_up(board: Board) -> _Settings:
    """What the configuration says of a board, tokens expanded."""
    user = user_name()
    if not board.ssh_config:
        return _DEFAULTS | {"hostname": (board.host,), "user": (user or "",)}
    if user is None:
        raise SshConfigError(
            f"user id {os.getuid()} has no account here, and ssh configurations are read by name: "
            "set USER"
        )
    program = shutil.which("ssh")
    # It ends at once for a user without an account.
    if program is not None and run([program, "-V"], check=False).stderr.startswith("OpenSSH"):
        settings = _ask_openssh(program, board, user)
    else:
        settings = _ask_paramiko(board, user)
    for keyword in _REFUSED:
        if settings.get(keyword, ("none",)) != ("none",):
            raise SshConfigError(
                f"the ssh configuration sets {keyword} for {board.host}, which is not done here; "
                f"have that line say `none` for this host"
            )
    return settings


def _user_config() -> Path:
    return Path.home() / ".ssh" / "config"


def _ask_openssh(program: str, board: Board, local_user: str) -> _Settings:
    words = [program, "-G", "-T"]
    if Path.home() != account_home():  # here HOME counts, as for everything else
        words += ["-F", str(_user_config()) if _user_config().exists() else "none"]
    if board.user is not None and _PLAIN_USER.fullmatch(board.user):
        words += ["-l", board.user]
    if board.port is not None:
        words += ["-p", str(board.port)]
    answer = run([*words, "--", board.host], timeout_s=_SSH_SECONDS, check=False)
    if answer.status != 0:
        raise SshConfigError(
            f"ssh cannot tell how to reach {board.host}", details=answer.stderr.strip()
        )
    settings: _Settings = {}
    for line in answer.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        settings[keyword] = (*settings.get(keyword, ()), value)
    host, port, user = _place(board, settings)
    tokens = {
        "d": str(Path.home()),
        "h": host,
        "L": socket.gethostname().partition(".")[0],
        "l": socket.gethostname(),
        "n": board.host,
        "p": str(port),
        "r": user,
        "u": local_user,
    }
    for keyword in ("identityfile", "identityagent"):
        if keyword in settings:
            settings[keyword] = tuple(_file(value, tokens) for value in settings[keyword])
    for keyword in ("userknownhostsfile", "globalknownhostsfile"):
        # ssh -G prints no quotes: a space ends a path where another one begins.
        paths = re.split(r" (?=[/~]|none)", settings[keyword][0])
        settings[keyword] = tuple(_file(path, tokens) for path in paths)
    for keyword in ("proxyjump", "proxycommand"):
        if keyword in settings:
            settings[keyword] = (_expand(settings[keyword][0], tokens),)
    if settings.get("proxycommand", ("none",)) != ("none",):
        if settings["proxyusefdpass"] == ("yes",):
            raise SshConfigError(f"ProxyUseFdpass, set for {board.host}, is not done here")
        if not _PLAIN_USER.fullmatch(user):
            raise SshConfigError(
                f"no ProxyCommand is run for {board.host}: "
                f"a shell would see the login name {user!r}"
            )
    return settings


def _file(value: str, tokens: Mapping[str, str]) -> str:
    """A path of ssh's answer, in the home directory that HOME says."""
    path = Path(_expand(value, tokens)).expanduser()
    home = account_home()  # which is what ssh uses, whatever HOME says
    if home is not None and path.is_relative_to(home):
        path = Path.home() / path.relative_to(home)
    return str(path)


def _expand(value: str, tokens: Mapping[str, str]) -> str:
    """Expands `%h` and its like, and `${NAME}`."""

    def one(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        found = tokens.get(match[1]) if match[1] else os.environ.get(match[2])
        if found is None:
            raise SshConfigError(f"{match[0]} in {value!r} of the ssh configuration is not known")
        return found

    return re.sub(r"%(.)|\$\{(\w+)\}", one, value)


def _ask_paramiko(board: Board, local_user: str) -> _Settings:
    config = paramiko.SSHConfig()
    said = [] if board.port is None else [f"Port {board.port}"]
    if board.user is not None and _PLAIN_USER.fullmatch(board.user):
        said.append(f"User {board.user}")
    config.parse(said)  # what comes first counts
    is_own_home = Path.home() == account_home()
    for path in (_user_config(), *([SYSTEM_CONFIG] if is_own_home else [])):
        if path.exists():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            _refuse_what_is_misread(path, lines)
            try:
                config.parse(lines)
            except paramiko.ConfigParseError as error:
                raise SshConfigError(f"{path} cannot be read: {error}") from error
    found = config.lookup(board.host)
    settings = _DEFAULTS | {"user": (local_user,)}
    for keyword, value in found.items():
        settings[keyword] = tuple(value) if isinstance(value, list) else (value,)
    for keyword in ("userknownhostsfile", "globalknownhostsfile"):
        if keyword in found:
            settings[keyword] = tuple(shlex.split(found[keyword]))
    return settings


def _refuse_what_is_misread(path: Path, lines: list[str]) -> None:
    for number, line in enumerate(lines, 1):
        keyword, *values = re.split(r"[\s=]+", line.strip().lower(), maxsplit=1)
        value = values[0] if values else ""
        if keyword == "match" and re.search(r"\b(exec|localnetwork|tagged)\b", value):
            keyword = "match exec"
        if keyword in {"include", "match exec", "proxycommand"}:
            raise SshConfigError(
                f"{path}, line {number}: {keyword.title()} is understood by OpenSSH's client only, "
                + (
                    "which is not installed here: install the package openssh-client"
                    if account_home() is not None
                    else f"which needs an account, and user id {os.getuid()} has none here"
                )
            )
