// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// A loaded model: the mapped file, checked against its configuration.
#ifndef CLB_MODEL_H
#define CLB_MODEL_H

#include "config.h"
#include "matrix.h"
#include "tokenizer.h"

// A vector of each layer.
struct clb_vector {
    const uint8_t *data;
    uint64_t layer_stride; // bytes
};

static inline const float *clb_vector_item(const struct clb_vector *v, int layer)
{
    return (const float *)(const void *)(v->data + (uint64_t)layer * v->layer_stride);
}

struct colibri_model {
    struct clb_format file;
    struct clb_config config;
    struct clb_kernels kernels;
    bool quantised;

    struct clb_matrix embeddings; // (vocab_size, hidden_size)
    struct clb_vector attention_norm, ffn_norm, final_norm; // (hidden_size)
    struct clb_matrix q, k, v;    // (heads * head_dim, hidden_size)
    struct clb_matrix o;          // (hidden_size, n_heads * head_dim)
    struct clb_matrix router;     // (n_experts, hidden_size)
    struct clb_matrix gate, up;   // (ffn_size, hidden_size) of each expert
    struct clb_matrix down;       // (hidden_size, ffn_size) of each expert
    struct clb_matrix lm_head;    // (vocab_size, hidden_size)
    struct clb_vector rope;       // (head_dim / 2) inverse frequencies

    bool has_tokenizer;
    struct clb_tokenizer tokenizer;
};

int clb_model_open(struct colibri_model *m, const char *model_path, const char *config_path,
                   const colibri_load_options *options, colibri_error *error);
void clb_model_close(struct colibri_model *m); // a zeroed or half-opened one is fine

#endif
