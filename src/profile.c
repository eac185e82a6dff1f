// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "profile.h"

#include "usage.h"

const char *const colibri_operation_names[COLIBRI_OPERATIONS] = {
    [CLB_OTHER] = "other",
    [CLB_WAITING] = "waiting",
    [CLB_NORM] = "norm",
    [CLB_QUANTISE] = "quantise",
    [CLB_QKV] = "q, k, v",
    [CLB_ATTENTION] = "attention",
    [CLB_O] = "o",
    [CLB_ROUTER] = "router",
    [CLB_GATE_UP] = "gate, up",
    [CLB_DOWN] = "down",
    [CLB_HEAD] = "head",
};

enum clb_operation clb_clock_turn(struct clb_clock *c, enum clb_operation operation)
{
    if (!c)
        return CLB_OTHER;
    enum clb_operation before = c->operation;
    double now = clb_usage_seconds();
    c->spent[before].seconds += now - c->since;
    c->since = now;
    c->operation = operation;
    return before;
}

void clb_clock_collect(struct clb_clock *clocks, int n, colibri_operation *sums)
{
    for (int i = 0; clocks && i < n; i++) {
        struct clb_clock *c = clocks + i;
        clb_clock_turn(c, i ? CLB_WAITING : CLB_OTHER);
        for (int k = 0; k < COLIBRI_OPERATIONS; k++) {
            sums[k].seconds += c->spent[k].seconds;
            sums[k].bytes += c->spent[k].bytes;
            sums[k].products += c->spent[k].products;
        }
        memset(c->spent, 0, sizeof c->spent);
    }
}
