// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Where a call spent its time, as a table or as JSON.
#ifndef CLB_REPORT_H
#define CLB_REPORT_H

#include "base.h"

#include <stdio.h>

// To `table` a line for each operation that took time; or, if that is NULL, `, "profile": {...}` to
// stdout. Seconds are those of the call, not of all its threads together.
void clb_report(const colibri_profile *profile, int threads, int n_prefilled, int n_decoded,
                FILE *table);

#endif
