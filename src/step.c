// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "step.h"

void clb_step_run(struct clb_step *st, enum clb_operation operation, int n_items, clb_item_fn fn)
{
    clb_pool_time(st->s->pool, st->s->clocks, operation);
    clb_pool_run(st->s->pool, n_items, fn, st);
}

void clb_step_run_spans(struct clb_step *st, enum clb_operation operation, int n_items,
                        clb_span_fn fn)
{
    clb_pool_time(st->s->pool, st->s->clocks, operation);
    clb_pool_run_spans(st->s->pool, n_items, fn, st);
}

void clb_step_run_small(struct clb_step *st, enum clb_operation operation, int n_items,
                        clb_item_fn fn)
{
    if (st->n > 1) {
        clb_step_run(st, operation, n_items, fn);
        return;
    }
    struct clb_clock *clock = clb_step_clock(st, 0);
    clb_clock_turn(clock, operation);
    for (int i = 0; i < n_items; i++)
        fn(st, i, 0);
    clb_clock_turn(clock, CLB_OTHER);
}

struct clb_clock *clb_step_clock(const struct clb_step *st, int worker)
{
    return st->s->clocks ? st->s->clocks + worker : NULL;
}

void clb_step_multiply_tiles(const struct clb_step *st, int worker, const struct clb_matrix *m,
                             int layer, int expert, int tile, int tiles, const struct clb_acts *x,
                             int first, int n, float *y, size_t y_stride)
{
    const int rows = clb_tile_rows(m->rows, tile, tiles);
    const int n_tiles = (rows + CLB_TILE_ROWS - 1) / CLB_TILE_ROWS;
    struct clb_clock *clock = clb_step_clock(st, worker);
    if (clock) {
        colibri_operation *spent = &clock->spent[clock->operation];
        spent->bytes += (uint64_t)n_tiles * m->tile_bytes;
        spent->products += (uint64_t)rows * (uint64_t)m->cols * (uint64_t)n;
    }
    clb_matrix_mm(st->kernels, m, clb_matrix_item(m, layer, expert), tile, n_tiles, x,
                  (size_t)first, n, y, y_stride);
    if (!m->bias.data)
        return;
    const float *bias = clb_vector_item(&m->bias, layer, expert) + tile * CLB_TILE_ROWS;
    for (int t = 0; t < n; t++)
        st->kernels->f32_axpy(y + (size_t)t * y_stride, 1.0f, bias, rows);
}

void clb_step_multiply(const struct clb_step *st, int worker, const struct clb_matrix *m, int layer,
                       int expert, int chunk, const struct clb_acts *x, int first, int n, float *y,
                       size_t y_stride)
{
    clb_step_multiply_tiles(st, worker, m, layer, expert, chunk * CLB_CHUNK_TILES, CLB_CHUNK_TILES,
                            x, first, n, y, y_stride);
}

void clb_step_quantise(const struct clb_step *st, int worker, const struct clb_acts *x, size_t row,
                       size_t from, size_t n)
{
    if (!x->q8.q)
        return;
    struct clb_clock *clock = clb_step_clock(st, worker);
    enum clb_operation operation = clb_clock_turn(clock, CLB_QUANTISE);
    size_t at = row * x->stride + from;
    st->kernels->f32_q8_quantize(x->q8.q + at, x->q8.scale + at / CLB_BLOCK,
                                 x->q8.sum + at / CLB_BLOCK, x->f32 + at, (int)n);
    clb_clock_turn(clock, operation);
}

static void norm_item(void *context, int token, int worker)
{
    struct clb_step *st = context;
    const struct clb_config *c = &st->s->model->config;
    struct clb_acts *h = &st->s->h;
    size_t at = (size_t)token * h->stride;
    const float *x = st->s->x + at, *weight = clb_vector_item(&st->norm->weight, st->norm_layer, 0);
    if (st->norm->bias.data)
        st->kernels->f32_layer_norm(h->f32 + at, x, weight,
                                    clb_vector_item(&st->norm->bias, st->norm_layer, 0),
                                    c->hidden_size, c->norm_eps);
    else
        st->kernels->f32_rms_norm(h->f32 + at, x, weight, c->hidden_size, c->norm_eps);
    clb_step_quantise(st, worker, h, (size_t)token, 0, h->stride);
}

void clb_step_normalise(struct clb_step *st)
{
    clb_step_run(st, CLB_NORM, st->n, norm_item);
}

void clb_step_add(const struct clb_step *st, const float *y, int chunk)
{
    struct clb_state *s = st->s;
    const struct clb_config *c = &s->model->config;
    size_t row = (size_t)chunk * CLB_CHUNK_ROWS;
    for (int t = 0; t < st->n; t++, row += s->h.stride)
        st->kernels->f32_axpy(s->x + row, c->residual_scale, y + row,
                              clb_chunk_rows(c->hidden_size, chunk));
}
