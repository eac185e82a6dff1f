// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// What the machine has left, and what this process has used of it, as the kernel tells.
#ifndef CLB_USAGE_H
#define CLB_USAGE_H

#include "base.h"

struct clb_usage {
    uint64_t peak_rss_bytes; // without /proc it is not below the peak of the process that began it
    uint64_t page_faults;    // that had to wait for storage
    uint64_t minor_faults;   // that did not
    uint64_t sleeps;         // how often a thread gave its CPU away by itself
    int64_t read_bytes;      // from storage; -1: the kernel does not tell
};

struct clb_usage clb_usage_now(void);

// Bytes that can be used before the machine swaps or drops what it has mapped; -1: not known.
int64_t clb_usage_available(void);

double clb_usage_seconds(void); // monotonic

#endif
