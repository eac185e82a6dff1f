// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "model.h"

#include "cpu.h"
#include "print.h"

enum types { ONLY_F32, FLOATS, ANY };
enum need { REQUIRED, OPTIONAL };

// Binds the sections of a file one after the other; after an error the rest is left alone.
struct binder {
    struct colibri_model *m;
    const char *path;
    colibri_error *error;
    int rc;
    bool *used;                   // (n_sections)
    struct clb_matrix **matrices; // (n_sections) those that may be quantized, or NULL
};

// What a section must be like.
struct want {
    enum clb_layout layout;
    enum types types;
    int n_layers, n_experts, rows, cols;
};

static const struct clb_section *find(const struct binder *b, const char *name)
{
    return clb_format_find(&b->m->file, name);
}

static bool type_allowed(enum types types, const struct clb_section *s)
{
    if (s->dtype == CLB_F32)
        return true;
    if (types == ONLY_F32)
        return false;
    return s->dtype == CLB_F16 || s->dtype == CLB_BF16 ||
           (types == ANY && clb_is_quantised(s->dtype));
}

// The section, or NULL: it is not there, or not as it should be.
static const struct clb_section *bind(struct binder *b, enum need need, const char *name,
                                      struct want w)
{
    const struct clb_section *s = b->rc ? NULL : find(b, name);
    if (b->rc || (!s && need == OPTIONAL))
        return NULL;
    if (!s)
        b->rc = clb_error(b->error, COLIBRI_ERROR_FORMAT,
                          "%s has no section %s; convert the model again", b->path, name);
    else if (s->n_layers != (uint32_t)w.n_layers || s->n_experts != (uint32_t)w.n_experts ||
             s->rows != (uint32_t)w.rows || s->cols != (uint32_t)w.cols)
        b->rc = clb_error(b->error, COLIBRI_ERROR_CONFIG,
                          "%s: section %s has %u layers, %u experts, %u x %u values; config.json "
                          "implies %d, %d, %d x %d; the two files do not belong together",
                          b->path, name, s->n_layers, s->n_experts, s->rows, s->cols, w.n_layers,
                          w.n_experts, w.rows, w.cols);
    else if (s->layout != w.layout || !type_allowed(w.types, s))
        b->rc = clb_error(b->error, COLIBRI_ERROR_FORMAT,
                          "%s: section %s is stored as %s %s, which this Colibri does not read "
                          "there; convert the model again",
                          b->path, name, clb_dtype_names[s->dtype],
                          s->layout == CLB_TILES ? "tiles" : "rows");
    if (b->rc)
        return NULL;
    b->used[s - b->m->file.sections] = true;
    return s;
}

static void bind_matrix(struct binder *b, enum need need, struct clb_matrix *m, const char *name,
                        struct want w)
{
    const struct clb_section *s = bind(b, need, name, w);
    if (!s)
        return;
    clb_matrix_init(m, &b->m->file, s);
    b->m->quantised |= clb_is_quantised(s->dtype);
    bool floats = s->dtype == CLB_F32 || s->dtype == CLB_F16 || s->dtype == CLB_BF16;
    if (floats && w.types == ANY && w.layout == CLB_TILES && m != &b->m->embeddings)
        b->matrices[s - b->m->file.sections] = m;
}

static struct want tiles(int n_layers, int n_experts, int rows, int cols)
{
    return (struct want){CLB_TILES, ANY, n_layers, n_experts, rows, cols};
}

static struct want exact_tiles(int n_layers, int rows, int cols)
{
    return (struct want){CLB_TILES, ONLY_F32, n_layers, 1, rows, cols};
}

static void bind_vector(struct binder *b, enum need need, struct clb_vector *v, const char *name,
                        int n_layers, int n_experts, int n)
{
    const struct clb_section *s =
        bind(b, need, name, (struct want){CLB_ROWS, ONLY_F32, n_layers, n_experts, 1, n});
    if (s)
        *v = (struct clb_vector){clb_item(&b->m->file, s, 0, 0), s->layer_stride, s->expert_stride,
                                 n};
}

static void bind_norm(struct binder *b, struct clb_norm *norm, const char *name, const char *bias,
                      int n_layers)
{
    int hidden = b->m->config.hidden_size;
    bind_vector(b, REQUIRED, &norm->weight, name, n_layers, 1, hidden);
    bind_vector(b, OPTIONAL, &norm->bias, bias, n_layers, 1, hidden);
}

// A norm of each head, or of `heads` of them as one vector: the section's length tells.
static void bind_heads_norm(struct binder *b, struct clb_vector *v, const char *name, int heads)
{
    const struct clb_config *c = &b->m->config;
    const struct clb_section *s = find(b, name);
    bool all = s && s->cols != (uint32_t)c->head_dim;
    bind_vector(b, OPTIONAL, v, name, c->n_layers, 1, all ? heads * c->head_dim : c->head_dim);
}

static void bind_ffn(struct binder *b, struct clb_ffn *f, const char *prefix, int n_layers,
                     int n_experts, int size)
{
    int hidden = b->m->config.hidden_size;
    const struct part {
        const char *name;
        enum need need;
        struct clb_matrix *matrix;
        int rows, cols;
    } parts[] = {{"gate", OPTIONAL, &f->gate, size, hidden},
                 {"up", REQUIRED, &f->up, size, hidden},
                 {"down", REQUIRED, &f->down, hidden, size}};
    f->size = size;
    for (const struct part *p = parts; p < parts + 3; p++) {
        char name[32];
        clb_format(name, sizeof name, "%s%s_weights", prefix, p->name);
        bind_matrix(b, p->need, p->matrix, name, tiles(n_layers, n_experts, p->rows, p->cols));
        clb_format(name, sizeof name, "%s%s_bias", prefix, p->name);
        if (p->matrix->data)
            bind_vector(b, OPTIONAL, &p->matrix->bias, name, n_layers, n_experts, p->rows);
    }
    int activation = b->m->config.activation;
    if (!b->rc && !f->gate.data && activation != CLB_GELU && activation != CLB_GELU_TANH)
        b->rc = clb_error(b->error, COLIBRI_ERROR_FORMAT,
                          "%s has no section %sgate_weights, which the activation of config.json "
                          "needs; convert the model again",
                          b->path, prefix);
}

static void bind_heads(struct binder *b)
{
    struct colibri_model *m = b->m;
    const struct clb_config *c = &m->config;
    int layers = c->n_layers, hidden = c->hidden_size;
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    bind_matrix(b, REQUIRED, &m->q, "attention_q", tiles(layers, 1, q, hidden));
    bind_matrix(b, REQUIRED, &m->k, "attention_k", tiles(layers, 1, kv, hidden));
    bind_matrix(b, REQUIRED, &m->v, "attention_v", tiles(layers, 1, kv, hidden));
    bind_matrix(b, REQUIRED, &m->o, "attention_o", tiles(layers, 1, hidden, q));
    bind_vector(b, OPTIONAL, &m->k.bias, "attention_k_bias", layers, 1, kv);
    bind_vector(b, OPTIONAL, &m->v.bias, "attention_v_bias", layers, 1, kv);
    bind_heads_norm(b, &m->q_norm, "attention_q_norm", c->n_heads);
    bind_heads_norm(b, &m->k_norm, "attention_k_norm", c->n_kv_heads);
}

static void bind_latent_heads(struct binder *b)
{
    struct colibri_model *m = b->m;
    const struct clb_config *c = &m->config;
    int layers = c->n_layers, hidden = c->hidden_size, heads = c->n_heads, rank = c->kv_rank;
    int q_cols = c->q_rank ? c->q_rank : hidden;
    if (c->q_rank) {
        bind_matrix(b, REQUIRED, &m->q_a, "attention_q_a", tiles(layers, 1, c->q_rank, hidden));
        bind_vector(b, REQUIRED, &m->q_a_norm, "attention_q_a_norm", layers, 1, c->q_rank);
    }
    bind_matrix(b, REQUIRED, &m->q, "attention_q", tiles(layers, 1, heads * c->head_dim, q_cols));
    bind_matrix(b, REQUIRED, &m->kv_a, "attention_kv_a",
                tiles(layers, 1, rank + c->rope_dim, hidden));
    bind_vector(b, REQUIRED, &m->kv_a_norm, "attention_kv_a_norm", layers, 1, rank);
    bind_matrix(b, REQUIRED, &m->k_b, "attention_k_b",
                tiles(layers, heads, rank, c->head_dim - c->rope_dim));
    bind_matrix(b, REQUIRED, &m->v_b, "attention_v_b", tiles(layers, heads, c->v_dim, rank));
    bind_matrix(b, REQUIRED, &m->o, "attention_o", tiles(layers, 1, hidden, heads * c->v_dim));
}

static void bind_router(struct binder *b, int layers)
{
    struct colibri_model *m = b->m;
    const struct clb_config *c = &m->config;
    int hidden = c->hidden_size, n = c->n_experts;
    bind_matrix(b, REQUIRED, &m->router, "router", exact_tiles(layers, n, hidden));
    bind_vector(b, OPTIONAL, &m->router.bias, "router_bias", layers, 1, n);
    if (c->router_score == CLB_SIGMOID)
        bind_vector(b, OPTIONAL, &m->router_correction, "router_correction", layers, 1, n);
    if (!c->shared_ffn_size)
        return;
    bind_ffn(b, &m->shared, "shared_", layers, 1, c->shared_ffn_size);
    const struct clb_section *s = find(b, "shared_router");
    int rows = s && s->rows == 2 ? 2 : 1;
    bind_matrix(b, OPTIONAL, &m->shared_router, "shared_router", exact_tiles(layers, rows, hidden));
    if (m->shared_router.data)
        bind_vector(b, OPTIONAL, &m->shared_router.bias, "shared_router_bias", layers, 1, rows);
}

static void bind_sections(struct binder *b)
{
    struct colibri_model *m = b->m;
    const struct clb_config *c = &m->config;
    int layers = c->n_layers, hidden = c->hidden_size, vocab = c->vocab_size;
    int experts = c->n_experts ? c->n_experts : 1, with_experts = layers - c->dense_layers.n;
    bool tied = !find(b, "lm_head");
    const struct clb_section *embeddings = find(b, "embeddings");
    bool in_tiles = tied || (embeddings && embeddings->layout == CLB_TILES);
    bind_matrix(b, REQUIRED, &m->embeddings, "embeddings",
                (struct want){in_tiles ? CLB_TILES : CLB_ROWS, ANY, 1, 1, vocab, hidden});
    bind_matrix(b, OPTIONAL, &m->position_embeddings, "position_embeddings",
                (struct want){CLB_ROWS, FLOATS, 1, 1, c->max_positions, hidden});
    bind_norm(b, &m->attention_norm, "attention_norm", "attention_norm_bias", layers);
    if (c->kv_rank)
        bind_latent_heads(b);
    else
        bind_heads(b);
    bind_vector(b, OPTIONAL, &m->q.bias, "attention_q_bias", layers, 1, c->n_heads * c->head_dim);
    bind_vector(b, OPTIONAL, &m->o.bias, "attention_o_bias", layers, 1, hidden);
    bind_vector(b, OPTIONAL, &m->sinks, "attention_sinks", layers, 1, c->n_heads);
    bind_norm(b, &m->ffn_norm, "ffn_norm", "ffn_norm_bias", layers);
    bind_ffn(b, &m->experts, "", with_experts, experts, c->ffn_size);
    if (c->dense_layers.n)
        bind_ffn(b, &m->dense, "dense_", c->dense_layers.n, 1, c->dense_ffn_size);
    if (c->n_experts)
        bind_router(b, with_experts);
    bind_norm(b, &m->final_norm, "final_norm", "final_norm_bias", 1);
    if (tied)
        m->lm_head = m->embeddings;
    else
        bind_matrix(b, REQUIRED, &m->lm_head, "lm_head", tiles(1, 1, vocab, hidden));
    bind_vector(b, OPTIONAL, &m->lm_head.bias, "lm_head_bias", 1, 1, vocab);
    if (c->rope_dim)
        bind_vector(b, REQUIRED, &m->rope, "rope", 1, 1, c->rope_dim / 2);
}

// A section that nothing here uses may change what the model computes.
static void refuse_unused(struct binder *b)
{
    const struct clb_format *f = &b->m->file;
    for (uint32_t i = 0; !b->rc && i < f->n_sections; i++)
        if (!b->used[i] && strcmp(f->sections[i].name, "tokenizer"))
            b->rc = clb_error(b->error, COLIBRI_ERROR_FORMAT,
                              "%s: the section %s is not part of a model with this config.json, as "
                              "far as this Colibri knows: a newer one is needed, or the two files "
                              "do not belong together",
                              b->path, f->sections[i].name);
}

// Whether `name`, of n bytes, is meant to name the section: all of it, or up for up_weights and
// q for attention_q.
static bool names(const char *name, size_t n, const char *section)
{
    static const char before[] = "attention_", after[] = "_weights";
    const char *rest =
        strncmp(section, before, sizeof before - 1) ? section : section + sizeof before - 1;
    return (strlen(section) == n && !memcmp(section, name, n)) ||
           (strlen(rest) == n && !memcmp(rest, name, n)) ||
           (!strncmp(section, name, n) && !strcmp(section + n, after));
}

// Quantizes the sections of a list like "up:int8,down:int8".
static void quantise(struct binder *b, const char *list)
{
    const struct clb_format *f = &b->m->file;
    while (!b->rc && *list) {
        size_t n = strcspn(list, ":,"), i = 0;
        while (i < f->n_sections && !names(list, n, f->sections[i].name))
            i++;
        const struct clb_section *s = &f->sections[i];
        const char *type = list + n;
        size_t type_bytes = strcspn(type, ",");
        if (type_bytes != 5 || memcmp(type, ":int8", 5))
            b->rc = clb_error(b->error, COLIBRI_ERROR_USAGE,
                              "quantize: \"%.40s\" is no list like up:int8,down:int8", list);
        else if (i == f->n_sections || !b->matrices[i])
            b->rc = clb_error(b->error, COLIBRI_ERROR_USAGE,
                              "quantize: %s has no matrix of floats that is called %.*s; see "
                              "colibri-deploy inspect",
                              b->path, (int)n, list);
        else {
            b->rc = clb_quantize_matrix(b->matrices[i], (int)s->n_layers, (int)s->n_experts,
                                        &b->m->quantised_here, s->name, b->error);
            b->m->quantised = true;
            b->matrices[i] = NULL; // not twice
        }
        list = type + type_bytes;
        list += *list == ',';
    }
}

// Sines and cosines are right for angles below 2^20 * pi / 2.
static int check_rope(const struct colibri_model *m, const char *path, colibri_error *error)
{
    const struct clb_config *c = &m->config;
    for (int i = 0; i < m->rope.n; i++) {
        float inv_freq = clb_vector_item(&m->rope, 0, 0)[i];
        if (!(inv_freq >= 0 && inv_freq * (float)c->max_positions < 0x1.8p20f))
            return clb_error(error, COLIBRI_ERROR_FORMAT,
                             "%s: value %d of the section rope, %g, gives no angle that can be "
                             "computed for %d positions; convert the model again",
                             path, i, (double)inv_freq, c->max_positions);
    }
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
    int rc = clb_tokenizer_open(&m->tokenizer, clb_item(&m->file, s, 0, 0), (size_t)s->item_size,
                                (uint32_t)m->config.vocab_size, error);
    return rc ? rc : clb_chat_open(&m->chat, &m->tokenizer, error);
}

int clb_model_open(struct colibri_model *m, const char *model_path, const char *config_path,
                   const colibri_load_options *options, colibri_error *error)
{
    static const colibri_load_options defaults = {0};
    const colibri_load_options *o = options ? options : &defaults;
    m->locked = o->lock;
    int rc = clb_cpu_choose(&m->kernels, o->isa, error);
    if (!rc)
        rc = clb_config_read(&m->config, config_path, error);
    if (!rc)
        rc = clb_format_open(&m->file, model_path, o->lock, error);
    bool used[CLB_MAX_SECTIONS] = {false};
    struct clb_matrix *matrices[CLB_MAX_SECTIONS] = {NULL};
    struct binder b = {
        .m = m, .path = model_path, .error = error, .used = used, .matrices = matrices};
    if (!rc) {
        bind_sections(&b);
        refuse_unused(&b);
        rc = b.rc;
    }
    if (!rc)
        rc = clb_format_verify(&m->file, o->verify ? CLB_ALL : CLB_SMALL, NULL, NULL, model_path,
                               error);
    if (!rc && o->quantize) {
        quantise(&b, o->quantize);
        rc = b.rc;
    }
    if (!rc)
        rc = check_rope(m, model_path, error);
    if (!rc)
        rc = open_tokenizer(m, model_path, error);
    if (!rc && !o->verify)
        rc = clb_scrub_start(&m->scrub, &m->file, error);
    int lost = clb_model_check(m, error); // then whatever else was found comes from that
    return lost ? lost : rc;
}

int clb_model_check(const struct colibri_model *m, colibri_error *error)
{
    if (clb_guard_lost(&m->file.map))
        return clb_error(error, COLIBRI_ERROR_TRUNCATED,
                         "model.bin became shorter while it was in use, or its disk failed: copy "
                         "it again, and replace a model by renaming, never by writing over it");
    return clb_scrub_check(&m->scrub, error);
}

void clb_model_close(struct colibri_model *m)
{
    clb_scrub_stop(&m->scrub);
    clb_quantize_free(m->quantised_here);
    clb_format_close(&m->file);
}
