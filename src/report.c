// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "report.h"

#include "print.h"

static void print(FILE *f, bool json, const char *phase, const colibri_operation *operations,
                  int threads, int n_tokens)
{
    clb_print(f, json ? "\"%s\": {" : "%-12s us/token   MB/token   GB/s\n", phase);
    for (int i = 0; i < COLIBRI_OPERATIONS; i++) {
        double us = 1e6 * operations[i].seconds / threads, bytes = (double)operations[i].bytes;
        clb_print(f,
                  json ? "%s\"%s\": {\"us_per_token\": %.3f, \"mb_per_token\": %.4f, "
                         "\"gb_per_second\": %.3f}"
                       : "%.0s%-10s %10.1f %10.2f %6.1f\n",
                  i ? ", " : "", colibri_operation_names[i], us / n_tokens, 1e-6 * bytes / n_tokens,
                  us > 0 ? 1e-3 * bytes / us : 0);
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
