// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The decoder of the architectures mixtral and llama: pre-norm, grouped-query attention with RoPE,
// SwiGLU experts (or one dense FFN).
#ifndef CLB_TRANSFORMER_H
#define CLB_TRANSFORMER_H

#include "attention.h"
#include "model.h"
#include "router.h"
#include "threads.h"

// All state of one call. Buffers are allocated once, before the first token.
struct clb_state {
    const struct colibri_model *model;
    struct clb_pool *pool;
    struct clb_cache cache;
    void *arena;
    int batch;       // tokens per step, at most
    int logit_rows;  // rows of logits per step, at most
    const colibri_infer_options *options; // the callbacks on_route and on_warning, and
    void *user;                           // what they are called with
    bool warned;

    // One step. Strides are rounded up to a multiple of 64; what lies beyond a vector's end is 0.
    float *x;           // (batch, stride of hidden) residual stream
    struct clb_acts h;  // (batch, hidden_size) normalised
    float *q, *k, *v;   // (batch, heads * head_dim)
    struct clb_acts attention; // (batch, n_heads * head_dim)
    float *sines, *cosines;    // (batch, head_dim / 2)
    float *router_logits;      // (batch, n_experts rounded up to 16)
    struct clb_routes routes;
    struct clb_acts gathered;  // (batch * top_k, hidden_size) h of each slot
    struct clb_acts gate;      // (batch * top_k, ffn_size) gate, then silu(gate) * up
    float *up;                 // (batch * top_k, stride of gate)
    float *moe;                // (batch, stride of hidden) sum over experts
    float *logits;             // (logit_rows, vocab_size rounded up to 16)
    size_t q_stride, kv_stride, router_stride, logits_stride;

    struct clb_attention *attend; // (threads)
    float **scratch;              // (threads) (batch, 64)
};

int clb_state_create(struct clb_state *s, const struct colibri_model *m, int batch, int threads,
                     int n_positions, bool every_logit, colibri_kv kv, colibri_error *error);
void clb_state_free(struct clb_state *s); // a zeroed one is fine

// Feeds n <= batch tokens at positions first_position, ...; then s->logits holds the logits of the
// last n_logits of them.
int clb_forward(struct clb_state *s, const int32_t *tokens, int n, int first_position,
                int n_logits, colibri_error *error);

#endif
