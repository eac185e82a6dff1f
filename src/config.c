// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "config.h"

#include "file.h"
#include "json.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_BYTES = 1 << 20 };

enum kind { INTEGER, NUMBER, STRING, INTEGERS };

static const struct key {
    const char *name;
    enum kind kind;
    size_t offset;
    int64_t min, max;
} keys[] = {
#define AT(field) offsetof(struct clb_config, field)
    {"config_version", INTEGER, SIZE_MAX, 1, 1},
    {"architecture", STRING, AT(architecture), 0, 0},
    {"n_layers", INTEGER, AT(n_layers), 1, 1024},
    {"hidden_size", INTEGER, AT(hidden_size), 1, 1 << 20},
    {"n_heads", INTEGER, AT(n_heads), 1, 1 << 12},
    {"n_kv_heads", INTEGER, AT(n_kv_heads), 1, 1 << 12},
    {"head_dim", INTEGER, AT(head_dim), 2, 1 << 12},
    {"ffn_size", INTEGER, AT(ffn_size), 1, 1 << 20},
    {"vocab_size", INTEGER, AT(vocab_size), 1, 1 << 24},
    {"n_experts", INTEGER, AT(n_experts), 0, CLB_MAX_EXPERTS},
    {"top_k", INTEGER, AT(top_k), 0, CLB_MAX_TOP_K},
    {"max_positions", INTEGER, AT(max_positions), 1, 1 << 28},
    {"sliding_window", INTEGER, AT(sliding_window), 0, 1 << 28},
    {"norm_eps", NUMBER, AT(norm_eps), 0, 0},
    {"attention_scale", NUMBER, AT(attention_scale), 0, 0},
    {"rope_scale", NUMBER, AT(rope_scale), 0, 0},
    {"bos_id", INTEGER, AT(bos_id), -1, 1 << 24},
    {"eos_ids", INTEGERS, AT(eos_ids), 0, 1 << 24},
};
enum { N_KEYS = sizeof keys / sizeof *keys };

static int read_value(struct clb_config *c, struct clb_json *j, const struct key *key)
{
    char *field = (char *)c + key->offset;
    int rc = 0;
    if (key->kind == INTEGER) {
        int64_t value;
        rc = clb_json_integer(j, key->min, key->max, &value);
        if (!rc && key->offset != SIZE_MAX)
            *(int32_t *)(void *)field = (int32_t)value;
    } else if (key->kind == NUMBER) {
        double value;
        rc = clb_json_number(j, &value);
        if (!rc && !((float)value > 0 && value < 1e30))
            return clb_json_error(j, "\"%s\" is %g, expected a positive float", key->name, value);
        if (!rc)
            *(float *)(void *)field = (float)value;
    } else if (key->kind == STRING) {
        rc = clb_json_string(j, field, sizeof c->architecture);
    } else {
        rc = clb_json_integers(j, key->min, key->max, c->eos_ids, CLB_MAX_EOS, &c->n_eos);
    }
    return rc;
}

static int check(const struct clb_config *c, const char *path, colibri_error *error)
{
    const char *wrong = NULL;
    if (c->n_heads % c->n_kv_heads)
        wrong = "n_heads is no multiple of n_kv_heads";
    else if (c->head_dim % 2)
        wrong = "head_dim is odd";
    else if (!c->n_experts != !c->top_k)
        wrong = "n_experts and top_k must both be 0 (dense) or both be positive";
    else if (c->top_k > c->n_experts)
        wrong = "top_k is larger than n_experts";
    else if (c->bos_id >= c->vocab_size)
        wrong = "bos_id is not below vocab_size";
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] >= c->vocab_size)
            wrong = "an entry of eos_ids is not below vocab_size";
    if (wrong)
        return clb_error(error, COLIBRI_ERROR_CONFIG, "%s: %s; convert the model again", path,
                         wrong);
    return 0;
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
            return clb_json_error(j, "\"%s\" stands there twice", j->key);
        seen[k] = true;
        if ((rc = read_value(c, j, &keys[k])))
            return rc;
    }
    for (int k = 0; !rc && k < N_KEYS; k++)
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
    memset(c, 0, sizeof *c);
    struct clb_json j = {.name = path, .text = text, .at = text, .error = error};
    if (strlen(text) != size)
        rc = clb_error(error, COLIBRI_ERROR_CONFIG, "%s holds a zero byte: it is no JSON", path);
    if (!rc)
        rc = parse(c, &j);
    if (!rc)
        rc = check(c, path, error);
    free(text);
    return rc;
}
