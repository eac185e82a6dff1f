# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Before linking, only the objects of an ISA level hold that level's instructions.

An instruction that escaped into the engine, or into a lower level, would end the program on an
older CPU. No object at all holds a fused multiply-add: it would change the numbers.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.process import run
from colibri_deploy.release.disassembly import (
    Objects,
    disassemble,
    escapes,
    read_objects,
    usable_features,
)

ARCHITECTURES = ["x86_64", "aarch64", "riscv64"]


@pytest.fixture(scope="session")
def objdump(require_program: Callable[[str], Path], require: Callable[[bool, str], None]) -> Path:
    """An objdump that knows the three architectures."""
    path = require_program("objdump")
    known = run([path, "--info"]).stdout.split()
    everything = {"i386", "aarch64", "riscv"} <= set(known)
    require(everything, f"{path} knows one architecture only: run tests/debian-packages.sh test")
    return path


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_instruction_escapes_its_level(
    arch: str,
    root: Path,
    meson_build: Callable[[str], Path],
    objdump: Path,
    report_row: Callable[..., None],
) -> None:
    objects = read_objects(objdump, root, meson_build(arch), arch)
    assert objects.escapes == []
    for level in ("engine", *usable_features(root, arch)):
        assert objects.instructions[level] > 100, f"objects of {level} hold no code"
        report_row("objects disassembled before linking", arch, level, *cells(objects, level))


def cells(objects: Objects, level: str) -> tuple[str, str]:
    """How much was read of a level."""
    read = f"{objects.files[level]:3} objects"
    return read, f"{objects.instructions[level]:6,} instructions"


PRODUCT = "float f(float a, float b, float c) { return a * b + c; }"
SUM_OF_PRODUCTS = """
void f(float *restrict y, const float *x, float a)
{
    for (int i = 0; i < 64; i++)
        y[i] += a * x[i];
}
"""
FUSED = "-ffp-contract=fast"


def assembly(text: str) -> str:
    """A C file that executes `text`."""
    return f'void f(void) {{ __asm__ volatile("{text}"); }}'


@pytest.mark.parametrize(
    ("arch", "level", "flags", "source", "name"),
    [
        ("x86_64", "scalar", "", assembly("pabsb %xmm0, %xmm1"), "sse4.2"),
        ("x86_64", "scalar", "", assembly("movshdup %xmm0, %xmm1"), "sse3"),
        ("x86_64", "scalar", "", assembly("xgetbv"), "xgetbv"),
        (
            *("x86_64", "scalar", "-mpopcnt"),
            *("int f(int x) { return __builtin_popcount(x); }", "popcnt"),
        ),
        ("x86_64", "scalar", "-mavx", PRODUCT, "avx"),
        ("x86_64", "sse42", "-mavx2", SUM_OF_PRODUCTS, "avx"),
        ("x86_64", "sse42", "", assembly("vpaddd %xmm0, %xmm1, %xmm2"), "avx"),
        ("x86_64", "avx2", "-mbmi2", "long f(long a, int n) { return a << n; }", "bmi"),
        ("x86_64", "avx2", "", assembly("vpaddd %ymm16, %ymm1, %ymm2"), "avx512f"),
        ("x86_64", "avx2", "", assembly("kmovw %eax, %k1"), "avx512f"),
        ("x86_64", "avx2", "", assembly("{vex} vpdpbusd %ymm0, %ymm1, %ymm2"), "avx_vnni"),
        ("x86_64", "avx2", f"-mavx2 -mfma {FUSED}", PRODUCT, "fma"),
        ("x86_64", "avx512", "", assembly("vpdpbusd %zmm0, %zmm1, %zmm2"), "avx512vnni"),
        ("x86_64", "avx512", "", assembly("vpermb %zmm0, %zmm1, %zmm2"), "avx512_vbmi"),
        ("x86_64", "avx512", "", assembly("vaddph %zmm0, %zmm1, %zmm2"), "avx512_fp16"),
        ("x86_64", "avx512_vnni", f"-mavx512f {FUSED}", SUM_OF_PRODUCTS, "fma"),
        ("x86_64", "avx512_vnni", "", assembly("vrcp14ps %zmm0, %zmm1"), "approximate"),
        ("x86_64", "avx512_vnni", "", assembly(".byte 0x06"), "unknown"),
        (
            *("aarch64", "neon", "-mcpu=generic+dotprod"),
            *(assembly("sdot v0.4s, v1.16b, v2.16b"), "asimddp"),
        ),
        (
            *("aarch64", "neon_dotprod", "-mcpu=generic+i8mm"),
            *(assembly("smmla v0.4s, v1.16b, v2.16b"), "i8mm"),
        ),
        (
            *("aarch64", "neon_i8mm", "-mcpu=generic+bf16"),
            *(assembly("bfdot v0.4s, v1.8h, v2.8h"), "bf16"),
        ),
        (
            *("aarch64", "neon_i8mm", "-mcpu=generic+fullfp16"),
            *(assembly("fadd v0.8h, v1.8h, v2.8h"), "fp16"),
        ),
        (
            *("aarch64", "neon_i8mm", "-mcpu=generic+sve"),
            *(assembly("add z0.s, z1.s, z2.s"), "sve"),
        ),
        ("aarch64", "scalar", FUSED, PRODUCT, "fma"),
        ("aarch64", "neon", FUSED, SUM_OF_PRODUCTS, "fma"),
        ("aarch64", "neon", "", assembly("frecpe v0.4s, v1.4s"), "approximate"),
        (
            *("riscv64", "scalar", "-mcpu=baseline_rv64+v"),
            *(assembly("vsetivli zero, 4, e32, m1, ta, ma"), "v"),
        ),
        ("riscv64", "scalar", "-mcpu=baseline_rv64+v", assembly("csrr a0, vlenb"), "v"),
        # no attribute of the object says that there is V: objdump does not decode it
        (
            *("riscv64", "scalar", ""),
            *(assembly(".option arch, +v; vadd.vv v0, v1, v2"), "unknown"),
        ),
        (
            *("riscv64", "rvv", "-mcpu=baseline_rv64+v+zbb"),
            *("long f(long a, long b) { return a & ~b; }", "b"),
        ),
        ("riscv64", "scalar", FUSED, PRODUCT, "fma"),
        (
            *("riscv64", "rvv", "-mcpu=baseline_rv64+v"),
            *(assembly("vfmacc.vv v0, v1, v2"), "fma"),
        ),
    ],
)
def test_an_escaped_instruction_is_reported(
    arch: str,
    level: str,
    flags: str,
    source: str,
    name: str,
    root: Path,
    objdump: Path,
    tmp_path: Path,
) -> None:
    c, o = tmp_path / "escaped.c", tmp_path / "escaped.o"
    c.write_text(source, encoding="utf-8")
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", f"{arch}-linux-musl"]
    run([*compiler, "-O2", *flags.split(), "-c", c, "-o", o])
    usable = usable_features(root, arch)[level]
    found = escapes(arch, usable, list(disassemble(objdump, o)))
    assert found, "nothing was reported"
    assert any(f" in f: {name}, " in line for line in found), found
