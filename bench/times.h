// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Times of several rounds, from the shortest to the longest: the median is in the middle.
#ifndef TIMES_H
#define TIMES_H

#include <stdlib.h>

static inline int times_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline void times_sort(double *times, int n)
{
    qsort(times, (size_t)n, sizeof *times, times_compare);
}

#endif
