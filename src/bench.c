// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "bench.h"

#include "layout.h"
#include "model.h"
#include "print.h"
#include "report.h"
#include "threads.h"
#include "usage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    ROUNDS = 5,
    DEFAULT_TOKENS = 128,
    SHORT_PROMPT = 64,
    LONG_PROMPT = 512,
    PIECE_BYTES = 256 << 10, // of memory, that a thread reads at a time
    N_READS = 4,             // ways to read: 1, 2, 4 and 8 streams
    N_KERNELS = CLB_MXFP4 + 1,
    PEAK_TILES = 32, // that one call of a kernel walks
    PEAK_VECTORS = 8,
    PEAK_COLS = 256, // a tile, the vectors and the results are 27 KB at most
};
static const uint64_t MIN_READ = 256 << 20, MAX_READ = 1 << 30;
static const double PEAK_SECONDS = 4e-3;

// What one round measures: seconds; of 1e9 operations from PEAK on, in the order of the types.
enum { DECODE, SHORT, LONG, READ, PEAK = READ + N_READS, N_TIMES = PEAK + N_KERNELS };

struct bench {
    const colibri_model *model;
    double *stamps; // (n_tokens) when each token of the last call was there
    int n_stamps;
    int n_short, n_long, n_tokens; // of the two prompts; that are decoded after one token
    bool json;

    struct clb_pool *pool;
    const uint8_t *memory; // to read
    uint8_t *allocated;
    int n_pieces, streams;
    _Atomic uint64_t sum; // keeps the loads alive

    struct clb_matrix tile; // of the type whose kernel is measured
    struct clb_acts vectors;
    _Alignas(CLB_ALIGN) float operands[(CLB_TILE_ROWS + PEAK_VECTORS) * PEAK_COLS];
    int32_t sums[PEAK_VECTORS * PEAK_COLS / CLB_BLOCK];
    _Atomic int n_calls; // of that kernel
    double deadline;

    uint64_t peak_rss;            // before all of the memory was read
    struct clb_usage first, last; // at the last call's first token and at its end
    colibri_stats stats;          // of that call
    colibri_infer_options options;
    double times[N_TIMES][ROUNDS];
    colibri_profile profile;
    int32_t prompt[LONG_PROMPT];
};

// By insertion: qsort is 9 KB of libc.
static void sort(double *x, int n)
{
    for (int i = 1; i < n; i++) {
        double one = x[i];
        int at = i;
        for (; at > 0 && x[at - 1] > one; at--)
            x[at] = x[at - 1];
        x[at] = one;
    }
}

static int on_step(void *user, const colibri_step *step)
{
    struct bench *b = user;
    (void)step;
    b->stamps[b->n_stamps++] = clb_usage_seconds();
    if (b->n_stamps == 1)
        b->first = clb_usage_now();
    return 0;
}

static int infer(struct bench *b, int n_prompt, int n_tokens, colibri_error *error)
{
    b->n_stamps = 0;
    b->options.n_tokens = n_tokens;
    int rc = colibri_infer(b->model, &b->options, b->prompt, (size_t)n_prompt, on_step, b,
                           &b->stats, error);
    b->last = clb_usage_now();
    return rc;
}

// One number of each cache line: what the memory moves are whole lines.
static void read_item(void *context, int item, int worker)
{
    struct bench *b = context;
    (void)worker;
    const size_t part = PIECE_BYTES / (size_t)b->streams;
    const uint8_t *p = b->memory + (size_t)item * PIECE_BYTES;
    uint64_t sum = 0;
    for (size_t i = 0; i < part; i += CLB_ALIGN)
        for (size_t at = i; at < PIECE_BYTES; at += part)
            sum += *(const uint64_t *)(const void *)(p + at);
    b->sum += sum;
}

static double read_all(struct bench *b, int streams)
{
    double start = clb_usage_seconds();
    b->streams = streams;
    clb_pool_run(b->pool, b->n_pieces, read_item, b);
    return clb_usage_seconds() - start;
}

// The same tile times the same vectors, again and again: all of it stays in the first cache.
static void multiply_item(void *context, int item, int worker)
{
    struct bench *b = context;
    (void)item, (void)worker;
    float y[(PEAK_TILES + PEAK_VECTORS) * CLB_TILE_ROWS]; // results lie one over the other
    do {
        clb_matrix_mm(&b->model->kernels, &b->tile, (const uint8_t *)b->operands, 0, PEAK_TILES,
                      &b->vectors, 0, PEAK_VECTORS, y, CLB_TILE_ROWS);
        b->n_calls++;
    } while (clb_usage_seconds() < b->deadline);
}

// Seconds for 1e9 operations of all threads.
static double multiply(struct bench *b, enum clb_dtype dtype)
{
    b->tile.dtype = dtype;
    b->deadline = 0;
    clb_pool_run(b->pool, b->options.threads, multiply_item, b); // all threads are awake then
    double start = clb_usage_seconds();
    b->n_calls = 0;
    b->deadline = start + PEAK_SECONDS;
    clb_pool_run(b->pool, b->options.threads, multiply_item, b);
    return (clb_usage_seconds() - start) /
           (2e-9 * PEAK_TILES * CLB_TILE_ROWS * PEAK_COLS * PEAK_VECTORS * b->n_calls);
}

static int run_round(struct bench *b, int round, colibri_error *error)
{
    int rc = infer(b, b->n_long, 0, error);
    b->times[LONG][round] = b->stats.prefill_seconds / b->n_long;
    if (!rc)
        rc = infer(b, b->n_short, 0, error);
    b->times[SHORT][round] = b->stats.prefill_seconds / b->n_short;
    if (!rc)
        rc = infer(b, 1, b->n_tokens, error);
    b->times[DECODE][round] = b->stats.decode_seconds / (b->n_tokens - 1);
    return rc;
}

// The model's own bytes where they are enough, or as many others.
static int open_memory(struct bench *b, colibri_error *error)
{
    size_t n = b->model->file.map.size;
    b->memory = b->model->file.map.data;
    if (n < MIN_READ) {
        n = MIN_READ;
        b->memory = b->allocated = malloc(n);
        if (!b->allocated)
            return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for the %zu bytes of --bench",
                             n);
        memset(b->allocated, 1, n);
    }
    b->n_pieces = (int)((n < MAX_READ ? n : MAX_READ) / PIECE_BYTES);
    return clb_pool_create(&b->pool, b->options.threads, error);
}

static int measure(struct bench *b, colibri_error *error)
{
    int rc = infer(b, 1, 2, error); // to warm up
    b->options.profile = &b->profile;
    if (!rc)
        rc = infer(b, b->n_short, 0, error);
    const colibri_profile prompt = b->profile;
    if (!rc)
        rc = infer(b, 1, b->n_tokens, error);
    memcpy(b->profile.prefill, prompt.prefill, sizeof prompt.prefill);
    b->options.profile = NULL;
    for (int round = 0; !rc && round < ROUNDS; round++) {
        rc = run_round(b, round, error);
        if (!rc && !b->pool) {
            b->peak_rss = b->last.peak_rss_bytes;
            rc = open_memory(b, error);
            if (!rc)
                read_all(b, 1);
        }
        for (int i = 0; !rc && i < N_READS; i++)
            b->times[READ + i][round] = read_all(b, 1 << i);
        for (int i = 0; !rc && i < N_KERNELS; i++)
            b->times[PEAK + i][round] = multiply(b, (enum clb_dtype)i);
    }
    return rc;
}

// A line, or a member of an object of JSON.
static void put(const struct bench *b, const char *name, double value)
{
    clb_print(stdout, b->json ? ", \"%s\": %.9g" : "%-27s %10.6g\n", name, value);
}

// Of the last decoding, from token to token.
static void print_latency(const struct bench *b)
{
    const int n = b->n_stamps - 1;
    double *ms = b->stamps, sum = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        ms[i] = 1e3 * (b->stamps[i + 1] - b->stamps[i]);
        sum += ms[i];
    }
    for (int i = 0; i < n; i++)
        squares += (ms[i] - sum / n) * (ms[i] - sum / n);
    sort(ms, n);
    put(b, "ms_p50", ms[(n - 1) / 2]);
    put(b, "ms_p99", ms[(99 * n - 1) / 100]);
    put(b, "ms_p99.9", ms[(999 * n - 1) / 1000]);
    put(b, "ms_deviation", sqrt(squares / n));
    put(b, "minor_faults", (double)(b->last.minor_faults - b->first.minor_faults));
    put(b, "major_faults", (double)(b->last.page_faults - b->first.page_faults));
    put(b, "sleeps", (double)(b->last.sleeps - b->first.sleeps));
}

// The kernels' peaks, rate (N_KERNELS), and the share of them that the long prompt reaches: each
// operation's products by weights would take their time at the peak of its type.
static void print_peaks(const struct bench *b, const double *rate, double tokens_per_second)
{
    const colibri_model *m = b->model;
    const enum clb_dtype types[COLIBRI_OPERATIONS] = {
        [CLB_QKV] = m->q.dtype,
        [CLB_O] = m->o.dtype,
        [CLB_GATE_UP] = m->experts.up.dtype,
        [CLB_DOWN] = m->experts.down.dtype,
        [CLB_HEAD] = m->lm_head.dtype,
    };                            // the router's is f32
    double work = 0, seconds = 0; // of a token: 1e9 operations, at the peaks
    for (int i = 0; i < COLIBRI_OPERATIONS; i++) {
        const int n = i == CLB_HEAD ? b->n_long : b->n_short; // the last token's logits
        const double one = 2e-9 * (double)b->profile.prefill[i].products / n;
        work += one;
        seconds += one / rate[types[i]];
    }
    for (int i = 0; i < N_KERNELS; i++) {
        char name[32];
        clb_format(name, sizeof name, "kernel_%s_gop_per_second", clb_dtype_names[i]);
        put(b, name, rate[i]);
    }
    put(b, "long_gop_per_second", work * tokens_per_second);
    put(b, "percent_of_kernels", 100 * seconds * tokens_per_second);
}

static void print(struct bench *b, bool profile)
{
    const int threads = b->options.threads;
    double rate[N_TIMES], bytes = 0;
    int best = READ;
    for (int i = 0; i < N_TIMES; i++) {
        sort(b->times[i], ROUNDS);
        rate[i] = 1 / b->times[i][ROUNDS / 2];
        if (i > READ && i < PEAK && rate[i] > rate[best])
            best = i;
    }
    for (int i = 0; i < COLIBRI_OPERATIONS; i++)
        bytes += (double)b->profile.decode[i].bytes / (b->n_tokens - 1);
    const double speed = 1e-9 * bytes * rate[DECODE];
    const double roof = 1e-9 * PIECE_BYTES * b->n_pieces * rate[best];
    clb_print(stdout, b->json ? "{\"isa\": \"%s\", \"kv\": \"%s\"" : "isa %s, kv %s\n",
              b->model->kernels.level, clb_kv_names[b->stats.kv]);
    put(b, "threads", threads);
    put(b, "rounds", ROUNDS);
    put(b, "short_prompt", b->n_short);
    put(b, "short_tokens_per_second", rate[SHORT]);
    put(b, "long_prompt", b->n_long);
    put(b, "long_tokens_per_second", rate[LONG]);
    put(b, "decoded", b->n_tokens);
    put(b, "decode_tokens_per_second", rate[DECODE]);
    put(b, "megabytes_per_token", 1e-6 * bytes);
    put(b, "decode_gb_per_second", speed);
    put(b, "read_gb_per_second", roof);
    put(b, "read_streams", 1 << (best - READ));
    put(b, "percent_of_read", 100 * speed / roof);
    print_peaks(b, rate + PEAK, rate[LONG]);
    print_latency(b);
    put(b, "peak_rss_mb", 1e-6 * (double)b->peak_rss);
    if (profile)
        clb_report(&b->profile, threads, b->n_short, b->n_tokens - 1, b->json ? NULL : stdout);
    if (b->json)
        puts("}");
}

int clb_bench(const struct clb_options *o, const colibri_model *model,
              const colibri_infer_options *options, colibri_error *error)
{
    const int most = model->config.max_positions;
    struct bench b = {
        .model = model,
        .options = *options,
        .json = o->format == CLB_JSON,
        .tile.cols = PEAK_COLS,
        .n_long = most < LONG_PROMPT ? most : LONG_PROMPT,
        .n_short = most < SHORT_PROMPT ? most : SHORT_PROMPT,
        .n_tokens = o->num_tokens > 1       ? (int)o->num_tokens
                    : most > DEFAULT_TOKENS ? DEFAULT_TOKENS
                                            : most - 1,
    };
    b.options.ignore_eos = true;
    b.options.on_warning = NULL;                 // of a prompt that means nothing
    b.options.on_route = NULL;                   // its user is another
    b.options.feed_last = false;                 // one stamp more
    memset(b.operands, 0x3c, sizeof b.operands); // a normal number in every type
    float *numbers = b.operands + CLB_TILE_ROWS * PEAK_COLS;
    b.vectors =
        (struct clb_acts){numbers, {(int8_t *)numbers, numbers, b.sums, PEAK_COLS}, PEAK_COLS};
    for (int i = 0; i < b.n_long; i++)
        b.prompt[i] = (int32_t)((int64_t)i * 37 % model->config.vocab_size);
    b.stamps = malloc((size_t)b.n_tokens * sizeof *b.stamps);
    int rc = b.stamps
                 ? measure(&b, error)
                 : clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for the %zu bytes of --bench",
                             (size_t)b.n_tokens * sizeof *b.stamps);
    if (!rc)
        print(&b, o->profile);
    clb_pool_free(b.pool);
    free(b.allocated);
    free(b.stamps);
    return rc;
}
