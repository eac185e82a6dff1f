# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Checksums, the list of parts and the statement on the build are what others read."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from release_fixtures import COMMIT, EPOCH, VERSION

from colibri_deploy.errors import ReleaseFilesError
from colibri_deploy.process import run
from colibri_deploy.release.sbom import installed_packages, write_sbom
from colibri_deploy.release.sums import read_sums, tarball_of
from colibri_deploy.toolchain import find_toolchain


@pytest.fixture
def sbom(signed_release: Path) -> Any:
    return json.loads((signed_release / f"colibri-{VERSION}.cdx.json").read_text())


def test_sha256sum_checks_all_that_is_reproducible(
    signed_release: Path, require_program: Callable[[str], Path]
) -> None:
    program = require_program("sha256sum")
    done = run([program, "--strict", "--check", "SHA256SUMS"], cwd=signed_release)
    said = done.stdout.splitlines()
    assert said == [
        "colibri-0.1.0-engines.sha256: OK",
        "colibri-0.1.0-linux-aarch64.tar.gz: OK",
        "colibri-0.1.0-linux-x86_64.tar.gz: OK",
        "colibri-0.1.0.cdx.json: OK",
        "release.json: OK",
    ]


def test_engines_can_be_checked_where_the_tarballs_are_unpacked(
    signed_release: Path, tmp_path: Path
) -> None:
    for tarball in signed_release.glob("*.tar.gz"):
        run(["tar", "--extract", "--file", tarball], cwd=tmp_path)
    listed = signed_release / "colibri-0.1.0-engines.sha256"
    assert run(["sha256sum", "--strict", "--check", listed], cwd=tmp_path).stdout == (
        "colibri-0.1.0-linux-aarch64/bin/colibri: OK\ncolibri-0.1.0-linux-x86_64/bin/colibri: OK\n"
    )


@pytest.mark.parametrize(
    "line",
    ["hello", f"{'a' * 64} x", f"{'A' * 64}  x", f"{'a' * 63}  x", f"{'a' * 64}  x\n{'b' * 64}  x"],
)
def test_what_is_no_checksum_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "SHA256SUMS").write_text(line + "\n")
    with pytest.raises(ReleaseFilesError, match=r"^SHA256SUMS, line [12]: .* is no new checksum$"):
        read_sums(tmp_path / "SHA256SUMS")


def test_tarballs_of_engines_are_told_by_their_names() -> None:
    assert tarball_of("colibri-0.1.0-linux-aarch64.tar.gz") == ("0.1.0", "aarch64")
    assert tarball_of("colibri-1.0.0-rc.1-linux-x86_64.tar.zst") == ("1.0.0-rc.1", "x86_64")
    assert tarball_of("colibri-0.1.0-linux-aarch64-debuginfo.tar.gz") is None
    assert tarball_of("colibri-0.1.0.tar.gz") is None
    assert tarball_of("colibri_deploy-0.1.0.tar.gz") is None


def test_list_of_parts_is_valid(signed_release: Path) -> None:
    text = (signed_release / f"colibri-{VERSION}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    broken = text.replace('"specVersion": "1.6",', "", 1)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(broken) is not None


def test_list_names_engines_libraries_and_tools_with_versions(
    sbom: Any, signed_release: Path, engine: Callable[[str], Path]
) -> None:
    parts = {part["name"]: part for part in sbom["components"]}
    for arch in ("aarch64", "x86_64"):
        digest = hashlib.sha256(engine(arch).read_bytes()).hexdigest()
        hashes = [{"alg": "SHA-256", "content": digest}]
        assert parts[f"colibri-0.1.0-linux-{arch}/bin/colibri"]["hashes"] == hashes
    assert (parts["musl"]["version"], parts["musl"]["licenses"]) == (
        "1.2.5",
        [{"expression": "MIT"}],
    )
    for name in ("click", "hatchling", "meson", "ziglang"):
        assert parts[name]["version"] == importlib.metadata.version(name)
    assert parts["click"]["licenses"] == [{"expression": "BSD-3-Clause"}]
    for name, requirement in (("numpy", ">=1.26"), ("markupsafe", ">=2.0")):  # jinja2 needs that
        properties = [{"name": "colibri:requirement", "value": requirement}]
        assert parts[name]["properties"] == properties
        assert not {"version", "licenses"} & parts[name].keys()
    tools = {part["name"]: part.get("version") for part in sbom["metadata"]["tools"]["components"]}
    assert tools["zig"] == importlib.metadata.version("ziglang")
    assert (tools["meson"], tools["ninja"]) == (importlib.metadata.version("meson"), None)
    assert tools["clang"].split(".")[0].isdecimal()
    assert sbom["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"


def test_all_that_depends_on_something_is_in_the_list(sbom: Any) -> None:
    refs = {part["bom-ref"] for part in sbom["components"]} | {"colibri"}
    for entry in sbom["dependencies"]:
        assert {entry["ref"], *entry["dependsOn"]} <= refs
    by_ref = {entry["ref"]: entry["dependsOn"] for entry in sbom["dependencies"]}
    version = importlib.metadata.version("jinja2")
    assert by_ref[f"pkg:pypi/jinja2@{version}"] == ["pkg:pypi/markupsafe"]


def test_list_is_the_same_again_and_has_another_number_for_another_file(
    release_copy: Path, root: Path
) -> None:
    def written() -> str:
        toolchain = find_toolchain()
        facts = {"version": VERSION, "commit": COMMIT}
        path = write_sbom(release_copy, **facts, epoch=EPOCH, root=root, toolchain=toolchain)
        return path.read_text()

    first = (release_copy / f"colibri-{VERSION}.cdx.json").read_text()
    assert written() == first
    (release_copy / "notes.md").write_text("more\n")
    numbers = [json.loads(text)["serialNumber"] for text in (first, written())]
    assert numbers[0] != numbers[1]
    assert all(number.startswith("urn:uuid:") and number[23] == "5" for number in numbers)


def test_another_version_of_a_package_that_is_not_pinned_stands_in_the_provenance_alone(
    release_copy: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / "site/numpy-99.0.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.4\nName: numpy\nVersion: 99.0\nRequires-Dist: rich\n")
    before = installed_packages(root)
    assert before["numpy"] == importlib.metadata.version("numpy")
    assert {"paramiko", "cryptography", "bcrypt", "pynacl"} <= before.keys()
    monkeypatch.syspath_prepend(str(metadata.parent.parent))
    assert installed_packages(root)["numpy"] == "99.0"
    first = (release_copy / f"colibri-{VERSION}.cdx.json").read_text()
    facts = {"version": VERSION, "commit": COMMIT}
    path = write_sbom(release_copy, **facts, epoch=EPOCH, root=root, toolchain=find_toolchain())
    assert path.read_text() == first


def test_statement_names_the_artifacts_the_commit_and_the_packages(signed_release: Path) -> None:
    statement = json.loads((signed_release / f"colibri-{VERSION}.intoto.json").read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    assert subjects == read_sums(signed_release / "SHA256SUMS")
    definition = statement["predicate"]["buildDefinition"]
    source, package = definition["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": COMMIT}
    assert package["uri"] == "pkg:pypi/deflate@0.9.0"
    assert len(package["digest"]["sha256"]) == 64
    assert package["annotations"]["license"] == "MIT License"
    assert statement["predicate"]["runDetails"]["builder"]["id"].startswith("urn:")
