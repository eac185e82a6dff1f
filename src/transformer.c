// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "transformer.h"

#include "experts.h"
#include "heads.h"
#include "rope.h"

static void scale(float *x, int n, float factor)
{
    for (int i = 0; i < n && factor != 1; i++)
        x[i] = x[i] * factor;
}

static void embed_item(void *context, int token, int worker)
{
    (void)worker;
    struct clb_step *st = context;
    const struct colibri_model *m = st->s->model;
    const struct clb_matrix *embeddings = &m->embeddings, *positions = &m->position_embeddings;
    size_t at = (size_t)token * st->s->h.stride;
    float *x = st->s->x + at, *row = st->s->h.f32 + at; // h is free before the first norm
    clb_matrix_row(embeddings, embeddings->data, st->tokens[token], x);
    scale(x, embeddings->cols, m->config.embedding_scale);
    if (!positions->data)
        return;
    clb_matrix_row(positions, positions->data, st->first_position + token, row);
    st->kernels->f32_axpy(x, 1.0f, row, positions->cols);
}

static void logits_item(void *context, int chunk, int worker)
{
    struct clb_step *st = context;
    struct clb_state *s = st->s;
    const struct clb_matrix *m = &s->model->lm_head;
    int n = st->n - st->logits_from;
    float *y = s->logits + chunk * CLB_CHUNK_ROWS;
    clb_step_multiply(st, worker, m, 0, 0, chunk, &s->h, st->logits_from, n, y, s->logits_stride);
    for (int t = 0; t < n; t++, y += s->logits_stride)
        scale(y, clb_chunk_rows(m->rows, chunk), s->model->config.logit_scale);
}

int clb_forward(struct clb_state *s, const int32_t *tokens, int n, int first_position, int n_logits,
                colibri_error *error)
{
    const struct colibri_model *m = s->model;
    const struct clb_config *c = &m->config;
    size_t half = (size_t)c->rope_dim / 2;
    struct clb_step st = {
        .s = s,
        .kernels = &m->kernels,
        .n = n,
        .first_position = first_position,
        .tokens = tokens,
        .logits_from = n - n_logits,
    };
    clb_cache_take(&s->cache, first_position + n - 1);
    clb_heads_plan(&st);
    clb_step_run(&st, CLB_OTHER, n, embed_item);
    for (int t = 0; t < n && half; t++)
        clb_rope_angles(s->sines + (size_t)t * half, s->cosines + (size_t)t * half,
                        clb_vector_item(&m->rope, 0, 0), (int)half, first_position + t,
                        c->rope_scale);
    for (st.layer = 0; st.layer < c->n_layers; st.layer++) {
        clb_heads_run(&st);
        int rc = clb_experts_run(&st, error);
        if (rc)
            return rc;
    }
    if (!n_logits)
        return 0;
    st.norm = &m->final_norm;
    st.norm_layer = 0;
    clb_step_normalise(&st);
    clb_step_run(&st, CLB_HEAD, clb_chunks(&m->lm_head), logits_item);
    return 0;
}
