// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "state.h"

#include "layout.h"
#include "log.h"

#include <sys/mman.h>

enum { SLACK = 64 };

// Hands out pieces of one block. The first pass, with base NULL, only counts.
struct arena {
    uint8_t *base;
    size_t used;
};

static void *take(struct arena *a, size_t count, size_t bytes)
{
    void *p = a->base ? a->base + a->used : NULL;
    a->used += (size_t)clb_round_up(count * bytes, CLB_ALIGN);
    return p;
}

static float *take_floats(struct arena *a, size_t count)
{
    return take(a, count + SLACK, sizeof(float));
}

static struct clb_acts take_acts(struct arena *a, size_t n, int cols, bool quantised)
{
    struct clb_acts acts = {.stride = (size_t)clb_round_up((uint64_t)cols, CLB_TILE_COLS)};
    acts.f32 = take_floats(a, n * acts.stride);
    if (quantised) {
        size_t blocks = n * acts.stride / CLB_BLOCK;
        acts.q8.stride = acts.stride;
        acts.q8.q = take(a, n * acts.stride, 1);
        acts.q8.scale = take(a, blocks, sizeof *acts.q8.scale);
        acts.q8.sum = take(a, blocks, sizeof *acts.q8.sum);
    }
    return acts;
}

static void take_routes(struct arena *a, struct clb_routes *r, size_t slots, size_t experts)
{
    r->active = take(a, experts, sizeof *r->active);
    r->first = take(a, experts + 1, sizeof *r->first);
    r->token = take(a, slots, sizeof *r->token);
    r->weight = take(a, slots, sizeof *r->weight);
    r->chosen = take(a, slots, sizeof *r->chosen);
    r->chosen_weight = take(a, slots, sizeof *r->chosen_weight);
}

static void take_attention(struct arena *a, struct clb_attention *w, size_t rows, int key_dim,
                           int value_dim, bool q8)
{
    size_t padded = (size_t)clb_round_up((uint64_t)value_dim, CLB_TILE_ROWS);
    size_t padded_rows = (size_t)clb_round_up(rows, 16);
    w->queries = take_acts(a, rows, key_dim, q8);
    w->scores = take_floats(a, rows * CLB_CHUNK);
    w->scaled = q8 ? take_floats(a, rows * CLB_CHUNK) : NULL;
    w->part = take_floats(a, rows * padded);
    w->out = take_floats(a, rows * padded);
    float **per_row[] = {&w->max,        &w->sum,       &w->old_factor,
                         &w->new_factor, &w->chunk_max, &w->chunk_sum};
    for (size_t i = 0; i < sizeof per_row / sizeof *per_row; i++)
        *per_row[i] = take_floats(a, padded_rows);
}

static void take_latent(struct arena *a, struct clb_state *s, size_t n)
{
    const struct colibri_model *m = s->model;
    const struct clb_config *c = &m->config;
    size_t rows = (size_t)c->n_heads * n;
    if (c->q_rank)
        s->q_latent = take_acts(a, n, c->q_rank, clb_is_quantised(m->q.dtype));
    s->kv_latent_stride = (size_t)clb_round_up((uint64_t)m->kv_a.rows, CLB_TILE_COLS);
    s->kv_latent = take_floats(a, n * s->kv_latent_stride);
    s->plain = take_acts(a, rows, c->head_dim - c->rope_dim, clb_is_quantised(m->k_b.dtype));
    s->mixed = take_acts(a, rows, c->kv_rank, clb_is_quantised(m->v_b.dtype));
    s->absorbed = take_floats(a, rows * s->mixed.stride);
}

static int largest_ffn(const struct colibri_model *m)
{
    int size = m->experts.size > m->dense.size ? m->experts.size : m->dense.size;
    return size > m->shared.size ? size : m->shared.size;
}

// What grows with the positions, about a hundredth of the cache, is last, and comes when it is
// used.
static void take_parts(struct arena *a, struct clb_state *s, int n_positions, colibri_kv kv)
{
    const int heads = s->model->config.n_heads;
    size_t rows = ((size_t)n_positions / CLB_CHUNK + 1) * (size_t)heads;
    s->queries = take_acts(a, (size_t)heads, s->key_dim, kv == COLIBRI_KV_Q8);
    s->parts.n_heads = heads;
    s->parts.max = take_floats(a, rows);
    s->parts.sum = take_floats(a, rows);
    s->fixed_bytes = a->used;
    s->parts.out =
        take_floats(a, rows * (size_t)clb_round_up((uint64_t)s->value_dim, CLB_TILE_ROWS));
}

static void take_all(struct arena *a, struct clb_state *s, int threads, int n_positions,
                     colibri_kv kv)
{
    const struct colibri_model *m = s->model;
    const struct clb_config *c = &m->config;
    size_t n = (size_t)s->batch, experts = c->n_experts ? (size_t)c->n_experts : 1;
    size_t slots = n * (c->top_k ? (size_t)c->top_k : 1);
    s->q_stride = (size_t)clb_round_up((uint64_t)m->q.rows, CLB_TILE_COLS);
    s->kv_stride = (size_t)clb_round_up((uint64_t)m->k.rows, CLB_TILE_COLS);
    s->router_stride = (size_t)clb_round_up(experts, CLB_TILE_ROWS);
    s->logits_stride = (size_t)clb_round_up((uint64_t)c->vocab_size, CLB_TILE_ROWS);

    s->h = take_acts(a, n, c->hidden_size, m->quantised);
    s->x = take_floats(a, n * s->h.stride);
    s->q = take_floats(a, n * s->q_stride);
    s->k = take_floats(a, n * s->kv_stride);
    s->v = take_floats(a, n * s->kv_stride);
    s->attention = take_acts(a, n, m->o.cols, clb_is_quantised(m->o.dtype));
    s->sines = take_floats(a, n * (size_t)c->rope_dim / 2);
    s->cosines = take_floats(a, n * (size_t)c->rope_dim / 2);
    s->router_logits = take_floats(a, n * s->router_stride);
    take_routes(a, &s->routes, slots, experts);
    s->gathered = take_acts(a, slots, c->hidden_size, m->quantised);
    s->gate = take_acts(a, slots, largest_ffn(m), m->quantised);
    s->moe = take_floats(a, n * s->h.stride);
    s->shared_logits = take_floats(a, n * CLB_TILE_ROWS);
    s->shared_weight = take_floats(a, n);
    s->routed_weight = take_floats(a, n);
    s->logits = take_floats(a, (size_t)s->logit_rows * s->logits_stride);
    if (c->kv_rank)
        take_latent(a, s, n);

    s->clocks = s->options->profile ? take(a, (size_t)threads, sizeof *s->clocks) : NULL;
    s->attend = take(a, (size_t)threads, sizeof *s->attend);
    s->scratch = take(a, (size_t)threads, sizeof *s->scratch);
    size_t key = (size_t)clb_round_up((uint64_t)s->key_dim, CLB_TILE_COLS);
    for (int i = 0; i < threads; i++) {
        struct clb_attention w;
        take_attention(a, &w, CLB_BLOCK_ROWS, s->key_dim, s->value_dim, kv == COLIBRI_KV_Q8);
        float *scratch = take_floats(a, (n > CLB_SPAN ? n : CLB_SPAN) * CLB_TILE_COLS + 2 * key);
        if (a->base) {
            s->attend[i] = w;
            s->scratch[i] = scratch;
        }
    }
    take_parts(a, s, n_positions, kv);
}

int clb_state_create(struct clb_state *s, const struct colibri_model *m,
                     const colibri_infer_options *o, int batch, int n_positions, colibri_kv kv,
                     colibri_error *error)
{
    const struct clb_config *c = &m->config;
    const int threads = o->threads ? o->threads : 1;
    memset(s, 0, sizeof *s);
    s->model = m;
    s->options = o;
    s->batch = batch;
    s->logit_rows = o->every_logit ? batch : 1;
    s->key_dim = c->kv_rank ? c->kv_rank + c->rope_dim : c->head_dim;
    s->value_dim = c->kv_rank ? c->kv_rank : c->head_dim;
    struct arena a = {0};
    take_all(&a, s, threads, n_positions, kv);
    size_t size = a.used;
    // Zeroed; what one type of weights needs no other may touch, and then it takes no memory.
    s->arena = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
    if (s->arena == MAP_FAILED) {
        s->arena = NULL;
        return clb_error(error, COLIBRI_ERROR_MEMORY,
                         "no memory for the %zu bytes of a call; try a smaller --batch", size);
    }
    s->arena_size = size;
    madvise(s->arena, size, MADV_HUGEPAGE);
    for (size_t i = 0; m->locked && i < s->fixed_bytes; i += CLB_PAGE_BYTES)
        s->arena[i] = 0;
    a = (struct arena){.base = s->arena};
    take_all(&a, s, threads, n_positions, kv);
    CLB_LOG("call: %zu bytes of buffers for batches of %d tokens, %d threads", size, batch,
            threads);
    int rc = clb_cache_create(&s->cache, c->n_layers, c->n_kv_heads, s->key_dim, s->value_dim,
                              n_positions, kv, error);
    if (!rc)
        rc = clb_pool_create(&s->pool, threads, error);
    if (!rc && o->pin)
        clb_pool_pin(s->pool);
    return rc;
}

void clb_state_take(struct clb_state *s, int position)
{
    clb_cache_take(&s->cache, position);
    const size_t rows = ((size_t)position / CLB_CHUNK + 1) * (size_t)s->parts.n_heads;
    const size_t floats = rows * (size_t)s->cache.padded;
    for (size_t i = 0; i < floats; i += CLB_PAGE_BYTES / sizeof(float))
        s->parts.out[i] = 0;
    s->parts.out[floats - 1] = 0;
}

void clb_state_free(struct clb_state *s)
{
    clb_pool_free(s->pool);
    clb_cache_free(&s->cache);
    if (s->arena)
        munmap(s->arena, s->arena_size);
    memset(s, 0, sizeof *s);
}
