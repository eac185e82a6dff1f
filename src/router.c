// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "router.h"

static_assert(CLB_MAX_TOP_K <= CLB_SELECT_TOP_K, "clb_router_select chooses fewer experts");

bool clb_router_choose(const struct clb_kernels *k, const float *logits, int n_experts, int top_k,
                       int32_t *experts, float *weights)
{
    if (!clb_router_select(logits, n_experts, top_k, experts))
        return false;
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
    uint64_t active[(CLB_MAX_EXPERTS + 63) / 64] = {0};
    int count[CLB_MAX_EXPERTS]; // slots of each active expert, then its next free slot
    for (int i = 0; i < n * top_k; i++) {
        int32_t e = r->chosen[i];
        uint64_t bit = (uint64_t)1 << e % 64;
        if (!(active[e / 64] & bit))
            count[e] = 0;
        active[e / 64] |= bit;
        count[e]++;
    }
    r->n_slots = 0;
    r->n_active = 0;
    for (int word = 0; 64 * word < n_experts; word++) {
        int e = 64 * word;
        for (uint64_t bits = active[word]; bits; bits >>= 1, e++) {
            if (!(bits & 1))
                continue;
            int slots = count[e];
            r->active[r->n_active] = e;
            r->first[r->n_active++] = count[e] = r->n_slots;
            r->n_slots += slots;
        }
    }
    r->first[r->n_active] = r->n_slots;
    for (int t = 0; t < n; t++)
        for (int i = t * top_k; i < (t + 1) * top_k; i++) {
            int slot = count[r->chosen[i]]++;
            r->token[slot] = t;
            r->weight[slot] = r->chosen_weight[i];
        }
}

int clb_router_common(const struct clb_routes *r, int n, int top_k)
{
    int common = -1;
    for (int t = 0; t < n; t++) {
        int first = t * top_k;
        for (int i = first + 1; i < (t + 1) * top_k; i++)
            first = r->chosen_weight[i] > r->chosen_weight[first] ? i : first;
        if (t && r->chosen[first] != common)
            return -1;
        common = r->chosen[first];
    }
    return common;
}
