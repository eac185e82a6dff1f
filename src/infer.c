// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "infer.h"

#include "sampler.h"
#include "transformer.h"
#include "usage.h"

enum { DEFAULT_BATCH = 32, MAX_BATCH = 4096, MAX_THREADS = 1024 };

struct call {
    const struct colibri_model *m;
    const colibri_infer_options *o;
    colibri_step_fn on_step;
    void *user;
    colibri_error *error;
    struct clb_state state;
    struct clb_sampler sampler;
};

static int check_input(const struct colibri_model *m, const colibri_infer_options *o,
                       const int32_t *tokens, size_t n_tokens, colibri_error *error)
{
    const struct clb_config *c = &m->config;
    if (!n_tokens)
        return clb_error(error, COLIBRI_ERROR_INPUT,
                         "the prompt has no tokens; give at least one, for instance the BOS id");
    if (o->n_tokens < 0)
        return clb_error(error, COLIBRI_ERROR_USAGE, "%d tokens cannot be generated", o->n_tokens);
    if (o->batch < 0 || o->batch > MAX_BATCH)
        return clb_error(error, COLIBRI_ERROR_USAGE, "the batch is %d, expected 1 to %d", o->batch,
                         MAX_BATCH);
    if (o->threads < 0 || o->threads > MAX_THREADS)
        return clb_error(error, COLIBRI_ERROR_USAGE, "%d threads, expected 1 to %d", o->threads,
                         MAX_THREADS);
    if (!(o->temperature >= 0 && o->temperature <= 100) || !(o->top_p >= 0 && o->top_p <= 1) ||
        o->top_k < 0)
        return clb_error(error, COLIBRI_ERROR_USAGE,
                         "temperature %g, top_k %d, top_p %g: expected 0 to 100, 0 or more, 0 to 1",
                         (double)o->temperature, o->top_k, (double)o->top_p);
    if ((unsigned)o->kv > COLIBRI_KV_Q8)
        return clb_error(error, COLIBRI_ERROR_USAGE, "%d is no type of the key/value cache",
                         (int)o->kv);
    if (n_tokens > (size_t)c->max_positions || o->n_tokens > c->max_positions - (int)n_tokens)
        return clb_error(error, COLIBRI_ERROR_INPUT,
                         "%zu prompt tokens and %d new ones are more than the %d positions of the "
                         "model; shorten the prompt or ask for fewer",
                         n_tokens, o->n_tokens, c->max_positions);
    for (size_t i = 0; i < n_tokens; i++)
        if (tokens[i] < 0 || tokens[i] >= c->vocab_size)
            return clb_error(error, COLIBRI_ERROR_INPUT,
                             "token %zu of the prompt is %d; the model has the ids 0 to %d", i,
                             tokens[i], c->vocab_size - 1);
    return 0;
}

static bool is_eos(const struct call *c, int32_t token)
{
    bool eos = false;
    for (int i = 0; i < c->m->config.n_eos; i++)
        eos |= c->m->config.eos_ids[i] == token;
    return eos && !c->o->ignore_eos;
}

// clb_forward, with what it computed from known to be there.
static int feed(struct call *c, const int32_t *tokens, int n, int position, int n_logits)
{
    int rc = clb_forward(&c->state, tokens, n, position, n_logits, c->error);
    int lost = clb_model_check(c->m, c->error);
    return lost ? lost : rc;
}

// Reports one row of logits; *token is the one chosen from them.
static int report(struct call *c, int row, int position, bool choose, bool prompt, int32_t *token)
{
    colibri_step step = {
        .logits = c->state.logits + (size_t)row * c->state.logits_stride,
        .vocab_size = c->m->config.vocab_size,
        .position = position,
        .token = -1,
        .prompt = prompt,
    };
    *token = clb_sampler_choose(&c->sampler, step.logits, step.vocab_size, position);
    if (*token < 0)
        return clb_error(c->error, COLIBRI_ERROR_NUMERIC,
                         "NaN or Inf in the logits at position %d: the weights are damaged or "
                         "overflow; check the model with --verify%s",
                         position,
                         c->state.cache.type != COLIBRI_KV_F32 ? ", or try --kv f32" : "");
    if (choose) {
        step.token = *token;
        step.eos = is_eos(c, *token);
    }
    if (c->on_step && c->on_step(c->user, &step))
        return clb_error(c->error, COLIBRI_ERROR_STOPPED, "stopped at position %d", position);
    return 0;
}

// Feeds the prompt; *token is the first one chosen, if one is asked for.
static int prefill(struct call *c, const int32_t *tokens, int n, int32_t *token)
{
    for (int at = 0; at < n;) {
        int batch = n - at < c->state.batch ? n - at : c->state.batch;
        bool last = at + batch == n;
        int rows = c->o->every_logit ? batch : last;
        int rc = feed(c, tokens + at, batch, at, rows);
        for (int r = 0; !rc && r < rows; r++) {
            int position = at + batch - rows + r;
            bool end = position == n - 1;
            rc = report(c, r, position, end && c->o->n_tokens > 0, !end, token);
        }
        if (rc)
            return rc;
        at += batch;
    }
    return 0;
}

// Feeds the chosen token and chooses the next. *generated does not count an end-of-sequence.
static int decode(struct call *c, int32_t token, int position, int32_t *generated)
{
    int32_t wanted = c->o->n_tokens;
    for (*generated = 0; *generated < wanted && !is_eos(c, token); position++) {
        bool last = ++*generated == wanted;
        if (last && !c->o->feed_last)
            break;
        int rc = feed(c, &token, 1, position, 1);
        if (!rc)
            rc = report(c, 0, position, !last, false, &token);
        if (rc)
            return rc;
    }
    return 0;
}

int clb_infer(const struct colibri_model *m, const colibri_infer_options *o, const int32_t *tokens,
              size_t n_tokens, colibri_step_fn on_step, void *user, colibri_stats *stats,
              colibri_error *error)
{
    struct call c = {.m = m, .o = o, .on_step = on_step, .user = user, .error = error};
    if (stats)
        *stats = (colibri_stats){0};
    int rc = check_input(m, o, tokens, n_tokens, error);
    if (rc)
        return rc;
    colibri_kv kv = o->kv;
    if (kv == COLIBRI_KV_AUTO)
        kv = m->quantised ? COLIBRI_KV_F16 : COLIBRI_KV_F32;
    int n = (int)n_tokens, batch = o->batch ? o->batch : DEFAULT_BATCH;
    rc = clb_state_create(&c.state, m, batch < n ? batch : n, o->threads ? o->threads : 1,
                          n + o->n_tokens, o->every_logit, kv, error);
    c.state.options = o;
    c.sampler = (struct clb_sampler){.kernels = &m->kernels,
                                     .temperature = o->temperature,
                                     .top_k = o->top_k,
                                     .top_p = o->top_p,
                                     .seed = o->seed};
    if (!rc && !clb_sampler_create(&c.sampler, m->config.vocab_size))
        rc = clb_error(error, COLIBRI_ERROR_MEMORY, "no memory to choose among %d tokens",
                       m->config.vocab_size);
    c.state.user = user;
    int32_t token = -1, generated = 0;
    double start = clb_usage_seconds(), prefilled = start;
    if (!rc)
        rc = prefill(&c, tokens, n, &token);
    prefilled = clb_usage_seconds();
    if (!rc)
        rc = decode(&c, token, n, &generated);
    if (stats)
        *stats = (colibri_stats){
            .prompt_tokens = n,
            .generated_tokens = generated,
            .prefill_seconds = prefilled - start,
            .decode_seconds = clb_usage_seconds() - prefilled,
            .kv_bytes = c.state.cache.size,
            .kv = kv,
        };
    clb_sampler_free(&c.sampler);
    clb_state_free(&c.state);
    return rc;
}
