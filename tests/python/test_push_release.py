# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`push --release`: what is pushed is what was released and signed, and the board knows the key."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from board_fixtures import Place, report_of
from click.testing import CliRunner, Result
from release_fixtures import DAMAGES, TARBALL, NewSigner, Signer, write_release

from colibri_deploy.board_lock import board_lock
from colibri_deploy.board_shell import BoardShell
from colibri_deploy.cli import cli
from colibri_deploy.errors import ReleaseFilesError, SignatureError
from colibri_deploy.process import run
from colibri_deploy.release.archive import write_tar
from colibri_deploy.release.released import Proof, Release
from colibri_deploy.release.semver import is_older, is_version
from colibri_deploy.release.signature import read_keys
from colibri_deploy.release.sums import tarball_of, write_engines, write_sums
from colibri_deploy.sim import SimBoard
from colibri_deploy.ssh import Connection
from colibri_deploy.store import Item, Store
from colibri_deploy.targets import load_targets, machine_arch, select

ZIG = (sys.executable, "-m", "ziglang")

Cli = Callable[..., Result]
Push = Callable[..., dict[str, Any]]


@pytest.fixture
def colibri_deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`colibri_deploy(*args)` is the command line in this process.

    `tmp_path` is the current directory and HOME; no agent is there.
    """
    monkeypatch.chdir(tmp_path)

    def run_it(*args: str | Path) -> Result:
        env = {"HOME": str(tmp_path), "SSH_AUTH_SOCK": "", "XDG_CONFIG_HOME": ""}
        env["COLIBRI_RELEASE_KEY"] = ""
        return CliRunner().invoke(cli, list(map(str, args)), env=env)

    return run_it


@pytest.fixture
def push(colibri_deploy: Cli, signer: Signer) -> Push:
    """`push(place, release, *args)` pushes a release of the signer and returns the record."""

    def push_it(place: Place, release: Path, *args: str | Path) -> dict[str, Any]:
        words = ("--release", release, "--release-key", signer.public, *args, "--json")
        done = colibri_deploy("push", *place.arguments, *words)
        assert done.exit_code == 0, done.stderr
        return report_of(done, "push")

    return push_it


def tarball(release: Path, arch: str) -> Path:
    (path,) = (one for one in release.iterdir() if (tarball_of(one.name) or ("", ""))[1] == arch)
    return path


def test_the_engine_of_the_tarball_is_pushed_and_the_board_checks_it(
    sim: Callable[..., Place],
    push: Push,
    colibri_deploy: Cli,
    signed_release: Path,
    signer: Signer,
    engine: Callable[[str], Path],
) -> None:
    place, fingerprint = sim(), run(["ssh-keygen", "-lf", signer.public]).stdout.split()[1]
    planned = push(place, signed_release, "--dry-run")
    assert (planned["signature"], planned["is_first_key"]) == ("checked on host", True)
    assert not place.root.exists()
    record = push(place, signed_release)
    assert (record["version"], record["replaces_version"]) == ("0.1.0", None)
    assert (record["signed_by"], record["signature"]) == (fingerprint, "checked on host and board")
    built = engine(machine_arch()).read_bytes()
    assert place.stored("colibri").read_bytes() == built
    assert (place.root / "trusted_key").read_text().split() == signer.public.read_text().split()[:2]
    again = push(place, tarball(signed_release, machine_arch()))
    assert (again["bytes_sent"], again["is_first_key"]) == (0, False)
    assert (again["replaces_version"], again["signature"]) == ("0.1.0", "checked on host and board")
    assert colibri_deploy("undeploy", *place.arguments).exit_code == 0
    assert not place.root.exists()


def test_a_board_of_another_architecture_gets_its_engine(
    sim: Callable[..., Place],
    push: Push,
    signed_release: Path,
    engine: Callable[[str], Path],
    require_program: Callable[[str], Path],
) -> None:
    require_program("qemu-aarch64-static")
    place = sim("rpi5")
    assert push(place, signed_release)["signature"] == "checked on host and board"
    assert place.stored("colibri").read_bytes() == engine("aarch64").read_bytes()
    assert push(place, signed_release)["replaces_version"] == "0.1.0"


@pytest.fixture
def busybox(
    sshd: Callable[..., Place], require_program: Callable[[str], Path], tmp_path: Path
) -> Callable[..., Place]:
    """`busybox(*more)` is a board on which every tool is BusyBox, with these programs besides."""

    def start(*more: str) -> Place:
        tools = tmp_path / "tools"
        tools.mkdir()
        run([require_program("busybox"), "--install", "-s", tools])
        for name in more:
            (tools / name).symlink_to(require_program(name))
        board = tmp_path / "board"
        command = (
            """exec ./ash -c "$(printf %s "$SSH_ORIGINAL_COMMAND" | ./sed 's,/bin/sh,./ash,')" """
        )
        board.write_text(f"#!{tools}/ash\ncd {tools}\nPATH={tools}\n{command}\n")
        board.chmod(0o755)
        return sshd("desk", str(board))

    return start


def test_a_board_without_ssh_keygen_says_who_checked(
    busybox: Callable[..., Place],
    push: Push,
    colibri_deploy: Cli,
    signed_release: Path,
    signer: Signer,
) -> None:
    place = busybox()
    words = ("--release", signed_release, "--release-key", signer.public)
    done = colibri_deploy("push", *place.arguments, *words)
    assert done.exit_code == 0, done.stderr
    assert "signature: checked on host only; the board trusts this key from now on\n" in done.stdout
    assert (place.root / "trusted_key").is_file()
    assert push(place, signed_release)["signature"] == "checked on host only"


OLD_SSH_KEYGEN = """
#include <unistd.h>
int main(int n, char **words)
{
    while (1) { /* the options of OpenSSH 8.0 */
        switch (getopt(n, words, "ABHLQUXceghiklopquvxyC:D:E:F:I:N:O:P:R:V:f:n:s:t:z:")) {
        case '?': return 1;
        case -1: return 0;
        }
    }
}
"""


def test_an_ssh_keygen_of_musl_that_is_too_old_leaves_the_check_to_the_host(
    busybox: Callable[..., Place], push: Push, signed_release: Path, tmp_path: Path
) -> None:
    place = busybox()
    source = tmp_path / "old.c"
    source.write_text(OLD_SSH_KEYGEN)
    musl = (*ZIG, "cc", "-target", f"{machine_arch()}-linux-musl", "-static")
    run([*musl, source, "-o", tmp_path / "tools/ssh-keygen"])
    assert (
        "unrecognized option: Y"
        in run([tmp_path / "tools/ssh-keygen", "-Y", "verify"], check=False).stderr
    )
    assert push(place, signed_release)["signature"] == "checked on host only"


def test_busybox_with_ssh_keygen_checks_it(
    busybox: Callable[..., Place], push: Push, signed_release: Path
) -> None:
    assert push(busybox("ssh-keygen"), signed_release)["signature"] == "checked on host and board"


def test_a_minisign_signature_is_checked_on_a_board_that_has_it(
    busybox: Callable[..., Place], colibri_deploy: Cli, release_copy: Path, new_signer: NewSigner
) -> None:
    place, minisign = busybox("minisign"), new_signer("minisign")
    minisign.sign(release_copy)
    words = ("--release", release_copy, "--release-key", minisign.public, "--json")
    record = report_of(colibri_deploy("push", *place.arguments, *words), "push")
    assert record["signature"] == "checked on host and board"
    assert record["signed_by"].startswith("minisign:")
    key = minisign.public.read_text().splitlines()[1]
    assert (place.root / "trusted_key").read_text() == f"{key}\n"


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_wrong_with_a_release_is_told_before_a_board_is_reached(
    colibri_deploy: Cli, release_copy: Path, signer: Signer, name: str
) -> None:
    damage = DAMAGES[name]
    damage.do(release_copy, signer)
    words = ["--host", "nobody@192.0.2.10", "--target", "host", "--release", release_copy]
    done = colibri_deploy("push", *words, "--release-key", signer.public)
    assert done.exit_code == damage.error.exit_code
    assert done.stderr.startswith(f"error: {damage.message}")


def test_another_key_and_none_are_refused_before_a_board_is_reached(
    colibri_deploy: Cli, signed_release: Path, new_signer: NewSigner
) -> None:
    words = ["--host", "nobody@192.0.2.10", "--target", "host", "--release", signed_release]
    other = str(new_signer("ed25519").public)
    done = colibri_deploy("push", *words, "--release-key", other)
    assert (done.exit_code, "another key signed it" in done.stderr) == (51, True)
    done = colibri_deploy("push", *words)
    assert (done.exit_code, "which key is to be trusted?" in done.stderr) == (51, True)


def test_a_tarball_for_another_architecture_is_refused(
    colibri_deploy: Cli, signed_release: Path, signer: Signer
) -> None:
    other = "aarch64" if machine_arch() != "aarch64" else "x86_64"
    words = ["--host", "nobody@192.0.2.10", "--target", "host", "--release-key", signer.public]
    place = tarball(signed_release, other)
    done = colibri_deploy("push", *words, "--release", place)
    assert done.exit_code == 33
    assert done.stderr == (f"error: {place} has no engine for {machine_arch()}, but for {other}\n")


def test_a_board_refuses_a_release_of_another_key_until_told(
    sim: Callable[..., Place],
    push: Push,
    colibri_deploy: Cli,
    signed_release: Path,
    release_copy: Path,
    signer: Signer,
    new_signer: NewSigner,
) -> None:
    place, other = sim(), new_signer("ed25519")
    push(place, signed_release)
    other.sign(release_copy)
    words = (*place.arguments, "--release", release_copy)
    done = colibri_deploy("push", *words, "--release-key", other.public)
    assert done.exit_code == 51
    old, new = (run(["ssh-keygen", "-lf", one.public]).stdout.split()[1] for one in (signer, other))
    assert f"takes releases that {old} has signed, and this one is signed by {new}" in done.stderr
    assert f"remove {place.root}/trusted_key there" in done.stderr
    done = colibri_deploy("push", *words, "--allow-unsigned")
    assert (done.exit_code, "signed by nobody" in done.stderr) == (51, True)
    (place.root / "trusted_key").unlink()
    assert colibri_deploy("push", *words, "--release-key", other.public).exit_code == 0


def test_an_unsigned_release_says_so(
    sim: Callable[..., Place], colibri_deploy: Cli, signed_release: Path
) -> None:
    place = sim()
    words = ("--release", signed_release, "--allow-unsigned")
    done = colibri_deploy("push", *place.arguments, *words)
    assert done.exit_code == 0, done.stderr
    assert "version 0.1.0, not signed; signature: none\n" in done.stdout
    assert not (place.root / "trusted_key").exists()


def test_an_older_version_is_refused_unless_told(
    sim: Callable[..., Place],
    push: Push,
    colibri_deploy: Cli,
    signed_release: Path,
    signer: Signer,
    engine: Callable[[str], Path],
    root: Path,
    tmp_path: Path,
) -> None:
    place = sim()
    push(place, signed_release)
    write_release(tmp_path / "old", {machine_arch(): engine(machine_arch())}, root, "0.0.9")
    signer.sign(tmp_path / "old")
    words = ("--release", tmp_path / "old", "--release-key", signer.public)
    done = colibri_deploy("push", *place.arguments, *words)
    assert done.exit_code == 52
    assert "has version 0.1.0, and the release is 0.0.9: --allow-downgrade goes back" in done.stderr
    assert push(place, tmp_path / "old", "--allow-downgrade")["version"] == "0.0.9"


def test_an_engine_that_says_no_version_may_be_newer(
    sim: Callable[..., Place],
    push: Push,
    colibri_deploy: Cli,
    signed_release: Path,
    signer: Signer,
) -> None:
    place = sim()
    assert not push(place, signed_release)["may_be_downgrade"]
    place.stored("colibri").write_text("#!/bin/sh\nexit 1\n")
    words = ("--release", signed_release, "--release-key", signer.public)
    done = colibri_deploy("push", *place.arguments, *words)
    assert done.exit_code == 0, done.stderr
    assert "version 0.1.0, in place of one that says no version and may be newer, " in done.stdout
    record = push(place, signed_release)
    assert (record["may_be_downgrade"], record["replaces_version"]) == (False, "0.1.0")


@pytest.fixture
def board(root: Path, tmp_path: Path) -> Iterator[Store]:
    """A store on an emulated board, on which the lock is ours."""
    kind = select(load_targets(root), "host")
    with (
        SimBoard(kind, tmp_path / "sim") as served,
        Connection.open(served.board, served.known_hosts) as connection,
    ):
        shell = BoardShell(connection)
        run_dir = served.home / served.board.workdir
        with board_lock(shell, str(run_dir), lambda owner: None, "test") as nonce:
            yield Store(shell, nonce)


def test_what_is_changed_after_it_was_verified_is_not_pushed(
    release_copy: Path, signer: Signer, tmp_path: Path
) -> None:
    release = Release.open(release_copy, read_keys(signer.public), tmp_path / "engines")
    path, sums = release_copy / TARBALL, (release_copy / "SHA256SUMS").read_text()
    good = path.read_bytes()
    other = f"{TARBALL.removesuffix('.tar.gz')}/bin/colibri"
    write_tar(path, [(other, 0o755, b"another engine")], 0)
    write_engines(release_copy, "0.1.0")
    write_sums(release_copy)  # now all but the signature agrees
    with pytest.raises(ReleaseFilesError, match=f"^{TARBALL}: not what SHA256SUMS said"):
        release.engine("x86_64")
    path.write_bytes(good)
    with pytest.raises(ReleaseFilesError, match=r"^colibri-0\.1\.0-engines\.sha256: not what"):
        release.engine("x86_64")
    write_engines(release_copy, "0.1.0")
    proof = release.engine("x86_64").proof
    assert proof is not None
    assert proof.sums == sums != (release_copy / "SHA256SUMS").read_text()


TAMPERED: dict[str, Callable[[Proof], Proof]] = {
    "sums": lambda proof: replace(proof, sums=proof.sums + f"{'0' * 64}  x\n"),
    "signature": lambda proof: replace(proof, signature=proof.signature.replace("U", "V")),
    "list": lambda proof: replace(proof, engines=proof.engines + f"{'0' * 64}  x\n"),
    "name of the list": lambda proof: replace(proof, list_name="x"),
}


def test_a_board_checks_for_itself(
    board: Store, signed_release: Path, signer: Signer, new_signer: NewSigner, tmp_path: Path
) -> None:
    release = Release.open(signed_release, read_keys(signer.public), tmp_path / "engines")
    released = release.engine(machine_arch())
    assert released.proof is not None
    item = Item.read("colibri", released.path)
    board.send(item, 0, lambda n_bytes: None)
    assert board.seal(item, item)
    for name, tamper in TAMPERED.items():
        with pytest.raises(SignatureError, match=r"^sim:host refuses the release: ") as caught:
            board.prove(item, tamper(released.proof))
        assert caught.value.message.endswith(
            "the signature is not good"
            if name in ("sums", "signature")
            else "the engine is none of those that are signed"
        )
        assert board.trusted_key() is None
    other = tmp_path / "other"
    other.write_bytes(released.path.read_bytes() + b"\0")
    stranger = Item.read("colibri", other)
    board.send(stranger, 0, lambda n_bytes: None)
    assert board.seal(stranger, stranger)
    with pytest.raises(SignatureError, match="the engine is none of those that are signed"):
        board.prove(stranger, released.proof)
    assert board.prove(item, released.proof)
    assert board.trusted_key() == released.proof.key.text
    (wrong,) = read_keys(new_signer("ed25519").public)
    with pytest.raises(SignatureError, match="another key is trusted"):
        board.prove(item, replace(released.proof, key=wrong))


def test_versions_have_the_order_of_semver() -> None:
    ordered = (
        "0.9.10 1.0.0-alpha 1.0.0-alpha.1 1.0.0-alpha.beta 1.0.0-beta 1.0.0-beta.2 1.0.0-beta.11 "
        "1.0.0-rc.1 1.0.0 1.0.1 1.2.0 1.10.0 2.0.0"
    ).split()  # those of the specification among them
    for at, version in enumerate(ordered):
        assert [is_older(version, other) for other in ordered] == [
            at < number for number in range(len(ordered))
        ]
    assert not is_older("1.0.0+a", "1.0.0+b")
    assert not any(is_version(text) for text in ("1.0", "v1.0.0", "1.0.0-", "", "0+unknown"))


def test_what_is_said_of_a_release_goes_with_one(colibri_deploy: Cli, signer: Signer) -> None:
    words = ("--host", "pi@192.0.2.10", "--target", "rpi5")
    key = ("--release-key", signer.public)
    for option in (key, ("--allow-unsigned",), ("--allow-downgrade",)):
        done = colibri_deploy("push", *words, *option)
        assert done.exit_code == 2
        assert f"Error: {option[0]} goes with --release\n" in done.stderr
