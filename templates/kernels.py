# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The table of kernels: which levels exist, and which kernels each of them may have.

Adding an ISA level: write isa/<level>.j2 and put its name into LEVELS, weakest first.
Adding an operation: write ops/<op>.c.j2, and add its kernels here.
"""

from dataclasses import dataclass

# Levels of each architecture, weakest first. Each needs what the levels before it need, and
# inherits the kernels that it has none of its own for. At run time the last usable one is chosen.
LEVELS: dict[str, tuple[str, ...]] = {
    "x86_64": ("scalar", "sse42", "avx2", "avx512", "avx512_vnni"),
    "aarch64": ("scalar", "neon", "neon_dotprod", "neon_i8mm"),
    "riscv64": ("scalar", "rvv"),
}


# Operations that take so little of a call's time that only the weakest level has them.
COLD_OPS = ("layer_norm", "gelu", "rope_pairs")


@dataclass(frozen=True)
class Kernel:
    """One entry of `struct clb_kernels`: a C function `clb_<name>_<level>`."""

    name: str
    op: str  # the template that holds it: ops/<op>.c.j2
    params: str
    doc: str
    returns: str = "void"


_MATRIX = "float *y, size_t y_stride, const void *w, size_t tile_bytes, int n_tiles, "
_FLOAT_MM = _MATRIX + "const float *x, size_t x_stride, int n_cols, int n"
_INT_MM = _MATRIX + "const struct clb_q8 *x, int n_pairs, int n"
_ROPE = "float *x, const float *sines, const float *cosines, int half"

KERNELS: tuple[Kernel, ...] = (
    Kernel(
        "f32_f32_mm",
        "float_mm",
        _FLOAT_MM,
        """y[t][16 * i + r] = sum over c of w[tile i][c][r] * x[t][c], columns in ascending order.
        y (n, y_stride), x (n, x_stride); tile i lies at w + i * tile_bytes.""",
    ),
    Kernel("f16_f32_mm", "float_mm", _FLOAT_MM, "As f32_f32_mm with f16 weights."),
    Kernel("bf16_f32_mm", "float_mm", _FLOAT_MM, "As f32_f32_mm with bf16 weights."),
    Kernel("i8_f32_mm", "float_mm", _FLOAT_MM, "As f32_f32_mm with signed 8-bit weights."),
    Kernel(
        "q8_q8_mm",
        "int_mm",
        _INT_MM,
        "As f32_f32_mm for q8 tiles of n_pairs * 64 columns and n quantised vectors.",
    ),
    Kernel(
        "q4_q8_mm",
        "int_mm",
        _INT_MM,
        "As q8_q8_mm for q4 tiles.",
    ),
    Kernel("mxfp4_q8_mm", "int_mm", _INT_MM, "As q8_q8_mm for mxfp4 tiles."),
    Kernel(
        "f32_q8_quantize",
        "quantize",
        "int8_t *q, float *scale, int32_t *sum, const float *x, int n",
        """Blocks of 32: q (n), scale (n / 32) and sum of q (n / 32) from x (n); n is a multiple of
        32.""",
    ),
    Kernel(
        "f32_f16_convert",
        "quantize",
        "uint16_t *y, const float *x, int n",
        "y = x rounded to f16, nearest even; n is a multiple of 16.",
    ),
    Kernel(
        "f32_rms_norm",
        "norm",
        "float *y, const float *x, const float *w, int n, float eps",
        "y[i] = x[i] / sqrt(mean of squares + eps) * w[i]; y may be x.",
    ),
    Kernel(
        "f32_layer_norm",
        "layer_norm",
        "float *y, const float *x, const float *w, const float *b, int n, float eps",
        """y[i] = (x[i] - mean) / sqrt(variance + eps) * w[i] + b[i]; y may be x.""",
    ),
    Kernel(
        "f32_silu_mul",
        "activation",
        "float *y, const float *gate, const float *up, int n",
        "y = silu(gate) * up; n is a multiple of 16; y may be gate.",
    ),
    Kernel(
        "f32_gelu",
        "gelu",
        "float *y, const float *x, int n",
        "y = gelu(x) by the error function; n is a multiple of 16; y may be x.",
    ),
    Kernel(
        "f32_gelu_tanh",
        "gelu",
        "float *y, const float *x, int n",
        "As f32_gelu by the approximation with tanh.",
    ),
    Kernel(
        "f32_rope_half",
        "rope_half",
        _ROPE,
        "Rotates x[i] with x[i + half] for i < half; sines and cosines (half).",
    ),
    Kernel("f32_rope_pairs", "rope_pairs", _ROPE, "Rotates x[2 * i] with x[2 * i + 1]."),
    Kernel(
        "f32_exp",
        "softmax",
        "float *y, const float *x, int n",
        "y = exp(x); n is a multiple of 16; y may be x.",
    ),
    Kernel(
        "f32_max",
        "softmax",
        "const float *x, int n",
        "The largest of x; n is a positive multiple of 16.",
        returns="float",
    ),
    Kernel(
        "f32_exp_sum",
        "softmax",
        "float *y, const float *x, float shift, int n",
        """y = exp(x - shift), 0 where x is -Inf; returns Sum16 of y; n is a multiple of 16; y may
        be x.""",
        returns="float",
    ),
    Kernel("f32_axpy", "blend", "float *y, float a, const float *x, int n", "y = y + a * x."),
    Kernel(
        "f32_blend",
        "blend",
        "float *y, float a, const float *x, float b, int n",
        "y = y * a + x * b; n is a multiple of 16.",
    ),
    Kernel(
        "f32_scale",
        "blend",
        "float *y, const float *x, float a, int n",
        "y = x * a; n is a multiple of 16; y may be x.",
    ),
    Kernel(
        "f32_mul",
        "blend",
        "float *y, const float *a, const float *b, int n",
        "y = a * b; n is a multiple of 16; y may be a.",
    ),
)

OPS: tuple[str, ...] = tuple(dict.fromkeys(kernel.op for kernel in KERNELS))
