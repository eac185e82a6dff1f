// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The file of --trace_routing: a line of JSON for each token and layer.
#ifndef CLB_TRACE_H
#define CLB_TRACE_H

#include "options.h"

#include <stdio.h>

struct clb_trace {
    const char *path;
    FILE *file; // NULL: none
};

// Opens the file of the options; it is emptied only when it is known to be no input of this call.
int clb_trace_open(struct clb_trace *t, const struct clb_options *o, colibri_error *error);
int clb_trace_write(const struct clb_trace *t, const colibri_route *route, colibri_error *error);

// Returns `rc`, or, if that is 0, whether all of the file was written.
int clb_trace_close(struct clb_trace *t, int rc, colibri_error *error);

#endif
