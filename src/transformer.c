// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "transformer.h"

#include "layout.h"
#include "log.h"
#include "rope.h"

#include <stdio.h>

// Tiles that a worker takes at a time: 64 rows, two blocks of a quantised vector.
enum { CHUNK_TILES = 4, CHUNK_ROWS = CHUNK_TILES * CLB_TILE_ROWS };

// Fewer tokens go to one expert by chance.
enum { COLLAPSE_TOKENS = 8 };

// One step, as the work items see it.
struct step {
    struct clb_state *s;
    const struct clb_kernels *kernels;
    int n;              // tokens
    int first_position;
    int layer;
    const int32_t *tokens;
    const float *norm;  // weights of the norm to apply
    int logits_from;    // first token whose logits are wanted
    int block_tokens;   // tokens of a block of attention
};

static int chunks(const struct clb_matrix *m)
{
    return (m->n_tiles + CHUNK_TILES - 1) / CHUNK_TILES;
}

// Multiplies chunk `chunk` of an item with vectors first .. first + n; y is where its rows go.
static void multiply(const struct step *st, const struct clb_matrix *m, int expert, int chunk,
                     const struct clb_acts *x, int first, int n, float *y, size_t y_stride)
{
    int tile = chunk * CHUNK_TILES;
    int n_tiles = m->n_tiles - tile < CHUNK_TILES ? m->n_tiles - tile : CHUNK_TILES;
    clb_matrix_mm(st->kernels, m, clb_matrix_item(m, st->layer, expert), tile, n_tiles, x,
                  (size_t)first, n, y, y_stride);
}

static void quantise(const struct step *st, const struct clb_acts *x, size_t row, size_t from,
                     size_t n)
{
    size_t at = row * x->stride + from;
    st->kernels->f32_q8_quantize(x->q8.q + at, x->q8.scale + at / CLB_BLOCK,
                                 x->q8.sum + at / CLB_BLOCK, x->f32 + at, (int)n);
}

static void embed_item(void *context, int token, int worker)
{
    (void)worker;
    struct step *st = context;
    const struct clb_matrix *m = &st->s->model->embeddings;
    float *x = st->s->x + (size_t)token * st->s->h.stride;
    clb_matrix_row(m, clb_matrix_item(m, 0, 0), st->tokens[token], x);
}

static void norm_item(void *context, int token, int worker)
{
    (void)worker;
    struct step *st = context;
    const struct clb_config *c = &st->s->model->config;
    struct clb_acts *h = &st->s->h;
    size_t at = (size_t)token * h->stride;
    st->kernels->f32_rms_norm(h->f32 + at, st->s->x + at, st->norm, c->hidden_size, c->norm_eps);
    if (h->q8.q)
        quantise(st, h, (size_t)token, 0, h->stride);
}

static void qkv_item(void *context, int item, int worker)
{
    (void)worker;
    struct step *st = context;
    struct clb_state *s = st->s;
    const struct colibri_model *m = s->model;
    int nq = chunks(&m->q), nk = chunks(&m->k);
    const struct clb_matrix *matrix = item < nq ? &m->q : item < nq + nk ? &m->k : &m->v;
    float *y = item < nq ? s->q : item < nq + nk ? s->k : s->v;
    int chunk = item < nq ? item : item < nq + nk ? item - nq : item - nq - nk;
    multiply(st, matrix, 0, chunk, &s->h, 0, st->n, y + chunk * CHUNK_ROWS,
             item < nq ? s->q_stride : s->kv_stride);
}

// Rotates the keys of one head and puts them and the values into the cache.
static void store_item(void *context, int head, int worker)
{
    struct step *st = context;
    struct clb_state *s = st->s;
    int dim = s->model->config.head_dim, half = dim / 2;
    for (int t = 0; t < st->n; t++) {
        float *key = s->k + (size_t)t * s->kv_stride + (size_t)head * (size_t)dim;
        const float *value = s->v + (size_t)t * s->kv_stride + (size_t)head * (size_t)dim;
        size_t angles = (size_t)t * (size_t)half;
        st->kernels->f32_rope_half(key, s->sines + angles, s->cosines + angles, half);
        clb_cache_put(&s->cache, st->kernels, st->layer, head, st->first_position + t, key, value,
                      s->scratch[worker]);
    }
}

// Attention of a block of tokens over one key/value head.
static void attend_item(void *context, int item, int worker)
{
    struct step *st = context;
    struct clb_state *s = st->s;
    const struct clb_config *c = &s->model->config;
    struct clb_attention *a = &s->attend[worker];
    int group = c->n_heads / c->n_kv_heads, dim = c->head_dim, half = dim / 2;
    int head = item % c->n_kv_heads, first = item / c->n_kv_heads * st->block_tokens;
    int n = st->n - first < st->block_tokens ? st->n - first : st->block_tokens;
    size_t padded = (size_t)s->cache.padded;
    for (int r = 0; r < n * group; r++) {
        int t = first + r / group, h = head * group + r % group;
        float *q = a->queries.f32 + (size_t)r * a->queries.stride;
        size_t angles = (size_t)t * (size_t)half;
        memcpy(q, s->q + (size_t)t * s->q_stride + (size_t)h * (size_t)dim,
               (size_t)dim * sizeof *q);
        st->kernels->f32_rope_half(q, s->sines + angles, s->cosines + angles, half);
        st->kernels->f32_scale(q, q, c->attention_scale, (int)padded);
        if (a->queries.q8.q)
            quantise(st, &a->queries, (size_t)r, 0, a->queries.stride);
    }
    clb_attend(a, &s->cache, st->kernels, st->layer, head, st->first_position + first, n, group,
               c->sliding_window);
    for (int r = 0; r < n * group; r++) {
        int t = first + r / group, h = head * group + r % group;
        memcpy(s->attention.f32 + (size_t)t * s->attention.stride + (size_t)h * (size_t)dim,
               a->out + (size_t)r * padded, (size_t)dim * sizeof(float));
    }
}

static void quantise_attention_item(void *context, int token, int worker)
{
    (void)worker;
    struct step *st = context;
    quantise(st, &st->s->attention, (size_t)token, 0, st->s->attention.stride);
}

static void add_rows(const struct step *st, const float *y, size_t y_stride, int chunk)
{
    struct clb_state *s = st->s;
    int row = chunk * CHUNK_ROWS, rows = s->model->config.hidden_size - row;
    if (rows > CHUNK_ROWS)
        rows = CHUNK_ROWS;
    for (int t = 0; t < st->n; t++)
        st->kernels->f32_axpy(s->x + (size_t)t * s->h.stride + row, 1.0f,
                              y + (size_t)t * y_stride + row, rows);
}

static void output_item(void *context, int chunk, int worker)
{
    (void)worker;
    struct step *st = context;
    struct clb_state *s = st->s;
    multiply(st, &s->model->o, 0, chunk, &s->attention, 0, st->n, s->moe + chunk * CHUNK_ROWS,
             s->h.stride);
    add_rows(st, s->moe, s->h.stride, chunk);
}

static void router_item(void *context, int chunk, int worker)
{
    (void)worker;
    struct step *st = context;
    struct clb_state *s = st->s;
    multiply(st, &s->model->router, 0, chunk, &s->h, 0, st->n,
             s->router_logits + chunk * CHUNK_ROWS, s->router_stride);
}

// Copies the normalised vector of each slot's token, so that an expert's tokens lie together.
static void gather_item(void *context, int slot, int worker)
{
    (void)worker;
    struct step *st = context;
    const struct clb_acts *h = &st->s->h, *g = &st->s->gathered;
    size_t to = (size_t)slot * g->stride, from = (size_t)st->s->routes.token[slot] * h->stride;
    memcpy(g->f32 + to, h->f32 + from, h->stride * sizeof *h->f32);
    if (!h->q8.q)
        return;
    size_t blocks = h->stride / CLB_BLOCK;
    memcpy(g->q8.q + to, h->q8.q + from, h->stride);
    memcpy(g->q8.scale + to / CLB_BLOCK, h->q8.scale + from / CLB_BLOCK,
           blocks * sizeof *h->q8.scale);
    memcpy(g->q8.sum + to / CLB_BLOCK, h->q8.sum + from / CLB_BLOCK, blocks * sizeof *h->q8.sum);
}

// Gate, up and their product for 64 rows of one expert, quantised where down wants it.
static void expand_item(void *context, int item, int worker)
{
    (void)worker;
    struct step *st = context;
    struct clb_state *s = st->s;
    const struct colibri_model *m = s->model;
    int per_expert = chunks(&m->gate), i = item / per_expert, chunk = item % per_expert;
    int expert = s->routes.active[i], first = s->routes.first[i];
    int n = s->routes.first[i + 1] - first;
    size_t stride = s->gate.stride, row = (size_t)chunk * CHUNK_ROWS;
    size_t at = (size_t)first * stride + row;
    multiply(st, &m->gate, expert, chunk, &s->gathered, first, n, s->gate.f32 + at, stride);
    multiply(st, &m->up, expert, chunk, &s->gathered, first, n, s->up + at, stride);
    // the stride is a multiple of CHUNK_ROWS; what lies beyond ffn_size is 0 and stays so
    for (int slot = first; slot < first + n; slot++, at += stride) {
        st->kernels->f32_silu_mul(s->gate.f32 + at, s->gate.f32 + at, s->up + at, CHUNK_ROWS);
        if (s->gate.q8.q)
            quantise(st, &s->gate, (size_t)slot, row, CHUNK_ROWS);
    }
}

// Rows of down for all experts, in ascending order: each token's sum is in that order.
static void contract_item(void *context, int chunk, int worker)
{
    struct step *st = context;
    struct clb_state *s = st->s;
    const struct clb_routes *r = &s->routes;
    const size_t row = (size_t)chunk * CHUNK_ROWS;
    float *out = s->scratch[worker];
    for (int t = 0; t < st->n; t++)
        memset(s->moe + (size_t)t * s->h.stride + row, 0, CHUNK_ROWS * sizeof *s->moe);
    for (int i = 0; i < r->n_active; i++) {
        int first = r->first[i], n = r->first[i + 1] - first;
        multiply(st, &s->model->down, r->active[i], chunk, &s->gate, first, n, out, CHUNK_ROWS);
        for (int j = 0; j < n; j++)
            st->kernels->f32_axpy(s->moe + (size_t)r->token[first + j] * s->h.stride + row,
                                  r->weight[first + j], out + (size_t)j * CHUNK_ROWS, CHUNK_ROWS);
    }
    add_rows(st, s->moe, s->h.stride, chunk);
}

static void logits_item(void *context, int chunk, int worker)
{
    (void)worker;
    struct step *st = context;
    struct clb_state *s = st->s;
    multiply(st, &s->model->lm_head, 0, chunk, &s->h, st->logits_from, st->n - st->logits_from,
             s->logits + chunk * CHUNK_ROWS, s->logits_stride);
}

static void attention_block(struct step *st)
{
    struct clb_state *s = st->s;
    const struct colibri_model *m = s->model;
    const struct clb_config *c = &m->config;
    st->norm = clb_vector_item(&m->attention_norm, st->layer);
    clb_pool_run(s->pool, st->n, norm_item, st);
    clb_pool_run(s->pool, chunks(&m->q) + chunks(&m->k) + chunks(&m->v), qkv_item, st);
    clb_pool_run(s->pool, c->n_kv_heads, store_item, st);
    int blocks = (st->n + st->block_tokens - 1) / st->block_tokens;
    clb_pool_run(s->pool, c->n_kv_heads * blocks, attend_item, st);
    if (s->attention.q8.q)
        clb_pool_run(s->pool, st->n, quantise_attention_item, st);
    clb_pool_run(s->pool, chunks(&m->o), output_item, st);
}

// One line for each token: "routing: token 0 -> expert_3 (0.62), expert_5 (0.38)".
static void log_routes(const struct step *st, int top_k)
{
#if CLB_DEBUG
    const struct clb_routes *r = &st->s->routes;
    CLB_LOG("layer %d: positions %d to %d", st->layer, st->first_position,
            st->first_position + st->n - 1);
    for (int t = 0; t < st->n; t++) {
        char line[32 * CLB_MAX_TOP_K] = "";
        for (int i = t * top_k, n = 0; i < (t + 1) * top_k; i++)
            n += snprintf(line + n, sizeof line - (size_t)n, "%s expert_%d (%.2f)",
                          i > t * top_k ? "," : "", r->chosen[i], (double)r->chosen_weight[i]);
        CLB_LOG("routing: token %d ->%s", st->first_position + t, line);
    }
#else
    (void)st;
    (void)top_k;
#endif
}

// A router that has collapsed still gives a result, and a plausible one.
static void warn_of_collapse(struct step *st)
{
    struct clb_state *s = st->s;
    const struct clb_config *c = &s->model->config;
    if (!s->options->on_warning || s->warned || st->n < COLLAPSE_TOKENS || c->n_experts <= c->top_k)
        return;
    int expert = clb_router_common(&s->routes, st->n, c->top_k);
    if (expert < 0)
        return;
    s->warned = true;
    char message[400];
    snprintf(message, sizeof message,
             "the router of layer %d: all %d tokens of a batch went to expert %d; likely causes: "
             "the text repeats one token, the router's weights are damaged (check with --verify) "
             "or were converted from a wrong tensor, or the checkpoint's router has collapsed",
             st->layer, st->n, expert);
    s->options->on_warning(s->user, message);
}

static int report_routes(const struct step *st, colibri_error *error)
{
    const struct clb_state *s = st->s;
    int top_k = s->model->config.top_k;
    for (int t = 0; s->options->on_route && t < st->n; t++) {
        colibri_route route = {
            .layer = st->layer,
            .position = st->first_position + t,
            .token = st->tokens[t],
            .n_experts = top_k,
            .experts = s->routes.chosen + t * top_k,
            .weights = s->routes.chosen_weight + t * top_k,
        };
        if (s->options->on_route(s->user, &route))
            return clb_error(error, COLIBRI_ERROR_STOPPED, "stopped at position %d of layer %d",
                             route.position, st->layer);
    }
    return 0;
}

// Chooses the experts of each token. A dense FFN is one expert of weight 1 for all.
static int route(struct step *st, colibri_error *error)
{
    struct clb_state *s = st->s;
    const struct clb_config *c = &s->model->config;
    struct clb_routes *r = &s->routes;
    int top_k = c->top_k ? c->top_k : 1;
    if (!c->n_experts) {
        for (int t = 0; t < st->n; t++) {
            r->chosen[t] = 0;
            r->chosen_weight[t] = 1.0f;
        }
        clb_router_group(r, st->n, 1, 1);
        return 0;
    }
    clb_pool_run(s->pool, chunks(&s->model->router), router_item, st);
    for (int t = 0; t < st->n; t++) {
        int32_t *chosen = r->chosen + t * top_k;
        float *weight = r->chosen_weight + t * top_k;
        if (!clb_router_choose(st->kernels, s->router_logits + (size_t)t * s->router_stride,
                               c->n_experts, top_k, chosen, weight))
            return clb_error(error, COLIBRI_ERROR_NUMERIC,
                             "NaN or Inf in the router of layer %d at position %d: the weights "
                             "are damaged or overflow; check the model with --verify%s",
                             st->layer, st->first_position + t,
                             s->cache.type != COLIBRI_KV_F32 ? ", or try --kv f32" : "");
    }
    clb_router_group(r, st->n, c->n_experts, top_k);
    log_routes(st, top_k);
    warn_of_collapse(st);
    return report_routes(st, error);
}

static int expert_block(struct step *st, colibri_error *error)
{
    struct clb_state *s = st->s;
    const struct colibri_model *m = s->model;
    st->norm = clb_vector_item(&m->ffn_norm, st->layer);
    clb_pool_run(s->pool, st->n, norm_item, st);
    int rc = route(st, error);
    if (rc)
        return rc;
    clb_pool_run(s->pool, s->routes.n_slots, gather_item, st);
    clb_pool_run(s->pool, s->routes.n_active * chunks(&m->gate), expand_item, st);
    clb_pool_run(s->pool, chunks(&m->down), contract_item, st);
    return 0;
}

int clb_forward(struct clb_state *s, const int32_t *tokens, int n, int first_position,
                int n_logits, colibri_error *error)
{
    const struct colibri_model *m = s->model;
    const struct clb_config *c = &m->config;
    int group = c->n_heads / c->n_kv_heads, half = c->head_dim / 2;
    struct step st = {
        .s = s,
        .kernels = &m->kernels,
        .n = n,
        .first_position = first_position,
        .tokens = tokens,
        .block_tokens = group < CLB_BLOCK_ROWS ? CLB_BLOCK_ROWS / group : 1,
    };
    clb_pool_run(s->pool, n, embed_item, &st);
    for (int t = 0; t < n; t++)
        clb_rope_angles(s->sines + (size_t)t * (size_t)half, s->cosines + (size_t)t * (size_t)half,
                        clb_vector_item(&m->rope, 0), half, first_position + t, c->rope_scale);
    for (st.layer = 0; st.layer < c->n_layers; st.layer++) {
        attention_block(&st);
        int rc = expert_block(&st, error);
        if (rc)
            return rc;
    }
    if (!n_logits)
        return 0;
    st.layer = 0;
    st.logits_from = n - n_logits;
    st.norm = clb_vector_item(&m->final_norm, 0);
    clb_pool_run(s->pool, n, norm_item, &st);
    clb_pool_run(s->pool, chunks(&m->lm_head), logits_item, &st);
    return 0;
}
