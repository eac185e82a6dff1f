// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The key/value cache of one call. Keys and values of a chunk of positions lie in the tiles that
// the matrix kernels read: attention is two matrix products and a softmax.
#ifndef CLB_CACHE_H
#define CLB_CACHE_H

#include "base.h"
#include "kernels.h"

enum { CLB_CHUNK = 256 }; // positions; part of the numerics

struct clb_cache {
    uint8_t *data;
    size_t size; // bytes of address space; pages are used as they are written
    bool f16;
    int n_kv_heads, head_dim;
    int padded;       // head_dim rounded up to a multiple of 16
    int n_chunks;     // chunks of a head
    size_t value_bytes; // 4 or 2
    size_t chunk_bytes; // keys or values of one head in one chunk
};

int clb_cache_create(struct clb_cache *c, int n_layers, int n_kv_heads, int head_dim,
                     int n_positions, bool f16, colibri_error *error);
void clb_cache_free(struct clb_cache *c); // a zeroed one is fine

// key and value (head_dim). scratch (2 * padded) for the conversion.
void clb_cache_put(struct clb_cache *c, const struct clb_kernels *k, int layer, int head,
                   int position, const float *key, const float *value, float *scratch);

// out (n, stride) = keys of the chunk times queries: rows are positions, columns head_dim.
void clb_cache_scores(const struct clb_cache *c, const struct clb_kernels *k, int layer, int head,
                      int chunk, int n_tiles, const float *queries, size_t q_stride, int n,
                      float *out);

// out (n, padded) = values of the chunk times weights (n, CLB_CHUNK): rows are the elements of the
// head, columns the first n_positions.
void clb_cache_mix(const struct clb_cache *c, const struct clb_kernels *k, int layer, int head,
                   int chunk, int n_positions, const float *weights, int n, float *out);

#endif
