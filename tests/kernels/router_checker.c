// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Compares the selection of experts with a plain one, for every top_k of 1 to 16 and 1 to 512
// experts, and on few experts for every order with ties; then the slots of experts. Prints the
// comparisons, and fails if they were fewer than expected.
#include "router.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_TOKENS = 40, GROUPINGS = 2000, CANARY = -77 };

// Patterns of logits; each for all n_experts >= top_k: 512 + 511 + ... + 497.
enum pattern {
    EQUAL,
    ZEROS, // of both signs
    THREE_VALUES,
    ASCENDING,
    DESCENDING,
    LARGEST_LAST,
    PAIRS,
    SUBNORMAL,
    EXTREME,
    ORDINARY,
    ANY_BITS,
    N_PATTERNS
};
enum { EVERY_SHAPE = N_PATTERNS * 8072 };
enum { EVERY_ORDER = 4 * (6561 + 65536) }; // top_k 1 to 4: 3 values at 8 experts, 2 at 16
enum { NOT_FINITE = 4 * (3 * 7 + 4 * 8 + 4 * 9 + 5 * 64 + 5 * 128 + 5 * 129 + 5 * 512) };

static uint64_t seed = 1;

static uint32_t random_u32(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static int below(int n)
{
    return (int)(random_u32() % (uint32_t)n);
}

static float from_bits(uint32_t bits)
{
    float a;
    memcpy(&a, &bits, sizeof a);
    return a;
}

static void fill(float *logits, int n, enum pattern pattern)
{
    static const float extremes[] = {FLT_MAX, -FLT_MAX, FLT_MIN, -FLT_MIN, 0.0f, -0.0f, 1.0f};
    float equal = (float)(below(3) - 1);
    for (int i = 0; i < n; i++) {
        uint32_t bits = random_u32();
        float ordinary = (float)((int)(random_u32() >> 8) - (1 << 23)) * 0x1p-21f;
        const float by_pattern[N_PATTERNS] = {
            [EQUAL] = equal,
            [ZEROS] = below(2) ? 0.0f : -0.0f,
            [THREE_VALUES] = (float)below(3) - 1.5f,
            [ASCENDING] = (float)i * 0.25f - 8.0f,
            [DESCENDING] = 8.0f - (float)i * 0.25f,
            [LARGEST_LAST] = i == n - 1 ? 1.0f : -1.0f,
            [PAIRS] = (i & 1 ? -1.0f : 1.0f) * (float)(i / 4),
            [SUBNORMAL] = from_bits((bits & 0x80000000) | (bits & 7)),
            [EXTREME] = extremes[below(7)],
            [ORDINARY] = ordinary,
            [ANY_BITS] = from_bits((bits & 0x7f800000) == 0x7f800000 ? bits & 0xbfffffff : bits),
        };
        logits[i] = by_pattern[pattern];
    }
}

// The specification: again and again the first of the largest that is left.
static void choose_plainly(const float *logits, int n, int top_k, int32_t *experts)
{
    bool chosen[CLB_MAX_EXPERTS] = {0};
    for (int i = 0; i < top_k; i++) {
        int best = -1;
        for (int e = 0; e < n; e++)
            if (!chosen[e] && (best < 0 || logits[e] > logits[best]))
                best = e;
        chosen[best] = true;
    }
    for (int e = 0, i = 0; e < n; e++)
        if (chosen[e])
            experts[i++] = e;
}

static int n_checks, n_failures, total_failures;

static void fail(const char *what, int n, int top_k)
{
    if (n_failures++ < 10)
        printf("wrong: %s, %d experts, top %d\n", what, n, top_k);
}

static void check_selection(const char *what, const float *logits, int n, int top_k)
{
    int32_t expected[CLB_MAX_TOP_K], actual[CLB_MAX_TOP_K + 1];
    for (int i = 0; i <= CLB_MAX_TOP_K; i++)
        actual[i] = CANARY;
    choose_plainly(logits, n, top_k, expected);
    n_checks++;
    if (!clb_router_select(logits, n, top_k, actual) ||
        memcmp(expected, actual, (size_t)top_k * sizeof *actual) || actual[top_k] != CANARY)
        fail(what, n, top_k);
}

static void check_every_shape(void)
{
    float logits[CLB_MAX_EXPERTS];
    for (int top_k = 1; top_k <= CLB_MAX_TOP_K; top_k++)
        for (int n = top_k; n <= CLB_MAX_EXPERTS; n++)
            for (int pattern = 0; pattern < N_PATTERNS; pattern++) {
                fill(logits, n, (enum pattern)pattern);
                check_selection("selection", logits, n, top_k);
            }
}

// A network that is right for every order of 0 and 1 is right (Knuth, volume 3, 5.3.4, theorem Z);
// a third value puts ties beside larger and smaller ones.
static void check_every_order(int n, int values)
{
    float logits[16];
    int orders = 1;
    for (int i = 0; i < n; i++)
        orders *= values;
    for (int order = 0; order < orders; order++) {
        for (int i = 0, rest = order; i < n; i++, rest /= values)
            logits[i] = (float)(rest % values - 1);
        for (int top_k = 1; top_k <= 4; top_k++)
            check_selection("every order", logits, n, top_k);
    }
}

static void check_not_finite(void)
{
    static const int counts[] = {7, 8, 9, 64, 128, 129, 512}, top_ks[] = {1, 2, 4, 8, 16};
    const float bad[] = {INFINITY, -INFINITY, NAN, from_bits(0xff800001)};
    float logits[CLB_MAX_EXPERTS];
    int32_t experts[CLB_MAX_TOP_K];
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t k = 0; k < sizeof top_ks / sizeof *top_ks && top_ks[k] <= counts[c]; k++)
            for (int at = 0; at < counts[c]; at++)
                for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
                    fill(logits, counts[c], ORDINARY);
                    logits[at] = bad[b];
                    n_checks++;
                    if (clb_router_select(logits, counts[c], top_ks[k], experts))
                        fail("not finite", counts[c], top_ks[k]);
                }
}

static void check_grouping(int n, int n_experts, int top_k)
{
    static int active[CLB_MAX_EXPERTS], first[CLB_MAX_EXPERTS + 1];
    static int token[MAX_TOKENS * CLB_MAX_TOP_K];
    static float weight[MAX_TOKENS * CLB_MAX_TOP_K], chosen_weight[MAX_TOKENS * CLB_MAX_TOP_K];
    static int32_t chosen[MAX_TOKENS * CLB_MAX_TOP_K];
    struct clb_routes r = {0, 0, active, first, token, weight, chosen, chosen_weight};
    float logits[CLB_MAX_EXPERTS];
    for (int t = 0; t < n; t++) {
        fill(logits, n_experts, below(4) ? ORDINARY : EQUAL);
        choose_plainly(logits, n_experts, top_k, chosen + t * top_k);
        for (int i = 0; i < top_k; i++)
            chosen_weight[t * top_k + i] = logits[chosen[t * top_k + i]];
    }
    clb_router_group(&r, n, n_experts, top_k);
    int slot = 0, i_active = 0;
    bool right = true;
    for (int e = 0; e < n_experts; e++) {
        int before = slot;
        for (int i = 0; i < n * top_k; i++)
            if (chosen[i] == e) {
                right &= token[slot] == i / top_k && weight[slot] == chosen_weight[i];
                slot++;
            }
        if (slot > before) {
            right &= active[i_active] == e && first[i_active] == before;
            i_active++;
        }
    }
    right &= r.n_slots == slot && r.n_active == i_active && first[i_active] == slot;
    n_checks++;
    if (!right)
        fail("slots", n_experts, top_k);
}

static void expect(const char *what, int checks)
{
    printf("%-12s %d comparisons, %d wrong\n", what, n_checks, n_failures);
    if (n_checks != checks) {
        printf("%d comparisons were expected\n", checks);
        n_failures++;
    }
    total_failures += n_failures;
    n_checks = n_failures = 0;
}

int main(void)
{
    check_every_shape();
    expect("every shape", EVERY_SHAPE);
    check_every_order(8, 3);
    check_every_order(16, 2);
    expect("every order", EVERY_ORDER);
    check_not_finite();
    expect("not finite", NOT_FINITE);
    for (int i = 0; i < GROUPINGS; i++) {
        int n_experts = 1 + below(CLB_MAX_EXPERTS) % (i % 2 ? 12 : CLB_MAX_EXPERTS);
        int most = n_experts < CLB_MAX_TOP_K ? n_experts : CLB_MAX_TOP_K;
        check_grouping(1 + below(MAX_TOKENS), n_experts, 1 + below(most));
    }
    expect("slots", GROUPINGS);
    return total_failures != 0;
}
