// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE // affinity
#include "schedule.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

enum { PRIORITY = 10 }; // of 1 to 99; the kernel's own threads have 50

int clb_schedule_cpus(const char *list, colibri_error *error)
{
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    for (const char *p = list, *end; p; p = *end ? end + 1 : NULL) {
        long cpu = strtol(p, (char **)&end, 10);
        if (end == p || cpu < 0 || cpu >= CPU_SETSIZE || (*end && *end != ','))
            return clb_error(error, COLIBRI_ERROR_USAGE, "--cpus is %s, expected a list like 0,2,3",
                             list);
        CPU_SET((size_t)cpu, &cpus);
    }
    cpu_set_t given; // the kernel leaves out what is not there
    if (!sched_setaffinity(0, sizeof cpus, &cpus) && !sched_getaffinity(0, sizeof given, &given) &&
        CPU_EQUAL(&cpus, &given))
        return 0;
    return clb_error(error, COLIBRI_ERROR_USAGE, "--cpus %s: not all of these can be used", list);
}

int clb_schedule_realtime(colibri_error *error)
{
    struct sched_param param = {.sched_priority = PRIORITY};
    int failed = pthread_setschedparam(pthread_self(), SCHED_FIFO, &param);
    if (!failed)
        return 0;
    return clb_error(error, COLIBRI_ERROR_USAGE,
                     "--realtime: %s; be root, have CAP_SYS_NICE, or raise ulimit -r",
                     strerror(failed));
}
