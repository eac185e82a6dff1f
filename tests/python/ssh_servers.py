# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""OpenSSH's server and dropbear on loopback, each with an account and a home directory of its own.

libnss_wrapper gives them a passwd file, so that neither this machine's accounts nor the home
directory of whoever runs the tests play a part.
"""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from loopback import free_port, listens, wait_until

from colibri_deploy.board import Board
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.process import run
from colibri_deploy.ssh import Connection

KINDS = ("openssh", "dropbear")
PASSWORD = "correct horse"
_PASSWORD_HASH = (  # of PASSWORD, by openssl passwd -6
    "$6$colibri$IdavFlaiONxprayGBiR5CScy2zvf4kn8ctalo0if7jG1bUgJv9bMafK2IH6Df7LGkyqs3sEGgFFzgpZMF/"
    "t6X/"
)

NewKey = Callable[..., Path]


@dataclass
class Server:
    """A server that runs; `stop` and `start` again, and it has the same port and keys."""

    kind: str  # of KINDS
    port: int
    folder: Path
    user: str
    public_key: str  # the host key, "ssh-ed25519 AAAA..."
    command: list[str | Path]
    environment: dict[str, str]
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def home(self) -> Path:
        """The account's home directory."""
        return self.folder / "home"

    @property
    def log(self) -> str:
        """What the server has said so far."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def known_hosts_line(self) -> str:
        """What known_hosts should say of it."""
        return f"[127.0.0.1]:{self.port} {self.public_key}\n"

    @property
    def board(self) -> Board:
        """The server as a board without a key."""
        return Board(name=self.kind, host="127.0.0.1", user=self.user, port=self.port)

    def with_key(self, key: Path) -> Board:
        """The server as a board that is logged in to with a key."""
        return replace(self.board, key=key)

    def lets_in(self, *keys: Path) -> None:
        """Authorizes the keys."""
        path = self.home / ".ssh" / "authorized_keys"
        path.write_text("".join(Path(f"{key}.pub").read_text() for key in keys))
        path.chmod(0o600)

    def start(self) -> None:
        """Returns when it listens."""
        with (self.folder / "log").open("ab") as log:
            self.children.append(
                subprocess.Popen(
                    self.command, env=self.environment, stdin=subprocess.DEVNULL, stderr=log
                )
            )
        wait_until(lambda: listens(self.port), f"{self.kind} does not start")

    def stop(self) -> None:
        """Ends the server, not the sessions that are open."""
        child = self.children.pop()
        child.terminate()
        child.wait()


def says(connection: Connection, command: str = "echo hello") -> str:
    """What a command writes."""
    answer = connection.run(command, timeout_s=100)
    assert answer.status == 0
    return answer.stdout.decode()


@pytest.fixture
def new_key(require_program: Callable[[str], Path], tmp_path: Path) -> NewKey:
    """Makes a private key: `new_key(name, kind="ed25519", passphrase="")`."""

    def make(name: str, kind: str = "ed25519", passphrase: str = "") -> Path:
        path = tmp_path / name
        bits = ("-b", "2048") if kind == "rsa" else ()
        words = ("-q", "-t", kind, *bits, "-N", passphrase, "-C", name, "-f", path)
        run([require_program("ssh-keygen"), *words])
        return path

    return make


@pytest.fixture
def ssh_server(
    require_program: Callable[[str], Path], require: Callable[[bool, str], None], tmp_path: Path
) -> Iterator[Callable[..., Server]]:
    """`ssh_server(kind)` starts one; `options` are sshd_config lines, or dropbear's arguments."""
    library = next(Path("/usr/lib").glob("*/libnss_wrapper.so"), None)
    require(library is not None, "no libnss_wrapper: run tests/debian-packages.sh test")
    with ExitStack() as stack:

        def start(
            kind: str,
            *options: str,
            user: str | None = None,
            shell: str = "/bin/sh",
            name: str | None = None,
        ) -> Server:
            folder = tmp_path / (name or kind)
            (folder / "home" / ".ssh").mkdir(mode=0o700, parents=True)
            (folder / "home").chmod(0o700)
            account = user or getpass.getuser()
            port = free_port()
            prepare = _openssh if kind == "openssh" else _dropbear
            command, public_key = prepare(folder, port, options, require_program)
            ids = f"{os.geteuid()}:{os.getegid()}"
            (folder / "passwd").write_text(
                f"{account}:x:{ids}::{folder / 'home'}:{shell}\n"
                "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
            )
            (folder / "group").write_text(f"users:x:{os.getegid()}:\n")
            (folder / "shadow").write_text(f"{account}:{_PASSWORD_HASH}:19000:0:99999:7:::\n")
            environment = {
                "LD_PRELOAD": str(library),
                "NSS_WRAPPER_PASSWD": str(folder / "passwd"),
                "NSS_WRAPPER_GROUP": str(folder / "group"),
                "NSS_WRAPPER_SHADOW": str(folder / "shadow"),
                "PATH": os.environ["PATH"],
            }
            one = Server(kind, port, folder, account, public_key, command, environment)
            stack.callback(_end, one)
            one.start()
            return one

        yield start


def _end(server: Server) -> None:
    while server.children:
        server.stop()


def _openssh(
    folder: Path, port: int, options: tuple[str, ...], program: Callable[[str], Path]
) -> tuple[list[str | Path], str]:
    sshd = program("/usr/sbin/sshd")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # it insists
    run([program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", folder / "host"])
    lines = (
        *options,  # what comes first counts
        f"ListenAddress 127.0.0.1:{port}",
        f"HostKey {folder}/host",
        "PidFile none",
        "StrictModes no",
        "UsePAM no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin yes",
        "LogLevel VERBOSE",
    )
    (folder / "sshd_config").write_text("".join(f"{line}\n" for line in lines))
    key = (folder / "host.pub").read_text().strip()
    return [sshd, "-D", "-e", "-f", folder / "sshd_config"], key


def _dropbear(
    folder: Path, port: int, options: tuple[str, ...], program: Callable[[str], Path]
) -> tuple[list[str | Path], str]:
    dropbear = program("/usr/sbin/dropbear")
    made = run([program("dropbearkey"), "-t", "ed25519", "-f", folder / "host"])
    key = next(line for line in made.stdout.splitlines() if line.startswith("ssh-ed25519 "))
    where = ("-p", f"127.0.0.1:{port}", "-P", folder / "pid", "-r", folder / "host")
    return [dropbear, "-F", "-E", *where, *options], " ".join(key.split()[:2])


@pytest.fixture
def known_hosts(tmp_path: Path) -> Callable[..., KnownHosts]:
    """`known_hosts(*servers)` writes a known_hosts with their keys."""

    def write(*servers: Server) -> KnownHosts:
        path = tmp_path / "known_hosts"
        path.write_text("".join(server.known_hosts_line for server in servers))
        return KnownHosts(path)

    return write


@pytest.fixture
def client_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of the client; no agent is there."""
    path = tmp_path / "client"
    (path / ".ssh").mkdir(mode=0o700, parents=True)
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return path


@pytest.fixture
def ssh_agent(
    require_program: Callable[[str], Path], client_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """`ssh_agent(*keys)` has ssh-agent hold the keys."""
    path = client_home / "agent"
    child = subprocess.Popen(
        [require_program("ssh-agent"), "-D", "-a", path], stdout=subprocess.DEVNULL
    )
    wait_until(path.exists, "ssh-agent does not start")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))

    def hold(*keys: Path) -> None:
        run([require_program("ssh-add"), "-q", *keys])

    yield hold
    child.send_signal(signal.SIGTERM)
    child.wait()
