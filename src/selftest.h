// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks the kernels of a level on this CPU: each call's outputs must have the bits of the scalar
// level's, and each number must be as near to its exact value as rounding allows.
#ifndef CLB_SELFTEST_H
#define CLB_SELFTEST_H

#include "trial.h"

enum { CLB_SELFTEST_KERNELS = 23, CLB_SELFTEST_ROUNDS = 16 };

// Calls every kernel of the level `rounds` times, on inputs that are the same in every run. A
// kernel that a signal stops is wrong too, and not called again. verdicts (CLB_SELFTEST_KERNELS).
int clb_selftest_level(const char *level, int rounds, struct clb_verdict verdicts[],
                       colibri_error *error);

// Every level that this CPU can run, or `isa` alone if it is not NULL. Prints a line for each level
// and each wrong kernel.
int clb_selftest(const char *isa, colibri_error *error);

#endif
