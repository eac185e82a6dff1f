// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// How fast a model runs on this machine, next to what its memory and the kernels can do.
#ifndef CLB_BENCH_H
#define CLB_BENCH_H

#include "options.h"

// Measures with o->num_tokens tokens (default 128) and prints a table, or JSON with --format json.
int clb_bench(const struct clb_options *o, const colibri_model *model,
              const colibri_infer_options *options, colibri_error *error);

#endif
