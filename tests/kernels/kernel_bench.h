// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
#ifndef CLB_KERNEL_BENCH_H
#define CLB_KERNEL_BENCH_H

#include <stdbool.h>

// Measures every kernel of every level that this CPU can run, on one thread, and prints medians: as
// a table, or as JSON. An exit status. What the memory and the CPU could do at most is not measured
// here but by bench/kernels.c.
int clb_kernel_bench(bool json);

#endif
