// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// This machine's roof at an ISA level, as JSON: how fast memory is read by loops of one to eight
// streams, with prefetch and without, and how fast the multiplier is.
//
//     roof [--threads N] [--isa LEVEL] [--mb SIZE]
#include "cpu.h"
#include "threads.h"
#include "usage.h"

#include "roof.h"
#include "times.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    ROUNDS = 5,
    ITEM_BYTES = 4 << 20,
    LARGE_PAGE = 2 << 20,
    PEAK_ROUNDS = 1600000,
    MAX_THREADS = 64
};

struct job {
    const struct clb_roof *roof;
    const char *memory;
    int loop; // which of roof->read
    volatile float sink;
};

static void read_item(void *context, int item, int worker)
{
    (void)worker;
    struct job *j = context;
    const char *p = j->memory + (size_t)item * ITEM_BYTES;
    j->sink = j->roof->read[j->loop]((const float *)(const void *)p, ITEM_BYTES / sizeof(float));
}

static void muladd_item(void *context, int item, int worker)
{
    (void)item, (void)worker;
    struct job *j = context;
    j->sink = j->roof->muladd((const float *)(const void *)j->memory, PEAK_ROUNDS);
}

static void dot_item(void *context, int item, int worker)
{
    (void)item, (void)worker;
    struct job *j = context;
    j->sink = j->roof->dot((const int8_t *)j->memory, PEAK_ROUNDS);
}

static void dot_q4_item(void *context, int item, int worker)
{
    (void)item, (void)worker;
    struct job *j = context;
    j->sink = j->roof->dot_q4((const int8_t *)j->memory, PEAK_ROUNDS);
}

// The median rate of `work` (1e9 bytes or operations) in all items.
static double rate(struct clb_pool *pool, int n_items, clb_item_fn fn, struct job *j, double work)
{
    double times[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        double start = clb_usage_seconds();
        clb_pool_run(pool, n_items, fn, j);
        times[i] = clb_usage_seconds() - start;
    }
    times_sort(times, ROUNDS);
    return work / times[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    const char *isa = NULL;
    int n_threads = 1, megabytes = 1024;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--threads") && i + 1 < argc)
            n_threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--isa") && i + 1 < argc)
            isa = argv[++i];
        else if (!strcmp(argv[i], "--mb") && i + 1 < argc)
            megabytes = atoi(argv[++i]);
        else
            n_threads = 0;
    }
    if (n_threads < 1 || n_threads > MAX_THREADS || megabytes < 8) {
        fprintf(stderr, "usage: roof [--threads 1..%d] [--isa LEVEL] [--mb 8..]\n", MAX_THREADS);
        return 2;
    }
    struct clb_kernels kernels;
    struct clb_pool *pool;
    colibri_error error;
    if (clb_cpu_choose(&kernels, isa, &error) || clb_pool_create(&pool, n_threads, &error)) {
        fprintf(stderr, "roof: %s\n", error.message);
        return error.code;
    }
    struct job j = {.roof = clb_roofs};
    while (strcmp(j.roof->level, kernels.level))
        j.roof++;
    int n_items = (int)(((size_t)megabytes << 20) / ITEM_BYTES);
    size_t bytes = (size_t)n_items * ITEM_BYTES;
    void *memory;
    if (posix_memalign(&memory, LARGE_PAGE, bytes)) {
        fprintf(stderr, "roof: no memory for %zu bytes; try a smaller --mb\n", bytes);
        return COLIBRI_ERROR_MEMORY;
    }
    madvise(memory, bytes, MADV_HUGEPAGE); // as models are mapped
    memset(memory, 0x3c, bytes);           // a normal number, as a float and as an integer
    j.memory = memory;
    printf("{\"level\": \"%s\", \"threads\": %d, \"bytes\": %zu, \"read_gb_s\": {", kernels.level,
           n_threads, bytes);
    for (j.loop = 0; j.loop < CLB_ROOF_READS; j.loop++)
        printf("%s\"%d%s\": %.2f", j.loop ? ", " : "", 1 << j.loop / 2,
               j.loop % 2 ? " prefetched" : "",
               rate(pool, n_items, read_item, &j, 1e-9 * (double)bytes));
    double rounds = 2e-9 * PEAK_ROUNDS * n_threads; // a multiplication and an addition each
    printf("}, \"f32_gflop_s\": %.1f", rate(pool, n_threads, muladd_item, &j, 128 * rounds));
    printf(", \"q8_gop_s\": %.1f", rate(pool, n_threads, dot_item, &j, 512 * rounds));
    printf(", \"q4_gop_s\": %.1f}\n", rate(pool, n_threads, dot_q4_item, &j, 1024 * rounds));
    free(memory);
    clb_pool_free(pool);
    return 0;
}
