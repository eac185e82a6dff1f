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

// Row r belongs to position first_position + r / group, and to sinks[r % group] if there are sinks.
// `out` then holds the result.
void clb_attend(struct clb_attention *a, const struct clb_cache *c, const struct clb_kernels *k,
                int layer, int head, int first_position, int n_tokens, int group, int window,
                const float *sinks);

#endif
