// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "router.h"

#include <float.h>
#include <math.h>

// Indices of the top_k largest, in ascending order of index. Insertion into a short list sorted by
// logit: an equal later one is placed behind, so ties go to the lower index.
static void largest(const float *logits, int n_experts, int top_k, int32_t *experts)
{
    int n = 0;
    for (int e = 0; e < n_experts; e++) {
        int at = n;
        while (at > 0 && logits[e] > logits[experts[at - 1]])
            at--;
        if (at == top_k)
            continue;
        n += n < top_k;
        for (int i = n - 1; i > at; i--)
            experts[i] = experts[i - 1];
        experts[at] = e;
    }
    for (int i = 1; i < top_k; i++)
        for (int j = i; j > 0 && experts[j] < experts[j - 1]; j--) {
            int32_t swap = experts[j];
            experts[j] = experts[j - 1];
            experts[j - 1] = swap;
        }
}

bool clb_router_choose(const struct clb_kernels *k, const float *logits, int n_experts, int top_k,
                       int32_t *experts, float *weights)
{
    for (int e = 0; e < n_experts; e++)
        if (!(fabsf(logits[e]) <= FLT_MAX))
            return false;
    largest(logits, n_experts, top_k, experts);
    float max = logits[experts[0]], e[CLB_MAX_TOP_K] = {0}, sum = 0;
    for (int i = 1; i < top_k; i++)
        max = max > logits[experts[i]] ? max : logits[experts[i]];
    for (int i = 0; i < top_k; i++)
        e[i] = logits[experts[i]] - max;
    k->f32_exp(e, e, CLB_MAX_TOP_K);
    for (int i = 0; i < top_k; i++)
        sum = sum + e[i];
    for (int i = 0; i < top_k; i++)
        weights[i] = e[i] / sum;
    return true;
}

void clb_router_group(struct clb_routes *r, int n, int n_experts, int top_k)
{
    uint64_t bitmap[CLB_MAX_EXPERTS / 64] = {0};
    for (int i = 0; i < n * top_k; i++)
        bitmap[r->chosen[i] / 64] |= (uint64_t)1 << r->chosen[i] % 64;
    r->n_slots = 0;
    r->n_active = 0;
    for (int e = 0; e < n_experts; e++) {
        if (!(bitmap[e / 64] >> e % 64 & 1))
            continue;
        r->active[r->n_active] = e;
        r->first[r->n_active++] = r->n_slots;
        for (int t = 0; t < n; t++)
            for (int i = 0; i < top_k; i++)
                if (r->chosen[t * top_k + i] == e) {
                    r->token[r->n_slots] = t;
                    r->weight[r->n_slots++] = r->chosen_weight[t * top_k + i];
                }
    }
    r->first[r->n_active] = r->n_slots;
}
