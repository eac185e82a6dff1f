// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "config.h"

#include "file.h"
#include "json.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_BYTES = 1 << 20 };

enum kind { INTEGER, NUMBER, STRING, CHOICE, EOS_IDS, LAYERS };

static const struct key {
    const char *name;
    const char *choices; // words, in the order of their enum
    int32_t min, max;
    uint16_t offset;
    uint8_t kind; // enum kind
} keys[] = {
#define AT(field) offsetof(struct clb_config, field)
    {"config_version", 0, 1, INT32_MAX, UINT16_MAX, INTEGER},
    {"architecture", 0, 0, 0, AT(architecture), STRING},
    {"n_layers", 0, 1, CLB_MAX_LAYERS, AT(n_layers), INTEGER},
    {"hidden_size", 0, 1, 1 << 20, AT(hidden_size), INTEGER},
    {"n_heads", 0, 1, 1 << 12, AT(n_heads), INTEGER},
    {"n_kv_heads", 0, 1, 1 << 12, AT(n_kv_heads), INTEGER},
    {"head_dim", 0, 2, 1 << 12, AT(head_dim), INTEGER},
    {"ffn_size", 0, 1, 1 << 20, AT(ffn_size), INTEGER},
    {"vocab_size", 0, 1, 1 << 24, AT(vocab_size), INTEGER},
    {"n_experts", 0, 0, CLB_MAX_EXPERTS, AT(n_experts), INTEGER},
    {"top_k", 0, 0, CLB_MAX_TOP_K, AT(top_k), INTEGER},
    {"max_positions", 0, 1, 1 << 28, AT(max_positions), INTEGER},
    {"sliding_window", 0, 0, 1 << 28, AT(sliding_window), INTEGER},
    {"norm_eps", 0, 0, 0, AT(norm_eps), NUMBER},
    {"attention_scale", 0, 0, 0, AT(attention_scale), NUMBER},
    {"rope_scale", 0, 0, 0, AT(rope_scale), NUMBER},
    {"bos_id", 0, -1, 1 << 24, AT(bos_id), INTEGER},
    {"eos_ids", 0, 0, 1 << 24, AT(n_eos), EOS_IDS},
    // from here on a key may be absent
    {"window_layers", 0, 0, CLB_MAX_LAYERS - 1, AT(window_layers), LAYERS},
    {"rope_dim", 0, 0, 1 << 12, AT(rope_dim), INTEGER},
    {"rope_kind", "half pairs", 0, 0, AT(rope_kind), CHOICE},
    {"qk_clip", 0, 0, 0, AT(qk_clip), NUMBER},
    {"embedding_scale", 0, 0, 0, AT(embedding_scale), NUMBER},
    {"residual_scale", 0, 0, 0, AT(residual_scale), NUMBER},
    {"logit_scale", 0, 0, 0, AT(logit_scale), NUMBER},
    {"activation", "silu gelu gelu_tanh swiglu_oai", 0, 0, AT(activation), CHOICE},
    {"activation_limit", 0, 0, 0, AT(activation_limit), NUMBER},
    {"router_score", "softmax sigmoid sparsemixer", 0, 0, AT(router_score), CHOICE},
    {"router_weights", "chosen all", 0, 0, AT(router_weights), CHOICE},
    {"router_scale", 0, 0, 0, AT(router_scale), NUMBER},
    {"router_jitter", 0, 0, 0, AT(router_jitter), NUMBER},
    {"n_groups", 0, 1, CLB_MAX_EXPERTS, AT(n_groups), INTEGER},
    {"top_groups", 0, 1, CLB_MAX_TOP_K, AT(top_groups), INTEGER},
    {"dense_layers", 0, 0, CLB_MAX_LAYERS - 1, AT(dense_layers), LAYERS},
    {"dense_ffn_size", 0, 0, 1 << 20, AT(dense_ffn_size), INTEGER},
    {"shared_ffn_size", 0, 0, 1 << 20, AT(shared_ffn_size), INTEGER},
    {"kv_rank", 0, 0, 1 << 16, AT(kv_rank), INTEGER},
    {"q_rank", 0, 0, 1 << 16, AT(q_rank), INTEGER},
    {"v_dim", 0, 0, 1 << 12, AT(v_dim), INTEGER},
    {"latent_norm_eps", 0, 0, 0, AT(latent_norm_eps), NUMBER},
};
enum { N_KEYS = sizeof keys / sizeof *keys, N_REQUIRED = 18 };

// What absent keys stand for; a rope_dim of -1 for head_dim.
static void set_defaults(struct clb_config *c)
{
    memset(c, 0, sizeof *c);
    c->window_layers.n = c->rope_dim = -1;
    c->embedding_scale = c->residual_scale = c->logit_scale = c->router_scale = 1;
    c->n_groups = c->top_groups = 1;
}

bool clb_layers_have(const struct clb_layers *layers, int layer)
{
    for (int i = 0; i < layers->n; i++)
        if (layers->at[i] == layer)
            return true;
    return false;
}

static int read_choice(struct clb_json *j, const struct key *key, int32_t *out)
{
    char word[32];
    int rc = clb_json_string(j, word, sizeof word);
    if (rc)
        return rc;
    const char *p = key->choices;
    for (*out = 0;; ++*out, p++) {
        size_t n = strcspn(p, " ");
        if (strlen(word) == n && !memcmp(word, p, n))
            return 0;
        p += n;
        if (!*p)
            return clb_json_error(j, "\"%s\" is \"%s\", expected one of: %s", key->name, word,
                                  key->choices);
    }
}

static int read_value(struct clb_config *c, struct clb_json *j, const struct key *key)
{
    char *field = (char *)c + key->offset;
    int32_t *integer = (int32_t *)(void *)field;
    int64_t value;
    double number;
    int rc = 0;
    switch (key->kind) {
    case INTEGER:
        rc = clb_json_integer(j, key->min, key->max, &value);
        if (!rc && key->offset != UINT16_MAX)
            *integer = (int32_t)value;
        else if (!rc && value > 1)
            return clb_json_error(j, "\"%s\" is %d, this Colibri reads 1: a newer one is needed",
                                  key->name, (int)value);
        break;
    case NUMBER:
        rc = clb_json_number(j, &number);
        if (!rc && !((float)number > 0 && (float)number < 1e30f))
            return clb_json_error(j, "\"%s\" is %g, expected a positive float", key->name, number);
        if (!rc)
            *(float *)(void *)field = (float)number;
        break;
    case STRING:
        rc = clb_json_string(j, field, sizeof c->architecture);
        break;
    case CHOICE:
        rc = read_choice(j, key, integer);
        break;
    case EOS_IDS: // the number of entries, then the entries
    case LAYERS:
        rc = clb_json_integers(j, key->min, key->max, integer + 1,
                               key->kind == LAYERS ? CLB_MAX_LAYERS : CLB_MAX_EOS, integer);
    }
    return rc;
}

static bool are_layers(const struct clb_layers *layers, int n_layers)
{
    for (int i = 0; i < layers->n; i++)
        if (layers->at[i] >= n_layers || (i && layers->at[i] <= layers->at[i - 1]))
            return false;
    return true;
}

static const char *contradiction(const struct clb_config *c)
{
    if (!*c->architecture)
        return "architecture is empty";
    if (c->n_heads % c->n_kv_heads)
        return "n_heads is no multiple of n_kv_heads";
    if (c->head_dim % 2)
        return "head_dim is odd";
    if (c->rope_dim % 2 || c->rope_dim > c->head_dim)
        return "rope_dim is odd or larger than head_dim";
    if (!c->n_experts != !c->top_k)
        return "n_experts and top_k must both be 0 (dense) or both be positive";
    if (c->top_k > c->n_experts)
        return "top_k is larger than n_experts";
    if (c->n_groups > 1 && (c->n_experts % c->n_groups || c->top_groups > c->n_groups ||
                            c->top_k > c->n_experts / c->n_groups * c->top_groups))
        return "n_groups and top_groups do not fit n_experts and top_k";
    if (c->n_groups == 1 && c->top_groups != 1)
        return "top_groups is larger than n_groups";
    if ((c->router_score == CLB_SPARSEMIXER) != (c->router_jitter > 0))
        return "router_jitter and sparsemixer go together";
    if (c->router_score == CLB_SPARSEMIXER && (c->top_k != 2 || c->n_groups > 1))
        return "sparsemixer needs a top_k of 2 and no groups";
    if ((c->activation == CLB_SWIGLU_OAI) != (c->activation_limit > 0))
        return "activation_limit and swiglu_oai go together";
    if (!are_layers(&c->window_layers, c->n_layers) || !are_layers(&c->dense_layers, c->n_layers))
        return "window_layers or dense_layers are not layers in ascending order";
    if (!c->dense_layers.n != !c->dense_ffn_size ||
        (c->dense_layers.n && (!c->n_experts || c->dense_layers.n == c->n_layers)))
        return "dense_layers and dense_ffn_size do not fit each other or n_experts";
    if (c->shared_ffn_size && !c->n_experts)
        return "shared_ffn_size is for a model with experts";
    if (!c->kv_rank != !c->v_dim || !c->kv_rank != !(c->latent_norm_eps > 0) ||
        (c->q_rank && !c->kv_rank))
        return "kv_rank, q_rank, v_dim and latent_norm_eps do not fit each other";
    if (c->kv_rank && (c->n_kv_heads != 1 || c->rope_dim == c->head_dim))
        return "kv_rank needs n_kv_heads of 1 and a rope_dim below head_dim";
    if (c->kv_rank && c->qk_clip > 0)
        return "qk_clip does not go with kv_rank";
    if (c->bos_id >= c->vocab_size)
        return "bos_id is not below vocab_size";
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] >= c->vocab_size)
            return "an entry of eos_ids is not below vocab_size";
    return NULL;
}

static int parse(struct clb_config *c, struct clb_json *j)
{
    bool seen[N_KEYS] = {false}, more;
    int rc;
    while (!(rc = clb_json_next_key(j, &more)) && more) {
        int k = 0;
        while (k < N_KEYS && strcmp(keys[k].name, j->key))
            k++;
        if (k == N_KEYS)
            return clb_json_error(j,
                                  "unknown key \"%s\": it may change what the model computes, so "
                                  "a newer Colibri is needed",
                                  j->key);
        if (seen[k])
            return clb_json_error(j, "\"%s\" stands there twice; leave one out", j->key);
        seen[k] = true;
        if ((rc = read_value(c, j, &keys[k])))
            return rc;
    }
    for (int k = 0; !rc && k < N_REQUIRED; k++)
        if (!seen[k])
            rc = clb_error(j->error, COLIBRI_ERROR_CONFIG,
                           "%s: the key \"%s\" is missing; convert the model again", j->name,
                           keys[k].name);
    return rc;
}

int clb_config_read(struct clb_config *c, const char *path, colibri_error *error)
{
    char *text;
    size_t size;
    int rc = clb_file_read(path, MAX_BYTES, &text, &size, error);
    if (rc)
        return rc;
    set_defaults(c);
    struct clb_json j = {.name = path, .text = text, .at = text, .error = error};
    if (strlen(text) != size)
        rc = clb_error(error, COLIBRI_ERROR_CONFIG,
                       "%s holds a zero byte: it is no JSON; convert the model again", path);
    if (!rc)
        rc = parse(c, &j);
    free(text);
    if (rc)
        return rc;
    if (c->rope_dim < 0)
        c->rope_dim = c->head_dim;
    const char *wrong = contradiction(c);
    return wrong ? clb_error(error, COLIBRI_ERROR_CONFIG, "%s: %s; convert the model again", path,
                             wrong)
                 : 0;
}
