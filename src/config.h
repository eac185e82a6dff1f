// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The hyperparameters of a model: config.json (docs/FORMAT.md).
#ifndef CLB_CONFIG_H
#define CLB_CONFIG_H

#include "base.h"

enum { CLB_MAX_EOS = 16, CLB_MAX_TOP_K = 16, CLB_MAX_EXPERTS = 512 };

struct clb_config {
    char architecture[32];
    int32_t n_layers, hidden_size, n_heads, n_kv_heads, head_dim, ffn_size, vocab_size;
    int32_t n_experts, top_k; // 0 for a dense model
    int32_t max_positions;
    int32_t sliding_window; // positions; 0: none
    float norm_eps, attention_scale, rope_scale;
    int32_t bos_id; // -1: none
    int32_t eos_ids[CLB_MAX_EOS];
    int n_eos;
};

int clb_config_read(struct clb_config *c, const char *path, colibri_error *error);

#endif
