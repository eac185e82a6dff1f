// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// What a call generates, printed in the form that the options ask for.
#ifndef CLB_GENERATE_H
#define CLB_GENERATE_H

#include "talk.h"

// Continues the prompt, which has n_prompt ids; or the turns of a chat, of which it is the first,
// if `talk` is not NULL; or measures with --bench. load_seconds is for --format json.
int clb_generate(const struct clb_options *o, const colibri_model *model, double load_seconds,
                 const int32_t *prompt, size_t n_prompt, struct clb_talk *talk,
                 colibri_error *error);

#endif
