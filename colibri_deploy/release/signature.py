# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Signatures of a release, by OpenSSH's keys and by minisign's.

They are made by ssh-keygen and minisign, which know agents, hardware keys and passphrases, and
checked here with what paramiko brings, so that neither program has to be installed for that.

The formats: https://github.com/openssh/openssh-portable/blob/master/PROTOCOL.sshsig and
https://jedisct1.github.io/minisign/
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import paramiko
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from colibri_deploy.errors import SignatureError, ToolchainError
from colibri_deploy.release.sums import MINISIGN_SUFFIX, SSH_SUFFIX, read_file

NAMESPACE = "colibri-release"

_ARMOR = "-----{} SSH SIGNATURE-----"
_SSH_MAGIC = b"SSHSIG"
_SSH_KINDS = ("ssh-ed25519", "ssh-rsa", *(f"ecdsa-sha2-nistp{bits}" for bits in (256, 384, 521)))
_SSH_HASHES = {"sha256": hashlib.sha256, "sha512": hashlib.sha512}
_MINISIGN_KEY_BYTES = 42  # "Ed", number of the key, Ed25519 key
_MINISIGN_SIGNATURE_BYTES = 74  # "ED", number of the key, Ed25519 signature

Kind = Literal["ssh", "minisign"]


@dataclass(frozen=True)
class TrustedKey:
    """A public key whose signatures are believed."""

    kind: Kind
    text: str  # "ssh-ed25519 AAAA..." without comment, or minisign's line "RW..."

    @property
    def fingerprint(self) -> str:
        """As ssh-keygen prints it, "SHA256:...", or minisign, always 16 hex digits."""
        if self.kind == "minisign":
            number = base64.b64decode(self.text)[2:10]
            return f"minisign:{int.from_bytes(number, 'little'):016X}"
        digest = hashlib.sha256(base64.b64decode(self.text.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")

    @property
    def suffix(self) -> str:
        """That of its signatures."""
        return SSH_SUFFIX if self.kind == "ssh" else MINISIGN_SUFFIX


def read_keys(path: Path) -> list[TrustedKey]:
    """The keys in a file: minisign's public key, or OpenSSH's, one a line.

    The latter may be a file of allowed signers; what that says before the keys is not looked at.
    Raises FileMissingError and SignatureError.
    """
    lines = read_file(path).decode(errors="replace").splitlines()
    keys = [key for line in lines if (key := _key_in(line)) is not None]
    if not keys:
        raise SignatureError(
            f"{path} holds no public key of minisign or OpenSSH (Ed25519, ECDSA or RSA)"
        )
    return keys


def parse_key(text: str) -> TrustedKey:
    """The key of which `text` is that. Raises SignatureError."""
    key = _key_in(text)
    if key is None:
        raise SignatureError(f"{text!r} is no public key of minisign or OpenSSH")
    return key


def _key_in(line: str) -> TrustedKey | None:
    words = line.split()
    kinds = [at for at, word in enumerate(words[:-1]) if _is_ssh_key(word, words[at + 1])]
    if kinds and not line.startswith("#"):
        return TrustedKey("ssh", " ".join(words[kinds[0] : kinds[0] + 2]))
    if len(words) == 1 and len(_decode(words[0])) == _MINISIGN_KEY_BYTES:
        return TrustedKey("minisign", words[0])
    return None


def sign(paths: Sequence[Path], *, ssh_key: Path | None, minisign_key: Path | None) -> list[Path]:
    """Signs files with the keys that are given; the signatures, which lie beside the files.

    The programs ask for passphrases themselves. `ssh_key` may be the public half of a key that an
    agent holds. Raises SignatureError, and ToolchainError where a program is not installed.
    """
    made = []
    for path in paths:
        if ssh_key is not None:
            made.append(Path(f"{path}{SSH_SUFFIX}"))
            made[-1].unlink(missing_ok=True)  # ssh-keygen would ask
            _call(["ssh-keygen", "-Y", "sign", "-f", ssh_key, "-n", NAMESPACE, path])
        if minisign_key is not None:
            made.append(Path(f"{path}{MINISIGN_SUFFIX}"))
            comment = ("-t", f"{NAMESPACE} {path.name}")
            _call(["minisign", "-S", "-s", minisign_key, *comment, "-m", path, "-x", made[-1]])
    return made


def verify(path: Path, content: bytes, keys: Sequence[TrustedKey]) -> TrustedKey:
    """The one of the trusted keys that signed what was read from a file.

    The signatures lie beside the file, which is not read again: it may change meanwhile. Raises
    FileMissingError and SignatureError.
    """
    signed = [key for key in keys if _signature(path, key).is_file()]
    if not signed:
        wanted = " or ".join(sorted({_signature(path, key).name for key in keys}))
        raise SignatureError(f"{path.name} is not signed: there is no {wanted}")
    for key in signed:
        signature = _signature(path, key)
        try:
            if _is_by(key, content, read_file(signature)):
                return key
        except (IndexError, KeyError, ValueError, paramiko.SSHException) as error:
            raise SignatureError(f"the signature {signature.name} is damaged: {error}") from error
    raise SignatureError(
        f"{path.name} is not signed by {' or '.join(key.fingerprint for key in signed)}: "
        "it was changed, or another key signed it"
    )


def _is_by(key: TrustedKey, content: bytes, signature: bytes) -> bool:
    """Whether a key made a signature. What is of no known form is some error of Python's."""
    if key.kind == "ssh":
        return _is_by_ssh(key, content, signature)
    return _is_by_minisign(key, content, signature)


def _is_by_ssh(key: TrustedKey, content: bytes, armored: bytes) -> bool:
    first, *encoded, last = armored.decode().splitlines()
    if (first, last) != (_ARMOR.format("BEGIN"), _ARMOR.format("END")):
        raise ValueError("it is none of OpenSSH's")
    blob = base64.b64decode("".join(encoded), validate=True)
    message = paramiko.Message(blob[len(_SSH_MAGIC) :])
    version, public = message.get_int(), message.get_string()
    namespace, reserved = message.get_string(), message.get_string()
    algorithm, by = message.get_text(), message.get_string()
    kind, trusted = key.text.split()
    if not blob.startswith(_SSH_MAGIC) or version != 1 or namespace != NAMESPACE.encode():
        return False
    if public != base64.b64decode(trusted):
        return False
    signed = paramiko.Message()
    signed.add_bytes(_SSH_MAGIC)
    digest = _SSH_HASHES[algorithm](content).digest()
    for part in (namespace, reserved, algorithm.encode(), digest):
        signed.add_string(part)
    verifier = paramiko.PKey.from_type_string(kind, public)
    return bool(verifier.verify_ssh_sig(signed.asbytes(), paramiko.Message(by)))


def _is_by_minisign(key: TrustedKey, content: bytes, text: bytes) -> bool:
    _, encoded, comment, encoded_whole = text.decode().splitlines()[:4]
    blob, public = base64.b64decode(encoded, validate=True), base64.b64decode(key.text)
    form, number, signature = blob[:2], blob[2:10], blob[10:]
    if len(blob) != _MINISIGN_SIGNATURE_BYTES or form not in (b"ED", b"Ed"):
        raise ValueError("it is none of minisign's")
    signed = hashlib.blake2b(content).digest() if form == b"ED" else content
    whole = signature + comment.removeprefix("trusted comment: ").encode()
    verifier = Ed25519PublicKey.from_public_bytes(public[10:])
    try:
        verifier.verify(signature, signed)
        verifier.verify(base64.b64decode(encoded_whole, validate=True), whole)
    except InvalidSignature:
        return False
    return number == public[2:10]


def _signature(path: Path, key: TrustedKey) -> Path:
    return Path(f"{path}{key.suffix}")


def _is_ssh_key(kind: str, encoded: str) -> bool:
    """Whether two words of a line are a public key; an OpenSSH key begins with its kind."""
    return kind in _SSH_KINDS and _decode(encoded)[4 : 4 + len(kind)] == kind.encode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""


def _call(words: list[str | Path]) -> None:
    """Runs a program that may ask for a passphrase on the terminal, and says itself what fails."""
    standard_error = 2  # standard output is for results
    try:
        status = subprocess.run(words, stdout=standard_error).returncode
    except OSError as error:
        raise ToolchainError(f"{words[0]} cannot be started: {error.strerror}") from error
    if status != 0:
        raise SignatureError(f"{words[0]} made no signature (status {status}); it has said why")
