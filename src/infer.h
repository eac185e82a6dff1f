// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// One call: turns of prefill in batches, then decoding. Needs the default floating-point
// environment.
#ifndef CLB_INFER_H
#define CLB_INFER_H

#include "model.h"

int clb_infer(const struct colibri_model *m, const colibri_infer_options *o, const int32_t *tokens,
              size_t n_tokens, colibri_step_fn on_step, void *user, colibri_stats *stats,
              colibri_error *error);

#endif
