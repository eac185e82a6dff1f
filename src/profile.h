// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Where the time of a call goes. Each thread is in one operation at a time, so the times of all
// threads together are the call's time times their number.
#ifndef CLB_PROFILE_H
#define CLB_PROFILE_H

#include "base.h"

// As colibri_operation_names has them.
enum clb_operation {
    CLB_OTHER,
    CLB_WAITING,
    CLB_NORM,
    CLB_QUANTISE,
    CLB_QKV,
    CLB_ATTENTION,
    CLB_O,
    CLB_ROUTER,
    CLB_GATE_UP,
    CLB_DOWN,
    CLB_HEAD,
};

// One thread's.
struct clb_clock {
    _Alignas(CLB_ALIGN) double since; // when it went to `operation`
    enum clb_operation operation;
    colibri_operation spent[COLIBRI_OPERATIONS];
};

// The clock goes on with another operation; the one before is returned. NULL: there is no clock.
enum clb_operation clb_clock_turn(struct clb_clock *clock, enum clb_operation operation);

// Adds what n threads, all at rest, have spent to `sums`, and starts again. clocks may be NULL.
void clb_clock_collect(struct clb_clock *clocks, int n, colibri_operation *sums);

#endif
