// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Attention of a block of tokens over one key/value head.
#ifndef CLB_ATTENTION_H
#define CLB_ATTENTION_H

#include "cache.h"

// Rows of a block of queries, unless one group of heads alone has more.
enum { CLB_BLOCK_ROWS = 32 };

// What one worker needs. Rows are queries: tokens of the block times heads of the group.
struct clb_attention {
    struct clb_acts queries;        // (rows, key_dim) rotated and scaled
    float *scores;                  // (rows, CLB_CHUNK)
    float *scaled;                  // (rows, CLB_CHUNK) for clb_cache_mix
    float *part;                    // (rows, padded) output of one chunk
    float *out;                     // (rows, padded) merged output, not yet divided by `sum`
    float *max, *sum;               // (rows)
    float *old_factor, *new_factor; // (rows, padded to 16)
    float *chunk_max, *chunk_sum;   // (rows)
};

// Tokens of the block times query heads of a group. Row r is head r % n_heads of the token at
// first_position + r / n_heads.
struct clb_block {
    int layer, kv_head;
    int first_head, n_heads;
    int first_position, n_tokens;
    int window;         // 0: none
    const float *sinks; // (n_heads), or NULL
};

// What the chunks gave for the heads of one token.
struct clb_parts {
    float *out;       // (chunks, n_heads, padded)
    float *max, *sum; // (chunks, n_heads)
    int n_heads;
};

// The first chunk with a position that the block sees; the last one is that of its last token.
int clb_first_chunk(const struct clb_block *b);

// One chunk: `part`, `chunk_max`, `chunk_sum`.
void clb_attend_chunk(const struct clb_attention *a, const struct clb_cache *c,
                      const struct clb_kernels *k, const struct clb_block *b, int chunk);

// `a`, whose results of a chunk are those that `parts` has room for.
struct clb_attention clb_attention_at(const struct clb_attention *a, const struct clb_parts *parts,
                                      const struct clb_block *b, int chunk, int padded);

// All chunks: `out` then holds the result. `parts`: of a block of one token whose chunks are
// computed; or NULL.
void clb_attend(const struct clb_attention *a, const struct clb_cache *c,
                const struct clb_kernels *k, const struct clb_block *b,
                const struct clb_parts *parts);

#endif
