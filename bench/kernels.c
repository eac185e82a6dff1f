// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels against the machine's roof, in one run: matrix times vector and attention of one token
// against the read bandwidth, matrix times 32 vectors and attention of 32 tokens against the
// multiply-add peak. Roof and kernel alternate; medians are printed.
//
// With --sweep instead: matrices times 1 to 32 vectors, with weights from memory and from the
// second cache. So one sees what a vector costs where the weights are read for a few of them.
//
//     kernels [--sweep] [--json] [--threads N] [--isa LEVEL] [--mb SIZE]
#include "attention.h"
#include "cpu.h"
#include "layout.h"
#include "threads.h"
#include "usage.h"

#include "roof.h"
#include "times.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 9, COLS = 4096, BATCH = 32, POSITIONS = 4096, HEADS = 8, GROUP = 4, DIM = 128 };

static const struct clb_roof *roof;
static struct clb_kernels kernels;
static struct clb_pool *pool;
static int n_threads = 1;
static volatile float sink;

static void *allocate(size_t bytes)
{
    void *p;
    if (posix_memalign(&p, 4096, bytes)) {
        fprintf(stderr, "kernels: no memory for %zu bytes; try a smaller --mb\n", bytes);
        exit(9);
    }
    return p;
}

// One thing to time: a function over items that the pool shares out, and the work it does.
struct job {
    const char *name, *unit; // unit: GB/s or Gop/s
    clb_item_fn fn;
    int n_items;
    double work; // 1e9 bytes or operations of all items

    const uint8_t *w; // tiles, or the memory to read
    enum { F32, F16, BF16, Q8, Q4, MXFP4 } dtype;
    int n_tiles, n; // tiles of an item; vectors
    size_t tile_bytes;
    const struct clb_cache *cache;
    double times[ROUNDS], roof_times[ROUNDS];
};

static const char *const names[] = {"f32", "f16", "bf16", "q8", "q4", "mxfp4"};
static const size_t pair_bytes[] = {
    4096, 2048, 2048, CLB_Q8_PAIR_BYTES, CLB_Q4_PAIR_BYTES, CLB_MXFP4_PAIR_BYTES};

static float *x, *y;
static struct clb_q8 vectors;
static struct clb_attention attend[64];

static void matrix_item(void *context, int item, int worker)
{
    struct job *j = context;
    const uint8_t *w = j->w + (size_t)item * (size_t)j->n_tiles * j->tile_bytes;
    float *out = y + (size_t)worker * BATCH * 64;
    if (j->dtype >= Q8)
        (j->dtype == Q8   ? kernels.q8_q8_mm
         : j->dtype == Q4 ? kernels.q4_q8_mm
                          : kernels.mxfp4_q8_mm)(out, 64, w, j->tile_bytes, j->n_tiles, &vectors,
                                                 COLS / 64, j->n);
    else
        (j->dtype == F32 ? kernels.f32_f32_mm
         : j->dtype == F16
             ? kernels.f16_f32_mm
             : kernels.bf16_f32_mm)(out, 64, w, j->tile_bytes, j->n_tiles, x, COLS, COLS, j->n);
}

static void attention_item(void *context, int item, int worker)
{
    struct job *j = context;
    int tokens = j->n < BATCH / GROUP ? j->n : BATCH / GROUP;
    const struct clb_block block = {
        .kv_head = item % HEADS,
        .n_heads = GROUP,
        .first_position = POSITIONS - tokens,
        .n_tokens = tokens,
    };
    clb_attend(&attend[worker], j->cache, &kernels, &block, NULL);
}

static void read_item(void *context, int item, int worker)
{
    (void)worker;
    struct job *j = context;
    size_t floats = (size_t)j->n_tiles * j->tile_bytes / sizeof(float) / 256 * 256;
    sink = roof->read[CLB_ROOF_4_STREAMS](
        (const float *)(const void *)(j->w + (size_t)item * (size_t)j->n_tiles * j->tile_bytes),
        floats);
}

enum { PEAK_ROUNDS = 800000 };

static void muladd_item(void *context, int item, int worker)
{
    (void)context, (void)item;
    sink = roof->muladd(y + (size_t)worker * BATCH * 64, PEAK_ROUNDS);
}

static void dot_item(void *context, int item, int worker)
{
    (void)context, (void)item, (void)worker;
    sink = roof->dot(vectors.q, PEAK_ROUNDS);
}

static void dot_q4_item(void *context, int item, int worker)
{
    (void)context, (void)item, (void)worker;
    sink = roof->dot_q4(vectors.q, PEAK_ROUNDS);
}

static void dot_mxfp4_item(void *context, int item, int worker)
{
    (void)context, (void)item, (void)worker;
    sink = roof->dot_mxfp4(vectors.q, PEAK_ROUNDS);
}

static double run(struct job *j)
{
    double start = clb_usage_seconds();
    clb_pool_run(pool, j->n_items, j->fn, j);
    return (clb_usage_seconds() - start) / j->work;
}

static void measure(struct job *j, struct job *r, bool json, bool first)
{
    double ratios[ROUNDS];
    run(j);
    for (int i = 0; i < ROUNDS; i++) {
        j->roof_times[i] = run(r);
        j->times[i] = run(j);
        ratios[i] = j->roof_times[i] / j->times[i];
    }
    times_sort(j->times, ROUNDS);
    times_sort(j->roof_times, ROUNDS);
    times_sort(ratios, ROUNDS);
    double kernel = 1 / j->times[ROUNDS / 2], top = 1 / j->roof_times[ROUNDS / 2];
    if (json)
        printf("%s{\"kernel\": \"%s\", \"unit\": \"%s\", \"rate\": %.2f, \"roof\": %.2f, "
               "\"share\": %.3f}",
               first ? "" : ",\n ", j->name, j->unit, kernel, top, ratios[ROUNDS / 2]);
    else
        printf("%-28s %8.1f %-6s %8.1f %5.0f %%  (%.0f to %.0f)\n", j->name, kernel, j->unit, top,
               100 * ratios[ROUNDS / 2], 100 * ratios[0], 100 * ratios[ROUNDS - 1]);
    fflush(stdout);
}

// The products of one type and place with 1 to 32 vectors, one after the other in each round, in
// Gop/s; each round reads another part of the weights that come from memory.
static void sweep(const char *name, struct job *j, size_t bytes, size_t part, bool json)
{
    static const int counts[] = {1, 2, 3, 4, 6, 8, 12, 16, 32};
    enum { COUNTS = sizeof counts / sizeof *counts, SWEEP_ROUNDS = 5 };
    static double times[COUNTS][SWEEP_ROUNDS];
    const uint8_t *w = j->w;
    const size_t item_bytes = (size_t)j->n_tiles * j->tile_bytes;
    j->n_items = (int)(part / item_bytes);
    size_t step = (size_t)j->n_items * item_bytes, at = 0;
    for (int round = -1; round < SWEEP_ROUNDS; round++)
        for (int c = 0; c < COUNTS; c++, at += step) {
            if (at + step > bytes)
                at = 0;
            j->w = w + at;
            j->n = counts[c];
            j->work = 2e-9 * COLS * 64 * (double)j->n_items * j->n;
            double time = run(j);
            if (round >= 0)
                times[c][round] = time;
        }
    printf(json ? "{\"kernel\": \"%s\", \"unit\": \"Gop/s\", \"rates\": {" : "%-20s", name);
    for (int c = 0; c < COUNTS; c++) {
        times_sort(times[c], SWEEP_ROUNDS);
        double rate = 1 / times[c][SWEEP_ROUNDS / 2];
        if (json)
            printf("%s\"%d\": %.2f", c ? ", " : "", counts[c], rate);
        else
            printf(" %d: %.1f", counts[c], rate);
    }
    printf(json ? "}}" : "\n");
    fflush(stdout);
    j->w = w;
}

static void sweep_all(size_t bytes, bool json)
{
    uint8_t *w = allocate(bytes);
    memset(w, 0x3c, bytes); // a normal number in every type
    bool first = true;
    for (int d = F32; d <= MXFP4; d++)
        for (int cached = 0; cached < 2; cached++) {
            char name[64];
            struct job j = {.fn = matrix_item, .w = w, .n_tiles = 4};
            j.tile_bytes = COLS / 64 * pair_bytes[d];
            j.dtype = (unsigned)d;
            const size_t place = cached ? (size_t)n_threads << 20 : bytes;
            snprintf(name, sizeof name, "%s from %s", names[d], cached ? "cache" : "memory");
            if (json && !first)
                printf(",\n ");
            sweep(name, &j, place, cached ? place : bytes / 16, json);
            first = false;
        }
    free(w);
}

static void fill_cache(struct clb_cache *c, colibri_kv type)
{
    colibri_error error;
    float scratch[2 * DIM];
    if (clb_cache_create(c, 1, HEADS, DIM, DIM, POSITIONS, type, &error)) {
        fprintf(stderr, "kernels: %s\n", error.message);
        exit(9);
    }
    for (int h = 0; h < HEADS; h++)
        for (int p = 0; p < POSITIONS; p++)
            clb_cache_put(c, &kernels, 0, h, p, x + p, x + p + DIM, scratch);
}

static void allocate_attention(void)
{
    for (int i = 0; i < n_threads; i++) {
        struct clb_attention *a = &attend[i];
        float **all[] = {&a->queries.f32, &a->scores,    &a->scaled,   &a->part,
                         &a->out,         &a->max,       &a->sum,      &a->old_factor,
                         &a->new_factor,  &a->chunk_max, &a->chunk_sum};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            *all[k] = allocate(BATCH * CLB_CHUNK * sizeof(float));
            memset(*all[k], 0, BATCH * CLB_CHUNK * sizeof(float));
        }
        a->queries.stride = DIM;
        a->queries.q8 = vectors;
        a->queries.q8.stride = DIM;
    }
}

static void measure_all(size_t bytes, bool json)
{
    static const clb_item_fn roofs[] = {muladd_item, muladd_item, muladd_item,
                                        dot_item,    dot_q4_item, dot_mxfp4_item};
    uint8_t *w = allocate(bytes);
    memset(w, 0x3c, bytes); // a normal number in every type
    bool first = true;
    for (int batch = 1; batch <= BATCH; batch += BATCH - 1)
        for (int d = F32; d <= MXFP4; d++) {
            char name[64];
            size_t tile = COLS / 64 * pair_bytes[d];
            struct job j = {.name = name, .fn = matrix_item, .w = w, .n_tiles = 4, .n = batch};
            j.tile_bytes = tile;
            j.dtype = (unsigned)d;
            // a batch works on 16 MB at a time: its speed is that of the multiplier
            j.n_items = (int)((batch == 1         ? bytes
                               : bytes < 16 << 20 ? bytes
                                                  : 16 << 20) /
                              tile / 4);
            double gigabytes = 1e-9 * (double)tile * 4 * j.n_items;
            double operations = 2e-9 * COLS * 64 * (double)j.n_items * batch;
            struct job r = j;
            r.fn = batch == 1 ? read_item : roofs[d];
            j.unit = batch == 1 ? "GB/s" : "Gop/s";
            j.work = batch == 1 ? gigabytes : operations;
            r.work = gigabytes;
            if (batch > 1) {
                r.n_items = n_threads;
                r.work = 2e-9 *
                         (d < Q8    ? 128
                          : d == Q8 ? 512
                                    : 1024) *
                         (double)PEAK_ROUNDS * n_threads;
            }
            snprintf(name, sizeof name, "%s %s", names[d],
                     batch == 1 ? "matrix x vector" : "matrix x 32 vectors");
            measure(&j, &r, json, first);
            first = false;
        }
    for (colibri_kv kv = COLIBRI_KV_F32; kv <= COLIBRI_KV_Q8; kv++) {
        static const char *const kvs[] = {"", "f32", "f16", "q8"};
        struct clb_cache cache;
        fill_cache(&cache, kv);
        for (int n = 1; n <= BATCH / GROUP; n += BATCH / GROUP - 1) {
            char name[64];
            struct job j = {.name = name, .fn = attention_item, .cache = &cache, .n = n};
            j.n_items = HEADS * 8;
            j.unit = "Gop/s";
            j.work = 4e-9 * DIM * POSITIONS * GROUP * (double)n * j.n_items;
            struct job r = {.fn = muladd_item, .n_items = n_threads};
            r.work = 256e-9 * (double)PEAK_ROUNDS * n_threads;
            snprintf(name, sizeof name, "attention %s, %d token%s", kvs[kv], n, n > 1 ? "s" : "");
            measure(&j, &r, json, false);
        }
        clb_cache_free(&cache);
    }
    free(w);
}

int main(int argc, char **argv)
{
    const char *isa = NULL;
    bool json = false, sweeps = false;
    size_t megabytes = 512;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            json = true;
        else if (!strcmp(argv[i], "--sweep"))
            sweeps = true;
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
            n_threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--isa") && i + 1 < argc)
            isa = argv[++i];
        else if (!strcmp(argv[i], "--mb") && i + 1 < argc)
            megabytes = (size_t)atoi(argv[++i]);
        else
            n_threads = 0;
    }
    if (n_threads < 1 || n_threads > 64 || megabytes < 8) {
        fprintf(stderr,
                "usage: kernels [--sweep] [--json] [--threads 1..64] [--isa LEVEL] [--mb 8..]\n");
        return 2;
    }
    colibri_error error;
    if (clb_cpu_choose(&kernels, isa, &error) || clb_pool_create(&pool, n_threads, &error)) {
        fprintf(stderr, "kernels: %s\n", error.message);
        return error.code;
    }
    for (roof = clb_roofs; strcmp(roof->level, kernels.level); roof++)
        ;
    x = allocate((size_t)BATCH * COLS * sizeof *x);
    y = allocate((size_t)n_threads * BATCH * 64 * sizeof *y);
    vectors.q = allocate((size_t)BATCH * COLS);
    vectors.scale = allocate((size_t)BATCH * COLS / CLB_BLOCK * sizeof *vectors.scale);
    vectors.sum = allocate((size_t)BATCH * COLS / CLB_BLOCK * sizeof *vectors.sum);
    vectors.stride = COLS;
    for (int i = 0; i < BATCH * COLS; i++)
        x[i] = (float)(i * 37 % 255 - 127) / 1024;
    kernels.f32_q8_quantize(vectors.q, vectors.scale, vectors.sum, x, BATCH * COLS);
    memset(y, 0, (size_t)n_threads * BATCH * 64 * sizeof *y);
    allocate_attention();
    if (json)
        printf("{\"level\": \"%s\", \"threads\": %d, \"megabytes\": %zu, \"results\": [\n ",
               kernels.level, n_threads, megabytes);
    else if (sweeps)
        printf("level %s, %d thread%s, vectors: Gop/s, medians of 5\n", kernels.level, n_threads,
               n_threads > 1 ? "s" : "");
    else
        printf("level %s, %d thread%s, %zu MB of weights, medians of %d\n%-28s %8s %-6s %8s %5s\n",
               kernels.level, n_threads, n_threads > 1 ? "s" : "", megabytes, ROUNDS, "kernel",
               "rate", "", "roof", "share");
    (sweeps ? sweep_all : measure_all)(megabytes << 20, json);
    if (json)
        printf("\n]}\n");
    clb_pool_free(pool);
    return 0;
}
