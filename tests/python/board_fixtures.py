# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of boards share: servers that are reached over real SSH, and what to push."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from loopback import free_port, listens, wait_until

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.process import Completed, run
from colibri_deploy.sim import Faults, SimBoard
from colibri_deploy.targets import load_targets, select

pytest_plugins = ["ssh_servers", "planted_boards", "release_fixtures"]  # files beside this one


@dataclass(frozen=True)
class Place:
    """A board for the command line: the arguments that reach it, and where its files lie."""

    arguments: tuple[str, ...]
    root: Path

    @property
    def current(self) -> Path:
        """The current release."""
        return self.root / "current"

    def stored(self, name: str) -> Path:
        """A file of the current release, in the store."""
        return (self.current / name).resolve()

    def partials(self) -> list[Path]:
        """What was cut."""
        return sorted(self.root.glob("store/.*.partial"))


def report_of(done: Completed | Result, verb: str) -> dict[str, Any]:
    """What `verb` has to say of the one board in a program's JSON."""
    (board,) = json.loads(done.stdout)["boards"]
    return dict(board[verb])


@pytest.fixture(scope="session")
def small_model(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted Mixtral of 1 MB without a tokenizer: hidden 32, 3 experts, 50 tokens."""
    folder = tmp_path_factory.mktemp("small")
    words = "hidden=32 ffn=40 experts=3 top-k=2 layers=2 heads=4 kv-heads=2 vocab=50".split()
    options = [f"--{word}" for word in words]
    run([sys.executable, root / "tests/golden/synthetic.py", folder / "checkpoint", *options])
    convert_checkpoint(folder / "checkpoint", folder / "model")
    return folder / "model"


@pytest.fixture
def build_dir(engine: Callable[[str], Path], root: Path, tmp_path: Path) -> Path:
    """A build directory of the test's own, which shares the session's compilations."""
    engine("host")
    directory = tmp_path / "build"
    directory.mkdir()
    (directory / ".compile").symlink_to(root / "build" / ".compile")
    (directory / "host").mkdir()
    (directory / "host" / "colibri").symlink_to(engine("host"))
    return directory


@pytest.fixture
def deploy(build_dir: Path, tmp_path: Path) -> Callable[..., Completed]:
    """`deploy(verb, *args, **env)` runs colibri-deploy to its end, any status.

    `tmp_path` is the current directory and HOME; no agent is there.
    """

    def run_it(verb: str, *args: str | Path, **env: str) -> Completed:
        home = {"HOME": str(tmp_path), "SSH_AUTH_SOCK": "", "XDG_CONFIG_HOME": ""}
        return run(
            [sys.executable, "-m", "colibri_deploy", verb, "--build-dir", build_dir, *args],
            cwd=tmp_path,
            env={**os.environ, **home, **env},
            check=False,
            timeout_s=240,
        )

    return run_it


@pytest.fixture
def at_home(client_home: Path) -> Callable[..., Completed]:
    """`at_home(verb, *args, **env)` runs colibri-deploy in the client's home, any status."""

    def run_it(verb: str, *args: str | Path, **env: str) -> Completed:
        return run(
            [sys.executable, "-m", "colibri_deploy", verb, *args],
            cwd=client_home,
            env={**os.environ, "XDG_CONFIG_HOME": "", **env},
            check=False,
            timeout_s=240,
        )

    return run_it


@pytest.fixture
def sim(root: Path, tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """`sim(target, faults)` starts an emulated board; each call of one target finds its files."""
    with ExitStack() as stack:

        def start(target: str = "host", faults: Faults | None = None) -> Place:
            kind = select(load_targets(root), target)
            served = stack.enter_context(SimBoard(kind, tmp_path / "sim" / target, faults))
            board = served.board
            words = ("--host", board.address, "--target", target, "--key", str(board.key))
            known = ("--known-hosts", str(served.known_hosts.path))
            return Place((*words, *known), served.home / board.workdir)

        yield start


@pytest.fixture
def sshd(require_program: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., Place]]:
    """`sshd(board, command)` starts OpenSSH's server, and names it `board` in boards.yaml.

    With `command`, that runs instead of what a client asks for in $SSH_ORIGINAL_COMMAND. `more` is
    added to the server's configuration.
    """
    server = require_program("/usr/sbin/sshd")
    folder = tmp_path / "sshd"
    folder.mkdir()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # it insists
    for name in ("host", "client"):
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name])
    host_key = (folder / "host.pub").read_text()
    (folder / "authorized_keys").write_text((folder / "client.pub").read_text())
    children = []

    def start(
        board: str,
        command: str | None = None,
        workdir: str = "on board",
        host_keys: tuple[Path, ...] = (),
        more: str = "",
    ) -> Place:
        port = free_port()
        config = folder / "sshd_config"
        config.write_text(
            f"ListenAddress 127.0.0.1:{port}\n"
            + "".join(f"HostKey {key}\n" for key in (folder / "host", *host_keys))
            + f"AuthorizedKeysFile {folder}/authorized_keys\n"
            "PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin prohibit-password\n"
            + (f"ForceCommand {command}\n" if command else "")
            + more
        )
        words: list[str | Path] = [server, "-D", "-f", config, "-E", folder / "log"]
        children.append(subprocess.Popen(words, stdin=subprocess.DEVNULL))
        wait_until(lambda: listens(port), "sshd does not start")
        (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
        (tmp_path / "boards.yaml").write_text(
            f"boards:\n  {board}:\n    target: host\n    host: 127.0.0.1\n    port: {port}\n"
            f"    user: {getpass.getuser()}\n    key: {folder}/client\n"
            f"    workdir: {tmp_path}/{workdir}\n"
        )
        known = ("--known-hosts", str(tmp_path / "known_hosts"))
        return Place(("--board", board, *known), tmp_path / workdir)

    yield start
    for child in children:
        child.terminate()
        child.wait()
