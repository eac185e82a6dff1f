// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// One call of a kernel by the selftest, at two levels: its inputs, its outputs, and what is wrong
// with them.
#ifndef CLB_TRIAL_H
#define CLB_TRIAL_H

#include "base.h"
#include "kernels.h"

// What came out for one kernel of one level.
struct clb_verdict {
    const char *kernel;
    bool inherited;  // the scalar level's own function: compared with itself
    int comparisons; // calls whose outputs were compared with the scalar level's
    int n_different; // of them, not equal bit for bit, or with writes beside the outputs
    int n_values;    // numbers that were held to their exact values
    int n_inexact;   // of them, further away than the bound
    double error;    // the largest error, as a share of its bound
    char wrong[120]; // the first thing that was wrong, or empty
};

enum clb_kind { CLB_FLOATS, CLB_HALVES, CLB_INTEGERS, CLB_BYTES };

struct clb_result {
    void *at[2];       // of the scalar level, of the tested one
    const void *in[2]; // the input of a kernel that may overwrite it
    int n, n_behind;   // elements; canaries of their size between them and the guard
    enum clb_kind kind;
};

enum { CLB_TRIAL_OUTPUTS = 3 };
#define CLB_CANARY 0xa5a5a5a5u // what lies around outputs, and in them before a call

struct clb_trial {
    const struct clb_kernels *k[2]; // the scalar level, the tested one
    struct clb_verdict *verdict;
    uint64_t seed; // of random numbers, the same in every run
    bool wild;     // large numbers too
    uint8_t *memory;
    int n_spaces, slack, n_outputs;
    struct clb_result outputs[CLB_TRIAL_OUTPUTS];
};

int clb_trial_map(struct clb_trial *t, colibri_error *error);
void clb_trial_unmap(struct clb_trial *t);
void clb_trial_begin(struct clb_trial *t); // with nothing placed
void clb_trial_end(struct clb_trial *t);   // compares the outputs

uint32_t clb_trial_random(struct clb_trial *t);
int clb_trial_below(struct clb_trial *t, int n);

// Mostly ordinary values of 24 bits in [-2, 2); some zeros of both signs, subnormal and large ones.
float clb_trial_number(struct clb_trial *t);

// Memory for n elements that ends where nobody may read, or every other time some elements before.
void *clb_trial_place(struct clb_trial *t, int n, int size);

// There, n numbers times `size`.
float *clb_trial_numbers(struct clb_trial *t, int n, float size);

// An output of n elements for each level, between canaries. With x (n) it begins as a copy of it,
// and in[] is x or, every other time, the output itself.
struct clb_result *clb_trial_output(struct clb_trial *t, int n, enum clb_kind kind, const float *x);

// Holds element i of the tested level's output to its exact value, which may be Inf or NaN.
void clb_trial_expect(struct clb_trial *t, const struct clb_result *o, int i, double exact,
                      double bound);

#endif
