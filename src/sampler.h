// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The choice of the next token from its logits: the same on every board for the same seed
// (docs/DESIGN.md, Sampling).
#ifndef CLB_SAMPLER_H
#define CLB_SAMPLER_H

#include "kernels.h"

struct clb_sampler {
    const struct clb_kernels *kernels;
    float temperature; // 0: greedy
    int32_t top_k;     // 0: all
    float top_p;       // 0: all
    uint64_t seed;
    float *weights; // (vocab_size rounded up to 16)
    uint64_t *heap; // (vocab_size)
};

// Room for vocab_size logits; false: no memory. A greedy sampler needs none.
bool clb_sampler_create(struct clb_sampler *s, int32_t vocab_size);
void clb_sampler_free(struct clb_sampler *s); // a zeroed one is fine

// The token for the position after `position`. -1: a logit is NaN or Inf.
int32_t clb_sampler_choose(const struct clb_sampler *s, const float *logits, int32_t n,
                           int position);

#endif
