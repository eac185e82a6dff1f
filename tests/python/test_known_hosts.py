# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""known_hosts as OpenSSH writes it; the fingerprints are those that ssh-keygen prints."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import paramiko
import pytest

from colibri_deploy.errors import ChangedHostKeyError, FileMissingError, UnknownHostKeyError
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.process import run
from colibri_deploy.ssh_config import Endpoint


def endpoint(name: str, known_as: str, *known_hosts: Path) -> Endpoint:
    """A server of that name; nothing else counts here."""
    return Endpoint(
        name=name,
        host="desk-orin",
        port=2222,
        user="user",
        known_as=known_as,
        keys=(),
        keys_only=False,
        agent=None,
        known_hosts=known_hosts,
        proxy_command=None,
    )


BOARD = endpoint("user@desk-orin:2222", "[desk-orin]:2222")
PLAIN = endpoint("user@desk-orin", "desk-orin")


@dataclass(frozen=True)
class HostKey:
    """A key that ssh-keygen made."""

    key: paramiko.PKey
    text: str  # "ssh-ed25519 AAAA..."
    fingerprint: str


@pytest.fixture
def new_key(require_program: Callable[[str], Path], tmp_path: Path) -> Callable[..., HostKey]:
    """Makes a key of a type."""
    program = require_program("ssh-keygen")

    def make(name: str, kind: str = "ed25519") -> HostKey:
        path = tmp_path / name
        run([program, "-q", "-t", kind, "-N", "", "-f", path])
        words = run([program, "-lf", path]).stdout.split()
        text = " ".join(path.with_suffix(".pub").read_text().split()[:2])
        return HostKey(paramiko.PKey.from_path(path), text, words[1])

    return make


@pytest.fixture
def known(tmp_path: Path) -> Callable[..., KnownHosts]:
    """Writes known_hosts."""

    def write(*lines: str, accept: str | None = None) -> KnownHosts:
        path = tmp_path / "known_hosts"
        path.write_text("".join(f"{line}\n" for line in lines))
        return KnownHosts(path, accept)

    return write


@pytest.mark.parametrize(
    "names",
    ["[desk-orin]:2222", "other,[desk-orin]:2222", "[desk-*]:2222", "[desk-ori?]:2222",
     "[DESK-ORIN]:2222"],
)  # fmt: skip
def test_a_known_key_is_accepted(
    names: str, new_key: Callable[..., HostKey], known: Callable[..., KnownHosts]
) -> None:
    host = new_key("host")
    known("# a comment", "", f"{names} {host.text} a comment").check(BOARD, host.key)


@pytest.mark.parametrize(
    "names", ["desk-orin", "[desk-orin]:22", "[desk-*]:2222,![desk-orin]:2222", "[desk]:2222"]
)
def test_a_line_about_others_is_passed_over(
    names: str, new_key: Callable[..., HostKey], known: Callable[..., KnownHosts]
) -> None:
    host = new_key("host")
    with pytest.raises(UnknownHostKeyError):
        known(f"{names} {host.text}").check(BOARD, host.key)


def test_names_that_openssh_has_hashed_are_known(
    new_key: Callable[..., HostKey], known: Callable[..., KnownHosts], tmp_path: Path
) -> None:
    host, other = new_key("host"), new_key("other")
    hosts = known(f"[desk-orin]:2222 {host.text}", f"desk-orin {other.text}")
    run(["ssh-keygen", "-H", "-f", tmp_path / "known_hosts"])
    assert "desk-orin" not in (tmp_path / "known_hosts").read_text()
    hosts.check(BOARD, host.key)
    hosts.check(PLAIN, other.key)
    with pytest.raises(ChangedHostKeyError):
        hosts.check(PLAIN, host.key)


def test_a_changed_key_is_refused_with_both_fingerprints_and_the_line(
    new_key: Callable[..., HostKey], known: Callable[..., KnownHosts]
) -> None:
    rsa, old, new = new_key("rsa", "rsa"), new_key("old"), new_key("new")
    hosts = known(f"[desk-orin]:2222 {rsa.text}", f"[desk-orin]:2222 {old.text}", accept="x")
    with pytest.raises(ChangedHostKeyError) as caught:
        hosts.check(BOARD, new.key)
    assert caught.value.message == (
        "the host key of user@desk-orin:2222 has changed: it shows ssh-ed25519 "
        f"{new.fingerprint}, line 2 of {hosts.path} has ssh-ed25519 {old.fingerprint}; if the "
        "board was installed anew, remove that line, otherwise somebody else answers"
    )
    assert hosts.key_types(BOARD) == ["ssh-rsa", "ssh-ed25519"]
    ecdsa = new_key("ecdsa", "ecdsa")
    with pytest.raises(ChangedHostKeyError, match=r"line 1 of .* has ssh-rsa"):
        hosts.check(BOARD, ecdsa.key)
    hosts.check(BOARD, rsa.key)


def test_a_key_is_recorded_only_if_its_fingerprint_was_accepted(
    new_key: Callable[..., HostKey], tmp_path: Path
) -> None:
    host = new_key("host")
    path = tmp_path / "new" / "known_hosts"
    with pytest.raises(UnknownHostKeyError) as caught:
        KnownHosts(path).check(BOARD, host.key)
    assert caught.value.message == (
        f"the host key of user@desk-orin:2222, ssh-ed25519 {host.fingerprint}, is not in {path}"
    )
    assert caught.value.fingerprint == host.fingerprint
    with pytest.raises(UnknownHostKeyError, match="and is not SHA256:x, the one to accept"):
        KnownHosts(path, accept="SHA256:x").check(BOARD, host.key)
    assert not path.exists()
    KnownHosts(path, accept=host.fingerprint).check(BOARD, host.key)
    assert path.read_text() == f"[desk-orin]:2222 {host.text}\n"
    assert path.stat().st_mode & 0o777 == 0o600
    KnownHosts(path).check(BOARD, host.key)


def test_a_key_that_cannot_be_recorded(
    new_key: Callable[..., HostKey], require_program: Callable[[str], Path], tmp_path: Path
) -> None:
    host = new_key("host")
    (tmp_path / "file").touch()
    under_a_file = tmp_path / "file" / "known_hosts"
    with pytest.raises(FileMissingError, match="cannot be read: Not a directory"):
        KnownHosts(under_a_file, accept=host.fingerprint).check(BOARD, host.key)
    path = Path("/proc/known_hosts")  # where not even root writes
    with pytest.raises(FileMissingError) as caught:
        KnownHosts(path, accept=host.fingerprint).check(BOARD, host.key)
    assert caught.value.message == (
        "the host key of user@desk-orin:2222 cannot be recorded: "
        "/proc/known_hosts: No such file or directory"
    )


def test_what_is_no_regular_file_is_not_read(
    new_key: Callable[..., HostKey], tmp_path: Path
) -> None:
    """A device may never end, and a pipe never begin."""
    host = new_key("host")
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/full"), Path("/dev/zero"), tmp_path / "pipe", tmp_path):
        hosts = KnownHosts(path, accept=host.fingerprint)
        with pytest.raises(FileMissingError) as caught:
            hosts.check(BOARD, host.key)
        assert caught.value.message == (
            f"{path} cannot hold host keys: it is no regular file; name another with --known-hosts"
        )
        with pytest.raises(FileMissingError):
            hosts.key_types(BOARD)


def test_a_recorded_key_starts_a_line_of_its_own(
    new_key: Callable[..., HostKey], tmp_path: Path
) -> None:
    host = new_key("host")
    path = tmp_path / "known_hosts"
    path.write_text("other ssh-ed25519 AAAA")
    KnownHosts(path, accept=host.fingerprint).check(PLAIN, host.key)
    assert path.read_text() == f"other ssh-ed25519 AAAA\ndesk-orin {host.text}\n"


def test_a_revoked_key_is_refused_though_it_is_known(
    new_key: Callable[..., HostKey], known: Callable[..., KnownHosts]
) -> None:
    host = new_key("host")
    hosts = known(f"[desk-orin]:2222 {host.text}", f"@revoked * {host.text}")
    with pytest.raises(ChangedHostKeyError) as caught:
        hosts.check(BOARD, host.key)
    assert f"{host.fingerprint}, is revoked in line 2 of {hosts.path}" in caught.value.message


def test_certificate_authorities_are_not_used_and_that_is_said(
    new_key: Callable[..., HostKey], known: Callable[..., KnownHosts]
) -> None:
    host = new_key("host")
    with pytest.raises(UnknownHostKeyError, match="whose @cert-authority lines are not used here"):
        known(f"@cert-authority * {host.text}").check(BOARD, host.key)


def test_the_files_of_the_configuration_are_read_all_and_the_first_is_written(
    new_key: Callable[..., HostKey], tmp_path: Path
) -> None:
    """Without --known-hosts; a key that the machine's file revokes is refused, too."""
    known, new, revoked = new_key("known"), new_key("new"), new_key("revoked")
    user, machine = tmp_path / "user", tmp_path / "machine"
    machine.write_text(f"desk-orin {known.text}\n@revoked * {revoked.text}\n")
    server = endpoint("desk-orin", "desk-orin", user, machine)
    hosts = KnownHosts(None)
    hosts.check(server, known.key)
    with pytest.raises(ChangedHostKeyError, match=f"is revoked in line 2 of {machine}"):
        hosts.check(server, revoked.key)
    other = endpoint("shelf-pi", "shelf-pi", user, machine)
    with pytest.raises(UnknownHostKeyError, match=f"is not in {user}$"):
        hosts.check(other, new.key)
    KnownHosts(None, new.fingerprint).check(other, new.key)
    assert user.read_text() == f"shelf-pi {new.text}\n"
    with pytest.raises(FileMissingError, match="names no file for the host keys of desk-orin"):
        hosts.check(endpoint("desk-orin", "desk-orin"), known.key)
