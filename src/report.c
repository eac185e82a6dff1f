// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "report.h"

#include "print.h"

static void print(FILE *f, bool json, const char *phase, const colibri_operation *operations,
                  int threads, int n_tokens)
{
    clb_print(f, json ? "\"%s\": {" : "%-12s us/token   MB/token   GB/s    Gop/s\n", phase);
    for (int i = 0; i < COLIBRI_OPERATIONS; i++) {
        const colibri_operation *o = &operations[i];
        double us = 1e6 * o->seconds / threads, per_us = us > 0 ? 1 / us : 0;
        clb_print(f,
                  json ? "%s\"%s\": {\"us_per_token\": %.3f, \"mb_per_token\": %.4f, "
                         "\"gb_per_second\": %.3f, \"gop_per_second\": %.3f}"
                       : "%.0s%-10s %10.1f %10.2f %6.1f %8.1f\n",
                  i ? ", " : "", colibri_operation_names[i], us / n_tokens,
                  1e-6 * (double)o->bytes / n_tokens, 1e-3 * per_us * (double)o->bytes,
                  2e-3 * per_us * (double)o->products);
    }
}

void clb_report(const colibri_profile *p, int threads, int n_prefilled, int n_decoded, FILE *table)
{
    FILE *f = table ? table : stdout;
    fputs(table ? "" : ", \"profile\": {", f);
    print(f, !table, "prefill", p->prefill, threads, n_prefilled);
    fputs(table ? "" : "}, ", f);
    print(f, !table, "decode", p->decode, threads, n_decoded > 1 ? n_decoded : 1);
    fputs(table ? "" : "}}", f);
}
