// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The key/value cache of one call. Keys and values of a chunk of positions lie in the tiles that
// the matrix kernels read: attention is two matrix products and a softmax.
#ifndef CLB_CACHE_H
#define CLB_CACHE_H

#include "matrix.h"

enum { CLB_CHUNK = 256 }; // positions; part of the numerics

struct clb_cache {
    uint8_t *data;
    size_t size;     // bytes of address space
    size_t taken;    // bytes of memory, of whole chunks of positions
    colibri_kv type; // never AUTO
    int n_kv_heads, key_dim, value_dim;
    int padded;  // value_dim rounded up to a multiple of 16
    int n_heads; // key/value heads of all layers
    // Of one head in one chunk: tiles of 16 positions of keys, then of 16 elements of values, then
    // (q8) a float for each block of 32 elements and position, the scales of values.
    size_t key_tile_bytes, value_tile_bytes, values_at, scales_at, chunk_bytes;
};

int clb_cache_create(struct clb_cache *c, int n_layers, int n_kv_heads, int key_dim, int value_dim,
                     int n_positions, colibri_kv type, colibri_error *error);
void clb_cache_free(struct clb_cache *c); // a zeroed one is fine

// Takes memory up to this position, for a chunk of positions at a time: then no page is missing
// until the next chunk begins.
void clb_cache_take(struct clb_cache *c, int position);

// key (key_dim), value (value_dim). scratch (2 * key_dim rounded up to 64) for the conversion.
// key_dim is at least value_dim.
void clb_cache_put(struct clb_cache *c, const struct clb_kernels *k, int layer, int head,
                   int position, const float *key, const float *value, float *scratch);

// out (n, CLB_CHUNK) = keys of the chunk times queries, rows are positions: for the positions of
// the first n_tiles tiles.
void clb_cache_scores(const struct clb_cache *c, const struct clb_kernels *k, int layer, int head,
                      int chunk, int n_tiles, const struct clb_acts *queries, int n, float *out);

// out (n, padded) = values of the chunk times weights (n, CLB_CHUNK): rows are the elements of the
// head, columns the first n_positions. scratch (n, CLB_CHUNK).
void clb_cache_mix(const struct clb_cache *c, const struct clb_kernels *k, int layer, int head,
                   int chunk, int n_positions, const float *weights, int n, float *scratch,
                   float *out);

#endif
