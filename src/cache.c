// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "cache.h"

#include "layout.h"
#include "log.h"

#include <sys/mman.h>

int clb_cache_create(struct clb_cache *c, int n_layers, int n_kv_heads, int key_dim, int value_dim,
                     int n_positions, colibri_kv type, colibri_error *error)
{
    const size_t bytes[] = {[COLIBRI_KV_F32] = 4, [COLIBRI_KV_F16] = 2, [COLIBRI_KV_Q8] = 1};
    *c = (struct clb_cache){
        .type = type,
        .n_kv_heads = n_kv_heads,
        .key_dim = key_dim,
        .value_dim = value_dim,
        .padded = (int)clb_round_up((uint64_t)value_dim, CLB_TILE_ROWS),
        .n_heads = n_layers * n_kv_heads,
    };
    const size_t elements = (size_t)c->padded;
    const size_t keys = (size_t)clb_round_up((uint64_t)key_dim, CLB_TILE_ROWS);
    const size_t pairs = (keys + CLB_TILE_COLS - 1) / CLB_TILE_COLS;
    c->key_tile_bytes =
        type == COLIBRI_KV_Q8 ? pairs * CLB_Q8_PAIR_BYTES : keys * CLB_TILE_ROWS * bytes[type];
    c->value_tile_bytes = (size_t)CLB_CHUNK * CLB_TILE_ROWS * bytes[type];
    c->values_at = CLB_CHUNK / CLB_TILE_ROWS * c->key_tile_bytes;
    c->scales_at = c->values_at + elements / CLB_TILE_ROWS * c->value_tile_bytes;
    c->chunk_bytes = c->scales_at;
    if (type == COLIBRI_KV_Q8)
        c->chunk_bytes += (elements + CLB_BLOCK - 1) / CLB_BLOCK * CLB_CHUNK * sizeof(float);
    uint64_t size;
    const uint64_t n_chunks = ((uint64_t)n_positions + CLB_CHUNK - 1) / CLB_CHUNK;
    bool fits = clb_mul((uint64_t)n_layers * (uint64_t)n_kv_heads, n_chunks, &size) &&
                clb_mul(size, (uint64_t)c->chunk_bytes, &size) && size <= SIZE_MAX;
    // Pages come zeroed, and only when they are written to.
    void *data = !fits ? MAP_FAILED
                       : mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        return clb_error(error, COLIBRI_ERROR_MEMORY,
                         "no memory for a key/value cache of %d positions; ask for fewer tokens",
                         n_positions);
    madvise(data, (size_t)size, MADV_HUGEPAGE); // fewer faults, where the kernel has them
    c->data = data;
    c->size = (size_t)size;
    CLB_LOG("cache: %zu bytes at %p, %d positions", c->size, data, n_positions);
    return 0;
}

void clb_cache_free(struct clb_cache *c)
{
    if (c->data)
        munmap(c->data, c->size);
    c->data = NULL;
}

void clb_cache_take(struct clb_cache *c, int position)
{
    const size_t needed = ((size_t)position / CLB_CHUNK + 1) * (size_t)c->n_heads * c->chunk_bytes;
    for (; c->taken < needed; c->taken += CLB_PAGE_BYTES)
        c->data[c->taken] = 0;
}

// What one head has in one chunk. Heads of all layers lie together, chunk after chunk.
static uint8_t *find_chunk(const struct clb_cache *c, int layer, int head, int chunk)
{
    size_t heads = (size_t)chunk * (size_t)c->n_heads + (size_t)layer * (size_t)c->n_kv_heads;
    return c->data + (heads + (size_t)head) * c->chunk_bytes;
}

static float *value_scales(const struct clb_cache *c, uint8_t *chunk, int block)
{
    return (float *)(void *)(chunk + c->scales_at) + (size_t)block * CLB_CHUNK;
}

// A vector of the head in blocks of 32, within scratch.
static struct clb_q8 quantise(const struct clb_kernels *k, const float *x, int dim, float *scratch)
{
    const size_t n = (size_t)clb_round_up((uint64_t)dim, CLB_TILE_COLS);
    float *after = scratch + n;
    struct clb_q8 q = {(int8_t *)(void *)(after + 2 * n / CLB_BLOCK), after,
                       (int32_t *)(void *)(after + n / CLB_BLOCK), n};
    memcpy(scratch, x, (size_t)dim * sizeof *x);
    memset(scratch + dim, 0, (n - (size_t)dim) * sizeof *x);
    k->f32_q8_quantize(q.q, q.scale, q.sum, scratch, (int)n);
    return q;
}

static void put_q8(struct clb_cache *c, const struct clb_kernels *k, uint8_t *chunk, int at,
                   const float *key, const float *value, float *scratch)
{
    const int row = at % CLB_TILE_ROWS;
    uint8_t *tile = chunk + (size_t)(at / CLB_TILE_ROWS) * c->key_tile_bytes;
    struct clb_q8 q = quantise(k, key, c->key_dim, scratch);
    for (size_t b = 0; b < q.stride / CLB_BLOCK; b++) {
        uint8_t *pair = tile + b / 2 * CLB_Q8_PAIR_BYTES;
        uint8_t *line = pair + CLB_LINE_BYTES + b % 2 * CLB_Q8_BLOCK_BYTES + 4 * row;
        uint16_t scale = clb_f32_to_f16(q.scale[b]);
        memcpy(pair + b % 2 * CLB_LINE_BYTES / 2 + 2 * row, &scale, sizeof scale);
        for (size_t i = 0; i < CLB_BLOCK; i += 4, line += CLB_LINE_BYTES)
            memcpy(line, q.q + b * CLB_BLOCK + i, 4);
    }
    q = quantise(k, value, c->value_dim, scratch);
    for (int i = 0; i < c->padded; i++) {
        tile = chunk + c->values_at + (size_t)(i / CLB_TILE_ROWS) * c->value_tile_bytes;
        tile[at * CLB_TILE_ROWS + i % CLB_TILE_ROWS] = (uint8_t)q.q[i];
    }
    for (int b = 0; b * CLB_BLOCK < c->padded; b++)
        value_scales(c, chunk, b)[at] = q.scale[b];
}

// Copied first: what follows a head in `x` belongs to the worker of the next one.
static void convert(const struct clb_kernels *k, uint16_t *half, const float *x, int dim,
                    float *scratch)
{
    memcpy(scratch, x, (size_t)dim * sizeof *x);
    k->f32_f16_convert(half, scratch, (int)clb_round_up((uint64_t)dim, 16));
}

void clb_cache_put(struct clb_cache *c, const struct clb_kernels *k, int layer, int head,
                   int position, const float *key, const float *value, float *scratch)
{
    int at = position % CLB_CHUNK;
    uint8_t *chunk = find_chunk(c, layer, head, position / CLB_CHUNK);
    if (c->type == COLIBRI_KV_Q8) {
        put_q8(c, k, chunk, at, key, value, scratch);
        return;
    }
    // keys: tile of 16 positions, then element, then position
    size_t key_at = (size_t)(at / CLB_TILE_ROWS) * c->key_tile_bytes;
    size_t row = (size_t)(at % CLB_TILE_ROWS);
    // values: tile of 16 elements, then position, then element
    size_t value_at = (size_t)at * CLB_TILE_ROWS;
    if (c->type == COLIBRI_KV_F32) {
        float *to_keys = (float *)(void *)(chunk + key_at) + row;
        float *to_values = (float *)(void *)(chunk + c->values_at) + value_at;
        for (int i = 0; i < c->key_dim; i++)
            to_keys[i * CLB_TILE_ROWS] = key[i];
        for (int i = 0; i < c->value_dim; i++)
            to_values[i / CLB_TILE_ROWS * CLB_CHUNK * CLB_TILE_ROWS + i % CLB_TILE_ROWS] = value[i];
        return;
    }
    uint16_t *half = (uint16_t *)(void *)(scratch + clb_round_up((uint64_t)c->key_dim, 16));
    uint16_t *to_keys = (uint16_t *)(void *)(chunk + key_at) + row;
    uint16_t *to_values = (uint16_t *)(void *)(chunk + c->values_at) + value_at;
    convert(k, half, key, c->key_dim, scratch);
    for (int i = 0; i < c->key_dim; i++)
        to_keys[i * CLB_TILE_ROWS] = half[i];
    convert(k, half, value, c->value_dim, scratch);
    for (int i = 0; i < c->value_dim; i++)
        to_values[i / CLB_TILE_ROWS * CLB_CHUNK * CLB_TILE_ROWS + i % CLB_TILE_ROWS] = half[i];
}

void clb_cache_scores(const struct clb_cache *c, const struct clb_kernels *k, int layer, int head,
                      int chunk, int n_tiles, const struct clb_acts *queries, int n, float *out)
{
    const uint8_t *keys = find_chunk(c, layer, head, chunk);
    if (c->type == COLIBRI_KV_Q8)
        k->q8_q8_mm(out, CLB_CHUNK, keys, c->key_tile_bytes, n_tiles, &queries->q8,
                    (int)(queries->stride / CLB_TILE_COLS), n);
    else
        (c->type == COLIBRI_KV_F16 ? k->f16_f32_mm : k->f32_f32_mm)(
            out, CLB_CHUNK, keys, c->key_tile_bytes, n_tiles, queries->f32, queries->stride,
            c->key_dim, n);
}

void clb_cache_mix(const struct clb_cache *c, const struct clb_kernels *k, int layer, int head,
                   int chunk, int n_positions, const float *weights, int n, float *scratch,
                   float *out)
{
    uint8_t *data = find_chunk(c, layer, head, chunk);
    const uint8_t *values = data + c->values_at;
    const int n_tiles = c->padded / CLB_TILE_ROWS;
    if (c->type != COLIBRI_KV_Q8) {
        (c->type == COLIBRI_KV_F16 ? k->f16_f32_mm : k->f32_f32_mm)(
            out, (size_t)c->padded, values, c->value_tile_bytes, n_tiles, weights, CLB_CHUNK,
            n_positions, n);
        return;
    }
    // The scale of a position's block is a factor of its weight: two tiles share one.
    const int used = (int)clb_round_up((uint64_t)n_positions, CLB_TILE_ROWS);
    for (int tile = 0; tile < n_tiles; tile += 2, values += 2 * c->value_tile_bytes) {
        for (size_t row = 0; row < (size_t)n * CLB_CHUNK; row += CLB_CHUNK)
            k->f32_mul(scratch + row, weights + row, value_scales(c, data, tile / 2), used);
        k->i8_f32_mm(out + tile * CLB_TILE_ROWS, (size_t)c->padded, values, c->value_tile_bytes,
                     n_tiles - tile < 2 ? 1 : 2, scratch, CLB_CHUNK, n_positions, n);
    }
}
