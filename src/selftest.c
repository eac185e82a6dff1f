// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// How far a kernel may be away from an exact value follows from what an operation of f32 may add:
// u = 2^-24 of its result, and half of 2^-149 where that is subnormal. Each bound here counts the
// roundings k that a term goes through; k u is the error to the first order, and is doubled: that
// covers the higher orders, and what f64 rounds.
#include "selftest.h"

#include "cpu.h"
#include "exact.h"
#include "layout.h"
#include "print.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>

enum { MAX_COLS = 100, MAX_PAIRS = 3, MAX_VECTORS = 11 };

static const double U = 0x1p-24, TINY = 0x1p-149;
// Two are measured for every f32 by tests/kernels/function_errors.c. Largest relative error of the
// kernels' exp in [-87, 88]: 1.373 u.
static const double EXP_ERROR = 1.38 * 0x1p-24;
// Largest error of gelu as a share of |x|, for |x| from 2^-20 to 30: 6.051 u. Most of it is the
// formula that stands for the error function.
static const double GELU_ERROR = 6.06 * 0x1p-24;

static double rounding(double k, double magnitude)
{
    return 2 * k * U * fabs(magnitude);
}

// A length that kernels take, and vectors of numbers up to 256.
static int multiple_of_16(struct clb_trial *t)
{
    return 16 * (1 + clb_trial_below(t, 20));
}

static float *scaled_numbers(struct clb_trial *t, int n)
{
    return clb_trial_numbers(t, n, (float)(1 << clb_trial_below(t, 8)));
}

// f16 or bf16, mostly in [0.5, 2); some are subnormal or large, but no sum of them overflows. Few
// are Inf or NaN.
static void random_halves(struct clb_trial *t, uint8_t *p, int n, bool f16)
{
    for (int i = 0; i < n; i++) {
        uint32_t bits = clb_trial_random(t) >> 16;
        int kind = t->wild ? clb_trial_below(t, 128) : 128;
        if (kind == 0)
            bits = f16 ? (bits & 0x8200) | 0x7c00 : (bits & 0x8040) | 0x7f80;
        else if (kind < 16)
            bits &= 0xdfff;
        else
            bits = f16 ? (bits & 0x87ff) | 0x3800 : (bits & 0x80ff) | 0x3f00;
        memcpy(p + 2 * i, &bits, 2);
    }
}

static void *random_weights(struct clb_trial *t, enum clb_weights type, int n_tiles, int n_cols)
{
    const bool blocks = type >= CLB_W_Q8;
    const int bytes = n_tiles * clb_exact_tile_bytes(type, n_cols);
    if (type == CLB_W_F32)
        return clb_trial_numbers(t, bytes / 4, 1);
    uint8_t *w = clb_trial_place(t, blocks ? bytes / CLB_LINE_BYTES : bytes / 16,
                                 blocks ? CLB_LINE_BYTES : 16);
    if (type <= CLB_W_BF16) {
        random_halves(t, w, bytes / 2, type == CLB_W_F16);
        return w;
    }
    int largest = clb_trial_below(t, 2) ? 0x80 : type == CLB_W_Q8 ? 0x7f : 0xff;
    bool alike = clb_trial_below(t, 4) == 0; // a sum of products that is too narrow overflows
    for (int i = 0; i < bytes; i++)
        w[i] = (uint8_t)(alike ? largest : clb_trial_below(t, 256));
    for (int at = 0; blocks && at < bytes; at += clb_exact_tile_bytes(type, CLB_TILE_COLS))
        random_halves(t, w + at, 32, type != CLB_W_MXFP4);
    return w;
}

// Vectors (n, stride) as f32, or as blocks of integers.
struct vectors {
    float *f32; // or the scales of the blocks; one may be NaN
    struct clb_q8 q8;
    int stride;
};

static struct vectors random_vectors(struct clb_trial *t, int n, int n_cols, int block)
{
    const int step = block == 1 ? 1 : CLB_TILE_COLS; // of the stride
    struct vectors x = {.stride = n_cols + clb_trial_below(t, 3) * step};
    int n_values = (n - 1) * x.stride + n_cols, n_blocks = n_values / block;
    int bad = clb_trial_below(t, 8) ? -1 : clb_trial_below(t, n_blocks);
    x.f32 = clb_trial_numbers(t, n_blocks, 1);
    if (bad >= 0)
        x.f32[bad] = NAN;
    if (block == 1)
        return x;
    x.q8 = (struct clb_q8){clb_trial_place(t, n_blocks, block), x.f32,
                           clb_trial_place(t, n_blocks, sizeof *x.q8.sum), (size_t)x.stride};
    memset(x.q8.sum, 0, (size_t)n_blocks * sizeof *x.q8.sum);
    for (int i = 0; i < n_values; i++) { // some blocks of the largest values, of one sign
        int b = i / block, q = clb_trial_below(t, 255) - 127;
        x.q8.q[i] = (int8_t)(b == bad ? 0 : b % 3 == 0 ? 127 : b % 5 == 0 ? -127 : q);
        x.q8.sum[b] += x.q8.q[i];
    }
    return x;
}

// A row is a sum of n terms, one after the other: each is rounded up to n times. In blocks of
// integers, whose sums are exact, there are n blocks and two roundings for the scales.
static void check_mm(struct clb_trial *t, int which)
{
    const enum clb_weights type = (enum clb_weights)which;
    const bool q8 = type >= CLB_W_Q8;
    const int block = q8 ? CLB_BLOCK : 1;
    const int n_cols =
        q8 ? CLB_TILE_COLS * (1 + clb_trial_below(t, MAX_PAIRS)) : 1 + clb_trial_below(t, MAX_COLS);
    const int n = 1 + clb_trial_below(t, MAX_VECTORS); // a level takes several of them at once, or
    const int n_tiles = 1 + clb_trial_below(t, n < 5 ? 9 : 3); // several tiles
    const int rows = CLB_TILE_ROWS * n_tiles, y_stride = rows + clb_trial_below(t, 48);
    const size_t tile_bytes = (size_t)clb_exact_tile_bytes(type, n_cols);
    const uint8_t *w = random_weights(t, type, n_tiles, n_cols);
    const struct vectors x = random_vectors(t, n, n_cols, block);
    struct clb_result *y = clb_trial_output(t, (n - 1) * y_stride + rows, CLB_FLOATS, NULL);
    for (int i = 0; i < 2; i++) {
        const struct clb_kernels *k = t->k[i];
        void (*const f32[])(float *, size_t, const void *, size_t, int, const float *, size_t, int,
                            int) = {k->f32_f32_mm, k->f16_f32_mm, k->bf16_f32_mm, k->i8_f32_mm};
        void (*const blocks[])(float *, size_t, const void *, size_t, int, const struct clb_q8 *,
                               int, int) = {k->q8_q8_mm, k->q4_q8_mm, k->mxfp4_q8_mm};
        if (q8)
            blocks[type - CLB_W_Q8](y->at[i], (size_t)y_stride, w, tile_bytes, n_tiles, &x.q8,
                                    n_cols / CLB_TILE_COLS, n);
        else
            f32[type](y->at[i], (size_t)y_stride, w, tile_bytes, n_tiles, x.f32, (size_t)x.stride,
                      n_cols, n);
    }
    for (int row = 0; row < y_stride; row++) {
        double weights[CLB_TILE_COLS * MAX_PAIRS], scales[CLB_TILE_COLS * MAX_PAIRS];
        const int used = row < rows ? n_cols : 0; // between vectors nothing is written
        for (int c = 0; c < used; c++)
            weights[c] = clb_exact_weight(type, w + (size_t)(row / CLB_TILE_ROWS) * tile_bytes,
                                          row % CLB_TILE_ROWS, c, &scales[c]);
        for (int v = 0; v < n && v * y_stride + row < y->n; v++) {
            double sum = 0, magnitude = 0, tiny = 0;
            for (int c = 0; c < used; c += block) {
                const int at = v * x.stride + c;
                double dot = 0;
                for (int j = 0; j < block; j++)
                    dot += weights[c + j] * (q8 ? x.q8.q[at + j] : (double)x.f32[at]);
                double term = dot * scales[c] * (q8 ? (double)x.f32[at / block] : 1);
                sum += term;
                magnitude += fabs(term);
                tiny += q8 ? fabs(dot) + 1 : 1;
            }
            clb_trial_expect(t, y, v * y_stride + row,
                             used ? sum : (double)clb_from_bits(CLB_CANARY),
                             rounding(used / block + (q8 ? 2 : 0), magnitude) + tiny * TINY);
        }
    }
}

// amax / 127 is rounded once; x * (127 / amax) is off by 127 * 2 u when it is rounded to an
// integer. The last block has the smallest amax that is not taken for 0, or the largest that is.
static void check_quantize(struct clb_trial *t, int unused)
{
    (void)unused;
    const int n_blocks = 1 + clb_trial_below(t, 10), n = CLB_BLOCK * n_blocks;
    float *x = clb_trial_numbers(t, n, 1);
    for (int i = 0, kind = 0, exponent = 0; i < n; i++) {
        if (i % CLB_BLOCK == 0) {
            kind = clb_trial_below(t, 16);
            exponent = clb_trial_below(t, 250);
        }
        if (kind == 0) {
            x[i] = 0;
        } else if (kind == 1 && clb_trial_below(t, CLB_BLOCK) == 0) {
            x[i] = clb_trial_below(t, 2) ? NAN : -INFINITY;
        } else if (kind > 2) { // with 254 the step is a power of two, and odd numbers are ties
            int twice = kind > 8 && i % CLB_BLOCK == 0 ? 254 : clb_trial_below(t, 509) - 254;
            x[i] = (float)twice * (float)clb_exact_power(exponent - 126);
        }
    }
    const float amax_at_limit = clb_trial_below(t, 2) ? 0x1p-100f : 0x1.fffffep-101f;
    for (int i = n - CLB_BLOCK; i < n; i++)
        x[i] = amax_at_limit * (float)(clb_trial_below(t, 3) - 1);
    struct clb_result *q = clb_trial_output(t, n, CLB_BYTES, NULL);
    struct clb_result *scale = clb_trial_output(t, n_blocks, CLB_FLOATS, NULL);
    struct clb_result *sum = clb_trial_output(t, n_blocks, CLB_INTEGERS, NULL);
    for (int i = 0; i < 2; i++)
        t->k[i]->f32_q8_quantize(q->at[i], scale->at[i], sum->at[i], x, n);
    for (int b = 0; b < n_blocks; b++) {
        const float *p = x + CLB_BLOCK * b;
        double amax = 0, total = 0, not_a_number = 0;
        for (int i = 0; i < CLB_BLOCK; i++) {
            amax = fabs((double)p[i]) > amax ? fabs((double)p[i]) : amax;
            not_a_number += p[i] - p[i]; // 0, or NaN from NaN and Inf
            total += ((const int8_t *)q->at[1])[CLB_BLOCK * b + i];
        }
        double step = not_a_number + (amax < 0x1p-100 ? 0 : amax / 127);
        clb_trial_expect(t, scale, b, step, rounding(1, step));
        clb_trial_expect(t, sum, b, total, 0);
        for (int i = 0; i < CLB_BLOCK; i++)
            clb_trial_expect(t, q, CLB_BLOCK * b + i, step > 0 ? p[i] / step : 0,
                             step > 0 ? 0.5 + rounding(2, 127) : 0);
    }
}

// Exact: a multiple of the last place, ties to even. Beyond 65504 is Inf.
static void check_convert(struct clb_trial *t, int unused)
{
    (void)unused;
    const int n = multiple_of_16(t);
    float *x = clb_trial_numbers(t, n, 1);
    for (int i = 0; i < n; i++) {
        uint32_t bits = clb_trial_random(t), zeros = 12 + bits % 11; // at the end: ties
        uint32_t magnitude = (100 + bits % 45) << 23 | (bits >> 9 >> zeros << zeros);
        if (clb_trial_below(t, 8))
            x[i] = clb_from_bits((bits & 0x80000000) | magnitude);
    }
    x[clb_trial_below(t, n)] = clb_trial_below(t, 2) ? NAN : -INFINITY;
    struct clb_result *y = clb_trial_output(t, n, CLB_HALVES, NULL);
    for (int i = 0; i < 2; i++)
        t->k[i]->f32_f16_convert(y->at[i], x, n);
    for (int i = 0; i < n; i++) {
        int exponent = (int)(clb_bits(x[i]) >> 23 & 255) - 127;
        double last_place = clb_exact_power((exponent < -14 ? -14 : exponent) - 10);
        double exact = clb_exact_integer(x[i] / last_place) * last_place;
        clb_trial_expect(t, y, i, exact > 65504 ? INFINITY : exact < -65504 ? -INFINITY : exact, 0);
    }
}

// Sum16 over lanes of l values rounds a square l + 4 times; then come / n and + eps. Half of that
// is in the root, which is rounded, as are its inverse and two products. LayerNorm: values are
// rounded when they lose the mean, whose error moves them all and adds its square to the variance.
static void check_norm(struct clb_trial *t, int layer)
{
    const int n = 1 + clb_trial_below(t, 320), lane = (n + 15) / 16;
    const float eps = clb_trial_below(t, 2) ? 1e-5f : 0.5f, *x = scaled_numbers(t, n);
    const float *w = clb_trial_numbers(t, n, 1), *b = clb_trial_numbers(t, n, 1);
    struct clb_result *y = clb_trial_output(t, n, CLB_FLOATS, x);
    for (int i = 0; i < 2; i++)
        if (layer)
            t->k[i]->f32_layer_norm(y->at[i], y->in[i], w, b, n, eps);
        else
            t->k[i]->f32_rms_norm(y->at[i], y->in[i], w, n, eps);
    double mean = 0, shift = 0, variance = 0;
    for (int i = 0; i < n && layer; i++) {
        mean += (double)x[i] / n;
        shift += rounding(lane + 4, (double)x[i] / n);
    }
    for (int i = 0; i < n; i++)
        variance += (x[i] - mean) * (x[i] - mean) / n;
    variance += eps;
    for (int i = 0; i < n; i++) {
        double factor = w[i] / sqrt(variance), term = (x[i] - mean) * factor;
        double added = layer ? (double)b[i] : 0;
        clb_trial_expect(t, y, i, term + added,
                         fabs(factor) * shift + fabs(term) * shift * shift / variance / 2 +
                             rounding(lane / 2.0 + 10, term) + rounding(1, added) +
                             (fabs(w[i]) + 1) * TINY);
    }
}

enum function { EXP, GELU, GELU_TANH, SILU_MUL, MUL };

// f(x), times `up` in the last two. An error d of its argument is a relative error d of exp.
static double exact_function(enum function f, double x, double up, double *bound)
{
    double y, k = 3, z = 2 * 0x1.9884533d43651p-1 * (x + 0.044715 * x * x * x); // 2 sqrt(2 / pi)
    if (f == GELU) {
        *bound = GELU_ERROR * fabs(x) + 2 * TINY;
        return x / 2 * (1 + clb_exact_erf(x * 0x1.6a09e667f3bcdp-1)); // sqrt(1 / 2)
    }
    if (f == EXP) {
        y = clb_exact_exp(x);
        k = 0;
    } else if (f == GELU_TANH) { // 7 roundings up to z, those of the two constants among them
        y = x / (1 + clb_exact_exp(-z));
        k += 7 * (fabs(z) < 88 ? fabs(z) : 88);
    } else if (f == SILU_MUL) {
        y = x / (1 + clb_exact_exp(-x)) * up;
    } else {
        y = x * up;
    }
    *bound = EXP_ERROR * fabs(y) + rounding(k, y) + (fabs(up) + 1) * TINY;
    return y;
}

static void check_function(struct clb_trial *t, int which)
{
    const enum function f = (enum function)which;
    const int n = multiple_of_16(t);
    float *x = scaled_numbers(t, n), *up = clb_trial_numbers(t, n, 1);
    x[clb_trial_below(t, n)] = f == EXP && clb_trial_below(t, 2) ? -INFINITY : NAN;
    struct clb_result *y = clb_trial_output(t, n, CLB_FLOATS, x);
    for (int i = 0; i < 2; i++) {
        const struct clb_kernels *k = t->k[i];
        if (f >= SILU_MUL)
            (f == MUL ? k->f32_mul : k->f32_silu_mul)(y->at[i], y->in[i], up, n);
        else
            (f == EXP    ? k->f32_exp
             : f == GELU ? k->f32_gelu
                         : k->f32_gelu_tanh)(y->at[i], y->in[i], n);
    }
    for (int i = 0; i < n; i++) {
        double bound, exact = exact_function(f, x[i], up[i], &bound);
        clb_trial_expect(t, y, i, exact, bound);
    }
}

// Two products and a sum: a term is rounded twice.
static void expect_two(struct clb_trial *t, const struct clb_result *y, int i, double a, double b)
{
    clb_trial_expect(t, y, i, a + b, rounding(2, fabs(a) + fabs(b)) + 2 * TINY);
}

static void check_rope(struct clb_trial *t, int pairs)
{
    const int half = 1 + clb_trial_below(t, 80);
    const float *x = clb_trial_numbers(t, 2 * half, 1), *s = clb_trial_numbers(t, half, 1);
    const float *c = clb_trial_numbers(t, half, 1);
    struct clb_result *y = clb_trial_output(t, 2 * half, CLB_FLOATS, x);
    for (int i = 0; i < 2; i++)
        (pairs ? t->k[i]->f32_rope_pairs : t->k[i]->f32_rope_half)(y->at[i], s, c, half);
    for (int i = 0; i < half; i++) {
        const int first = pairs ? 2 * i : i, second = pairs ? first + 1 : first + half;
        const double a = x[first], b = x[second];
        expect_two(t, y, first, a * c[i], -b * s[i]);
        expect_two(t, y, second, b * c[i], a * s[i]);
    }
}

enum blend { AXPY, BLEND, SCALE };

static void check_blend(struct clb_trial *t, int which)
{
    const int n = which == AXPY ? 1 + clb_trial_below(t, 320) : multiple_of_16(t);
    const float a = clb_trial_number(t), b = clb_trial_number(t);
    const float *x = clb_trial_numbers(t, n, 1), *before = clb_trial_numbers(t, n, 1);
    struct clb_result *y = clb_trial_output(t, n, CLB_FLOATS, which == SCALE ? x : before);
    for (int i = 0; i < 2; i++) {
        const struct clb_kernels *k = t->k[i];
        if (which == AXPY)
            k->f32_axpy(y->at[i], b, x, n);
        else if (which == BLEND)
            k->f32_blend(y->at[i], a, x, b, n);
        else
            k->f32_scale(y->at[i], y->in[i], b, n);
    }
    for (int i = 0; i < n; i++) {
        double old = which == AXPY ? 1 : which == BLEND ? (double)a : 0;
        expect_two(t, y, i, old * before[i], (double)b * x[i]);
    }
}

// The largest score, in a second call with a NaN among them, where only the levels are compared; or
// exp(x - shift) and its sum. The difference is rounded, which is a relative error of exp; Sum16
// rounds a term l + 3 times.
static void check_scores(struct clb_trial *t, int sums)
{
    const int n = multiple_of_16(t);
    float *x = scaled_numbers(t, n), largest = -INFINITY;
    const bool negative = clb_trial_below(t, 2); // all of them: 0 is no start for the largest
    for (int i = 0; i < n; i++) {
        if (negative)
            x[i] = -fabsf(x[i]);
        if (clb_trial_below(t, 4) == 0)
            x[i] = -INFINITY;
        largest = x[i] > largest ? x[i] : largest;
    }
    float *nan = &x[clb_trial_below(t, n)];
    struct clb_result *one = clb_trial_output(t, sums ? 1 : 2, CLB_FLOATS, NULL);
    if (!sums) {
        for (int call = 0; call < 2; call++, *nan = NAN)
            for (int i = 0; i < 2; i++)
                ((float *)one->at[i])[call] = t->k[i]->f32_max(x, n);
        clb_trial_expect(t, one, 0, largest, 0);
        return;
    }
    if (clb_trial_below(t, 4) == 0)
        *nan = NAN;
    struct clb_result *y = clb_trial_output(t, n, CLB_FLOATS, x);
    const float shift = largest > -INFINITY ? largest - 16 * (float)clb_trial_below(t, 4) : 0;
    for (int i = 0; i < 2; i++)
        *(float *)one->at[i] = t->k[i]->f32_exp_sum(y->at[i], y->in[i], shift, n);
    double sum = 0, sum_bound = 0;
    for (int i = 0; i < n; i++) {
        double d = (double)x[i] - shift, e = x[i] == -INFINITY ? 0 : clb_exact_exp(d);
        double bound = EXP_ERROR * e + rounding(fabs(d) < 88 ? fabs(d) : 88, e);
        clb_trial_expect(t, y, i, e, bound);
        sum += e;
        sum_bound += bound;
    }
    clb_trial_expect(t, one, 0, sum, sum_bound + rounding(n / 16 + 3, sum));
}

#define KERNEL(name) #name, offsetof(struct clb_kernels, name)

static const struct kernel_case {
    const char *kernel;
    int at, which; // the function lies there in struct clb_kernels
    void (*check)(struct clb_trial *t, int which);
} cases[] = {
    {KERNEL(f32_f32_mm), CLB_W_F32, check_mm},
    {KERNEL(f16_f32_mm), CLB_W_F16, check_mm},
    {KERNEL(bf16_f32_mm), CLB_W_BF16, check_mm},
    {KERNEL(i8_f32_mm), CLB_W_I8, check_mm},
    {KERNEL(q8_q8_mm), CLB_W_Q8, check_mm},
    {KERNEL(q4_q8_mm), CLB_W_Q4, check_mm},
    {KERNEL(mxfp4_q8_mm), CLB_W_MXFP4, check_mm},
    {KERNEL(f32_q8_quantize), 0, check_quantize},
    {KERNEL(f32_f16_convert), 0, check_convert},
    {KERNEL(f32_rms_norm), false, check_norm},
    {KERNEL(f32_layer_norm), true, check_norm},
    {KERNEL(f32_silu_mul), SILU_MUL, check_function},
    {KERNEL(f32_gelu), GELU, check_function},
    {KERNEL(f32_gelu_tanh), GELU_TANH, check_function},
    {KERNEL(f32_rope_half), false, check_rope},
    {KERNEL(f32_rope_pairs), true, check_rope},
    {KERNEL(f32_exp), EXP, check_function},
    {KERNEL(f32_max), false, check_scores},
    {KERNEL(f32_exp_sum), true, check_scores},
    {KERNEL(f32_axpy), AXPY, check_blend},
    {KERNEL(f32_blend), BLEND, check_blend},
    {KERNEL(f32_scale), SCALE, check_blend},
    {KERNEL(f32_mul), MUL, check_function},
};
static_assert(sizeof cases / sizeof *cases == CLB_SELFTEST_KERNELS, "wrong number of cases");
static_assert(sizeof(struct clb_kernels) == (1 + CLB_SELFTEST_KERNELS) * sizeof(void *),
              "a kernel has no case, or a case has no kernel");

static sigjmp_buf before_call;

static void on_signal(int number)
{
    siglongjmp(before_call, number);
}

static void check_kernel(struct clb_trial *t, const struct kernel_case *c, int rounds)
{
    struct clb_verdict *v = t->verdict;
    *v = (struct clb_verdict){.kernel = c->kernel};
    v->inherited = !memcmp((const char *)t->k[0] + c->at, (const char *)t->k[1] + c->at,
                           sizeof(void (*)(void)));
    t->seed = 1;
    int number = sigsetjmp(before_call, 1);
    if (number) {
        clb_format(v->wrong, sizeof v->wrong, "signal %d stops it", number);
        v->n_different++;
        return;
    }
    while (v->comparisons < rounds) {
        t->wild = v->comparisons % 4 == 3;
        clb_trial_begin(t);
        c->check(t, c->which);
        clb_trial_end(t);
    }
}

int clb_selftest_level(const char *level, int rounds, struct clb_verdict verdicts[],
                       colibri_error *error)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    enum { N_SIGNALS = sizeof signals / sizeof *signals };
    struct clb_kernels scalar, tested;
    struct clb_trial t = {.k = {&scalar, &tested}};
    int rc = clb_cpu_choose(&tested, level, error);
    if (!rc)
        rc = clb_cpu_choose(&scalar, clb_levels->name, error);
    if (!rc)
        rc = clb_trial_map(&t, error);
    if (rc)
        return rc;
    struct sigaction old[N_SIGNALS], action = {.sa_handler = on_signal};
    for (int i = 0; i < N_SIGNALS; i++)
        sigaction(signals[i], &action, &old[i]);
    for (int i = 0; i < CLB_SELFTEST_KERNELS; i++) {
        t.verdict = &verdicts[i];
        check_kernel(&t, &cases[i], rounds);
    }
    for (int i = 0; i < N_SIGNALS; i++)
        sigaction(signals[i], &old[i], NULL);
    clb_trial_unmap(&t);
    return 0;
}

int clb_selftest(const char *isa, colibri_error *error)
{
    struct clb_verdict verdicts[CLB_SELFTEST_KERNELS];
    struct clb_kernels kernels;
    int n_wrong = 0, rc = clb_cpu_choose(&kernels, isa, error);
    if (rc)
        return rc;
    for (const struct clb_level *l = clb_levels; l->name; l++) {
        if (isa ? strcmp(isa, l->name) : !!clb_cpu_lacks(l))
            continue;
        rc = clb_selftest_level(l->name, CLB_SELFTEST_ROUNDS, verdicts, error);
        if (rc)
            return rc;
        int wrong = 0;
        for (const struct clb_verdict *v = verdicts; v < verdicts + CLB_SELFTEST_KERNELS; v++) {
            if (!*v->wrong)
                continue;
            wrong++;
            clb_print(stdout, "kernel %s of level %s is wrong: %s\n", v->kernel, l->name, v->wrong);
        }
        clb_print(stdout, "%s: %d kernels, %d wrong\n", l->name, CLB_SELFTEST_KERNELS, wrong);
        n_wrong += wrong;
    }
    if (n_wrong)
        return clb_error(error, COLIBRI_ERROR_NUMERIC,
                         "selftest: %d wrong kernels; this program cannot be trusted on this CPU",
                         n_wrong);
    puts("selftest: ok");
    return 0;
}
