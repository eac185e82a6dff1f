// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The hyperparameters of a model: config.json (docs/FORMAT.md). What a family computes is said here
// and by the sections of model.bin; its name is for people.
#ifndef CLB_CONFIG_H
#define CLB_CONFIG_H

#include "base.h"

enum { CLB_MAX_EOS = 16, CLB_MAX_TOP_K = 16, CLB_MAX_EXPERTS = 512, CLB_MAX_LAYERS = 1024 };

enum clb_rope_kind { CLB_ROPE_HALF, CLB_ROPE_PAIRS };
enum clb_activation { CLB_SILU, CLB_GELU, CLB_GELU_TANH, CLB_SWIGLU_OAI };
enum clb_router_score { CLB_SOFTMAX, CLB_SIGMOID, CLB_SPARSEMIXER };
enum clb_router_weights { CLB_OVER_CHOSEN, CLB_OVER_ALL };

// Layers, ascending.
struct clb_layers {
    int32_t n;
    int32_t at[CLB_MAX_LAYERS];
};

struct clb_config {
    char architecture[32];
    int32_t n_layers, hidden_size, n_heads, n_kv_heads, head_dim, ffn_size, vocab_size;
    int32_t n_experts, top_k; // 0 for a dense model
    int32_t max_positions;
    int32_t sliding_window; // positions; 0: none
    float norm_eps, attention_scale, rope_scale;
    int32_t bos_id; // -1: none
    int32_t n_eos, eos_ids[CLB_MAX_EOS];

    struct clb_layers window_layers; // n is -1: all
    int32_t rope_dim;                // 0: no rotation
    int32_t rope_kind;               // enum clb_rope_kind
    float qk_clip;                   // 0: none
    float embedding_scale, residual_scale, logit_scale;
    int32_t activation; // enum clb_activation
    float activation_limit;
    int32_t router_score, router_weights; // enums of these names
    float router_scale, router_jitter;
    int32_t n_groups, top_groups; // of experts
    struct clb_layers dense_layers;
    int32_t dense_ffn_size, shared_ffn_size; // 0: none
    int32_t kv_rank;                         // 0: no latent attention
    int32_t q_rank, v_dim;
    float latent_norm_eps;
};

int clb_config_read(struct clb_config *c, const char *path, colibri_error *error);

// Whether a layer is among them.
bool clb_layers_have(const struct clb_layers *layers, int layer);

#endif
