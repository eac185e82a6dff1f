// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares the kernels of every level that this CPU can run with the scalar ones, bit for bit, on
// random shapes with extreme values; each output lies between canaries. Prints the comparisons
// per level, and fails if a level made fewer than expected.
//
//     checker [--require LEVEL]
#include "cpu.h"
#include "layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_COLS = 320, MAX_TILES = 9, MAX_N = 11, ROUNDS = 60, CANARY = 64 };
enum { CHECKS_PER_LEVEL = ROUNDS * 15 }; // one for each kernel and round

static uint64_t seed = 1;

static uint32_t random_u32(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static int below(int n)
{
    return (int)(random_u32() % (uint32_t)n);
}

// Mostly ordinary values; some zeros of both signs, subnormals and large ones.
static float random_float(void)
{
    static const float extremes[] = {0.0f, -0.0f, 0x1p-149f, -0x1.8p-130f, 0x1p-126f, 3e9f, -3e9f};
    int kind = below(24);
    if (kind < 7)
        return extremes[kind];
    return (float)((int)(random_u32() >> 8) - (1 << 23)) * 0x1p-22f;
}

static void random_floats(float *p, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = random_float();
}

static void random_bytes(void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)p)[i] = (uint8_t)random_u32();
}

// f16 or bf16 values without NaN and Inf.
static void random_halves(uint16_t *p, size_t n, uint16_t exponent_mask)
{
    for (size_t i = 0; i < n; i++) {
        p[i] = (uint16_t)random_u32();
        if ((p[i] & exponent_mask) == exponent_mask)
            p[i] &= (uint16_t)~0x4000;
    }
}

// Two outputs, the specification's and the level's, each with room for canaries.
struct outputs {
    uint8_t expected[4 * MAX_N * (MAX_TILES * 16 + 48) + 2 * CANARY];
    uint8_t actual[4 * MAX_N * (MAX_TILES * 16 + 48) + 2 * CANARY];
};
static struct outputs out, out2, out3;

static void *expected(struct outputs *o)
{
    return o->expected + CANARY;
}

static void *actual(struct outputs *o)
{
    return o->actual + CANARY;
}

static void reset(struct outputs *o)
{
    random_bytes(o->expected, sizeof o->expected);
    memcpy(o->actual, o->expected, sizeof o->expected);
}

static const struct clb_kernels *spec, *level;
static int n_checks, n_failures;

// NaN is NaN, whatever its payload; everything else, canaries included, must be equal.
static void check(const char *kernel, const struct outputs *o)
{
    n_checks++;
    if (!memcmp(o->expected, o->actual, sizeof o->expected))
        return;
    for (size_t i = 0; i < sizeof o->expected; i += 4) {
        float a = clb_from_bits(clb_u32(o->expected + i)), b = clb_from_bits(clb_u32(o->actual + i));
        if (clb_bits(a) == clb_bits(b) || (a != a && b != b))
            continue;
        if (n_failures++ < 10)
            printf("%s_%s differs from scalar at byte %zu: %a, expected %a\n", kernel, level->level,
                   i - CANARY, (double)b, (double)a);
        return;
    }
}

static float w_floats[MAX_TILES * 16 * MAX_COLS], x[MAX_N * (MAX_COLS + 64)], x2[MAX_COLS + 64];
static uint16_t w_halves[MAX_TILES * 16 * MAX_COLS];
static uint8_t w_pairs[MAX_TILES * (MAX_COLS / 64) * CLB_Q8_PAIR_BYTES];
static int8_t q[MAX_N * MAX_COLS];
static float scales[MAX_N * MAX_COLS / 32];
static int32_t sums[MAX_N * MAX_COLS / 32];

static void check_float_mm(void)
{
    int cols = 1 + below(MAX_COLS), tiles = 1 + below(MAX_TILES), n = 1 + below(MAX_N);
    size_t stride = (size_t)(cols + below(64)), y_stride = (size_t)(16 * tiles + below(48));
    size_t values = (size_t)cols * 16;
    random_floats(w_floats, (int)values * tiles);
    random_floats(x, n * (int)stride);
#define COMPARE(name, w)                                                                           \
    reset(&out);                                                                                   \
    spec->name(expected(&out), y_stride, w, values * sizeof *w, tiles, x, stride, cols, n);        \
    level->name(actual(&out), y_stride, w, values * sizeof *w, tiles, x, stride, cols, n);         \
    check(#name, &out)
    COMPARE(f32_f32_mm, w_floats);
    random_halves(w_halves, values * (size_t)tiles, 0x7c00);
    COMPARE(f16_f32_mm, w_halves);
    random_halves(w_halves, values * (size_t)tiles, 0x7f80);
    COMPARE(bf16_f32_mm, w_halves);
#undef COMPARE
}

static void check_int_mm(bool q8)
{
    const size_t pair_bytes = q8 ? CLB_Q8_PAIR_BYTES : CLB_Q4_PAIR_BYTES;
    int pairs = 1 + below(MAX_COLS / 64), tiles = 1 + below(MAX_TILES), n = 1 + below(MAX_N);
    size_t stride = (size_t)pairs * 64, y_stride = (size_t)(16 * tiles + below(48));
    size_t tile_bytes = (size_t)pairs * pair_bytes;
    random_bytes(w_pairs, tile_bytes * (size_t)tiles); // -128 included
    for (int p = 0; p < tiles * pairs; p++)
        random_halves((uint16_t *)(void *)(w_pairs + (size_t)p * pair_bytes), 32, 0x7c00);
    for (size_t i = 0; i < stride * (size_t)n; i++) // in some blocks, the largest of one sign
        q[i] = (int8_t)(i / 32 % 3 == 0 ? 127 : i / 32 % 5 == 0 ? -127 : below(255) - 127);
    if (below(4) == 0) // saturates a sum of products that is too narrow
        for (int p = 0; p < tiles * pairs; p++)
            memset(w_pairs + (size_t)p * pair_bytes + 64, q8 ? (below(2) ? 0x80 : 0x7f) : 0xff,
                   pair_bytes - 64);
    random_floats(scales, (int)stride / 32 * n);
    memset(sums, 0, sizeof sums);
    for (size_t i = 0; i < stride * (size_t)n; i++)
        sums[i / 32] += q[i];
    struct clb_q8 v = {q, scales, sums, stride};
    reset(&out);
    (q8 ? spec->q8_q8_mm : spec->q4_q8_mm)(expected(&out), y_stride, w_pairs, tile_bytes, tiles, &v,
                                           pairs, n);
    (q8 ? level->q8_q8_mm : level->q4_q8_mm)(actual(&out), y_stride, w_pairs, tile_bytes, tiles,
                                             &v, pairs, n);
    check(q8 ? "q8_q8_mm" : "q4_q8_mm", &out);
}

static void check_quantize(int round)
{
    int blocks = 1 + below(MAX_COLS / 32);
    for (int b = 0; b < blocks; b++) {
        float size = clb_from_bits((uint32_t)(1 + below(250)) << 23);
        for (int i = 0; i < 32; i++) // halves of a step too: ties
            x[32 * b + i] = below(3) ? (float)(below(255) - 127) * 0.5f * size / 127 : random_float();
    }
    if (round % 8 == 0)
        x[below(32 * blocks)] = clb_from_bits(0x7f800000 | (round % 16 ? 0 : 1));
    if (round % 8 == 1)
        memset(x, 0, 32 * sizeof *x);
    reset(&out);
    reset(&out2);
    reset(&out3);
    spec->f32_q8_quantize(expected(&out), expected(&out2), expected(&out3), x, 32 * blocks);
    level->f32_q8_quantize(actual(&out), actual(&out2), actual(&out3), x, 32 * blocks);
    check("f32_q8_quantize", &out);
    n_checks -= 2; // one kernel, three outputs
    check("f32_q8_quantize", &out2);
    check("f32_q8_quantize", &out3);
    for (int i = 0; i < 32 * blocks; i++)
        if (x[i] != x[i])
            x[i] = 70000.0f;
    reset(&out);
    spec->f32_f16_convert(expected(&out), x, 32 * blocks);
    level->f32_f16_convert(actual(&out), x, 32 * blocks);
    check("f32_f16_convert", &out);
}

static void check_vectors(void)
{
    int n = 1 + below(MAX_COLS), n16 = 16 * (1 + below(MAX_COLS / 16));
    float a = random_float(), b = random_float(), *e = expected(&out), *r = actual(&out);
    random_floats(x, MAX_COLS);
    random_floats(x2, MAX_COLS);
#define COMPARE(name, ...)                                                                         \
    reset(&out);                                                                                   \
    spec->name(e, __VA_ARGS__);                                                                    \
    level->name(r, __VA_ARGS__);                                                                   \
    check(#name, &out)
    COMPARE(f32_rms_norm, x, x2, n, 1e-5f);
    COMPARE(f32_silu_mul, x, x2, n16);
    COMPARE(f32_exp, x, n16);
    COMPARE(f32_scale, x, a, n16);
#undef COMPARE
    reset(&out);
    memcpy(e, x2, sizeof x2);
    memcpy(r, x2, sizeof x2);
    spec->f32_axpy(e, a, x, n);
    level->f32_axpy(r, a, x, n);
    check("f32_axpy", &out);
    reset(&out);
    memcpy(e, x2, sizeof x2);
    memcpy(r, x2, sizeof x2);
    spec->f32_blend(e, a, x, b, n16);
    level->f32_blend(r, a, x, b, n16);
    check("f32_blend", &out);
    reset(&out);
    e[0] = spec->f32_max(x, n16);
    r[0] = level->f32_max(x, n16);
    check("f32_max", &out);
    for (int i = 0; i < n16; i++)
        if (below(4) == 0)
            x[i] = -INFINITY;
    reset(&out);
    e[n16] = spec->f32_exp_sum(e, x, a, n16);
    r[n16] = level->f32_exp_sum(r, x, a, n16);
    check("f32_exp_sum", &out);
}

int main(int argc, char **argv)
{
    const char *required = argc == 3 && !strcmp(argv[1], "--require") ? argv[2] : NULL;
    if (argc > 1 && !required) {
        fprintf(stderr, "usage: checker [--require LEVEL]\n");
        return 2;
    }
    bool met = !required;
    int total_failures = 0;
    struct clb_kernels scalar, tested;
    colibri_error error;
    if (clb_cpu_choose(&scalar, "scalar", &error)) {
        fprintf(stderr, "checker: %s\n", error.message);
        return error.code;
    }
    spec = &scalar;
    level = &tested;
    for (const struct clb_level *l = clb_levels; l->name; l++) {
        if (clb_cpu_choose(&tested, l->name, &error)) {
            printf("%-14s not run: %s\n", l->name, error.message);
            continue;
        }
        n_checks = n_failures = 0;
        for (int round = 0; round < ROUNDS; round++) {
            check_float_mm();
            check_int_mm(true);
            check_int_mm(false);
            check_quantize(round);
            check_vectors();
        }
        printf("%-14s %d comparisons with scalar, %d differ\n", l->name, n_checks, n_failures);
        if (n_checks != CHECKS_PER_LEVEL) {
            printf("%d comparisons were expected\n", CHECKS_PER_LEVEL);
            n_failures++;
        }
        met |= required && !strcmp(l->name, required);
        total_failures += n_failures;
    }
    if (!met)
        printf("the level %s was required and did not run\n", required);
    return total_failures || !met;
}
