// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Likelihoods of tokens, in f64 and without libm, so that every board prints the same digits.
#ifndef CLB_NLL_H
#define CLB_NLL_H

#include <stdint.h>

// -log(softmax(logits)[token]) in nats; logits (n), finite.
double clb_nll(const float *logits, int32_t n, int32_t token);

#endif
