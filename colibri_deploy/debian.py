# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Debian packages of any suite and architecture, fetched by apt and read without installing them.

apt gets a state and a cache of its own: nothing of the system's is written, and no root is needed.
The mirror is the one that the system uses, and apt checks signatures and checksums as always.
"""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from colibri_deploy.errors import DownloadError, EmulationError, ProcessError
from colibri_deploy.process import run

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# One line of `apt-get --print-uris download`: 'URI' NAME_VERSION_ARCH.deb BYTES SHA256:HEX
_URI_LINE = re.compile(r"'\S+' ([^_\s]+)_([^_\s]+)_\S+\.deb (\d+) SHA256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Package:
    """A package as the signed index of its suite describes it."""

    name: str
    version: str
    bytes: int  # of the .deb
    sha256: str  # of the .deb


class Suite:
    """One suite of Debian for one architecture."""

    def __init__(self, name: str, arch: str, directory: Path) -> None:
        """`arch` as Debian calls it; `directory` is apt's, made when missing."""
        self.name = name
        self.arch = arch
        self._directory = directory.absolute()

    def update(self) -> None:
        """Fetches the index. Raises DownloadError, and EmulationError where there is no Debian."""
        for part in ("lists/partial", "archives/partial"):
            (self._directory / part).mkdir(parents=True, exist_ok=True)
        (self._directory / "status").touch()  # of dpkg: nothing is installed
        source = f"deb [signed-by={_KEYRING}] {_mirror()} {self.name} main\n"
        self._write("sources.list", source)
        self._write("apt.conf", self._configuration())
        self._apt("apt-get", "-q", "update", "--error-on=any")

    def find(self, names: Sequence[str]) -> list[Package]:
        """The current packages of these names. Raises DownloadError."""
        lines = self._apt("apt-get", "-q", "--print-uris", "download", *names)
        found = {
            match[1]: Package(match[1], unquote(match[2]), int(match[3]), match[4])
            for match in _URI_LINE.finditer(lines)
        }
        missing = [name for name in names if name not in found]
        if missing:
            raise DownloadError(f"Debian {self.name} has no {', '.join(missing)} for {self.arch}")
        return [found[name] for name in names]

    def dependency(self, name: str, prefix: str) -> str:
        """The name of the first dependency of a package that begins with `prefix`."""
        text = self._apt("apt-cache", "show", "--no-all-versions", name)
        match = re.search(rf"^Depends:.*?\b({re.escape(prefix)}[^\s,]*)", text, re.MULTILINE)
        if match is None:
            raise DownloadError(f"Debian {self.name}: {name} depends on no {prefix}...")
        return match[1]

    def download(self, packages: Sequence[Package]) -> list[Path]:
        """The packages' files; those that are here already are not fetched again."""
        directory = self._directory / "archives"
        words = [f"{package.name}={package.version}" for package in packages]
        self._apt("apt-get", "-q", "download", *words, cwd=directory)
        names = [f"{one.name}_{one.version.replace(':', '%3a')}_*.deb" for one in packages]
        return [next(directory.glob(name)) for name in names]

    def clean(self) -> None:
        """Removes the packages' files."""
        for path in (self._directory / "archives").glob("*.deb"):
            path.unlink()

    def _configuration(self) -> str:
        """apt.conf(5)."""
        here = self._directory
        return (
            f'Dir::State "{here}";\n'
            f'Dir::State::lists "{here}/lists";\n'
            f'Dir::State::status "{here}/status";\n'
            f'Dir::Cache "{here}";\n'
            'Dir::Cache::pkgcache "pkgcache.bin";\n'  # each call is a second faster
            'Dir::Cache::srcpkgcache "srcpkgcache.bin";\n'
            f'Dir::Etc::sourcelist "{here}/sources.list";\n'
            'Dir::Etc::sourceparts "/dev/null";\n'
            'Dir::Etc::preferences "/dev/null";\n'
            'Dir::Etc::preferencesparts "/dev/null";\n'
            f'APT::Architecture "{self.arch}";\n'
            f'APT::Architectures "{self.arch}";\n'
            'APT::Sandbox::User "";\n'  # another user could not write here
            'Acquire::Languages "none";\n'
        )

    def _write(self, name: str, text: str) -> None:
        (self._directory / name).write_text(text, encoding="utf-8")

    def _apt(self, *words: str, cwd: Path | None = None) -> str:
        environment = {**os.environ, "APT_CONFIG": f"{self._directory}/apt.conf", "LC_ALL": "C"}
        try:
            return run(words, cwd=cwd, env=environment).stdout
        except ProcessError as error:
            raise DownloadError(
                f"Debian {self.name} for {self.arch}: {words[0]} fails", details=error.details
            ) from error


@dataclass(frozen=True)
class Member:
    """A file or a symbolic link of a package."""

    path: str  # absolute
    link: str | None  # where it points; None: it is a file
    data: bytes


def members(package: Path, wanted: Callable[[str], bool]) -> Iterator[Member]:
    """The files and links of a package whose absolute paths are wanted. Raises EmulationError."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None  # asked for above
        with tarfile.open(fileobj=child.stdout, mode="r|") as archive:
            for member in archive:
                path = member.name.removeprefix(".")
                if not (member.isreg() or member.issym()) or not wanted(path):
                    continue
                file = archive.extractfile(member) if member.isreg() else None
                yield Member(path, None if file else member.linkname, file.read() if file else b"")
        child.stdout.read()  # the archive's padding
    if child.returncode != 0:
        raise EmulationError(f"{package} cannot be unpacked: dpkg-deb fails")


def _mirror() -> str:
    """The URI of the Debian mirror that this system uses."""
    if not _KEYRING.exists():
        raise EmulationError(
            f"{_KEYRING} is missing: images are built from Debian packages, on a Debian system"
        )
    words = ("--format", "$(ORIGIN) $(COMPONENT) $(REPO_URI)", "Created-By: Packages")
    lines = run(("apt-get", "indextargets", *words)).stdout.splitlines()
    uris = [line.split(" ", 2)[2] for line in lines if line.startswith("Debian main ")]
    plain = [uri for uri in uris if uri.rstrip("/").endswith("/debian")]  # not debian-security
    if not plain:
        raise EmulationError(
            "apt knows no Debian mirror: run `apt-get update`, on a Debian system whose sources "
            "have the component main"
        )
    return plain[0]
