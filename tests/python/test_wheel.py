# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The wheel is complete: installed elsewhere, it lists the targets and builds the same binary."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from colibri_deploy.process import run


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the checkout, without network."""
    folder = tmp_path_factory.mktemp("wheel")
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    run([sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", folder, root])
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel installed."""
    folder = tmp_path_factory.mktemp("installed")
    offline = ("--no-index", "--no-deps")
    run([sys.executable, "-m", "pip", "install", *offline, "--target", folder, wheel])
    return folder


@pytest.fixture(scope="module")
def outside(installed: Path) -> Mapping[str, str]:
    """An environment in which only the installed wheel is found, not the checkout."""
    return {**os.environ, "PYTHONPATH": str(installed)}


def test_the_wheel_is_named_after_the_version_of_meson_build(wheel: Path) -> None:
    assert wheel.name == "colibri_deploy-0.1.0-py3-none-any.whl"


def test_the_wheel_holds_what_git_or_the_checkout_holds(wheel: Path, root: Path) -> None:
    expected = {"colibri_deploy/engine/meson.build", "colibri_deploy/engine/meson_options.txt"}
    for folder in ("colibri_deploy", "cross", "src", "targets", "templates"):
        inside = "" if folder == "colibri_deploy" else "colibri_deploy/engine/"
        expected |= {
            f"{inside}{path.relative_to(root)}"
            for path in (root / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == expected


def test_the_installed_wheel_lists_the_targets(
    installed: Path, outside: Mapping[str, str], tmp_path: Path
) -> None:
    done = run([installed / "bin" / "colibri-deploy", "targets"], cwd=tmp_path, env=outside)
    assert "jetson-orin" in done.stdout
    where = "import colibri_deploy.resources as r; print(r.engine_root())"
    done = run([sys.executable, "-c", where], cwd=tmp_path, env=outside)
    assert Path(done.stdout.strip()) == installed / "colibri_deploy" / "engine"


# Every module is loaded, and a release unpacked, as `release verify` and `push --release` do it.
LOADS_ALL = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(sys.argv[1].split()))  # import raises ModuleNotFoundError for None
import colibri_deploy
for module in pkgutil.walk_packages(colibri_deploy.__path__, "colibri_deploy."):
    if not module.name.startswith(("colibri_deploy.engine", "colibri_deploy.__main__")):
        importlib.import_module(module.name)
from colibri_deploy.release.archive import decompress
print(decompress(bytes.fromhex(sys.argv[2])))
"""
ZSTD = "28b52ffd2003190000616263"  # RFC 8878: a frame of one raw block, "abc"


def needed(requirements: Iterable[str]) -> set[str]:
    """The names of the packages that pip installs for these, here."""
    found: set[str] = set()
    waiting = [(one, "") for one in requirements]
    while waiting:
        text, extra = waiting.pop()
        one = Requirement(text)
        name = canonicalize_name(one.name)
        if (one.marker and not one.marker.evaluate({"extra": extra})) or name in found:
            continue
        found.add(name)
        assert not one.extras, f"{text}: this test follows no extras"
        waiting += [(needs, "") for needs in importlib.metadata.requires(name) or ()]
    return found


def test_the_installed_wheel_needs_no_more_than_it_declares(
    installed: Path, outside: Mapping[str, str], tmp_path: Path
) -> None:
    (info,) = installed.glob("*.dist-info")
    declared = needed(importlib.metadata.Distribution.at(info).requires or ())
    others = [
        module
        for module, packages in importlib.metadata.packages_distributions().items()
        if not declared & set(map(canonicalize_name, packages)) and module != "colibri_deploy"
    ]
    assert {"pytest", "packaging", "deflate"} <= set(others)
    words = [sys.executable, "-c", LOADS_ALL, " ".join(others), ZSTD]
    assert run(words, cwd=tmp_path, env=outside).stdout == "b'abc'\n"


def test_the_installed_wheel_builds_the_same_binary(
    installed: Path,
    outside: Mapping[str, str],
    engine: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    program = installed / "bin" / "colibri-deploy"
    run([program, "build", "--target", "rpi5"], cwd=tmp_path, env=outside)
    built = tmp_path / "build" / "rpi5" / "colibri"
    assert built.read_bytes() == engine("aarch64").read_bytes()
