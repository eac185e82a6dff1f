// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "router.h"

#include <float.h>
#include <math.h>

static_assert(CLB_MAX_TOP_K <= CLB_SELECT_TOP_K, "clb_router_select chooses fewer experts");

enum { MAX_LOGITS = (CLB_MAX_EXPERTS + 15) / 16 * 16 };

// Scores become 1 / (1 + exp(-logit)).
static void sigmoid(const struct clb_kernels *k, float *scores, int n)
{
    for (int i = 0; i < n; i++)
        scores[i] = 0 - scores[i];
    k->f32_exp(scores, scores, (n + 15) / 16 * 16);
    for (int i = 0; i < n; i++)
        scores[i] = 1 / (1 + scores[i]);
}

// The top_groups groups of largest rank, ascending; their experts' ranks then lie together.
static bool keep_groups(const struct clb_config *c, float *rank, int32_t *kept)
{
    float of_group[CLB_MAX_EXPERTS];
    int size = c->n_experts / c->n_groups;
    for (int g = 0; g < c->n_groups; g++) {
        float first = -FLT_MAX, second = -FLT_MAX;
        for (int i = g * size; i < (g + 1) * size; i++) {
            second = rank[i] > first ? first : rank[i] > second ? rank[i] : second;
            first = rank[i] > first ? rank[i] : first;
        }
        of_group[g] = c->router_score == CLB_SIGMOID && size > 1 ? first + second : first;
    }
    if (!clb_router_select(of_group, c->n_groups, c->top_groups, kept))
        return false;
    for (int i = 0; i < c->top_groups * size; i++)
        rank[i] = rank[kept[i / size] * size + i % size];
    return true;
}

// e = exp(logit - max), 0 for -Inf, of n logits in room for MAX_LOGITS; returns Sum16.
static float exp_sum(const struct clb_kernels *k, float *e, float max, int n)
{
    int padded = (n + 15) / 16 * 16;
    for (int i = n; i < padded; i++)
        e[i] = -INFINITY;
    return k->f32_exp_sum(e, e, max, padded);
}

static void weigh_chosen(const struct clb_kernels *k, const float *logits, int top_k,
                         const int32_t *experts, float *weights)
{
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
}

static void weigh_over_all(const struct clb_kernels *k, float *logits, int n, int top_k,
                           const int32_t *experts, float *weights)
{
    float max = logits[0];
    for (int i = 1; i < n; i++)
        max = max > logits[i] ? max : logits[i];
    float sum = exp_sum(k, logits, max, n);
    for (int i = 0; i < top_k; i++)
        weights[i] = logits[experts[i]] / sum;
}

static void weigh_scores(const float *scores, bool normalise, int top_k, const int32_t *experts,
                         float *weights)
{
    float sum = 0;
    for (int i = 0; i < top_k; i++)
        sum = sum + scores[experts[i]];
    for (int i = 0; i < top_k; i++)
        weights[i] = normalise ? scores[experts[i]] / (sum + 1e-20f) : scores[experts[i]];
}

// Phi-MoE: each of two experts has a softmax of its own, over those near to it.
static void mix_sparsely(const struct clb_kernels *k, const struct clb_config *c,
                         const float *logits, int32_t *experts, float *weights)
{
    float e[MAX_LOGITS];
    int n = c->n_experts, chosen[2] = {-1, -1};
    float weight[2];
    for (int pass = 0; pass < 2; pass++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (i != chosen[0] && (best < 0 || logits[i] > logits[best]))
                best = i;
        float max = logits[best];
        for (int i = 0; i < n; i++) {
            float size = fabsf(logits[i]), factor = size > max ? size : max;
            bool far = (max - logits[i]) / factor > 2 * c->router_jitter;
            e[i] = far || i == chosen[0] ? -INFINITY : logits[i];
        }
        weight[pass] = 1 / exp_sum(k, e, max, n);
        chosen[pass] = best;
    }
    int first = chosen[0] > chosen[1];
    for (int i = 0; i < 2; i++) {
        experts[i] = chosen[first ^ i];
        weights[i] = weight[first ^ i];
    }
}

bool clb_router_choose(const struct clb_kernels *k, const struct clb_config *c, float *logits,
                       const float *correction, int32_t *experts, float *weights)
{
    const int n = c->n_experts, top_k = c->top_k;
    float rank[CLB_MAX_EXPERTS];
    if (!clb_router_select(logits, n, top_k, experts)) // for what is no number, too
        return false;
    if (c->router_score == CLB_SIGMOID)
        sigmoid(k, logits, n);
    if (correction || c->n_groups > 1 || c->router_score == CLB_SIGMOID) {
        int32_t kept[CLB_MAX_TOP_K] = {0}; // with one group: all experts
        int size = n / c->n_groups;
        for (int i = 0; i < n; i++)
            rank[i] = correction ? logits[i] + correction[i] : logits[i];
        if ((c->n_groups > 1 && !keep_groups(c, rank, kept)) ||
            !clb_router_select(rank, c->top_groups * size, top_k, experts))
            return false;
        for (int i = 0; i < top_k; i++)
            experts[i] = kept[experts[i] / size] * size + experts[i] % size;
    }
    if (c->router_score == CLB_SPARSEMIXER)
        mix_sparsely(k, c, logits, experts, weights);
    else if (c->router_score == CLB_SIGMOID)
        weigh_scores(logits, c->router_weights == CLB_OVER_CHOSEN, top_k, experts, weights);
    else if (c->router_weights == CLB_OVER_CHOSEN)
        weigh_chosen(k, logits, top_k, experts, weights);
    else
        weigh_over_all(k, logits, n, top_k, experts, weights);
    if (c->router_scale != 1)
        for (int i = 0; i < top_k; i++)
            weights[i] = weights[i] * c->router_scale;
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

void clb_router_all(struct clb_routes *r, int n, const float *weights)
{
    r->n_slots = n;
    r->n_active = 1;
    r->active[0] = 0;
    r->first[0] = 0;
    r->first[1] = n;
    for (int t = 0; t < n; t++) {
        r->token[t] = t;
        r->weight[t] = weights[t];
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
