// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// A loaded model: the mapped file, checked against its configuration.
#ifndef CLB_MODEL_H
#define CLB_MODEL_H

#include "chat.h"
#include "config.h"
#include "matrix.h"
#include "quantize.h"
#include "scrub.h"

// An RMS norm, or with a bias a layer norm.
struct clb_norm {
    struct clb_vector weight, bias; // (hidden_size)
};

struct clb_ffn {
    struct clb_matrix gate, up; // (size, hidden_size) of each expert; gate.data NULL: no gate
    struct clb_matrix down;     // (hidden_size, size) of each expert
    int size;
};

struct colibri_model {
    struct clb_format file;
    struct clb_scrub scrub;
    struct clb_config config;
    struct clb_kernels kernels;
    bool quantised;
    bool locked;                          // in memory: nor shall a token wait for the cache's
    struct clb_quantised *quantised_here; // NULL, or what `quantize` asked for

    struct clb_matrix embeddings;          // (vocab_size, hidden_size)
    struct clb_matrix position_embeddings; // (max_positions, hidden_size); data NULL: none
    struct clb_norm attention_norm, ffn_norm, final_norm;
    struct clb_matrix q, k, v;        // (heads * head_dim, hidden_size)
    struct clb_vector q_norm, k_norm; // (head_dim) or (heads * head_dim); data NULL: none
    struct clb_vector sinks;          // (n_heads); data NULL: none
    struct clb_matrix o;              // (hidden_size, heads * value_dim)
    // Latent attention: q, k and v go through short vectors.
    struct clb_matrix q_a;                 // (q_rank, hidden_size); then q is (..., q_rank)
    struct clb_matrix kv_a;                // (kv_rank + rope_dim, hidden_size)
    struct clb_vector q_a_norm, kv_a_norm; // (q_rank), (kv_rank)
    struct clb_matrix k_b;                 // (kv_rank, head_dim - rope_dim) of each head
    struct clb_matrix v_b;                 // (v_dim, kv_rank) of each head
    struct clb_matrix router;              // (n_experts, hidden_size)
    struct clb_vector router_correction;   // (n_experts); data NULL: none
    struct clb_matrix shared_router;       // (1 or 2, hidden_size); data NULL: none
    struct clb_ffn experts, dense, shared;
    struct clb_matrix lm_head; // (vocab_size, hidden_size)
    struct clb_vector rope;    // (rope_dim / 2) inverse frequencies

    bool has_tokenizer;
    struct clb_tokenizer tokenizer;
    struct clb_chat chat;
};

int clb_model_open(struct colibri_model *m, const char *model_path, const char *config_path,
                   const colibri_load_options *options, colibri_error *error);
// An error if a part of the file is gone or found damaged, which what was just computed may have
// used.
int clb_model_check(const struct colibri_model *m, colibri_error *error);
void clb_model_close(struct colibri_model *m); // a zeroed or half-opened one is fine

#endif
