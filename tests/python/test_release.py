# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A release as a user gets it: made once, made again, unpacked, installed and run.

The gates `tests`, `clean` and `isa` are left out: this is one of the tests, the checkout may be
changed while they run, and tests/kernels/test_isa_escape.py reads the objects.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from release_fixtures import Signer

from colibri_deploy.errors import PackagingError, ReleaseFilesError, SignatureError
from colibri_deploy.golden_model import load_goldens
from colibri_deploy.process import Completed, run
from colibri_deploy.release import gates
from colibri_deploy.release.completions import engine_options
from colibri_deploy.release.pipeline import Release
from colibri_deploy.release.signature import read_keys
from colibri_deploy.release.tree import read_tree
from colibri_deploy.release.verify import Check, verify_release
from colibri_deploy.targets import machine_arch
from colibri_deploy.toolchain import find_toolchain

VERSION = "0.1.0"
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64", "riscv64": "riscv64"}
LEFT_OUT = ("--skip", "tests", "--skip", "clean", "--skip", "isa")
GOLDEN = load_goldens()[0]


def make(root: Path, dist: Path, prefix: tuple[str, ...] = (), **env: str) -> Completed:
    """Runs `colibri-deploy release`; compilations are those of the other tests."""
    words = [sys.executable, "-m", "colibri_deploy", "release", *LEFT_OUT]
    words += ["--build-dir", str(root / "build"), "--dist-dir", str(dist)]
    places = os.pathsep.join((str(root), os.environ.get("PYTHONPATH", "")))
    return run([*prefix, *words], cwd=dist.parent, env={**os.environ, "PYTHONPATH": places, **env})


@pytest.fixture(scope="module")
def made(
    root: Path, tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[str], Path]
) -> Path:
    """The directory of a release for all architectures."""
    for arch in ("aarch64", "riscv64"):
        require_program(f"qemu-{arch}-static")
    dist = tmp_path_factory.mktemp("dist")
    make(root, dist)
    return dist / VERSION


@pytest.fixture(scope="module")
def unpacked(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from what a tarball is called to the directory in it."""

    def unpack(what: str) -> Path:
        folder = tmp_path_factory.mktemp("unpacked")
        run(["tar", "-xzf", made / f"colibri-{VERSION}-{what}.tar.gz", "-C", folder])
        return folder / f"colibri-{VERSION}-{what}"

    return unpack


@pytest.fixture
def runner(require_program: Callable[[str], Path]) -> Callable[[str], list[str]]:
    """A function from an architecture to what runs its programs here."""

    def find(arch: str) -> list[str]:
        native = arch == machine_arch()
        return [] if native else [str(require_program(f"qemu-{arch}-static"))]

    return find


def hash_of(words: list[str], model: Path) -> str:
    """The golden model's logits hash, as an engine computes it."""
    arguments = (*GOLDEN.prompt.arguments(), "--kv", GOLDEN.kv)
    answer: dict[str, Any] = json.loads(run([*words, "--model", model, *arguments]).stdout)
    return str(answer["logits_hash"])


def test_a_release_made_elsewhere_has_the_same_checksums(
    root: Path, made: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "another directory" / "dist"
    elsewhere.mkdir(parents=True)
    umask = ("sh", "-c", 'umask 077; exec "$@"', "sh")
    make(root, elsewhere, umask, TZ="Pacific/Chatham", LC_ALL="C", USER="somebody", LOGNAME="else")
    ours = (made / "SHA256SUMS").read_text(encoding="utf-8")
    assert len(ours.splitlines()) == 24
    assert (elsewhere / VERSION / "SHA256SUMS").read_text(encoding="utf-8") == ours


def test_the_sources_alone_build_the_released_program(
    unpacked: Callable[[str], Path], meson: Callable[..., Completed]
) -> None:
    sources = unpacked("src")
    for part in ("bench", "colibri_deploy", "tests"):
        run(["rm", "-r", sources / part])
    build = sources / "out/of/the/way"
    cross = sources / "cross/riscv64-linux-musl.ini"
    meson("setup", build, sources, "--cross-file", cross)
    meson("compile", "-C", build, "colibri:executable", "src/colibri:static_library")
    released = unpacked("linux-riscv64")
    for ours, theirs in (("colibri", "bin/colibri"), ("src/libcolibri.a", "lib/libcolibri.a")):
        assert (build / ours).read_bytes() == (released / theirs).read_bytes(), theirs


@pytest.mark.parametrize("arch", DEBIAN)
def test_debug_information_is_that_of_the_program_and_names_no_place(
    arch: str,
    root: Path,
    unpacked: Callable[[str], Path],
    require_program: Callable[[str], Path],
) -> None:
    readelf = require_program("readelf")
    program = unpacked(f"linux-{arch}") / "bin/colibri"
    notes = run([readelf, "--notes", "--wide", program]).stdout
    (build_id,) = re.findall(r"Build ID: ([0-9a-f]{40})", notes)
    debug = unpacked(f"linux-{arch}-debuginfo")
    debug /= f"lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
    units = run([readelf, "--debug-dump=info", "--dwarf-depth=1", debug]).stdout
    assert "./src/transformer.c" in units
    for content in (debug.read_bytes(), program.read_bytes()):
        for place in (str(root), str(Path.home()), "site-packages", "ziglang"):
            assert place.encode() not in content, place


@pytest.mark.parametrize("shell", ["sh", "busybox"])
def test_the_installer_puts_a_program_where_a_push_would(
    shell: str,
    unpacked: Callable[[str], Path],
    runner: Callable[[str], list[str]],
    require_program: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    words: list[str | Path] = [require_program(shell), *(["sh"] if shell == "busybox" else [])]
    here = unpacked("linux-riscv64")
    env = {**os.environ, "COLIBRI_RUNNER": runner("riscv64")[0]}
    board = tmp_path / "colibri"
    for _ in range(2):
        done = run([*words, here / "install.sh", board], env=env)
        assert done.stdout.endswith(f" is current: {board}/current/colibri\n")
    names = {path.name for path in (board / "store").iterdir()}
    sha256 = hashlib.sha256((here / "bin/colibri").read_bytes()).hexdigest()
    assert (names, (board / "lock").exists()) == ({sha256}, False)
    engine = [*runner("riscv64"), str(board / "current/colibri")]
    assert hash_of(engine, here / "share/colibri/golden") == GOLDEN.logits_hash

    content = bytearray((here / "bin/colibri").read_bytes())
    at = content.index(b"Usage: colibri")
    content[at] ^= 0x20
    (here / "bin/colibri").write_bytes(content)
    refused = run([*words, here / "install.sh", tmp_path / "other"], env=env, check=False)
    assert (refused.status, refused.stdout) == (1, "")
    assert "bin/colibri is damaged" in refused.stderr
    assert not (tmp_path / "other/current").exists()


@pytest.mark.parametrize("arch", DEBIAN)
def test_the_debian_package_installs_and_runs(
    arch: str,
    made: Path,
    runner: Callable[[str], list[str]],
    require_program: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    for folder in ("info", "updates"):
        (tmp_path / "var/lib/dpkg" / folder).mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").touch()
    dpkg: list[str | Path] = [require_program("dpkg"), f"--root={tmp_path}"]
    package = made / f"colibri_{VERSION}_{DEBIAN[arch]}.deb"
    as_anybody = ("--force-not-root", "--force-bad-path")  # whose PATH may lack /sbin
    run([*dpkg, "--force-architecture", *as_anybody, "--install", package])
    assert "Status: install ok installed" in run([*dpkg, "--status", "colibri"]).stdout
    assert run([*dpkg, "--verify", "colibri"]).stdout == ""
    engine = [*runner(arch), str(tmp_path / "usr/bin/colibri")]
    assert hash_of(engine, tmp_path / "usr/share/colibri/golden") == GOLDEN.logits_hash


@pytest.mark.parametrize("arch", DEBIAN)
def test_the_image_holds_a_program_for_each_platform(
    arch: str, made: Path, runner: Callable[[str], list[str]], tmp_path: Path
) -> None:
    with tarfile.open(made / f"colibri-{VERSION}-oci.tar") as archive:
        files = {info.name: file.read() for info in archive if (file := archive.extractfile(info))}

    def blob(descriptor: dict[str, Any]) -> bytes:
        content = files["blobs/sha256/" + descriptor["digest"].removeprefix("sha256:")]
        assert hashlib.sha256(content).hexdigest() == descriptor["digest"].removeprefix("sha256:")
        assert len(content) == descriptor["size"]
        return content

    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (index,) = json.loads(files["index.json"])["manifests"]
    assert index["mediaType"] == "application/vnd.oci.image.index.v1+json"
    (one,) = (
        one
        for one in json.loads(blob(index))["manifests"]
        if one["platform"] == {"architecture": DEBIAN[arch], "os": "linux"}
    )
    manifest = json.loads(blob(one))
    config = json.loads(blob(manifest["config"]))
    assert (config["architecture"], config["os"]) == (DEBIAN[arch], "linux")
    (layer,) = manifest["layers"]
    (tmp_path / "layer").write_bytes(blob(layer))
    run(["tar", "--extract", "--file", "layer"], cwd=tmp_path)
    (entry,) = config["config"]["Entrypoint"]
    version = run([*runner(arch), f"{tmp_path}{entry}", "--version"]).stdout
    assert version.startswith(f"colibri {VERSION} ({arch})\n")


def test_the_wheel_works_outside_a_checkout(made: Path, tmp_path: Path) -> None:
    (wheel,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
    target = tmp_path / "installed"
    offline = ("--no-index", "--no-deps", "--quiet", "--target", str(target))
    run([sys.executable, "-m", "pip", "install", *offline, wheel])
    env = {**os.environ, "PYTHONPATH": str(target)}
    done = run([target / "bin/colibri-deploy", "targets"], cwd=tmp_path, env=env)
    assert "jetson-orin" in done.stdout
    version = run([target / "bin/colibri-deploy", "--version"], cwd=tmp_path, env=env).stdout
    assert version == f"colibri-deploy, version {VERSION}\n"


def test_man_pages_are_without_fault_and_name_every_option(
    unpacked: Callable[[str], Path], require_program: Callable[[str], Path]
) -> None:
    here = unpacked(f"linux-{machine_arch()}")
    pages = sorted((here / "share/man/man1").iterdir())
    assert [path.name for path in pages] == ["colibri-deploy.1", "colibri.1"]
    groff = run([require_program("groff"), "-man", "-Tascii", "-ww", "-z", *pages])
    assert (groff.stdout, groff.stderr) == ("", "")
    options = {one.name for one in engine_options(run([here / "bin/colibri", "--help"]).stdout)}
    text = pages[1].read_text(encoding="utf-8").replace("\\-", "-")
    assert options == set(re.findall(r"^\.BI? --(\w+)", text, re.MULTILINE))
    script = (here / "share/bash-completion/completions/colibri").read_text(encoding="utf-8")
    assert {f"--{name}" for name in options} == set(re.findall(r"--\w+", script))


def test_a_c_program_is_linked_with_the_library_wherever_it_lies(
    unpacked: Callable[[str], Path], runner: Callable[[str], list[str]], tmp_path: Path
) -> None:
    here = unpacked("linux-riscv64")
    facts = (here / "lib/pkgconfig/colibri.pc").read_text(encoding="utf-8")
    assert "prefix=${pcfiledir}/../..\n" in facts
    facts = facts.replace("${pcfiledir}", str(here / "lib/pkgconfig"))
    values = dict(re.findall(r"^(\w+)=(.*)$", facts, re.MULTILINE))
    flags = " ".join(re.findall(r"^(?:Cflags|Libs): (.*)$", facts, re.MULTILINE))
    for name in ("libdir", "includedir", "prefix"):
        flags = flags.replace(f"${{{name}}}", values[name])
    program = tmp_path / "load.c"
    program.write_text(
        "#include <colibri.h>\n"
        "int main(int n, char **words)\n{\n"
        "    colibri_error error;\n    colibri_model *model = 0;\n"
        "    return colibri_load_model(&model, words[n - 1], 0, 0, &error);\n}\n",
        encoding="utf-8",
    )
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "riscv64-linux-musl", "-static"]
    run([*compiler, program, *flags.split(), "-o", tmp_path / "load"])
    for model, status in ((here / "share/colibri/golden", 0), (tmp_path, 3)):
        assert run([*runner("riscv64"), tmp_path / "load", model], check=False).status == status


def test_the_record_says_what_was_made_and_the_provenance_how(made: Path) -> None:
    record = json.loads((made / "release.json").read_text(encoding="utf-8"))
    assert record["version"] == VERSION
    listed = {one["name"]: one["sha256"] for one in record["artifacts"]}
    assert len(listed) == 23
    for name, sha256 in listed.items():
        assert hashlib.sha256((made / name).read_bytes()).hexdigest() == sha256
    for program in record["programs"].values():
        assert program["bytes"] <= 204_800
    statement = json.loads((made / f"colibri-{VERSION}.intoto.json").read_text(encoding="utf-8"))
    parameters = statement["predicate"]["buildDefinition"]["externalParameters"]
    assert parameters["skip"] == ["clean", "tests", "isa"]
    assert parameters["tag"] in ("untagged", f"v{VERSION}")


def test_a_section_that_has_grown_much_since_the_last_release_stops(
    root: Path, made: Path, tmp_path: Path
) -> None:
    record = json.loads((made / "release.json").read_text(encoding="utf-8"))
    last = tmp_path / "0.0.9/release.json"
    last.parent.mkdir()
    release = Release(
        tree=read_tree(root),
        toolchain=find_toolchain(),
        versions={},
        documents={},
        build_dir=root / "build",
        dist_dir=tmp_path / VERSION,
    )
    sections = record["programs"]["aarch64"]["sections"]
    record["version"] = "0.0.9"
    sections[".text"] -= gates.MAX_GROWTH
    last.write_text(json.dumps(record), encoding="utf-8")
    assert gates.size(release, lambda what: None).facts == {"compared_with": "0.0.9"}
    sections[".text"] -= 1
    last.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(
        PackagingError, match=r"\.text of aarch64 has grown from .* since release 0"
    ):
        gates.size(release, lambda what: None)


def test_a_signed_release_is_verified_and_one_flipped_byte_in_any_file_is_refused(
    made: Path, signer: Signer, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(made, tmp_path / "release"))
    signer.sign(directory)
    keys = read_keys(signer.public)
    passed: list[Check] = []
    verify_release(directory, keys, passed.append)
    assert [check.name for check in passed][-2:] == ["SBOM", "provenance"]
    for path in sorted(directory.iterdir()):
        good = path.read_bytes()
        at = len(good) // 2
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises((ReleaseFilesError, SignatureError), match=path.stem):
            verify_release(directory, keys, lambda check: None)
        path.write_bytes(good)
    verify_release(directory, keys, lambda check: None)
