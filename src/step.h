// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// One step of a call: some tokens that go through the layers together, as the work items see it.
#ifndef CLB_STEP_H
#define CLB_STEP_H

#include "layout.h"
#include "state.h"

// What is an item of work: 4 tiles, two blocks of a quantised vector.
enum { CLB_CHUNK_TILES = 4, CLB_CHUNK_ROWS = CLB_CHUNK_TILES * CLB_TILE_ROWS };

struct clb_step {
    struct clb_state *s;
    const struct clb_kernels *kernels;
    int n; // tokens
    int first_position;
    int layer;
    int routed_layer, dense_layer; // of the layers of each kind, the next one
    const int32_t *tokens;
    const struct clb_norm *norm; // to apply
    int norm_layer;
    int logits_from;               // first token whose logits are wanted
    int window;                    // of this layer; 0: none
    int block_tokens, block_heads; // of a block of attention
    int first_chunk; // of this layer's attention, if the chunks are items of their own; else -1
    const struct clb_ffn *ffn; // to run over the slots, and
    int ffn_layer;             // the layer of its sections
    bool adds_up, is_last;     // to what the FFN before it gave; and then to x
};

static inline int clb_chunks(const struct clb_matrix *m)
{
    return (m->rows + CLB_CHUNK_ROWS - 1) / CLB_CHUNK_ROWS;
}

// Rows of `tiles` tiles of n rows, from the first one on.
static inline int clb_tile_rows(int n, int first, int tiles)
{
    int left = n - first * CLB_TILE_ROWS;
    return left < tiles * CLB_TILE_ROWS ? left : tiles * CLB_TILE_ROWS;
}

// Rows of a chunk of n rows.
static inline int clb_chunk_rows(int n, int chunk)
{
    return clb_tile_rows(n, chunk * CLB_CHUNK_TILES, CLB_CHUNK_TILES);
}

// Runs fn over n_items, which are of the operation; `st` is their context.
void clb_step_run(struct clb_step *st, enum clb_operation operation, int n_items, clb_item_fn fn);

// The same with a function that takes neighbours together.
void clb_step_run_spans(struct clb_step *st, enum clb_operation operation, int n_items,
                        clb_span_fn fn);

// The same as clb_step_run where one token's items are so small that other threads come too late.
void clb_step_run_small(struct clb_step *st, enum clb_operation operation, int n_items,
                        clb_item_fn fn);

// The worker's clock; NULL: there is none.
struct clb_clock *clb_step_clock(const struct clb_step *st, int worker);

// Multiplies chunk `chunk` of an item with vectors first .. first + n, and adds the bias; y is
// where its rows go, whole tiles of them.
void clb_step_multiply(const struct clb_step *st, int worker, const struct clb_matrix *m, int layer,
                       int expert, int chunk, const struct clb_acts *x, int first, int n, float *y,
                       size_t y_stride);

// The same with some tiles.
void clb_step_multiply_tiles(const struct clb_step *st, int worker, const struct clb_matrix *m,
                             int layer, int expert, int tile, int tiles, const struct clb_acts *x,
                             int first, int n, float *y, size_t y_stride);

// Quantises x[row][from .. from + n], if some matrix wants that.
void clb_step_quantise(const struct clb_step *st, int worker, const struct clb_acts *x, size_t row,
                       size_t from, size_t n);

// Applies st->norm to all tokens: s->h.
void clb_step_normalise(struct clb_step *st);

// Adds residual_scale times the rows of a chunk of y (n, stride of hidden) to the residual stream.
void clb_step_add(const struct clb_step *st, const float *y, int chunk);

#endif
