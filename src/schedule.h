// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Which CPUs this process runs on, and before which other programs.
#ifndef CLB_SCHEDULE_H
#define CLB_SCHEDULE_H

#include "base.h"

// `list`: "0,2,3".
int clb_schedule_cpus(const char *list, colibri_error *error);

// SCHED_FIFO, for the caller's thread and those that it starts.
int clb_schedule_realtime(colibri_error *error);

#endif
