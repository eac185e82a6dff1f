// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "trial.h"

#include "exact.h"
#include "layout.h"
#include "print.h"

#include <math.h>
#include <sys/mman.h>

// Inputs and outputs lie in spaces of their own, each before a guard as large as the largest pages.
enum { N_SPACES = 12, SPACE = 64 << 10, GUARD = 64 << 10, STEP = SPACE + GUARD };
enum { CANARY_BYTES = 128 };

int clb_trial_map(struct clb_trial *t, colibri_error *error)
{
    const size_t size = (size_t)N_SPACES * STEP;
    void *memory = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int rc = memory == MAP_FAILED;
    t->memory = rc ? NULL : memory;
    for (size_t at = 0; !rc && at < size; at += STEP)
        rc = mprotect(t->memory + at, SPACE, PROT_READ | PROT_WRITE);
    if (!rc)
        return 0;
    clb_trial_unmap(t);
    return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for the inputs of the selftest");
}

void clb_trial_unmap(struct clb_trial *t)
{
    if (t->memory)
        munmap(t->memory, (size_t)N_SPACES * STEP);
}

void clb_trial_begin(struct clb_trial *t)
{
    t->n_spaces = t->n_outputs = 0;
}

uint32_t clb_trial_random(struct clb_trial *t)
{
    t->seed = t->seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(t->seed >> 32);
}

int clb_trial_below(struct clb_trial *t, int n)
{
    return (int)(clb_trial_random(t) % (uint32_t)n);
}

float clb_trial_number(struct clb_trial *t)
{
    static const float special[] = {0.0f, -0.0f, 0x1p-149f, -0x1.8p-130f, 0x1p-126f, 3e9f, -3e9f};
    int kind = clb_trial_below(t, 24);
    if (kind < (t->wild ? 7 : 5))
        return special[kind];
    return (float)((int)(clb_trial_random(t) >> 8) - (1 << 23)) * 0x1p-22f;
}

void *clb_trial_place(struct clb_trial *t, int n, int size)
{
    t->slack = clb_trial_below(t, 2) ? 0 : clb_trial_below(t, 16);
    int bytes = (n + t->slack) * size;
    assert(t->n_spaces < N_SPACES && bytes <= SPACE - CANARY_BYTES);
    return t->memory + t->n_spaces++ * STEP + SPACE - bytes;
}

float *clb_trial_numbers(struct clb_trial *t, int n, float size)
{
    float *x = clb_trial_place(t, n, sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = clb_trial_number(t) * size;
    return x;
}

static int size_of(enum clb_kind kind)
{
    return kind == CLB_BYTES ? 1 : kind == CLB_HALVES ? 2 : 4;
}

struct clb_result *clb_trial_output(struct clb_trial *t, int n, enum clb_kind kind, const float *x)
{
    struct clb_result *o = &t->outputs[t->n_outputs++];
    int size = size_of(kind);
    bool in_place = x && clb_trial_below(t, 2);
    o->n = n;
    o->kind = kind;
    o->at[0] = clb_trial_place(t, n, size);
    o->at[1] = (uint8_t *)o->at[0] + STEP;
    o->n_behind = t->slack;
    t->n_spaces++;
    for (int i = 0; i < 2; i++) {
        memset((uint8_t *)o->at[i] - CANARY_BYTES, (uint8_t)CLB_CANARY,
               (size_t)(CANARY_BYTES + (n + t->slack) * size));
        if (x)
            memcpy(o->at[i], x, (size_t)n * sizeof *x);
        o->in[i] = in_place ? o->at[i] : x;
    }
    return o;
}

static uint32_t bits_at(const struct clb_result *o, int level, int i)
{
    uint32_t bits = 0;
    int size = size_of(o->kind);
    memcpy(&bits, (const uint8_t *)o->at[level] + i * size, (size_t)size);
    return bits;
}

static double value_of(enum clb_kind kind, uint32_t bits)
{
    if (kind == CLB_FLOATS)
        return clb_from_bits(bits);
    if (kind == CLB_HALVES)
        return clb_exact_decoded(bits, 5, 10);
    return kind == CLB_BYTES ? (int8_t)bits : (int32_t)bits;
}

void clb_trial_expect(struct clb_trial *t, const struct clb_result *o, int i, double exact,
                      double bound)
{
    struct clb_verdict *v = t->verdict;
    double actual = value_of(o->kind, bits_at(o, 1, i)), error = fabs(actual - exact);
    v->n_values++;
    if (exact != exact ? actual != actual : actual == exact)
        return;
    if (error / bound > v->error)
        v->error = error / bound;
    if (error <= bound && error < INFINITY)
        return;
    v->n_inexact++;
    if (!*v->wrong)
        clb_format(v->wrong, sizeof v->wrong, "element %d of %d is %.9g, it should be %.9g +- %.2g",
                   i, o->n, actual, exact, bound);
}

// Equal bits or NaN both, and canaries as they were.
static bool equal(struct clb_trial *t, const struct clb_result *o)
{
    struct clb_verdict *v = t->verdict;
    const int size = size_of(o->kind);
    const uint32_t canary = CLB_CANARY >> (32 - 8 * size);
    for (int i = -CANARY_BYTES / size; i < o->n + o->n_behind; i++) {
        uint32_t bits = bits_at(o, 1, i), right = i < 0 || i >= o->n ? canary : bits_at(o, 0, i);
        double value = value_of(o->kind, bits), right_value = value_of(o->kind, right);
        if (bits == right || (value != value && right_value != right_value))
            continue;
        if (!*v->wrong)
            clb_format(v->wrong, sizeof v->wrong,
                       "element %d of %d has the bits %#x instead of %#x", i, o->n, bits, right);
        return false;
    }
    return true;
}

void clb_trial_end(struct clb_trial *t)
{
    bool all = true;
    for (int i = 0; i < t->n_outputs; i++)
        all &= equal(t, &t->outputs[i]);
    t->verdict->comparisons++;
    t->verdict->n_different += !all;
}
