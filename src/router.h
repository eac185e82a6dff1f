// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Which experts a token goes to, and with which weights; then, per expert, which tokens it gets.
#ifndef CLB_ROUTER_H
#define CLB_ROUTER_H

#include "config.h"
#include "kernels.h"

// A slot is one token at one expert. Slots are ordered by expert, then by token.
struct clb_routes {
    int n_slots;
    int n_active;         // experts that have at least one slot
    int *active;          // (n_experts) their indices, ascending
    int *first;           // (n_experts + 1) first slot of each active expert; [n_active] = n_slots
    int *token;           // (batch * top_k) of each slot
    float *weight;        // (batch * top_k) of each slot
    int32_t *chosen;      // (batch, top_k) experts of each token, ascending
    float *chosen_weight; // (batch, top_k)
};

// Chooses the top_k experts of a token, ascending, and their weights (top_k), as the configuration
// says. logits (n_experts rounded up to 16) are overwritten; correction (n_experts) or NULL. False
// if a logit is NaN or Inf.
bool clb_router_choose(const struct clb_kernels *k, const struct clb_config *c, float *logits,
                       const float *correction, int32_t *experts, float *weights);

// Builds the slots from chosen and chosen_weight of n tokens, in a time that grows with the slots
// and the experts.
void clb_router_group(struct clb_routes *r, int n, int n_experts, int top_k);

// Slots of n tokens that all go to one expert with these weights (n).
void clb_router_all(struct clb_routes *r, int n, const float *weights);

// The expert that has the largest weight of every one of n >= 1 tokens, ties to the lower index;
// -1: they differ.
int clb_router_common(const struct clb_routes *r, int n, int top_k);

#endif
