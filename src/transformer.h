// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// A pre-norm decoder: embeddings, layers of attention and experts, logits. What differs between
// families is in the configuration and in the sections that there are.
#ifndef CLB_TRANSFORMER_H
#define CLB_TRANSFORMER_H

#include "state.h"

// Feeds n <= batch tokens at positions first_position, ...; then s->logits holds the logits of the
// last n_logits of them.
int clb_forward(struct clb_state *s, const int32_t *tokens, int n, int first_position, int n_logits,
                colibri_error *error);

#endif
