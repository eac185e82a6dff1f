// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The attention of a layer: from the residual stream through all heads back into it.
#ifndef CLB_HEADS_H
#define CLB_HEADS_H

#include "step.h"

void clb_heads_run(struct clb_step *st);

// Tokens and query heads of one block of attention.
void clb_heads_plan(struct clb_step *st);

#endif
