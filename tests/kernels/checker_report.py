# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What the checker of the kernels prints, and the table of it after all tests."""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

LEVELS = {
    "x86_64": ["scalar", "sse42", "avx2", "avx512", "avx512_vnni"],
    "aarch64": ["scalar", "neon", "neon_dotprod", "neon_i8mm"],
    "riscv64": ["scalar", "rvv"],
}

# CPUs under qemu-user, and the levels that each can run. What is beyond them is illegal there.
EMULATED = {
    "x86_64": {"Nehalem": LEVELS["x86_64"][:2], "Haswell": LEVELS["x86_64"][:3]},
    "aarch64": {
        "cortex-a72": LEVELS["aarch64"][:2],
        "cortex-a76": LEVELS["aarch64"][:3],
        "max": LEVELS["aarch64"],
    },
    "riscv64": {"rv64": ["scalar"]}
    | {f"rv64,v=true,vext_spec=v1.0,vlen={n}": LEVELS["riscv64"] for n in (128, 256, 512)},
}

# The operations of templates/, and the kernels of each.
OPERATIONS = {
    "float_mm": ("f32_f32_mm", "f16_f32_mm", "bf16_f32_mm", "i8_f32_mm"),
    "int_mm": ("q8_q8_mm", "q4_q8_mm", "mxfp4_q8_mm"),
    "quantize": ("f32_q8_quantize", "f32_f16_convert"),
    "norm": ("f32_rms_norm",),
    "layer_norm": ("f32_layer_norm",),
    "activation": ("f32_silu_mul",),
    "gelu": ("f32_gelu", "f32_gelu_tanh"),
    "rope_half": ("f32_rope_half",),
    "rope_pairs": ("f32_rope_pairs",),
    "softmax": ("f32_exp", "f32_max", "f32_exp_sum"),
    "blend": ("f32_axpy", "f32_blend", "f32_scale", "f32_mul"),
}
KERNELS = [kernel for kernels in OPERATIONS.values() for kernel in kernels]
CALLS = 64  # of each kernel

# What every level has from scalar. Nothing is shown by comparing a function with itself: the bits
# of these are held by test_cold_kernels.py.
INHERITED = {"f32_layer_norm", "f32_gelu", "f32_gelu_tanh", "f32_rope_pairs"}

TABLE = "kernels: calls that equal scalar bit for bit, largest error as a share of its bound"
_LINE = re.compile(
    r"(\w+) (\w+): (itself, |inherited, |)(\d+) calls, (\d+) differ; (\d+) values, "
    r"(\d+) too far away, largest error (\S+) of its bound"
)


@dataclass(frozen=True)
class Verdict:
    """What the checker says of one kernel at one level."""

    same: str  # empty; `itself` or `inherited` if it is the function that it is compared with
    calls: int
    different: int
    values: int
    inexact: int
    error: float


def parse(report: str) -> dict[str, dict[str, Verdict]]:
    """The verdicts by level, then by kernel."""
    found: dict[str, dict[str, Verdict]] = {}
    for line in report.splitlines():
        match = _LINE.fullmatch(line)
        if match:
            level, kernel, same, *numbers, error = match.groups()
            assert kernel not in found.setdefault(level, {})
            calls, different, values, inexact = map(int, numbers)
            found[level][kernel] = Verdict(
                same.rstrip(", "), calls, different, values, inexact, float(error)
            )
    return found


@functools.cache
def _add_head(report_row: Callable[..., None]) -> None:
    report_row(TABLE, "", "level", "where it ran", *OPERATIONS)


def hold_to(
    levels: list[str], report: str, arch: str, where: str, report_row: Callable[..., None]
) -> None:
    """Fails unless every kernel of exactly these levels is right, and adds them to the table."""
    verdicts = parse(report)
    assert list(verdicts) == levels
    _add_head(report_row)
    for level, kernels in verdicts.items():
        assert sorted(kernels) == sorted(KERNELS)
        for kernel, verdict in kernels.items():
            same = "itself" if level == "scalar" else "inherited" if kernel in INHERITED else ""
            assert verdict.same == same, (level, kernel)
            assert verdict.calls == CALLS, (level, kernel)
            assert verdict.different == verdict.inexact == 0, (level, kernel)
            assert verdict.values >= CALLS, (level, kernel)
            assert 0 <= verdict.error <= 1, (level, kernel)
        cells = []
        for names in OPERATIONS.values():
            (same,) = {kernels[name].same for name in names}  # of all alike
            calls = sum(kernels[name].calls for name in names)
            error = max(kernels[name].error for name in names)
            cells.append(f"{same or calls}, {error:.2f}")
        report_row(TABLE, arch, level, where, *cells)
