// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "experts.h"

#include "log.h"
#include "print.h"

// Fewer tokens go to one expert by chance.
enum { COLLAPSE_TOKENS = 8 };

static void router_span(void *context, int tile, int tiles, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    clb_step_multiply_tiles(st, worker, &s->model->router, st->routed_layer, 0, tile, tiles, &s->h,
                            0, st->n, s->router_logits + tile * CLB_TILE_ROWS, s->router_stride);
}

static void shared_router_item(void *context, int item, int worker)
{
    (void)item;
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    clb_step_multiply(st, worker, &s->model->shared_router, st->routed_layer, 0, 0, &s->h, 0, st->n,
                      s->shared_logits, CLB_TILE_ROWS);
}

// Copies the normalised vector of each slot's token, so that an expert's tokens lie together.
static void gather_item(void *context, int slot, int worker)
{
    (void)worker;
    struct clb_step *st = context;
    const struct clb_acts *h = &st->s->h, *g = &st->s->gathered;
    size_t to = (size_t)slot * g->stride, from = (size_t)st->s->routes.token[slot] * h->stride;
    const struct clb_ffn *f = st->ffn;
    if (!clb_is_quantised(f->up.dtype) || (f->gate.data && !clb_is_quantised(f->gate.dtype)))
        memcpy(g->f32 + to, h->f32 + from, h->stride * sizeof *h->f32);
    if (!h->q8.q)
        return;
    size_t blocks = h->stride / CLB_BLOCK;
    memcpy(g->q8.q + to, h->q8.q + from, h->stride);
    memcpy(g->q8.scale + to / CLB_BLOCK, h->q8.scale + from / CLB_BLOCK,
           blocks * sizeof *h->q8.scale);
    memcpy(g->q8.sum + to / CLB_BLOCK, h->q8.sum + from / CLB_BLOCK, blocks * sizeof *h->q8.sum);
}

// gate (n) = activation(gate) * up, or activation(up) where there is no gate; n a multiple of 16.
static void activate(const struct clb_step *st, float *gate, float *up, int n)
{
    const struct clb_config *c = &st->s->model->config;
    const struct clb_kernels *k = st->kernels;
    if (c->activation == CLB_GELU || c->activation == CLB_GELU_TANH) {
        bool gated = st->ffn->gate.data;
        (c->activation == CLB_GELU ? k->f32_gelu : k->f32_gelu_tanh)(gate, gated ? gate : up, n);
        if (gated)
            k->f32_mul(gate, gate, up, n);
        return;
    }
    const float limit = c->activation_limit;
    for (int i = 0; i < n && c->activation == CLB_SWIGLU_OAI; i++) {
        float g = gate[i] > limit ? limit : gate[i], u = up[i] < 0 - limit ? 0 - limit : up[i];
        gate[i] = g * 1.702f;
        up[i] = ((u > limit ? limit : u) + 1) * (1 / 1.702f);
    }
    k->f32_silu_mul(gate, gate, up, n);
}

// Chunks, of n, that are multiplied together. The memory is slow where a product begins, so that
// those of one token are long; the results of more tokens would leave the first cache.
static int span_of(const struct clb_step *st, int n)
{
    const int most = st->n > 1 ? 1 : CLB_SPAN;
    return n < most ? n : most;
}

// Gate, up and their product for some chunks of expert i, quantised where down wants it.
static void expand_chunks(struct clb_step *st, int i, int chunk, int chunks, int worker)
{
    struct clb_state *s = st->s;
    const struct clb_ffn *f = st->ffn;
    int expert = s->routes.active[i], first = s->routes.first[i];
    int n = s->routes.first[i + 1] - first;
    int tile = chunk * CLB_CHUNK_TILES, tiles = chunks * CLB_CHUNK_TILES;
    int rows = clb_tile_rows(f->size, tile, tiles);
    // one token's vector need not be gathered
    const struct clb_acts *x = st->n > 1 ? &s->gathered : &s->h;
    const int from = st->n > 1 ? first : 0;
    size_t stride = s->gate.stride, row = (size_t)chunk * CLB_CHUNK_ROWS;
    size_t at = (size_t)first * stride + row, width = (size_t)chunks * CLB_CHUNK_ROWS;
    float *up = s->scratch[worker]; // (n, width)
    if (f->gate.data)
        clb_step_multiply_tiles(st, worker, &f->gate, st->ffn_layer, expert, tile, tiles, x, from,
                                n, s->gate.f32 + at, stride);
    clb_step_multiply_tiles(st, worker, &f->up, st->ffn_layer, expert, tile, tiles, x, from, n, up,
                            width);
    for (int slot = first; slot < first + n; slot++, at += stride, up += width) {
        // an FFN of another size may have left something there
        memset(s->gate.f32 + at + rows, 0, (width - (size_t)rows) * sizeof *up);
        memset(up + rows, 0, (width - (size_t)rows) * sizeof *up);
        activate(st, s->gate.f32 + at, up, (int)width);
        clb_step_quantise(st, worker, &s->gate, (size_t)slot, row, width);
    }
}

static void expand_span(void *context, int item, int n, int worker)
{
    struct clb_step *st = context;
    const int per_expert = clb_chunks(&st->ffn->up);
    for (int end = item + n, chunks; item < end; item += chunks) {
        const int chunk = item % per_expert, left = per_expert - chunk;
        chunks = span_of(st, end - item < left ? end - item : left);
        expand_chunks(st, item / per_expert, chunk, chunks, worker);
    }
}

// What the experts gave, where the shared one takes a part of it.
static void scale_routed(const struct clb_step *st, size_t row, int n)
{
    struct clb_state *s = st->s;
    if (s->model->shared_router.rows != 2)
        return;
    for (int t = 0; t < st->n; t++) {
        float *sum = s->moe + (size_t)t * s->h.stride + row;
        st->kernels->f32_scale(sum, sum, s->routed_weight[t], n);
    }
}

// Rows of down for all experts, in ascending order: each token's sum is in that order.
static void contract_chunks(struct clb_step *st, int chunk, int chunks, int worker)
{
    struct clb_state *s = st->s;
    const struct clb_routes *r = &s->routes;
    const size_t row = (size_t)chunk * CLB_CHUNK_ROWS, width = (size_t)chunks * CLB_CHUNK_ROWS;
    float *out = s->scratch[worker]; // (n, width)
    if (st->adds_up)
        scale_routed(st, row, (int)width);
    for (int t = 0; t < st->n && !st->adds_up; t++)
        memset(s->moe + (size_t)t * s->h.stride + row, 0, width * sizeof *s->moe);
    for (int i = 0; i < r->n_active; i++) {
        int first = r->first[i], n = r->first[i + 1] - first;
        clb_step_multiply_tiles(st, worker, &st->ffn->down, st->ffn_layer, r->active[i],
                                chunk * CLB_CHUNK_TILES, chunks * CLB_CHUNK_TILES, &s->gate, first,
                                n, out, width);
        for (int j = 0; j < n; j++)
            st->kernels->f32_axpy(s->moe + (size_t)r->token[first + j] * s->h.stride + row,
                                  r->weight[first + j], out + (size_t)j * width, (int)width);
    }
    for (int end = chunk + chunks; st->is_last && chunk < end; chunk++)
        clb_step_add(st, s->moe, chunk);
}

static void contract_span(void *context, int chunk, int n, int worker)
{
    struct clb_step *st = context;
    for (int end = chunk + n, chunks; chunk < end; chunk += chunks) {
        chunks = span_of(st, end - chunk);
        contract_chunks(st, chunk, chunks, worker);
    }
}

// Runs st->ffn over the slots.
static void run_ffn(struct clb_step *st)
{
    struct clb_state *s = st->s;
    if (st->n > 1)
        clb_step_run(st, CLB_OTHER, s->routes.n_slots, gather_item);
    clb_step_run_spans(st, CLB_GATE_UP, s->routes.n_active * clb_chunks(&st->ffn->up), expand_span);
    clb_step_run_spans(st, CLB_DOWN, clb_chunks(&st->ffn->down), contract_span);
}

// Runs an FFN that all tokens go to, with s->shared_weight.
static void run_whole_ffn(struct clb_step *st, const struct clb_ffn *ffn, int layer)
{
    st->ffn = ffn;
    st->ffn_layer = layer;
    st->is_last = true;
    clb_router_all(&st->s->routes, st->n, st->s->shared_weight);
    run_ffn(st);
}

// One line for each token: "routing: token 0 -> expert_3 (0.62), expert_5 (0.38)".
static void log_routes(const struct clb_step *st, int top_k)
{
#if CLB_DEBUG
    const struct clb_routes *r = &st->s->routes;
    CLB_LOG("layer %d: positions %d to %d", st->layer, st->first_position,
            st->first_position + st->n - 1);
    for (int t = 0; t < st->n; t++) {
        char line[32 * CLB_MAX_TOP_K] = "";
        for (int i = t * top_k, n = 0; i < (t + 1) * top_k && n < (int)sizeof line; i++)
            n += clb_format(line + n, sizeof line - (size_t)n, "%s expert_%d (%.2f)",
                            i > t * top_k ? "," : "", r->chosen[i], (double)r->chosen_weight[i]);
        CLB_LOG("routing: token %d ->%s", st->first_position + t, line);
    }
#else
    (void)st;
    (void)top_k;
#endif
}

// A router that has collapsed still gives a result, and a plausible one.
static void warn_of_collapse(struct clb_step *st)
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
    clb_format(message, sizeof message,
               "the router of layer %d: all %d tokens of a batch went to expert %d; likely causes: "
               "the text repeats one token, the router's weights are damaged (check with --verify) "
               "or were converted from a wrong tensor, or the checkpoint's router has collapsed",
               st->layer, st->n, expert);
    s->options->on_warning(s->user, message);
}

static int report_routes(const struct clb_step *st, colibri_error *error)
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

// Chooses the experts of each token.
static int route(struct clb_step *st, colibri_error *error)
{
    struct clb_state *s = st->s;
    const struct colibri_model *m = s->model;
    const struct clb_config *c = &m->config;
    struct clb_routes *r = &s->routes;
    clb_step_run_spans(st, CLB_ROUTER, m->router.n_tiles, router_span);
    for (int t = 0; t < st->n; t++) {
        const float *correction = m->router_correction.data
                                      ? clb_vector_item(&m->router_correction, st->routed_layer, 0)
                                      : NULL;
        if (!clb_router_choose(st->kernels, c, s->router_logits + (size_t)t * s->router_stride,
                               correction, r->chosen + t * c->top_k,
                               r->chosen_weight + t * c->top_k))
            return clb_error(error, COLIBRI_ERROR_NUMERIC,
                             "NaN or Inf in the router of layer %d at position %d: the weights "
                             "are damaged or overflow; check the model with --verify%s",
                             st->layer, st->first_position + t,
                             s->cache.type != COLIBRI_KV_F32 ? ", or try --kv f32" : "");
    }
    clb_router_group(r, st->n, c->n_experts, c->top_k);
    log_routes(st, c->top_k);
    warn_of_collapse(st);
    return report_routes(st, error);
}

// How much of the shared expert each token gets, and how much of the others.
static void weigh_shared(struct clb_step *st)
{
    struct clb_state *s = st->s;
    const struct clb_matrix *m = &s->model->shared_router;
    float z[CLB_TILE_ROWS] = {0};
    if (m->data)
        clb_step_run(st, CLB_ROUTER, 1, shared_router_item);
    for (int t = 0; t < st->n; t++) {
        const float *logits = s->shared_logits + (size_t)t * CLB_TILE_ROWS;
        s->shared_weight[t] = 1;
        if (m->data && m->rows == 1) {
            z[0] = 0 - logits[0];
            st->kernels->f32_exp(z, z, CLB_TILE_ROWS);
            s->shared_weight[t] = 1 / (1 + z[0]);
        } else if (m->data) {
            float max = logits[0] > logits[1] ? logits[0] : logits[1];
            z[0] = logits[0] - max;
            z[1] = logits[1] - max;
            st->kernels->f32_exp(z, z, CLB_TILE_ROWS);
            s->shared_weight[t] = z[0] / (z[0] + z[1]);
            s->routed_weight[t] = z[1] / (z[0] + z[1]);
        }
    }
}

int clb_experts_run(struct clb_step *st, colibri_error *error)
{
    struct clb_state *s = st->s;
    const struct colibri_model *m = s->model;
    const struct clb_config *c = &m->config;
    bool dense = clb_layers_have(&c->dense_layers, st->layer);
    st->norm = &m->ffn_norm;
    st->norm_layer = st->layer;
    st->adds_up = false;
    clb_step_normalise(st);
    if (dense || !c->n_experts) {
        for (int t = 0; t < st->n; t++)
            s->shared_weight[t] = 1;
        run_whole_ffn(st, dense ? &m->dense : &m->experts, dense ? st->dense_layer++ : st->layer);
        return 0;
    }
    int rc = route(st, error);
    if (rc)
        return rc;
    st->ffn = &m->experts;
    st->ffn_layer = st->routed_layer;
    st->is_last = !c->shared_ffn_size;
    run_ffn(st);
    if (c->shared_ffn_size) {
        weigh_shared(st);
        st->adds_up = true;
        run_whole_ffn(st, &m->shared, st->routed_layer);
    }
    st->routed_layer++;
    return 0;
}
