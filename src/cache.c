// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "cache.h"

#include "layout.h"
#include "log.h"

#include <sys/mman.h>

int clb_cache_create(struct clb_cache *c, int n_layers, int n_kv_heads, int head_dim,
                     int n_positions, bool f16, colibri_error *error)
{
    *c = (struct clb_cache){
        .f16 = f16,
        .n_kv_heads = n_kv_heads,
        .head_dim = head_dim,
        .padded = (int)clb_round_up((uint64_t)head_dim, CLB_TILE_ROWS),
        .n_chunks = (n_positions + CLB_CHUNK - 1) / CLB_CHUNK,
        .value_bytes = f16 ? 2 : 4,
    };
    c->chunk_bytes = (size_t)c->padded * CLB_CHUNK * c->value_bytes;
    uint64_t size;
    bool fits = clb_mul((uint64_t)n_layers * (uint64_t)n_kv_heads, (uint64_t)c->n_chunks, &size) &&
                clb_mul(size, 2 * (uint64_t)c->chunk_bytes, &size) && size <= SIZE_MAX;
    // Pages come zeroed, and only when they are written to.
    void *data = !fits ? MAP_FAILED
                       : mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        return clb_error(error, COLIBRI_ERROR_MEMORY,
                         "no memory for a key/value cache of %d positions; ask for fewer tokens",
                         n_positions);
    c->data = data;
    c->size = (size_t)size;
    CLB_LOG("cache: %zu bytes at %p, %s, %d positions", c->size, data, f16 ? "f16" : "f32",
            n_positions);
    return 0;
}

void clb_cache_free(struct clb_cache *c)
{
    if (c->data)
        munmap(c->data, c->size);
    c->data = NULL;
}

// Keys of one head in one chunk; its values follow.
static uint8_t *chunk_keys(const struct clb_cache *c, int layer, int head, int chunk)
{
    size_t heads = (size_t)layer * (size_t)c->n_kv_heads + (size_t)head;
    return c->data + 2 * (heads * (size_t)c->n_chunks + (size_t)chunk) * c->chunk_bytes;
}

void clb_cache_put(struct clb_cache *c, const struct clb_kernels *k, int layer, int head,
                   int position, const float *key, const float *value, float *scratch)
{
    int at = position % CLB_CHUNK;
    uint8_t *keys = chunk_keys(c, layer, head, position / CLB_CHUNK);
    // keys: tile of 16 positions, then element, then position
    size_t key_at = (size_t)(at / CLB_TILE_ROWS) * (size_t)c->padded * CLB_TILE_ROWS +
                    (size_t)(at % CLB_TILE_ROWS);
    // values: tile of 16 elements, then position, then element
    size_t value_at = (size_t)at * CLB_TILE_ROWS;
    if (!c->f16) {
        float *to_keys = (float *)(void *)keys + key_at;
        float *to_values = (float *)(void *)(keys + c->chunk_bytes) + value_at;
        for (int i = 0; i < c->head_dim; i++) {
            to_keys[i * CLB_TILE_ROWS] = key[i];
            to_values[i / CLB_TILE_ROWS * CLB_CHUNK * CLB_TILE_ROWS + i % CLB_TILE_ROWS] = value[i];
        }
        return;
    }
    // Copied first: what follows a head in `key` belongs to the worker of the next one.
    uint16_t *half = (uint16_t *)(void *)(scratch + c->padded);
    uint16_t *to_keys = (uint16_t *)(void *)keys + key_at;
    uint16_t *to_values = (uint16_t *)(void *)(keys + c->chunk_bytes) + value_at;
    memcpy(scratch, key, (size_t)c->head_dim * sizeof *key);
    k->f32_f16_convert(half, scratch, c->padded);
    for (int i = 0; i < c->head_dim; i++)
        to_keys[i * CLB_TILE_ROWS] = half[i];
    memcpy(scratch, value, (size_t)c->head_dim * sizeof *value);
    k->f32_f16_convert(half, scratch, c->padded);
    for (int i = 0; i < c->head_dim; i++)
        to_values[i / CLB_TILE_ROWS * CLB_CHUNK * CLB_TILE_ROWS + i % CLB_TILE_ROWS] = half[i];
}

void clb_cache_scores(const struct clb_cache *c, const struct clb_kernels *k, int layer, int head,
                      int chunk, int n_tiles, const float *queries, size_t q_stride, int n,
                      float *out)
{
    size_t tile_bytes = (size_t)c->padded * CLB_TILE_ROWS * c->value_bytes;
    (c->f16 ? k->f16_f32_mm : k->f32_f32_mm)(out, CLB_CHUNK, chunk_keys(c, layer, head, chunk),
                                             tile_bytes, n_tiles, queries, q_stride, c->head_dim,
                                             n);
}

void clb_cache_mix(const struct clb_cache *c, const struct clb_kernels *k, int layer, int head,
                   int chunk, int n_positions, const float *weights, int n, float *out)
{
    size_t tile_bytes = (size_t)CLB_CHUNK * CLB_TILE_ROWS * c->value_bytes;
    const uint8_t *values = chunk_keys(c, layer, head, chunk) + c->chunk_bytes;
    (c->f16 ? k->f16_f32_mm : k->f32_f32_mm)(out, (size_t)c->padded, values, tile_bytes,
                                             c->padded / CLB_TILE_ROWS, weights, CLB_CHUNK,
                                             n_positions, n);
}
