# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`release verify` passes what was released, and says of all else what is wrong."""

from __future__ import annotations

import io
import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from release_fixtures import (
    COMMIT,
    DAMAGES,
    EPOCH,
    TARBALL,
    VERSION,
    NewSigner,
    Signer,
    seal_release,
    write_record,
)

from colibri_deploy.errors import ArchiveError, RebuildError, ReleaseFilesError
from colibri_deploy.process import Completed, run
from colibri_deploy.release.archive import tar_bytes, write_tar
from colibri_deploy.release.rebuild import first_difference, rebuild
from colibri_deploy.release.signature import read_keys
from colibri_deploy.release.sums import write_sums
from colibri_deploy.release.verify import Check, verify_release

Verify = Callable[..., Completed]


@pytest.fixture
def verify(root: Path, tmp_path: Path) -> Verify:
    """`verify(*args)` runs the verb to its end, any status."""

    def run_it(*args: str | Path, **env: str) -> Completed:
        words = [sys.executable, "-m", "colibri_deploy", "release", "verify", *args]
        return run(
            words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root), **env}, check=False
        )

    return run_it


def checked(place: Path, signer: Signer) -> list[str]:
    checks: list[Check] = []
    verify_release(place, read_keys(signer.public), checks.append)
    return [check.name for check in checks]


def test_a_release_passes_all_checks(verify: Verify, signed_release: Path, signer: Signer) -> None:
    done = verify(signed_release, "--key", signer.public, "--json")
    assert (done.status, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    fingerprint = run(["ssh-keygen", "-lf", signer.public]).stdout.split()[1]
    assert (record["ok"], record["signed_by"], record["error"]) == (True, fingerprint, None)
    details = {check["name"]: check["detail"] for check in record["checks"]}
    assert details["signature"] == f"SHA256SUMS is signed by {fingerprint}"
    assert details["files"].startswith("5 files, ")
    assert details["archives"] == "2 with 4 members, all of kinds that may be"
    assert details["engines"] == "aarch64, x86_64, all of version 0.1.0"
    assert details["record"] == f"version 0.1.0, commit {COMMIT}, the same files"
    assert details["SBOM"].startswith("CycloneDX 1.6, ")
    assert details["provenance"] == f"signed by {fingerprint}, of the same commit and files"


def test_one_file_is_checked_where_its_sums_lie(signed_release: Path, signer: Signer) -> None:
    assert checked(signed_release / TARBALL, signer) == ["signature", "files", "archives"]


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_wrong_with_a_release_is_told(
    release_copy: Path, signer: Signer, name: str
) -> None:
    damage = DAMAGES[name]
    damage.do(release_copy, signer)
    with pytest.raises(damage.error) as caught:
        checked(release_copy, signer)
    assert caught.value.message.startswith(damage.message)


def test_all_files_that_are_wrong_are_named(
    verify: Verify, release_copy: Path, signer: Signer
) -> None:
    for name in ("extra file", "missing release.json", f"flipped byte in {TARBALL}"):
        DAMAGES[name].do(release_copy, signer)
    done = verify(release_copy, "--key", signer.public)
    assert done.status == 50
    assert done.stderr == (
        f"error: {TARBALL}: changed; more.txt: not in SHA256SUMS; release.json: missing\n"
    )
    assert "SHA256SUMS is signed by" in done.stdout


def test_another_key_is_refused(
    verify: Verify, signed_release: Path, new_signer: NewSigner
) -> None:
    other = new_signer("ed25519").public
    done = verify(signed_release, "--json", COLIBRI_RELEASE_KEY=str(other))
    assert done.status == 51
    assert "SHA256SUMS is not signed by SHA256:" in json.loads(done.stdout)["error"]
    assert "another key signed it" in done.stderr


def test_without_a_key_nothing_is_believed_unless_told(
    verify: Verify, signed_release: Path
) -> None:
    done = verify(signed_release)
    assert done.status == 51
    assert done.stderr.startswith("error: which key is to be trusted? Give --key FILE")
    done = verify(signed_release, "--allow-unsigned", "--json")
    assert done.status == 0
    record = json.loads(done.stdout)
    assert record["signed_by"] is None
    assert record["checks"][0]["detail"] == "not checked: nobody knows who made these files"


def test_a_minisign_key_is_enough(release_copy: Path, new_signer: NewSigner) -> None:
    minisign = new_signer("minisign")
    minisign.sign(release_copy)
    assert "provenance" in checked(release_copy, minisign)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("release.json", '"0.1.0"', '"0.2.0"', "release.json: its version is 0.2.0, and 0.1.0 is"),
        ("release.json", '"sha256": "', '"sha256": "0', "release.json and SHA256SUMS do not agree"),
        ("release.json", '"commit"', '"comit"', "release.json, SBOM or provenance is not of the"),
        ("release.json", "{", "", "release.json is no JSON"),
        ("release.json", "{", "[" * 100_000, "release.json is no JSON"),
        ("release.json", COMMIT, "--upload-pack=x", "release.json: '--upload-pack=x' is no commit"),
        ("colibri-0.1.0.cdx.json", COMMIT, "0" * 40, "colibri-0.1.0.cdx.json: its commit is 000"),
        ("colibri-0.1.0-engines.sha256", "linux-x86", "linux-y86", f"{TARBALL}/colibri-0.1.0-lin"),
    ],
)
def test_files_that_do_not_agree_are_told(
    release_copy: Path, signer: Signer, file: str, old: str, new: str, message: str
) -> None:
    edit(release_copy / file, old, new)
    if file != "release.json":
        write_record(release_copy)
    write_sums(release_copy)
    signer.sign(release_copy)
    with pytest.raises(ReleaseFilesError) as caught:
        checked(release_copy, signer)
    assert caught.value.message.startswith(message)


def test_a_file_that_was_signed_and_is_not_in_the_record_is_told(
    release_copy: Path, signer: Signer
) -> None:
    (release_copy / "leftover.bin").write_text("left over\n")
    write_sums(release_copy)
    signer.sign(release_copy)
    with pytest.raises(ReleaseFilesError, match=r"^leftover\.bin: in SHA256SUMS, and not in rel"):
        checked(release_copy, signer)


def test_steps_that_were_left_out_are_told(release_copy: Path, root: Path, signer: Signer) -> None:
    seal_release(release_copy, root, skip=("clean", "tests"))
    signer.sign(release_copy)
    checks: list[Check] = []
    verify_release(release_copy, read_keys(signer.public), checks.append)
    assert checks[-1].detail.endswith(" and files; left out: clean, tests")


def test_a_statement_on_other_files_is_told(release_copy: Path, signer: Signer) -> None:
    edit(release_copy / "colibri-0.1.0.intoto.json", '"sha256": "', '"sha256": "0')
    signer.sign(release_copy)
    with pytest.raises(ReleaseFilesError, match=r"^colibri-0.1.0.intoto.json: its list of files"):
        checked(release_copy, signer)


def write_wheel(path: Path, name: str, mode: int = 0o100644) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        archive.writestr(info, "x")


def write_deb(path: Path, name: str) -> None:
    data = tar_bytes([("usr/x", 0o644, b"x")], 0).replace(b"usr/x", name.encode())
    header = f"{'data.tar':<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n"
    path.write_bytes(b"!<arch>\n" + header.encode() + data)


def newer_zip() -> bytes:
    """A ZIP archive of which the list says that only version 25.5 of ZIP can read its member."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x", "x")
    data = bytearray(file.getvalue())
    data[data.index(b"PK\x01\x02") + 6] = 255
    return bytes(data)


@pytest.mark.parametrize(
    ("write", "name", "message"),
    [
        (write_wheel, "../x.py", "a.whl: '../x.py' leads out"),
        (
            lambda path, name: write_wheel(path, name, 0o120777),
            "x",
            "a.whl: 'x' is no regular file",
        ),
        (
            lambda path, name: path.write_bytes(b"PK"),
            "x",
            "a.whl: it is damaged: File is not a zip",
        ),
        (
            lambda path, name: path.write_bytes(newer_zip()),
            "x",
            "a.whl: it is damaged: zip file version 25.5",
        ),
    ],
)
def test_a_hostile_wheel_is_refused(
    release_copy: Path, signer: Signer, write: Callable[..., None], name: str, message: str
) -> None:
    write(release_copy / "a.whl", name)
    write_sums(release_copy)
    signer.sign(release_copy)
    with pytest.raises(ArchiveError) as caught:
        checked(release_copy, signer)
    assert caught.value.message.startswith(message)


def test_a_hostile_debian_package_is_refused(release_copy: Path, signer: Signer) -> None:
    write_deb(release_copy / "a.deb", "../xx")
    write_sums(release_copy)
    signer.sign(release_copy)
    with pytest.raises(ArchiveError, match=r"^a.deb: '../xx' leads out"):
        checked(release_copy, signer)


def test_debian_packages_and_wheels_are_read(
    release_copy: Path, signer: Signer, root: Path
) -> None:
    write_deb(release_copy / "a.deb", "usr/x")
    write_wheel(release_copy / "a.whl", "x.py")
    seal_release(release_copy, root)
    signer.sign(release_copy)
    checks: list[Check] = []
    verify_release(release_copy, read_keys(signer.public), checks.append)
    assert checks[2].detail == "4 with 6 members, all of kinds that may be"


def test_an_older_version_is_refused_where_that_is_asked(
    verify: Verify, signed_release: Path, signer: Signer
) -> None:
    for place in (signed_release, signed_release / TARBALL):
        done = verify(place, "--key", signer.public, "--not-before", "0.2.0")
        assert done.status == 52
        assert done.stderr == "error: the release has version 0.1.0, older than 0.2.0\n"
    assert verify(signed_release, "--key", signer.public, "--not-before", "0.1.0").status == 0


def test_the_first_difference_is_named_by_file_and_member(
    signed_release: Path, release_copy: Path, root: Path, engine: Callable[[str], Path]
) -> None:
    def difference() -> str | None:
        seal_release(release_copy, root)
        return first_difference(signed_release, release_copy, VERSION)

    assert difference() is None
    top = TARBALL.removesuffix(".tar.gz")
    members: list[tuple[str, int, bytes | Path]] = [
        (f"{top}/bin/colibri", 0o755, engine("x86_64").read_bytes() + b"\0"),
        (f"{top}/LICENSE", 0o644, root / "LICENSE"),
    ]
    write_tar(release_copy / TARBALL, members, EPOCH)
    assert difference() == f"{TARBALL}, {top}/bin/colibri"
    members[0] = (f"{top}/bin/colibri", 0o755, engine("x86_64"))
    write_tar(release_copy / TARBALL, members, EPOCH + 1)
    assert difference() == f"{TARBALL}, packed in another way"
    write_tar(release_copy / TARBALL, members, EPOCH)
    (release_copy / "more.txt").write_text("more\n")
    assert difference() == "more.txt is made besides"


def test_a_commit_that_is_not_there_cannot_be_built_again(
    signed_release: Path, root: Path, tmp_path: Path
) -> None:
    run(["git", "init", "--quiet", tmp_path])
    with pytest.raises(RebuildError, match=f"has no commit {COMMIT}: git fetch"):
        rebuild(signed_release, VERSION, COMMIT, tmp_path, lambda line: None)
    with pytest.raises(RebuildError, match="is no git checkout"):
        rebuild(signed_release, VERSION, COMMIT, tmp_path / "none", lambda line: None)
