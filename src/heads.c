// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "heads.h"

// Query heads of a block that share one latent key: enough blocks to have work for all threads.
enum { LATENT_HEADS = 8 };

static void rotate(const struct clb_step *st, float *x, int token)
{
    const struct clb_config *c = &st->s->model->config;
    int half = c->rope_dim / 2;
    size_t angles = (size_t)token * (size_t)half;
    (c->rope_kind == CLB_ROPE_PAIRS ? st->kernels->f32_rope_pairs : st->kernels->f32_rope_half)(
        x, st->s->sines + angles, st->s->cosines + angles, half);
}

// ---- Heads with keys and values of their own ----

static void qkv_item(void *context, int item, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    const struct colibri_model *m = s->model;
    int nq = clb_chunks(&m->q), nk = clb_chunks(&m->k);
    const struct clb_matrix *matrix = item < nq ? &m->q : item < nq + nk ? &m->k : &m->v;
    float *y = item < nq ? s->q : item < nq + nk ? s->k : s->v;
    int chunk = item < nq ? item : item < nq + nk ? item - nq : item - nq - nk;
    clb_step_multiply(st, worker, matrix, st->layer, 0, chunk, &s->h, 0, st->n,
                      y + chunk * CLB_CHUNK_ROWS, item < nq ? s->q_stride : s->kv_stride);
}

// The norm of n elements as one vector, or of each head.
static void normalise_heads(const struct clb_step *st, const struct clb_vector *norm, float *x,
                            int n)
{
    if (!norm->data)
        return;
    const float *weight = clb_vector_item(norm, st->layer, 0);
    for (int at = 0; at < n; at += norm->n)
        st->kernels->f32_rms_norm(x + at, x + at, weight, norm->n, st->s->model->config.norm_eps);
}

static void clip(float *x, int n, float limit)
{
    for (int i = 0; i < n; i++) {
        float y = x[i] < 0 - limit ? 0 - limit : x[i];
        x[i] = y > limit ? limit : y;
    }
}

static void adjust_item(void *context, int token, int worker)
{
    (void)worker;
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    const struct colibri_model *m = s->model;
    const struct clb_config *c = &m->config;
    int n_q = c->n_heads * c->head_dim, n_kv = c->n_kv_heads * c->head_dim;
    float *q = s->q + (size_t)token * s->q_stride, *k = s->k + (size_t)token * s->kv_stride;
    normalise_heads(st, &m->q_norm, q, n_q);
    normalise_heads(st, &m->k_norm, k, n_kv);
    if (c->qk_clip > 0) {
        clip(q, n_q, c->qk_clip);
        clip(k, n_kv, c->qk_clip);
        clip(s->v + (size_t)token * s->kv_stride, n_kv, c->qk_clip);
    }
}

// Rotates the keys of one head and puts them and the values into the cache.
static void store_item(void *context, int head, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    size_t at = (size_t)head * (size_t)s->model->config.head_dim;
    for (int t = 0; t < st->n; t++, at += s->kv_stride) {
        rotate(st, s->k + at, t);
        clb_cache_put(&s->cache, st->kernels, st->layer, head, st->first_position + t, s->k + at,
                      s->v + at, s->scratch[worker]);
    }
}

// ---- Heads that share one latent vector ----

static void latent_item(void *context, int item, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    const struct colibri_model *m = s->model;
    const struct clb_matrix *first = m->config.q_rank ? &m->q_a : &m->q;
    bool is_first = item < clb_chunks(first);
    int chunk = is_first ? item : item - clb_chunks(first);
    float *y = !is_first ? s->kv_latent : m->config.q_rank ? s->q_latent.f32 : s->q;
    clb_step_multiply(st, worker, is_first ? first : &m->kv_a, st->layer, 0, chunk, &s->h, 0, st->n,
                      y + chunk * CLB_CHUNK_ROWS,
                      !is_first          ? s->kv_latent_stride
                      : m->config.q_rank ? s->q_latent.stride
                                         : s->q_stride);
}

// Normalises a token's latent vectors, and puts the one of its key into the cache.
static void store_latent_item(void *context, int token, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    const struct colibri_model *m = s->model;
    const struct clb_config *c = &m->config;
    float *key = s->kv_latent + (size_t)token * s->kv_latent_stride;
    st->kernels->f32_rms_norm(key, key, clb_vector_item(&m->kv_a_norm, st->layer, 0), c->kv_rank,
                              c->latent_norm_eps);
    rotate(st, key + c->kv_rank, token);
    clb_cache_put(&s->cache, st->kernels, st->layer, 0, st->first_position + token, key, key,
                  s->scratch[worker]);
    if (!c->q_rank)
        return;
    float *q = s->q_latent.f32 + (size_t)token * s->q_latent.stride;
    st->kernels->f32_rms_norm(q, q, clb_vector_item(&m->q_a_norm, st->layer, 0), c->q_rank,
                              c->latent_norm_eps);
    clb_step_quantise(st, worker, &s->q_latent, (size_t)token, 0, s->q_latent.stride);
}

static void latent_q_item(void *context, int chunk, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    clb_step_multiply(st, worker, &s->model->q, st->layer, 0, chunk, &s->q_latent, 0, st->n,
                      s->q + chunk * CLB_CHUNK_ROWS, s->q_stride);
}

static void plain_item(void *context, int head, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    const struct clb_config *c = &s->model->config;
    const float *q = s->q + (size_t)head * (size_t)c->head_dim;
    size_t row = (size_t)head * (size_t)s->batch;
    for (int t = 0; t < st->n; t++, row++, q += s->q_stride) {
        memcpy(s->plain.f32 + row * s->plain.stride, q,
               (size_t)(c->head_dim - c->rope_dim) * sizeof *q);
        clb_step_quantise(st, worker, &s->plain, row, 0, s->plain.stride);
    }
}

static void absorb_item(void *context, int item, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    const struct clb_matrix *m = &s->model->k_b;
    int head = item / clb_chunks(m), chunk = item % clb_chunks(m), row = head * s->batch;
    clb_step_multiply(st, worker, m, st->layer, head, chunk, &s->plain, row, st->n,
                      s->absorbed + (size_t)row * s->mixed.stride + chunk * CLB_CHUNK_ROWS,
                      s->mixed.stride);
}

static void value_item(void *context, int item, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    const struct clb_matrix *m = &s->model->v_b;
    int head = item / clb_chunks(m), chunk = item % clb_chunks(m);
    float *out = s->scratch[worker];
    clb_step_multiply(st, worker, m, st->layer, head, chunk, &s->mixed, head * s->batch, st->n, out,
                      CLB_CHUNK_ROWS);
    // whole tiles came; what follows a head belongs to the next one
    float *to = s->attention.f32 + head * m->rows + chunk * CLB_CHUNK_ROWS;
    for (int t = 0; t < st->n; t++, out += CLB_CHUNK_ROWS, to += s->attention.stride)
        memcpy(to, out, (size_t)clb_chunk_rows(m->rows, chunk) * sizeof *to);
}

// ---- All kinds ----

// The query of one head, rotated and scaled.
static void load_query(const struct clb_step *st, int token, int head, float *query, int padded)
{
    const struct clb_state *s = st->s;
    const struct clb_config *c = &s->model->config;
    const float *q = s->q + (size_t)token * s->q_stride + (size_t)head * (size_t)c->head_dim;
    if (c->kv_rank) {
        size_t row = (size_t)head * (size_t)s->batch + (size_t)token;
        memcpy(query, s->absorbed + row * s->mixed.stride, (size_t)c->kv_rank * sizeof *query);
        memcpy(query + c->kv_rank, q + c->head_dim - c->rope_dim,
               (size_t)c->rope_dim * sizeof *query);
        rotate(st, query + c->kv_rank, token);
    } else {
        memcpy(query, q, (size_t)c->head_dim * sizeof *query);
        rotate(st, query, token);
    }
    st->kernels->f32_scale(query, query, c->attention_scale, padded);
}

static void store_result(const struct clb_step *st, int worker, int token, int head,
                         const float *out)
{
    struct clb_state *s = st->s;
    const struct clb_config *c = &s->model->config;
    if (c->kv_rank) {
        size_t row = (size_t)head * (size_t)s->batch + (size_t)token;
        memcpy(s->mixed.f32 + row * s->mixed.stride, out, (size_t)c->kv_rank * sizeof *out);
        clb_step_quantise(st, worker, &s->mixed, row, 0, s->mixed.stride);
        return;
    }
    memcpy(s->attention.f32 + (size_t)token * s->attention.stride + head * c->head_dim, out,
           (size_t)c->head_dim * sizeof *out);
}

static int head_blocks(const struct clb_step *st)
{
    const struct clb_config *c = &st->s->model->config;
    return (c->n_heads / c->n_kv_heads + st->block_heads - 1) / st->block_heads;
}

static struct clb_block block_of(const struct clb_step *st, int item)
{
    const struct colibri_model *m = st->s->model;
    const struct clb_config *c = &m->config;
    int group = c->n_heads / c->n_kv_heads, blocks = head_blocks(st);
    int kv_head = item / blocks % c->n_kv_heads, in_group = item % blocks * st->block_heads;
    int first = item / blocks / c->n_kv_heads * st->block_tokens;
    struct clb_block b = {
        .layer = st->layer,
        .kv_head = kv_head,
        .first_head = kv_head * group + in_group,
        .n_heads = group - in_group < st->block_heads ? group - in_group : st->block_heads,
        .first_position = st->first_position + first,
        .n_tokens = st->n - first < st->block_tokens ? st->n - first : st->block_tokens,
        .window = st->window,
    };
    if (m->sinks.data)
        b.sinks = clb_vector_item(&m->sinks, st->layer, 0) + b.first_head;
    return b;
}

// The query of a single token's head, for all chunks.
static void query_item(void *context, int head, int worker)
{
    struct clb_step *st = context;
    const struct clb_acts *q = &st->s->queries;
    load_query(st, 0, head, q->f32 + (size_t)head * q->stride, (int)q->stride);
    clb_step_quantise(st, worker, q, (size_t)head, 0, q->stride);
}

// One chunk of a single token's attention. Items follow the cache: heads, then chunks.
static void chunk_item(void *context, int item, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    int blocks = s->model->config.n_kv_heads * head_blocks(st);
    int chunk = st->first_chunk + item / blocks;
    struct clb_block b = block_of(st, item % blocks);
    struct clb_attention a =
        clb_attention_at(&s->attend[worker], &s->parts, &b, chunk, s->cache.padded);
    a.queries = clb_acts_from(&s->queries, (size_t)b.first_head);
    clb_attend_chunk(&a, &s->cache, st->kernels, &b, chunk);
}

// Attention of a block of tokens and query heads over one key/value head.
static void attend_item(void *context, int item, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    struct clb_attention *a = &s->attend[worker];
    const struct clb_block b = block_of(st, item);
    const int rows = b.n_tokens * b.n_heads, first = b.first_position - st->first_position;
    for (int r = 0; r < rows && st->first_chunk < 0; r++) {
        load_query(st, first + r / b.n_heads, b.first_head + r % b.n_heads,
                   a->queries.f32 + (size_t)r * a->queries.stride, (int)a->queries.stride);
        clb_step_quantise(st, worker, &a->queries, (size_t)r, 0, a->queries.stride);
    }
    struct clb_clock *clock = clb_step_clock(st, worker);
    const int seen = b.first_position + b.n_tokens;
    if (clock)
        clock->spent[CLB_ATTENTION].bytes +=
            (uint64_t)(st->window && st->window < seen ? st->window : seen) * s->cache.chunk_bytes /
            CLB_CHUNK;
    clb_attend(a, &s->cache, st->kernels, &b, st->first_chunk < 0 ? NULL : &s->parts);
    for (int r = 0; r < rows; r++)
        store_result(st, worker, first + r / b.n_heads, b.first_head + r % b.n_heads,
                     a->out + (size_t)r * (size_t)s->cache.padded);
}

// A single token has few heads: its chunks are items too, as soon as there are several.
static void attend_chunks(struct clb_step *st)
{
    const struct clb_config *c = &st->s->model->config;
    const struct clb_block all = {.first_position = st->first_position, .window = st->window};
    int first = clb_first_chunk(&all), n = st->first_position / CLB_CHUNK + 1 - first;
    st->first_chunk = st->n == 1 && n > 1 ? first : -1;
    if (st->first_chunk < 0)
        return;
    clb_step_run_small(st, CLB_ATTENTION, c->n_heads, query_item);
    clb_step_run(st, CLB_ATTENTION, n * c->n_kv_heads * head_blocks(st), chunk_item);
}

static void quantise_item(void *context, int token, int worker)
{
    struct clb_step *st = context;
    clb_step_quantise(st, worker, &st->s->attention, (size_t)token, 0, st->s->attention.stride);
}

static void output_item(void *context, int chunk, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    clb_step_multiply(st, worker, &s->model->o, st->layer, 0, chunk, &s->attention, 0, st->n,
                      s->moe + chunk * CLB_CHUNK_ROWS, s->h.stride);
    clb_step_add(st, s->moe, chunk);
}

static void store_keys(struct clb_step *st)
{
    struct clb_state *s = st->s;
    const struct colibri_model *m = s->model;
    const struct clb_config *c = &m->config;
    if (!c->kv_rank) {
        clb_step_run(st, CLB_QKV, clb_chunks(&m->q) + clb_chunks(&m->k) + clb_chunks(&m->v),
                     qkv_item);
        if (m->q_norm.data || m->k_norm.data || c->qk_clip > 0)
            clb_step_run_small(st, CLB_QKV, st->n, adjust_item);
        clb_step_run_small(st, CLB_ATTENTION, c->n_kv_heads, store_item);
        return;
    }
    clb_step_run(st, CLB_QKV, clb_chunks(c->q_rank ? &m->q_a : &m->q) + clb_chunks(&m->kv_a),
                 latent_item);
    clb_step_run(st, CLB_ATTENTION, st->n, store_latent_item);
    if (c->q_rank)
        clb_step_run(st, CLB_QKV, clb_chunks(&m->q), latent_q_item);
    clb_step_run_small(st, CLB_QKV, c->n_heads, plain_item);
    clb_step_run(st, CLB_QKV, c->n_heads * clb_chunks(&m->k_b), absorb_item);
}

void clb_heads_plan(struct clb_step *st)
{
    const struct clb_config *c = &st->s->model->config;
    int group = c->n_heads / c->n_kv_heads, most = c->kv_rank ? LATENT_HEADS : CLB_BLOCK_ROWS;
    st->block_heads = group < most ? group : most;
    st->block_tokens = CLB_BLOCK_ROWS / st->block_heads;
}

void clb_heads_run(struct clb_step *st)
{
    struct clb_state *s = st->s;
    const struct colibri_model *m = s->model;
    const struct clb_config *c = &m->config;
    bool windowed = c->window_layers.n < 0 || clb_layers_have(&c->window_layers, st->layer);
    st->window = windowed ? c->sliding_window : 0;
    st->norm = &m->attention_norm;
    st->norm_layer = st->layer;
    clb_step_normalise(st);
    store_keys(st);
    int blocks = (st->n + st->block_tokens - 1) / st->block_tokens;
    attend_chunks(st);
    clb_step_run(st, CLB_ATTENTION, c->n_kv_heads * head_blocks(st) * blocks, attend_item);
    if (c->kv_rank)
        clb_step_run(st, CLB_O, c->n_heads * clb_chunks(&m->v_b), value_item);
    if (s->attention.q8.q)
        clb_step_run_small(st, CLB_QUANTISE, st->n, quantise_item);
    clb_step_run(st, CLB_O, clb_chunks(&m->o), output_item);
}
