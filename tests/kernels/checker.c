// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks the kernels of every level that this CPU can run, as `colibri --selftest` does but with
// more calls, and measures them. Prints what each kernel of each level was found to be, and fails
// if one is wrong or fewer calls than expected were compared.
//
//     checker [--require LEVEL]
//     checker --bench [--json]
#include "cpu.h"
#include "kernel_bench.h"
#include "selftest.h"

#include <stdio.h>

// Of each level: 23 kernels, of which those beyond scalar do not inherit 19 from it.
enum { ROUNDS = 64, CALLS = 1472, COMPARISONS = 1216 };

static int usage(void)
{
    fprintf(stderr, "usage: checker [--require LEVEL]\n       checker --bench [--json]\n");
    return 2;
}

// Prints a line for each kernel and one for the level; false if something is wrong.
static bool report(const char *level, const struct clb_verdict *verdicts)
{
    const bool scalar = !strcmp(level, clb_levels->name);
    int calls = 0, comparisons = 0, different = 0;
    bool right = true;
    for (const struct clb_verdict *v = verdicts; v < verdicts + CLB_SELFTEST_KERNELS; v++) {
        const char *same = !v->inherited ? "" : scalar ? "itself, " : "inherited, ";
        printf("%s %s: %s%d calls, %d differ; %d values, %d too far away, largest error %.3f of "
               "its bound\n",
               level, v->kernel, same, v->comparisons, v->n_different, v->n_values, v->n_inexact,
               v->error);
        if (*v->wrong || !v->n_values) {
            printf("kernel %s of level %s is wrong: %s\n", v->kernel, level,
                   *v->wrong ? v->wrong : "it was held to no exact value");
            right = false;
        }
        calls += v->comparisons;
        comparisons += v->inherited ? 0 : v->comparisons;
        different += v->n_different;
    }
    printf("%s: %d comparisons with scalar, %d differ\n", level, comparisons, different);
    if (calls >= CALLS && comparisons >= (scalar ? 0 : COMPARISONS))
        return right;
    printf("%s: %d calls were expected, %d of them comparisons\n", level, CALLS, COMPARISONS);
    return false;
}

static int check_levels(const char *required)
{
    static struct clb_verdict verdicts[CLB_SELFTEST_KERNELS];
    bool right = true, met = !required;
    for (const struct clb_level *l = clb_levels; l->name; l++) {
        colibri_error error;
        int rc = clb_selftest_level(l->name, ROUNDS, verdicts, &error);
        if (rc) {
            printf("%s: not run: %s\n", l->name, error.message);
            right &= rc == COLIBRI_ERROR_ISA;
            continue;
        }
        right &= report(l->name, verdicts);
        met |= required && !strcmp(l->name, required);
    }
    if (!met)
        printf("the level %s was required and did not run\n", required);
    return !right || !met;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--bench")) {
        bool json = argc == 3 && !strcmp(argv[2], "--json");
        return argc > 2 && !json ? usage() : clb_kernel_bench(json);
    }
    if (argc != 1 && (argc != 3 || strcmp(argv[1], "--require")))
        return usage();
    return check_levels(argc == 3 ? argv[2] : NULL);
}
