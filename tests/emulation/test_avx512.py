# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""AVX-512 with and without VNNI on a CPU in software, whatever this machine's own CPU is."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from checker_report import LEVELS, hold_to
from goldens import HASHES, NUM_TOKENS, PROMPT

from colibri_deploy.convert import DTypeChoice
from colibri_deploy.process import Completed, run

HERE = Path(__file__).resolve().parent
X86 = LEVELS["x86_64"]
USABLE = {"haswell": X86[:3], "skylake_x": X86[:4], "icelake_u": X86}
FIXTURES = [key for key in HASHES if key[0] != "synthetic"]
LEVEL_ON = [  # each level of AVX-512, on the CPUs that have it
    ("avx512", "skylake_x"),
    ("avx512_vnni", "icelake_u"),
    ("avx512_vnni", "sapphire_rapids"),
]


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of probe.c."""
    program = tmp_path_factory.mktemp("probe") / "probe"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-musl", "-static"]
    run([*compiler, "-fno-sanitize=undefined", "-O1", "-o", program, HERE / "probe.c"])
    return program


@pytest.mark.parametrize(
    ("cpu", "what", "status", "message"),
    [
        ("haswell", "avx2", 0, ""),
        ("haswell", "avx512", 132, "illegal instruction"),
        ("skylake_x", "avx512", 0, ""),
        ("skylake_x", "avx512_vnni", 132, "illegal instruction"),
        ("icelake_u", "avx512_vnni", 0, ""),
        ("sapphire_rapids", "avx512_vnni", 0, ""),
        ("sapphire_rapids", "null", 139, "bad address"),
        ("sapphire_rapids", "guard", 139, "bad address"),
        ("sapphire_rapids", "threads", 0, ""),
    ],
)
def test_a_model_runs_what_its_cpu_has_and_nothing_else(
    cpu: str, what: str, status: int, message: str, bochs: Callable[..., Completed], probe: Path
) -> None:
    result = bochs(cpu, probe, what)
    assert result.status == status, result.stderr
    assert message in result.stderr
    assert result.stdout == {"guard": "at the guard\n"}.get(what, "" if status else "done\n")


@pytest.fixture(scope="session")
def checked(
    bochs: Callable[..., Completed], meson_build: Callable[[str], Path]
) -> dict[str, Completed]:
    """What the checker of the kernels says on each CPU."""
    checker = meson_build("x86_64") / "tests/checker"

    def check(cpu: str) -> Completed:
        return bochs(cpu, checker, "--require", USABLE[cpu][-1])

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(USABLE, pool.map(check, USABLE), strict=True))


@pytest.mark.parametrize("cpu", list(USABLE))
def test_kernels_equal_scalar_on_every_level_that_the_cpu_has(
    cpu: str, checked: dict[str, Completed], report_row: Callable[..., None]
) -> None:
    result = checked[cpu]
    assert result.status == 0, result.stdout + result.stderr
    hold_to(USABLE[cpu], result.stdout, "x86_64", f"bochs {cpu}", report_row)


@pytest.mark.parametrize(("name", "dtype"), FIXTURES)
def test_a_fixture_has_its_hash(
    name: str,
    dtype: DTypeChoice,
    models: Callable[[str, DTypeChoice], Path],
    engine: Callable[[str], Path],
    bochs: Callable[..., Completed],
) -> None:
    command = [
        *(engine("x86_64"), "--model", models(name, dtype), "--threads", "1"),
        *("--tokens", ",".join(map(str, PROMPT)), "--num_tokens", str(NUM_TOKENS)),
        *("--ignore_eos", "--format", "ids", "--logits_hash", "--isa"),
    ]

    def logits_hash(level: str, cpu: str) -> str:
        result = bochs(cpu, *command, level)
        assert result.status == 0, result.stderr
        return result.stdout.splitlines()[-1].split()[1]

    with ThreadPoolExecutor(2) as pool:
        hashes = set(pool.map(lambda pair: logits_hash(*pair), LEVEL_ON))
    assert hashes == {f"clb1:{HASHES[name, dtype]}"}


def test_a_level_that_the_cpu_lacks_is_refused(
    bochs: Callable[..., Completed],
    engine: Callable[[str], Path],
    models: Callable[[str, DTypeChoice], Path],
) -> None:
    version = bochs("haswell", engine("x86_64"), "--version").stdout
    assert "isa usable: scalar sse42 avx2\n" in version
    command = [engine("x86_64"), "--model", models("mixtral", "q8"), "--tokens", "1", "--isa"]
    refused = bochs("haswell", *command, "avx512")
    assert refused.status == 8
    assert "this CPU cannot run the ISA level avx512" in refused.stderr
