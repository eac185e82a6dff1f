// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "attention.h"

#include "layout.h"

#include <math.h>

// Positions [*lo, *hi) of the chunk that the position sees.
static void valid_range(int position, int window, int chunk, int *lo, int *hi)
{
    int start = chunk * CLB_CHUNK;
    int oldest = window && position >= window ? position - window + 1 : 0;
    *lo = oldest > start ? oldest - start : 0;
    *hi = position + 1 - start < CLB_CHUNK ? position + 1 - start : CLB_CHUNK;
}

// Softmax within the chunk: scores become weights. A row without valid position gets weights 0
// and the sum -1, which no softmax has.
static void weigh(const struct clb_attention *a, const struct clb_kernels *k, int row, int lo,
                  int hi, int n_positions)
{
    float *s = a->scores + (size_t)row * CLB_CHUNK;
    int n = (int)clb_round_up((uint64_t)n_positions, 16);
    if (lo >= hi) {
        memset(s, 0, (size_t)n * sizeof *s);
        a->chunk_sum[row] = -1;
        return;
    }
    for (int i = 0; i < lo; i++)
        s[i] = -INFINITY;
    for (int i = hi; i < n; i++)
        s[i] = -INFINITY;
    a->chunk_max[row] = k->f32_max(s, n);
    a->chunk_sum[row] = k->f32_exp_sum(s, s, a->chunk_max[row], n);
}

// Adds the chunk's part to what the chunks before it gave.
static void merge(const struct clb_attention *a, const struct clb_kernels *k, int rows, int padded)
{
    for (int r = 0; r < rows; r++) {
        a->old_factor[r] = a->new_factor[r] = 0;
        if (a->chunk_sum[r] < 0 || a->sum[r] < 0)
            continue;
        float old = a->max[r], max = old > a->chunk_max[r] ? old : a->chunk_max[r];
        a->old_factor[r] = old - max;
        a->new_factor[r] = a->chunk_max[r] - max;
        a->max[r] = max;
    }
    int n = (int)clb_round_up((uint64_t)rows, 16);
    k->f32_exp(a->old_factor, a->old_factor, n);
    k->f32_exp(a->new_factor, a->new_factor, n);
    for (int r = 0; r < rows; r++) {
        float *out = a->out + (size_t)r * (size_t)padded;
        const float *part = a->part + (size_t)r * (size_t)padded;
        if (a->chunk_sum[r] < 0)
            continue;
        if (a->sum[r] < 0) { // the first chunk of this row
            memcpy(out, part, (size_t)padded * sizeof *out);
            a->max[r] = a->chunk_max[r];
            a->sum[r] = a->chunk_sum[r];
            continue;
        }
        a->sum[r] = a->sum[r] * a->old_factor[r] + a->chunk_sum[r] * a->new_factor[r];
        k->f32_blend(out, a->old_factor[r], part, a->new_factor[r], padded);
    }
}

int clb_first_chunk(const struct clb_block *b)
{
    int hidden = b->window ? b->first_position + 1 - b->window : 0; // positions before the window
    return hidden > 0 ? hidden / CLB_CHUNK : 0;
}

void clb_attend_chunk(const struct clb_attention *a, const struct clb_cache *c,
                      const struct clb_kernels *k, const struct clb_block *b, int chunk)
{
    int rows = b->n_tokens * b->n_heads;
    int n_positions = b->first_position + b->n_tokens - chunk * CLB_CHUNK;
    if (n_positions > CLB_CHUNK)
        n_positions = CLB_CHUNK;
    int n_tiles = (n_positions + CLB_TILE_ROWS - 1) / CLB_TILE_ROWS;
    clb_cache_scores(c, k, b->layer, b->kv_head, chunk, n_tiles, &a->queries, rows, a->scores);
    for (int r = 0; r < rows; r++) {
        int lo, hi;
        valid_range(b->first_position + r / b->n_heads, b->window, chunk, &lo, &hi);
        weigh(a, k, r, lo, hi, n_positions);
    }
    clb_cache_mix(c, k, b->layer, b->kv_head, chunk, n_positions, a->scores, rows, a->scaled,
                  a->part);
}

struct clb_attention clb_attention_at(const struct clb_attention *a, const struct clb_parts *parts,
                                      const struct clb_block *b, int chunk, int padded)
{
    size_t row = (size_t)chunk * (size_t)parts->n_heads + (size_t)b->first_head;
    struct clb_attention at = *a;
    at.part = parts->out + row * (size_t)padded;
    at.chunk_max = parts->max + row;
    at.chunk_sum = parts->sum + row;
    return at;
}

void clb_attend(const struct clb_attention *a, const struct clb_cache *c,
                const struct clb_kernels *k, const struct clb_block *b,
                const struct clb_parts *parts)
{
    int rows = b->n_tokens * b->n_heads, last = b->first_position + b->n_tokens - 1;
    for (int r = 0; r < rows; r++)
        a->sum[r] = -1;
    for (int chunk = clb_first_chunk(b); chunk <= last / CLB_CHUNK; chunk++) {
        struct clb_attention at = *a;
        if (parts)
            at = clb_attention_at(a, parts, b, chunk, c->padded);
        else
            clb_attend_chunk(a, c, k, b, chunk);
        merge(&at, k, rows, c->padded);
    }
    if (b->sinks) { // a chunk without values
        memset(a->part, 0, (size_t)rows * (size_t)c->padded * sizeof *a->part);
        for (int r = 0; r < rows; r++) {
            a->chunk_max[r] = b->sinks[r % b->n_heads];
            a->chunk_sum[r] = 1;
        }
        merge(a, k, rows, c->padded);
    }
    for (int r = 0; r < rows; r++) {
        float *out = a->out + (size_t)r * (size_t)c->padded;
        k->f32_scale(out, out, 1.0f / a->sum[r], c->padded);
    }
}
