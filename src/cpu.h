// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Which kernels this CPU can run.
#ifndef CLB_CPU_H
#define CLB_CPU_H

#include "base.h"
#include "kernels.h"

bool clb_cpu_has(const struct clb_feature *feature);

// The first feature that the level, or one before it, needs and this CPU lacks; NULL: it can run.
const struct clb_feature *clb_cpu_lacks(const struct clb_level *level);

// Fills *kernels with the level `name`, or with the last usable one if it is NULL.
int clb_cpu_choose(struct clb_kernels *kernels, const char *name, colibri_error *error);

#endif
