# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""--use_mlock: the model is in memory while the engine runs, or there is an error."""

import os
import re
import resource
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from synthetic import Shape, write_checkpoint

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.process import run
from colibri_deploy.targets import machine_arch

PAGE_KIB = resource.getpagesize() // 1024
SHAPE = Shape(hidden=64, ffn=96, experts=3, top_k=2, layers=2, heads=4, kv_heads=2, vocab=50)
# So long that a trace of its routing fills a pipe.
PROMPT = ",".join(str(i % 50) for i in range(900))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, not to be changed."""
    directory = tmp_path_factory.mktemp("mlock")
    write_checkpoint(directory / "checkpoint", SHAPE)
    convert_checkpoint(directory / "checkpoint", directory / "model", "f32")
    return directory / "model"


@pytest.fixture
def limited(require_program: Callable[[str], Path]) -> Callable[[int], list[str | Path]]:
    """A function from KiB to the words before a command that may lock so much and no more."""

    def words(kib: int) -> list[str | Path]:
        shell: list[str | Path] = ["sh", "-c", f'ulimit -l {kib} && exec "$@"', "sh"]
        if os.geteuid() == 0:  # the limit is none for root
            shell += [require_program("setpriv"), "--bounding-set=-ipc_lock", "--inh-caps=-all"]
        return shell

    return words


@contextmanager
def running(command: list[str | Path], trace: Path) -> Iterator[int]:
    """The id of a process that has loaded its model, and waits for its trace to be read."""
    os.mkfifo(trace)
    end = os.open(trace, os.O_RDONLY | os.O_NONBLOCK)
    with subprocess.Popen([*command, "--trace_routing", trace], stdout=subprocess.PIPE) as process:
        try:
            readable, _, _ = select.select([end], [], [], 60)
            assert readable, "no trace after a minute"
            assert process.poll() is None
            yield process.pid
            os.set_blocking(end, True)
            while os.read(end, 1 << 16):
                pass
            assert process.wait(60) == 0
        finally:
            os.close(end)
            process.kill()


def locked_kib(pid: int) -> int:
    """How much memory a process has locked."""
    match = re.search(r"^VmLck:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match
    return int(match[1])


def kib_of(model: Path) -> int:
    """What the pages of the model take."""
    return -(-(model / "model.bin").stat().st_size // resource.getpagesize()) * PAGE_KIB


def may_lock(kib: int) -> bool:
    """Whether a process of ours may lock so much."""
    _, limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return os.geteuid() == 0 or limit == resource.RLIM_INFINITY or limit >= kib * 1024


@pytest.mark.parametrize("lock", [True, False])
def test_a_locked_model_is_in_memory(
    lock: bool,
    model: Path,
    engine: Callable[[str], Path],
    require: Callable[[bool, str], None],
    tmp_path: Path,
) -> None:
    size = kib_of(model)
    require(may_lock(size), f"less than {size} KiB may be locked: raise the limit with ulimit -l")
    command: list[str | Path] = [engine(machine_arch()), "--model", model, "--tokens", PROMPT]
    command += ["--num_tokens=0", "--format=ids", *(["--use_mlock"] if lock else [])]
    with running(command, tmp_path / "trace") as pid:
        assert locked_kib(pid) == (size if lock else 0)


def test_what_cannot_be_locked_is_an_error(
    model: Path, engine: Callable[[str], Path], limited: Callable[[int], list[str | Path]]
) -> None:
    named: list[str | Path] = [engine(machine_arch()), "--model", model, "--tokens", "1"]
    named += ["--num_tokens=0", "--format=ids"]
    enough = kib_of(model)
    for kib in filter(may_lock, (0, 64, enough - PAGE_KIB)):
        result = run([*limited(kib), *named, "--use_mlock"], check=False)
        assert (result.status, result.stdout) == (9, "")
        assert result.stderr.startswith("colibri: error: the ")
        assert f" of {model}/model.bin cannot be locked in memory: " in result.stderr
        assert "raise it with ulimit -l, or leave out --use_mlock" in result.stderr
        assert result.stderr.count("\n") == 1
        assert run([*limited(kib), *named], check=False).status == 0
    if may_lock(enough):
        assert run([*limited(enough), *named, "--use_mlock"], check=False).status == 0
