// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "sampler.h"

#include "base.h"
#include "layout.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

bool clb_sampler_create(struct clb_sampler *s, int32_t vocab_size)
{
    if (s->temperature == 0)
        return true;
    size_t n = (size_t)clb_round_up((uint64_t)vocab_size, 16);
    s->weights = calloc(n, sizeof *s->weights);
    s->heap = calloc(n, sizeof *s->heap);
    return s->weights && s->heap;
}

void clb_sampler_free(struct clb_sampler *s)
{
    free(s->weights);
    free(s->heap);
}

// The index of the largest logit, ties to the lower one; -1 if one is NaN or Inf.
static int32_t largest(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!(fabsf(logits[i]) <= FLT_MAX))
            return -1;
        if (logits[i] > logits[best])
            best = i;
    }
    return best;
}

// A number in [0, 1) that depends on seed and position alone: two rounds of the mixing function of
// splitmix64 (Steele, Lea, Flood, 2014).
static double uniform(uint64_t seed, int position)
{
    uint64_t z = seed + (uint64_t)position * 0x9e3779b97f4a7c15;
    for (int round = 0; round < 2; round++) {
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        z ^= z >> 31;
    }
    return (double)(z >> 11) * 0x1p-53;
}

// Lets the key at `i` sink in a heap of n keys whose largest is first.
static void sink(uint64_t *heap, int32_t n, int32_t i)
{
    uint64_t k = heap[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] > heap[child])
            child++;
        if (heap[child] <= k)
            break;
        heap[i] = heap[child];
    }
    heap[i] = k;
}

// The tokens by descending weight, as far as they were asked for: the largest of the heap goes
// behind its end.
struct order {
    uint64_t *heap;
    const float *weights;
    int32_t n, n_known;
};

static int32_t token_at(struct order *o, int32_t i)
{
    for (; o->n_known <= i; o->n_known++) {
        int32_t left = o->n - 1 - o->n_known;
        uint64_t top = o->heap[0];
        o->heap[0] = o->heap[left];
        o->heap[left] = top;
        sink(o->heap, left, 0);
    }
    return (int32_t) ~(uint32_t)o->heap[o->n - 1 - i];
}

static double weight_at(struct order *o, int32_t i)
{
    return (double)o->weights[token_at(o, i)];
}

int32_t clb_sampler_choose(const struct clb_sampler *s, const float *logits, int32_t n,
                           int position)
{
    int32_t best = largest(logits, n);
    if (best < 0 || s->temperature == 0)
        return best;
    float *w = s->weights;
    double total = 0, sum = 0;
    for (int32_t i = 0; i < n; i++)
        w[i] = (logits[i] - logits[best]) / s->temperature;
    s->kernels->f32_exp(w, w, (int)clb_round_up((uint64_t)n, 16));
    for (int32_t i = 0; i < n; i++) {
        total += (double)w[i];
        s->heap[i] = (uint64_t)clb_bits(w[i]) << 32 | ~(uint32_t)i; // ties: the lower token first
    }
    for (int32_t i = n / 2; i-- > 0;)
        sink(s->heap, n, i);
    struct order order = {.heap = s->heap, .weights = w, .n = n};
    int32_t kept = n;
    if (s->top_k && s->top_k < n) {
        kept = s->top_k;
        total = 0;
        for (int32_t i = 0; i < kept; i++)
            total += weight_at(&order, i);
    }
    if (s->top_p > 0 && s->top_p < 1) {
        int32_t enough = 0;
        while (enough < kept && sum < (double)s->top_p * total)
            sum += weight_at(&order, enough++);
        kept = enough;
        total = sum;
    }
    const double wanted = uniform(s->seed, position) * total;
    int32_t i = 0;
    for (sum = weight_at(&order, 0); sum <= wanted && i + 1 < kept; sum += weight_at(&order, i))
        i++;
    return token_at(&order, i);
}
