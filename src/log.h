// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The log of mappings, memory and routing, in debug builds only (-Ddebug=true).
#ifndef CLB_LOG_H
#define CLB_LOG_H

#include "base.h"

#if CLB_DEBUG
extern void (*clb_log_sink)(const char *line); // set by the program; NULL: no log
void clb_log(const char *format, ...) CLB_PRINTF(1, 2);
#define CLB_LOG(...) clb_log(__VA_ARGS__)
#else
#define CLB_LOG(...) ((void)0)
#endif

#endif
