// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "model.h"

#include "cpu.h"
#include "log.h"

// Sections up to this size are checked at every load.
enum { SMALL_SECTION = 8 << 20 };

enum types { ONLY_F32, FLOATS, ANY };

// A section that the architecture has, with the shape that config.json implies.
struct want {
    const char *name;
    enum clb_layout layout;
    enum types types;
    int n_layers, n_experts, rows, cols;
    struct clb_matrix *matrix; // one of the two is filled in
    struct clb_vector *vector;
};

enum { MAX_WANTS = 16 };

static bool type_allowed(const struct want *w, const struct clb_section *s)
{
    if (s->dtype == CLB_F32)
        return true;
    if (w->types == ONLY_F32)
        return false;
    return s->dtype == CLB_F16 || s->dtype == CLB_BF16 ||
           (w->types == ANY && clb_is_quantised(s->dtype));
}

static int bind(struct colibri_model *m, const struct want *w, const char *path,
                colibri_error *error)
{
    const struct clb_section *s = clb_format_find(&m->file, w->name);
    if (!s)
        return clb_error(error, COLIBRI_ERROR_FORMAT,
                         "%s has no section %s; convert the model again", path, w->name);
    if (s->n_layers != (uint32_t)w->n_layers || s->n_experts != (uint32_t)w->n_experts ||
        s->rows != (uint32_t)w->rows || s->cols != (uint32_t)w->cols)
        return clb_error(error, COLIBRI_ERROR_CONFIG,
                         "%s: section %s has %u layers, %u experts, %u x %u values; config.json "
                         "implies %d, %d, %d x %d; the two files do not belong together",
                         path, w->name, s->n_layers, s->n_experts, s->rows, s->cols, w->n_layers,
                         w->n_experts, w->rows, w->cols);
    if (s->layout != w->layout || !type_allowed(w, s))
        return clb_error(error, COLIBRI_ERROR_FORMAT,
                         "%s: section %s is stored as %s %s, which this Colibri does not read "
                         "there; convert the model again",
                         path, w->name, clb_dtype_names[s->dtype],
                         s->layout == CLB_TILES ? "tiles" : "rows");
    if (w->vector)
        *w->vector = (struct clb_vector){clb_item(&m->file, s, 0, 0), s->layer_stride};
    if (w->matrix) {
        clb_matrix_init(w->matrix, &m->file, s);
        m->quantised |= clb_is_quantised(s->dtype);
    }
    return 0;
}

// A section that nothing here uses may change what the model computes.
static int refuse_unknown(struct colibri_model *m, const struct want *wants, int n,
                          const char *path, colibri_error *error)
{
    for (uint32_t i = 0; i < m->file.n_sections; i++) {
        const char *name = m->file.sections[i].name;
        bool known = !strcmp(name, "tokenizer");
        for (int w = 0; w < n; w++)
            known |= !strcmp(name, wants[w].name);
        if (!known)
            return clb_error(error, COLIBRI_ERROR_FORMAT,
                             "%s: the section %s is not part of the architecture %s as this "
                             "Colibri knows it: a newer one is needed",
                             path, name, m->config.architecture);
    }
    return 0;
}

static int bind_sections(struct colibri_model *m, const char *path, colibri_error *error)
{
    const struct clb_config *c = &m->config;
    int layers = c->n_layers, hidden = c->hidden_size, ffn = c->ffn_size, vocab = c->vocab_size;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    int experts = c->n_experts ? c->n_experts : 1;
    bool tied = !clb_format_find(&m->file, "lm_head");
    const struct clb_section *embeddings = clb_format_find(&m->file, "embeddings");
    bool tiles = tied || (embeddings && embeddings->layout == CLB_TILES);
    struct want wants[MAX_WANTS] = {
        {"embeddings", tiles ? CLB_TILES : CLB_ROWS, ANY, 1, 1, vocab, hidden, &m->embeddings, 0},
        {"attention_norm", CLB_ROWS, ONLY_F32, layers, 1, 1, hidden, 0, &m->attention_norm},
        {"attention_q", CLB_TILES, ANY, layers, 1, q, hidden, &m->q, 0},
        {"attention_k", CLB_TILES, ANY, layers, 1, kv, hidden, &m->k, 0},
        {"attention_v", CLB_TILES, ANY, layers, 1, kv, hidden, &m->v, 0},
        {"attention_o", CLB_TILES, ANY, layers, 1, hidden, q, &m->o, 0},
        {"ffn_norm", CLB_ROWS, ONLY_F32, layers, 1, 1, hidden, 0, &m->ffn_norm},
        {"gate_weights", CLB_TILES, ANY, layers, experts, ffn, hidden, &m->gate, 0},
        {"up_weights", CLB_TILES, ANY, layers, experts, ffn, hidden, &m->up, 0},
        {"down_weights", CLB_TILES, ANY, layers, experts, hidden, ffn, &m->down, 0},
        {"final_norm", CLB_ROWS, ONLY_F32, 1, 1, 1, hidden, 0, &m->final_norm},
        {"rope", CLB_ROWS, ONLY_F32, 1, 1, 1, c->head_dim / 2, 0, &m->rope},
    };
    int n = 12;
    if (c->n_experts)
        wants[n++] = (struct want){"router", CLB_TILES, ONLY_F32,   layers, 1, c->n_experts,
                                   hidden,   &m->router, 0};
    if (!tied)
        wants[n++] = (struct want){"lm_head", CLB_TILES, ANY, 1, 1, vocab, hidden, &m->lm_head, 0};
    for (int i = 0; i < n; i++) {
        int rc = bind(m, &wants[i], path, error);
        if (rc)
            return rc;
    }
    if (tied)
        m->lm_head = m->embeddings;
    return refuse_unknown(m, wants, n, path, error);
}

static int check_architecture(const struct clb_config *c, const char *path, colibri_error *error)
{
    bool moe = !strcmp(c->architecture, "mixtral"), dense = !strcmp(c->architecture, "llama");
    if (!moe && !dense)
        return clb_error(error, COLIBRI_ERROR_CONFIG,
                         "%s: this Colibri knows the architectures mixtral and llama, not \"%s\"",
                         path, c->architecture);
    if (moe != (c->n_experts > 0))
        return clb_error(error, COLIBRI_ERROR_CONFIG,
                         "%s: the architecture %s goes with n_experts %s; convert the model again",
                         path, c->architecture, moe ? "of at least 1" : "0");
    return 0;
}

// Sines and cosines are right for angles below 2^20 * pi / 2.
static int check_rope(const struct colibri_model *m, const char *path, colibri_error *error)
{
    const struct clb_config *c = &m->config;
    const float *inv_freq = clb_vector_item(&m->rope, 0);
    for (int i = 0; i < c->head_dim / 2; i++)
        if (!(inv_freq[i] >= 0 && inv_freq[i] * (float)c->max_positions < 0x1.8p20f))
            return clb_error(error, COLIBRI_ERROR_FORMAT,
                             "%s: value %d of the section rope, %g, gives no angle that can be "
                             "computed for %d positions; convert the model again",
                             path, i, (double)inv_freq[i], c->max_positions);
    return 0;
}

static int open_tokenizer(struct colibri_model *m, const char *path, colibri_error *error)
{
    const struct clb_section *s = clb_format_find(&m->file, "tokenizer");
    if (!s)
        return 0;
    if (s->dtype != CLB_U8 || s->n_layers != 1 || s->n_experts != 1 || s->rows != 1)
        return clb_error(error, COLIBRI_ERROR_FORMAT,
                         "%s: the section tokenizer has a wrong shape; convert the model again",
                         path);
    m->has_tokenizer = true;
    return clb_tokenizer_open(&m->tokenizer, clb_item(&m->file, s, 0, 0), (size_t)s->item_size,
                              (uint32_t)m->config.vocab_size, error);
}

static int verify(const struct clb_format *f, bool all, const char *path, colibri_error *error)
{
    for (uint32_t i = 0; i < f->n_sections; i++) {
        const struct clb_section *s = &f->sections[i];
        uint64_t items = (uint64_t)s->n_layers * s->n_experts;
        if (!all && s->item_size > SMALL_SECTION / items)
            continue;
        int rc = clb_format_verify(f, s, path, error);
        if (rc)
            return rc;
    }
    return 0;
}

int clb_model_open(struct colibri_model *m, const char *model_path, const char *config_path,
                   const colibri_load_options *options, colibri_error *error)
{
    static const colibri_load_options defaults = {0};
    const colibri_load_options *o = options ? options : &defaults;
    int rc = clb_cpu_choose(&m->kernels, o->isa, error);
    if (!rc)
        rc = clb_config_read(&m->config, config_path, error);
    if (!rc)
        rc = check_architecture(&m->config, config_path, error);
    if (!rc)
        rc = clb_format_open(&m->file, model_path, o->lock, error);
    if (!rc)
        rc = bind_sections(m, model_path, error);
    if (!rc)
        rc = verify(&m->file, o->verify, model_path, error);
    if (!rc)
        rc = check_rope(m, model_path, error);
    if (!rc)
        rc = open_tokenizer(m, model_path, error);
    return rc;
}

void clb_model_close(struct colibri_model *m)
{
    clb_format_close(&m->file);
}
