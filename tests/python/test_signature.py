# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Signatures: made by ssh-keygen and minisign, believed by us when those believe them."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest
from release_fixtures import NewSigner

from colibri_deploy.errors import SignatureError, ToolchainError
from colibri_deploy.process import run
from colibri_deploy.release.signature import NAMESPACE, TrustedKey, read_keys, sign, verify

KINDS = ("ed25519", "ecdsa", "rsa", "minisign")


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_programs_believe_is_believed_here(
    tmp_path: Path, new_signer: NewSigner, kind: str
) -> None:
    key, path = new_signer(kind), tmp_path / "SHA256SUMS"
    path.write_text("content\n")
    signature = key.sign_file(path)
    public = key.public
    if kind == "minisign":
        run(["minisign", "-V", "-p", public, "-m", path, "-x", signature])
        shown = public.read_text().split()[5]  # untrusted comment: minisign public key NUMBER
        fingerprint = f"minisign:{shown.zfill(16)}"  # old ones leave out zeros
    else:
        (tmp_path / "allowed").write_text(f"me@example.org {public.read_text()}")
        words = ["-I", "me@example.org", "-n", NAMESPACE, "-s", str(signature)]
        with path.open() as content:
            command = ["ssh-keygen", "-Y", "verify", "-f", str(tmp_path / "allowed"), *words]
            subprocess.run(command, stdin=content, check=True)
        fingerprint = run(["ssh-keygen", "-lf", public]).stdout.split()[1]
    assert verify(path, path.read_bytes(), read_keys(public)).fingerprint == fingerprint


def test_the_number_of_a_minisign_key_has_16_digits() -> None:
    number = bytes.fromhex("0123456789abcd0e")  # little-endian
    text = base64.b64encode(b"Ed" + number + bytes(32)).decode()
    assert TrustedKey("minisign", text).fingerprint == "minisign:0ECDAB8967452301"


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_in_file_or_signature_is_refused(
    tmp_path: Path, new_signer: NewSigner, kind: str
) -> None:
    key, path = new_signer(kind), tmp_path / "SHA256SUMS"
    path.write_text("content\n")
    signature = key.sign_file(path)
    keys = read_keys(key.public)
    path.write_text("Content\n")
    with pytest.raises(SignatureError, match="SHA256SUMS is not signed by "):
        verify(path, path.read_bytes(), keys)
    path.write_text("content\n")
    good = signature.read_text()
    lines = good.splitlines()
    at = 1 if kind == "minisign" else -2
    lines[at] = f"{lines[at][:20]}{'B' if lines[at][20] == 'A' else 'A'}{lines[at][21:]}"
    signature.write_text("\n".join(lines) + "\n")
    with pytest.raises(SignatureError):
        verify(path, path.read_bytes(), keys)
    signature.write_text(good)
    assert verify(path, path.read_bytes(), keys) == keys[0]


@pytest.mark.parametrize("kind", ["ed25519", "minisign"])
def test_another_key_is_refused_and_one_of_several_is_enough(
    tmp_path: Path, new_signer: NewSigner, kind: str
) -> None:
    key, other, path = new_signer(kind), new_signer(kind), tmp_path / "SHA256SUMS"
    path.write_text("content\n")
    key.sign_file(path)
    (right,), (wrong,) = (read_keys(one.public) for one in (key, other))
    with pytest.raises(SignatureError) as caught:
        verify(path, path.read_bytes(), [wrong])
    assert caught.value.message == (
        f"SHA256SUMS is not signed by {wrong.fingerprint}: it was changed, or another key signed it"
    )
    assert verify(path, path.read_bytes(), [wrong, right]) == right


def test_a_minisign_comment_that_was_changed_is_refused(
    tmp_path: Path, new_signer: NewSigner
) -> None:
    key, path = new_signer("minisign"), tmp_path / "SHA256SUMS"
    path.write_text("content\n")
    signature = key.sign_file(path)
    signature.write_text(signature.read_text().replace(f"{NAMESPACE} SHA", f"{NAMESPACE} sha"))
    with pytest.raises(SignatureError, match="is not signed by"):
        verify(path, path.read_bytes(), read_keys(key.public))


def test_a_signature_for_another_purpose_is_refused(tmp_path: Path, new_signer: NewSigner) -> None:
    key, path = new_signer("ed25519"), tmp_path / "SHA256SUMS"
    path.write_text("content\n")
    run(["ssh-keygen", "-Y", "sign", "-f", key.private, "-n", "file", path])
    with pytest.raises(SignatureError, match="is not signed by"):
        verify(path, path.read_bytes(), read_keys(key.public))


@pytest.mark.parametrize("text", ["", "hello\n", "-----BEGIN SSH SIGNATURE-----\nAA\n", "\xff" * 9])
@pytest.mark.parametrize("kind", ["ed25519", "minisign"])
def test_a_signature_of_no_known_form_is_damaged(
    tmp_path: Path, new_signer: NewSigner, kind: str, text: str
) -> None:
    key, path = new_signer(kind), tmp_path / "SHA256SUMS"
    path.write_text("content\n")
    (trusted,) = read_keys(key.public)
    Path(f"{path}{trusted.suffix}").write_text(text, encoding="latin-1")
    with pytest.raises(SignatureError, match=r"the signature SHA256SUMS\.\w+ is damaged"):
        verify(path, path.read_bytes(), [trusted])


def test_what_is_not_signed_says_which_signature_is_missing(
    tmp_path: Path, new_signer: NewSigner
) -> None:
    (tmp_path / "SHA256SUMS").write_text("content\n")
    keys = read_keys(new_signer("ed25519").public)
    with pytest.raises(SignatureError, match=r"is not signed: there is no SHA256SUMS\.sig"):
        verify(tmp_path / "SHA256SUMS", b"content\n", keys)


def test_allowed_signers_and_comments_are_read(tmp_path: Path, new_signer: NewSigner) -> None:
    public = new_signer("ed25519").public.read_text()
    (tmp_path / "allowed").write_text(
        f'# ours: {public}\nme@example.org namespaces="{NAMESPACE}" {public}\n{public}'
    )
    keys = read_keys(tmp_path / "allowed")
    assert [key.text for key in keys] == [" ".join(public.split()[:2])] * 2


def test_a_file_without_a_key_and_a_private_key_are_told(
    tmp_path: Path, new_signer: NewSigner
) -> None:
    with pytest.raises(SignatureError, match="holds no public key of minisign or OpenSSH"):
        read_keys(new_signer("ed25519").private)


def test_a_key_that_cannot_sign_and_a_missing_program_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "SHA256SUMS"
    path.write_text("content\n")
    with pytest.raises(SignatureError, match="ssh-keygen made no signature"):
        sign([path], ssh_key=tmp_path / "none", minisign_key=None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match="minisign cannot be started: No such file"):
        sign([path], ssh_key=None, minisign_key=tmp_path / "none")
