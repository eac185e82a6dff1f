// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "infer.h"

#include "sampler.h"
#include "transformer.h"
#include "usage.h"

enum { DEFAULT_BATCH = 256, MAX_BATCH = 4096, MAX_THREADS = 1024 };

struct call {
    const struct colibri_model *m;
    const colibri_infer_options *o;
    colibri_step_fn on_step;
    void *user;
    colibri_error *error;
    struct clb_state state;
    colibri_profile profile;
    struct clb_sampler sampler;
    int position;    // of the next token to be fed
    int limit;       // positions of the cache
    int32_t pending; // generated, and not fed; -1: none
    colibri_stats stats;
};

static int check_options(const colibri_infer_options *o, colibri_error *error)
{
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
    return 0;
}

static int check_tokens(const struct call *c, const int32_t *tokens, size_t n_tokens)
{
    const struct clb_config *config = &c->m->config;
    int32_t wanted = c->o->on_turn ? 0 : c->o->n_tokens;
    if (!n_tokens)
        return clb_error(c->error, COLIBRI_ERROR_INPUT,
                         "the prompt has no tokens; give at least one, for instance the BOS id");
    if (n_tokens > (size_t)config->max_positions || wanted > config->max_positions - (int)n_tokens)
        return clb_error(c->error, COLIBRI_ERROR_INPUT,
                         "%zu prompt tokens and %d new ones are more than the %d positions of the "
                         "model; shorten the prompt or ask for fewer",
                         n_tokens, wanted, config->max_positions);
    for (size_t i = 0; i < n_tokens; i++)
        if (tokens[i] < 0 || tokens[i] >= config->vocab_size)
            return clb_error(c->error, COLIBRI_ERROR_INPUT,
                             "token %zu of the prompt is %d; the model has the ids 0 to %d", i,
                             tokens[i], config->vocab_size - 1);
    return 0;
}

// Whether there is room for n more tokens.
static int check_room(const struct call *c, size_t n)
{
    if (n <= (size_t)(c->limit - c->position))
        return 0;
    return clb_error(c->error, COLIBRI_ERROR_INPUT,
                     "the conversation fills the %d positions of the model; begin a new one",
                     c->limit);
}

static bool is_eos(const struct call *c, int32_t token)
{
    bool eos = false;
    for (int i = 0; i < c->m->config.n_eos; i++)
        eos |= c->m->config.eos_ids[i] == token;
    for (int i = 0; i < c->o->n_stop_ids; i++)
        eos |= c->o->stop_ids[i] == token;
    return eos && !c->o->ignore_eos;
}

// clb_forward of the next n tokens, with what it computed from known to be there.
static int feed(struct call *c, const int32_t *tokens, int n, int n_logits)
{
    int rc = clb_forward(&c->state, tokens, n, c->position, n_logits, c->error);
    int lost = clb_model_check(c->m, c->error);
    c->position += n;
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

// Feeds the tokens of a turn; *token is the first one chosen, if one is asked for.
static int prefill(struct call *c, const int32_t *tokens, int n, int32_t *token)
{
    if (c->m->locked) { // the memory of all that the turn may add, before its first token
        int spare = c->limit - c->position - (c->pending >= 0) - n - c->o->n_tokens;
        clb_state_take(&c->state, c->limit - (spare > 0 ? spare : 0) - 1);
    }
    if (c->pending >= 0) {
        int rc = feed(c, &c->pending, 1, 0);
        if (rc)
            return rc;
        c->pending = -1;
    }
    c->stats.prompt_tokens += n;
    for (int at = 0; at < n;) {
        int batch = n - at < c->state.batch ? n - at : c->state.batch;
        at += batch;
        bool last = at == n;
        int rows = c->o->every_logit ? batch : last;
        int rc = feed(c, tokens + at - batch, batch, rows);
        for (int r = 0; !rc && r < rows; r++) {
            bool end = last && r == rows - 1;
            rc = report(c, r, c->position - rows + r, end && c->o->n_tokens > 0, !end, token);
        }
        if (rc)
            return rc;
    }
    return 0;
}

// Feeds the chosen token and chooses the next. What ends a turn is not counted as generated.
static int decode(struct call *c, int32_t token)
{
    for (int32_t left = c->o->n_tokens; left && !is_eos(c, token);) {
        left--;
        c->stats.generated_tokens++;
        c->pending = token;
        if (!left && !c->o->feed_last)
            break;
        int rc = check_room(c, 1);
        if (!rc)
            rc = feed(c, &token, 1, 1);
        c->pending = -1;
        if (!rc)
            rc = report(c, 0, c->position - 1, left > 0, false, &token);
        if (rc)
            return rc;
    }
    return 0;
}

static void collect(struct call *c, colibri_operation *sums)
{
    clb_clock_collect(c->state.clocks, c->o->threads ? c->o->threads : 1, sums);
}

// One turn after the other, until none follows.
static int converse(struct call *c, const int32_t *tokens, size_t n_tokens)
{
    for (;;) {
        int32_t token = -1;
        collect(c, (colibri_operation[COLIBRI_OPERATIONS]){{0}}); // from now on
        double start = clb_usage_seconds();
        int rc = prefill(c, tokens, (int)n_tokens, &token);
        double prefilled = clb_usage_seconds();
        collect(c, c->profile.prefill);
        if (!rc)
            rc = decode(c, token);
        collect(c, c->profile.decode);
        c->stats.prefill_seconds += prefilled - start;
        c->stats.decode_seconds += clb_usage_seconds() - prefilled;
        if (rc || !c->o->on_turn)
            return rc;
        n_tokens = 0;
        if (c->o->on_turn(c->user, &tokens, &n_tokens))
            return clb_error(c->error, COLIBRI_ERROR_STOPPED, "stopped at the end of a turn");
        if (!n_tokens)
            return 0;
        rc = check_tokens(c, tokens, n_tokens);
        if (!rc)
            rc = check_room(c, n_tokens + (c->pending >= 0));
        if (rc)
            return rc;
    }
}

int clb_infer(const struct colibri_model *m, const colibri_infer_options *o, const int32_t *tokens,
              size_t n_tokens, colibri_step_fn on_step, void *user, colibri_stats *stats,
              colibri_error *error)
{
    struct call c = {
        .m = m, .o = o, .on_step = on_step, .user = user, .error = error, .pending = -1};
    if (stats)
        *stats = (colibri_stats){0};
    int rc = check_options(o, error);
    if (!rc)
        rc = check_tokens(&c, tokens, n_tokens);
    if (rc)
        return rc;
    colibri_kv kv = o->kv;
    if (kv == COLIBRI_KV_AUTO)
        kv = m->quantised ? COLIBRI_KV_F16 : COLIBRI_KV_F32;
    int n = (int)n_tokens, batch = o->batch ? o->batch : DEFAULT_BATCH;
    c.limit = o->on_turn ? m->config.max_positions : n + o->n_tokens;
    rc = clb_state_create(&c.state, m, o, batch < n || o->on_turn ? batch : n, c.limit, kv, error);
    c.sampler = (struct clb_sampler){.kernels = &m->kernels,
                                     .temperature = o->temperature,
                                     .top_k = o->top_k,
                                     .top_p = o->top_p,
                                     .seed = o->seed};
    if (!rc && !clb_sampler_create(&c.sampler, m->config.vocab_size))
        rc = clb_error(error, COLIBRI_ERROR_MEMORY, "no memory to choose among %d tokens",
                       m->config.vocab_size);
    c.state.user = user;
    if (!rc)
        rc = converse(&c, tokens, n_tokens);
    if (o->profile)
        *o->profile = c.profile;
    c.stats.kv_bytes = c.state.cache.size;
    c.stats.kv = kv;
    if (stats)
        *stats = c.stats;
    clb_sampler_free(&c.sampler);
    clb_state_free(&c.state);
    return rc;
}
