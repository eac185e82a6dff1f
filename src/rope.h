// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Angles of rotary position embeddings (Su et al., RoFormer, 2021); kernels rotate.
#ifndef CLB_ROPE_H
#define CLB_ROPE_H

#include "base.h"

// sines and cosines (half) of position * inv_freq[i], times `scale`.
void clb_rope_angles(float *sines, float *cosines, const float *inv_freq, int half, int position,
                     float scale);

#endif
