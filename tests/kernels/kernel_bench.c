// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
#include "kernel_bench.h"

#include "cpu.h"
#include "layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 9, COLS = 1024, N = 4096, BATCH = 32 };
enum { CACHED = 256 << 10, IN_MEMORY = 64 << 20 }; // bytes of weights
static const double AT_LEAST = 1e-3;               // seconds that a measurement takes

static uint8_t *weights;
static float *a, *b, *c, *y;
static struct clb_q8 q8;
static uint16_t *halves;
static volatile float sink;

// Multiplications, additions and the like of one exp.
enum { EXP = 22 };

// Vectors of N elements: kernel, bytes read and written and operations of an element, arguments.
#define VECTORS(KERNEL)                                                                            \
    KERNEL(f32_q8_quantize, 5, 3, q8.q, q8.scale, q8.sum, a, N)                                    \
    KERNEL(f32_f16_convert, 6, 1, halves, a, N)                                                    \
    KERNEL(f32_rms_norm, 12, 4, y, a, b, N, 1e-5f)                                                 \
    KERNEL(f32_layer_norm, 16, 9, y, a, b, c, N, 1e-5f)                                            \
    KERNEL(f32_silu_mul, 12, EXP + 4, y, a, b, N)                                                  \
    KERNEL(f32_gelu, 8, EXP + 21, y, a, N)                                                         \
    KERNEL(f32_gelu_tanh, 8, EXP + 7, y, a, N)                                                     \
    KERNEL(f32_rope_half, 12, 3, y, b, c, N / 2)                                                   \
    KERNEL(f32_rope_pairs, 12, 3, y, b, c, N / 2)                                                  \
    KERNEL(f32_exp, 8, EXP, y, a, N)                                                               \
    KERNEL(f32_max, 4, 1, a, N)                                                                    \
    KERNEL(f32_exp_sum, 8, EXP + 2, y, a, 1.0f, N)                                                 \
    KERNEL(f32_axpy, 12, 2, y, 0.5f, a, N)                                                         \
    KERNEL(f32_blend, 12, 3, y, 0.5f, a, 0.25f, N)                                                 \
    KERNEL(f32_scale, 8, 1, y, a, 0.5f, N)                                                         \
    KERNEL(f32_mul, 12, 1, y, a, b, N)

// Matrices of COLS columns: kernel, bytes of a pair of blocks.
#define MATRICES(FLOAT, QUANTISED)                                                                 \
    FLOAT(f32_f32_mm, 4096)                                                                        \
    FLOAT(f16_f32_mm, 2048)                                                                        \
    FLOAT(bf16_f32_mm, 2048)                                                                       \
    FLOAT(i8_f32_mm, 1024)                                                                         \
    QUANTISED(q8_q8_mm, CLB_Q8_PAIR_BYTES)                                                         \
    QUANTISED(q4_q8_mm, CLB_Q4_PAIR_BYTES)                                                         \
    QUANTISED(mxfp4_q8_mm, CLB_MXFP4_PAIR_BYTES)

#define RUN_VECTORS(name, bytes, operations, ...)                                                  \
    static void run_##name(const struct clb_kernels *k, int n_tiles, int n)                        \
    {                                                                                              \
        (void)n_tiles, (void)n, (void)k->name(__VA_ARGS__);                                        \
    }
VECTORS(RUN_VECTORS)

#define RUN_FLOAT(name, pair_bytes)                                                                \
    static void run_##name(const struct clb_kernels *k, int n_tiles, int n)                        \
    {                                                                                              \
        k->name(y, (size_t)n_tiles * 16, weights, COLS / 64 * pair_bytes, n_tiles, a, COLS, COLS,  \
                n);                                                                                \
    }
#define RUN_QUANTISED(name, pair_bytes)                                                            \
    static void run_##name(const struct clb_kernels *k, int n_tiles, int n)                        \
    {                                                                                              \
        k->name(y, (size_t)n_tiles * 16, weights, COLS / 64 * pair_bytes, n_tiles, &q8, COLS / 64, \
                n);                                                                                \
    }
MATRICES(RUN_FLOAT, RUN_QUANTISED)

static const struct job {
    const char *kernel, *what;
    void (*run)(const struct clb_kernels *k, int n_tiles, int n);
    double bytes, operations; // of a call
    int n_tiles, n;
} jobs[] = {
#define JOB(name, what, size, n, pair_bytes)                                                       \
    {#name,                                                                                        \
     what,                                                                                         \
     run_##name,                                                                                   \
     (double)(size),                                                                               \
     2.0 * (size) / (pair_bytes)*16 * 64 * (n),                                                    \
     (size) / (COLS / 64 * (pair_bytes)),                                                          \
     n},
#define MATRIX_JOBS(name, pair_bytes)                                                              \
    JOB(name, "256 KB x vector", CACHED, 1, pair_bytes)                                            \
    JOB(name, "256 KB x 32 vectors", CACHED, BATCH, pair_bytes)                                    \
    JOB(name, "64 MB x vector", IN_MEMORY, 1, pair_bytes)
#define VECTOR_JOB(name, bytes, operations, ...)                                                   \
    {#name, "4096 elements", run_##name, (bytes) * (double)N, (operations) * (double)N, 0, 0},
    MATRICES(MATRIX_JOBS, MATRIX_JOBS) VECTORS(VECTOR_JOB)};
enum { N_JOBS = sizeof jobs / sizeof *jobs };

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *p, const void *q)
{
    double x = *(const double *)p, z = *(const double *)q;
    return (x > z) - (x < z);
}

// The median of the seconds of one call.
static double measure(const struct job *j, const struct clb_kernels *k)
{
    double times[ROUNDS];
    int calls = 1;
    memcpy(y, a, N * sizeof *y);
    for (int round = -1; round < ROUNDS;) { // the first finds how many calls are long enough
        double start = seconds();
        for (int i = 0; i < calls; i++) {
            j->run(k, j->n_tiles, j->n);
            sink = *y;
        }
        double passed = seconds() - start;
        if (round < 0 && passed < AT_LEAST) {
            calls *= 2;
            continue;
        }
        if (round >= 0)
            times[round] = passed / calls;
        round++;
    }
    qsort(times, ROUNDS, sizeof *times, by_value);
    return times[ROUNDS / 2];
}

static void *allocate(size_t bytes)
{
    void *p;
    if (posix_memalign(&p, CLB_ALIGN, bytes)) {
        fprintf(stderr, "checker: no memory for %zu bytes\n", bytes);
        exit(9);
    }
    memset(p, 0x3c, bytes); // a normal number in every type
    return p;
}

int clb_kernel_bench(bool json)
{
    struct clb_kernels k;
    weights = allocate(IN_MEMORY);
    float **all[] = {&a, &b, &c};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        *all[i] = allocate(BATCH * COLS * sizeof(float));
    y = allocate((size_t)IN_MEMORY / CLB_Q4_PAIR_BYTES / (COLS / 64) * 16 * sizeof *y);
    halves = allocate(N * sizeof *halves);
    q8 = (struct clb_q8){allocate(BATCH * COLS), allocate(BATCH * COLS / 8),
                         allocate(BATCH * COLS / 8), COLS};
    for (int i = 0; i < BATCH * COLS; i++) {
        a[i] = (float)(i * 37 % 255 - 127) / 128;
        b[i] = 0.6f; // with c a rotation, which keeps what it rotates from growing or vanishing
        c[i] = 0.8f;
    }
    if (json)
        printf("[");
    for (const struct clb_level *l = clb_levels; l->name; l++) {
        if (clb_cpu_choose(&k, l->name, NULL))
            continue;
        k.f32_q8_quantize(q8.q, q8.scale, q8.sum, a, BATCH * COLS);
        for (const struct job *j = jobs; j < jobs + N_JOBS; j++) {
            double time = measure(j, &k);
            printf(json ? "%s{\"level\": \"%s\", \"kernel\": \"%s\", \"what\": \"%s\", "
                          "\"gigabytes_per_second\": %.2f, \"gigaflops\": %.2f}"
                        : "%s%-12s %-16s %-20s %7.2f GB/s %8.2f GFLOP/s\n",
                   json && (j > jobs || l > clb_levels) ? ",\n " : "", l->name, j->kernel, j->what,
                   1e-9 * j->bytes / time, 1e-9 * j->operations / time);
            fflush(stdout);
        }
    }
    if (json)
        printf("]\n");
    return 0;
}
