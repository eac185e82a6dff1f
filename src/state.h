// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// All state of one call. Buffers are allocated once, before the first token.
#ifndef CLB_STATE_H
#define CLB_STATE_H

#include "attention.h"
#include "model.h"
#include "router.h"
#include "threads.h"

enum { CLB_SPAN = 16 }; // chunks of 64 rows that a worker multiplies in one go, at most

struct clb_state {
    const struct colibri_model *model;
    struct clb_pool *pool;
    struct clb_clock *clocks; // (threads), or NULL
    struct clb_cache cache;
    uint8_t *arena;
    size_t arena_size;
    size_t fixed_bytes;                   // of the arena; what follows grows with the positions
    int batch;                            // tokens per step, at most
    int logit_rows;                       // rows of logits per step, at most
    int key_dim, value_dim;               // of a head in the cache
    const colibri_infer_options *options; // the callbacks on_route and on_warning, and
    void *user;                           // what they are called with
    bool warned;

    // One step. Strides are rounded up to a multiple of 64; what lies beyond a vector's end is 0.
    float *x;                  // (batch, stride of hidden) residual stream
    struct clb_acts h;         // (batch, hidden_size) normalised
    float *q, *k, *v;          // (batch, heads * head_dim); k and v not with latent attention
    struct clb_acts attention; // (batch, n_heads * value_dim)
    float *sines, *cosines;    // (batch, rope_dim / 2)
    float *router_logits;      // (batch, n_experts rounded up to 16)
    struct clb_routes routes;
    struct clb_acts gathered; // (slots, hidden_size) h of each slot
    struct clb_acts gate;     // (slots, largest size of an FFN) gate, then activation(gate) * up
    float *moe;               // (batch, stride of hidden) sum over experts
    float *shared_logits;     // (batch, 16)
    float *shared_weight;     // (batch)
    float *routed_weight;     // (batch) where the shared expert takes some of it
    float *logits;            // (logit_rows, vocab_size rounded up to 16)
    size_t q_stride, kv_stride, router_stride, logits_stride;

    // Latent attention. Rows of a head lie together: row head * batch + token.
    struct clb_acts q_latent; // (batch, q_rank)
    float *kv_latent;         // (batch, kv_rank + rope_dim), stride kv_latent_stride
    struct clb_acts plain;    // (n_heads * batch, head_dim - rope_dim) of q, what is not rotated
    float *absorbed;          // (n_heads * batch, stride of mixed) k_b times that
    struct clb_acts mixed;    // (n_heads * batch, kv_rank) what attention gives
    size_t kv_latent_stride;

    // Attention of a single token over several chunks
    struct clb_acts queries; // (n_heads, key_dim)
    struct clb_parts parts;

    struct clb_attention *attend; // (threads)
    float **scratch;              // (threads) (batch or CLB_SPAN, 64), and room for clb_cache_put
};

// `o` must outlive the state.
int clb_state_create(struct clb_state *s, const struct colibri_model *m,
                     const colibri_infer_options *o, int batch, int n_positions, colibri_kv kv,
                     colibri_error *error);
// Takes the memory of all positions up to `position`, before it is needed. Between turns only.
void clb_state_take(struct clb_state *s, int position);

void clb_state_free(struct clb_state *s); // a zeroed one is fine

#endif
