// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "usage.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

// The number behind "key:" in a file of /proc; -1: there is none.
static int64_t proc_number(const char *path, const char *key)
{
    char line[128];
    int64_t value = -1;
    FILE *f = fopen(path, "r");
    while (f && value < 0 && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)))
            value = strtoll(line + strlen(key), NULL, 10);
    if (f)
        fclose(f);
    return value;
}

struct clb_usage clb_usage_now(void)
{
    struct rusage r = {0};
    getrusage(RUSAGE_SELF, &r);
    int64_t peak_kib = proc_number("/proc/self/status", "VmHWM:");
    return (struct clb_usage){
        .peak_rss_bytes = 1024 * (uint64_t)(peak_kib < 0 ? r.ru_maxrss : peak_kib),
        .page_faults = (uint64_t)r.ru_majflt,
        .minor_faults = (uint64_t)r.ru_minflt,
        .sleeps = (uint64_t)r.ru_nvcsw,
        .read_bytes = proc_number("/proc/self/io", "read_bytes:"),
    };
}

int64_t clb_usage_available(void)
{
    int64_t kib = proc_number("/proc/meminfo", "MemAvailable:");
    return kib < 0 ? -1 : kib * 1024;
}

double clb_usage_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
