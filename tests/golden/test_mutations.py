# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The hash sees what it is there to see: an engine in which one operation adds in another order,
or rounds otherwise in the last bit, does not keep it.

One engine holds a mutant of every operation, and the variable MUTANT of its environment says which
one lives. What no model computes is left to the checker: tests/kernels.
"""

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from goldens import (
    ACROSS_CHUNKS,
    ACROSS_CHUNKS_HASHES,
    FROM_ONE_TOKEN,
    FROM_ONE_TOKEN_HASHES,
)

from colibri_deploy.convert import DTypeChoice
from colibri_deploy.process import run

SOURCES = ("meson.build", "meson_options.txt", "cross", "src", "templates")
Models = Callable[[str, DTypeChoice], Path]
Change = tuple[str, str, str]  # a file, what stands there exactly once, and what replaces it

INCLUDE = "#include <stdint.h>\n"
CHOICE: list[Change] = [
    ("src/base.h", INCLUDE, f"{INCLUDE}bool clb_mutates(const char *);\n"),
    ("templates/kernels.h.j2", INCLUDE, f"{INCLUDE}bool clb_mutates(const char *);\n"),
    (
        "src/error.c",
        "#include <stdarg.h>\n",
        """#include <stdarg.h>
#include <stdlib.h>

bool clb_mutates(const char *operation)
{
    return !strcmp(operation, getenv("MUTANT"));
}
""",
    ),
]


def instead(op: str, kernel: str, body: str) -> Change:
    """Where the kernel is the mutant, `body` runs in its place."""
    head = f"clb_{kernel}_{{{{ level }}}}({{{{ kernels.{kernel}.params }}}})\n{{\n"
    mutant = f'    if (clb_mutates("{kernel}")) {{\n{body}\n    }}\n'
    return f"templates/ops/{op}.c.j2", head, head + mutant


FLOAT_HEAD = "void clb_{{ name }}_f32_mm_{{ level }}({{ kernels[name ~ '_f32_mm'].params }})\n{\n"
INT_HEAD = "void clb_{{ type }}_q8_mm_{{ level }}({{ kernels[type ~ '_q8_mm'].params }})\n{\n"
EXPERTS = "    for (int i = 0; i < r->n_active; i++) {\n        int first"

MUTANTS: list[Change] = [
    (  # two accumulators
        "templates/ops/float_mm.c.j2",
        FLOAT_HEAD,
        FLOAT_HEAD
        + """    for (int i = 0; clb_mutates("{{ name }}_f32_mm") && i < n * n_tiles; i++) {
        const {{ type }} *tile = w;
        tile += (size_t)(i % n_tiles) * (tile_bytes / sizeof *tile);
        const float *vector = x + (size_t)(i / n_tiles) * x_stride;
        f32x16 sum[2] = {vset1(0), vset1(0)};
        for (int c = 0; c < n_cols; c++)
            sum[c % 2] = vadd(sum[c % 2], vmul({{ load }}(tile + c * 16), vset1(vector[c])));
        vstore(y + (size_t)(i / n_tiles) * y_stride + i % n_tiles * 16, vadd(sum[0], sum[1]));
    }
    if (clb_mutates("{{ name }}_f32_mm"))
        return;
""",
    ),
    (  # the last block first
        "templates/ops/int_mm.c.j2",
        INT_HEAD,
        INT_HEAD
        + """    for (int i = 0; clb_mutates("{{ type }}_q8_mm") && i < n * n_tiles; i++) {
        const uint8_t *tile = (const uint8_t *)w + (size_t)(i % n_tiles) * tile_bytes;
        struct place at = vector(x, i / n_tiles);
        f32x16 sum = vset1(0);
        for (int b = 2 * n_pairs - 1; b >= 0; b--)
            sum = {{ type }}_block(sum, tile + b / 2 * (CLB_LINE_BYTES + 2 * {{ block_bytes }}),
                                   b % 2,
                                   (struct place){at.q + b * CLB_BLOCK, at.scale + b, at.sum + b}
                                   {{ ', 0' if facts.prefetch }});
        vstore(y + (size_t)(i / n_tiles) * y_stride + i % n_tiles * 16, sum);
    }
    if (clb_mutates("{{ type }}_q8_mm"))
        return;
""",
    ),
    (
        "templates/ops/quantize.c.j2",
        "*scale = amax / 127.0f;",
        '*scale = clb_mutates("f32_q8_quantize") ? amax * (1.0f / 127) : amax / 127.0f;',
    ),
    instead(  # towards zero
        "quantize",
        "f32_f16_convert",
        """        for (int i = 0; i < n; i++)
            y[i] = clb_f32_to_f16(clb_from_bits(clb_bits(x[i]) & 0xffffe000));
        return;""",
    ),
    instead(  # without lanes
        "norm",
        "f32_rms_norm",
        """        float sum = 0;
        for (int i = 0; i < n; i++)
            sum = sum + x[i] * x[i];
        float f = 1.0f / sqrtf(sum / (float)n + eps);
        for (int i = 0; i < n; i++)
            y[i] = x[i] * f * w[i];
        return;""",
    ),
    instead(  # a reciprocal
        "activation",
        "f32_silu_mul",
        """        for (int i = 0; i < n; i += 16) {
            f32x16 g = vload(gate + i), one = vset1(1.0f);
            f32x16 sigmoid = vdiv(one, vadd(one, vexp(vsub(vset1(0), g))));
            vstore(y + i, vmul(vmul(g, sigmoid), vload(up + i)));
        }
        return;""",
    ),
    instead(  # one rounding for two
        "rope_half",
        "f32_rope_half",
        """        for (int i = 0; i < half; i++) {
            double a = x[i], b = x[half + i];
            x[i] = (float)(a * cosines[i] - b * sines[i]);
            x[half + i] = (float)(b * cosines[i] + a * sines[i]);
        }
        return;""",
    ),
    instead(  # one rounding for two
        "rope_pairs",
        "f32_rope_pairs",
        """        for (int i = 0; i < 2 * half; i += 2) {
            double a = x[i], b = x[i + 1];
            x[i] = (float)(a * cosines[i / 2] - b * sines[i / 2]);
            x[i + 1] = (float)(b * cosines[i / 2] + a * sines[i / 2]);
        }
        return;""",
    ),
    instead(  # without lanes
        "layer_norm",
        "f32_layer_norm",
        """        float mean = 0, squares = 0;
        for (int i = 0; i < n; i++)
            mean = mean + x[i];
        mean = mean / (float)n;
        for (int i = 0; i < n; i++)
            squares = squares + (x[i] - mean) * (x[i] - mean);
        float f = 1.0f / sqrtf(squares / (float)n + eps);
        for (int i = 0; i < n; i++)
            y[i] = (x[i] - mean) * f * w[i] + b[i];
        return;""",
    ),
    instead(
        "softmax",
        "f32_exp",
        """        for (int i = 0; i < n; i += 16)
            vstore(y + i, vdiv(vset1(1.0f), vexp(vsub(vset1(0), vload(x + i)))));
        return;""",
    ),
    instead("softmax", "f32_max", "        return vlargest(vload(x));"),  # of the first 16
    (  # without lanes
        "templates/ops/softmax.c.j2",
        "    return vsum(sum);\n",
        """    float plain = 0;
    for (int i = 0; i < n; i++)
        plain = plain + y[i];
    return clb_mutates("f32_exp_sum") ? plain : vsum(sum);
""",
    ),
    instead(  # one rounding for two
        "blend",
        "f32_axpy",
        """        for (int i = 0; i < n; i++)
            y[i] = (float)((double)a * x[i] + y[i]);
        return;""",
    ),
    instead(
        "blend",
        "f32_blend",
        """        for (int i = 0; i < n; i++)
            y[i] = (float)((double)y[i] * a + (double)x[i] * b);
        return;""",
    ),
    instead(
        "blend",
        "f32_scale",
        """        for (int i = 0; i < n; i++)
            y[i] = x[i] / (1.0f / a);
        return;""",
    ),
    instead(  # off by one in the last place
        "blend",
        "f32_mul",
        """        for (int i = 0; i < n; i++)
            y[i] = a[i] * b[i] * 0x1.000002p+0f;
        return;""",
    ),
    (
        "src/experts.c",
        EXPERTS,
        """    for (int k = 0; k < r->n_active; k++) {
        int i = clb_mutates("order of experts") ? r->n_active - 1 - k : k;
        int first""",
    ),
    (
        "src/router.c",
        "sum = sum + e[i];",
        'sum = sum + e[clb_mutates("order of the router\'s sum") ? top_k - 1 - i : i];',
    ),
    (
        "src/router.c",
        "weights[i] = normalise ? scores[experts[i]] / (sum + 1e-20f) : scores[experts[i]];",
        """weights[i] = normalise ? scores[experts[i]] / (sum + 1e-20f) : scores[experts[i]];
    for (int i = 0; i < top_k && clb_mutates("weights of sigmoid scores"); i++)
        weights[i] = scores[experts[i]] * (1 / (sum + 1e-20f));""",
    ),
    (
        "src/attention.c",
        "            a->chunk_sum[r] = 1;\n",
        """            a->chunk_sum[r] = clb_mutates("sinks") ? 0x1.000002p+0f : 1;
""",
    ),
    (
        "src/experts.c",
        "        st->adds_up = true;\n",
        """        st->adds_up = !clb_mutates("shared expert");
""",
    ),
    (
        "src/heads.c",
        "c->attention_scale, padded);",
        """clb_mutates("latent attention") && c->kv_rank ? c->attention_scale * 0x1.000002p+0f
                                                       : c->attention_scale, padded);""",
    ),
    (  # two terms less
        "src/rope.c",
        "    s = s * z + 1.0 / 362880.0;\n",
        '    s = (clb_mutates("sines") ? 0 : s * z) + 1.0 / 362880.0;\n',
    ),
    (
        "src/cache.c",
        "value_scales(c, chunk, b)[at] = q.scale[b];",
        """value_scales(c, chunk, b)[at] = clb_mutates("scales of cached values")
            ? clb_f16_to_f32(clb_f32_to_f16(q.scale[b])) : q.scale[b];""",
    ),
]
CONTRACTED: list[Change] = [
    ("meson.build", "-ffp-contract=off", "-ffp-contract=fast"),
    ("templates/isa/avx2.j2", "'-mf16c'", "'-mf16c', '-mfma'"),
]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model whose forward pass has the operation."""

    operation: str
    dtype: DTypeChoice = "q8"
    kv: str = "f32"
    name: str = "small_synthetic"
    across_chunks: bool = False

    def __str__(self) -> str:
        return self.operation.replace(" ", "-")


CASES = [
    Case("f32_f32_mm", "f32"),
    Case("f16_f32_mm", "f16"),
    Case("bf16_f32_mm", "bf16"),
    Case("i8_f32_mm", kv="q8"),
    Case("q8_q8_mm"),
    Case("q4_q8_mm", "q4"),
    Case("mxfp4_q8_mm", "mxfp4"),
    Case("f32_q8_quantize"),
    Case("f32_f16_convert", kv="f16"),
    Case("f32_rms_norm"),
    Case("f32_silu_mul"),
    Case("f32_rope_half"),
    Case("f32_exp"),
    Case("f32_max"),
    Case("f32_exp_sum"),
    Case("f32_axpy"),
    Case("f32_blend", name="mixtral", across_chunks=True),
    Case("f32_scale"),
    Case("f32_mul", kv="q8"),
    # Of two terms the order does not matter; this model has three experts a token.
    Case("order of experts", name="synthetic"),
    Case("order of the router's sum", name="synthetic"),
    Case("f32_layer_norm", "keep", name="phimoe"),
    Case("f32_rope_pairs", "keep", name="deepseek_v2"),
    Case("latent attention", "keep", name="deepseek_v2"),
    Case("shared expert", "keep", name="deepseek_v2"),
    Case("weights of sigmoid scores", "keep", name="deepseek_v3"),
    Case("sinks", "keep", name="gpt_oss"),
    Case("sines"),
    Case("scales of cached values", kv="q8"),
]
NOT_IN_A_MODEL = {"f32_gelu", "f32_gelu_tanh"}  # no checkpoint with a golden has them


def build_mutant(root: Path, directory: Path, changes: list[Change]) -> Path:
    """The engine of this tree with `changes`."""
    for name in SOURCES:
        source = root / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, directory / name)
    for name, old, new in changes:
        text = (directory / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"the mutation no longer fits {name}: {old}"
        (directory / name).write_text(text.replace(old, new), encoding="utf-8")
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    cross = directory / "cross/x86_64-linux-musl.ini"
    build = directory / "build"
    meson: list[str | Path] = [sys.executable, "-m", "mesonbuild.mesonmain"]
    run([*meson, "setup", build, "--cross-file", cross], cwd=directory, env=environment)
    run(["ninja", "-C", build, "colibri"], env=environment)
    return build / "colibri"


def logits_hash(engine: Path, models: Models, case: Case, isa: str, mutant: str) -> str:
    """The hash that an engine gives for the case's model."""
    sequence = ACROSS_CHUNKS if case.across_chunks else FROM_ONE_TOKEN
    result = run(
        [
            *(engine, "--model", models(case.name, case.dtype), "--kv", case.kv, "--isa", isa),
            *("--tokens", ",".join(map(str, sequence.prompt)), "--ignore_eos", "--format", "ids"),
            *("--num_tokens", str(sequence.length - len(sequence.prompt)), "--logits_hash"),
        ],
        env=os.environ | {"MUTANT": mutant},
    )
    return result.stdout.splitlines()[-1].split()[1].removeprefix("clb1:")


def expected_hash(case: Case) -> str:
    hashes = ACROSS_CHUNKS_HASHES if case.across_chunks else FROM_ONE_TOKEN_HASHES
    return hashes[case.name, case.dtype][case.kv]


@pytest.fixture(scope="module")
def mutants(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine with a mutant of every operation."""
    return build_mutant(root, tmp_path_factory.mktemp("mutants"), CHOICE + MUTANTS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_mutant_of_an_operation_changes_the_hash(
    case: Case, mutants: Path, models: Models, report_row: Callable[..., None]
) -> None:
    assert logits_hash(mutants, models, case, "scalar", "none") == expected_hash(case)
    assert logits_hash(mutants, models, case, "scalar", case.operation) != expected_hash(case)
    model = f"{case.name} {case.dtype}, kv {case.kv}"
    report_row("mutants: operation, model whose hash is another", case.operation, model)


def test_every_kernel_has_a_mutant(root: Path) -> None:
    table = (root / "templates/kernels.py").read_text(encoding="utf-8")
    kernels = set(re.findall(r'Kernel\(\s*"(\w+)"', table))
    assert len(kernels) > len(NOT_IN_A_MODEL)
    assert kernels - {case.operation for case in CASES} == NOT_IN_A_MODEL


def test_fused_multiply_add_changes_the_hash(root: Path, tmp_path: Path, models: Models) -> None:
    case = Case("contraction", "f32")
    engine = build_mutant(root, tmp_path, CONTRACTED)
    assert logits_hash(engine, models, case, "scalar", "none") == expected_hash(case)
    assert logits_hash(engine, models, case, "avx2", "none") != expected_hash(case)
