// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The feed-forward part of a layer: routing, the experts that are chosen, and those that are not
// chosen but always there.
#ifndef CLB_EXPERTS_H
#define CLB_EXPERTS_H

#include "step.h"

int clb_experts_run(struct clb_step *st, colibri_error *error);

#endif
