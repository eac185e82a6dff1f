// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "colibri.h"

#include "guard.h"
#include "infer.h"
#include "model.h"
#include "print.h"

#include <fenv.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { MAX_PATH_BYTES = 4096 };

const char *colibri_version(void)
{
    return COLIBRI_VERSION;
}

// With config NULL, `model` is a directory.
static int find_files(const char *model, const char *config, char *model_path, char *config_path,
                      colibri_error *error)
{
    if (!model)
        return clb_error(error, COLIBRI_ERROR_USAGE, "no model was named");
    struct stat st;
    int n, n_config;
    if (config) {
        n = clb_format(model_path, MAX_PATH_BYTES, "%s", model);
        n_config = clb_format(config_path, MAX_PATH_BYTES, "%s", config);
    } else if (!stat(model, &st) && !S_ISDIR(st.st_mode)) {
        return clb_error(error, COLIBRI_ERROR_USAGE,
                         "%s is not a directory; name its config.json with --config", model);
    } else {
        n = clb_format(model_path, MAX_PATH_BYTES, "%s/model.bin", model);
        n_config = clb_format(config_path, MAX_PATH_BYTES, "%s/config.json", model);
    }
    if (n >= MAX_PATH_BYTES || n_config >= MAX_PATH_BYTES)
        return clb_error(error, COLIBRI_ERROR_FILE, "the path of the model is too long");
    return 0;
}

int colibri_guard_sigbus(colibri_error *error)
{
    return clb_guard_install(error);
}

int colibri_load_model(colibri_model **out, const char *model, const char *config,
                       const colibri_load_options *options, colibri_error *error)
{
    char model_path[MAX_PATH_BYTES], config_path[MAX_PATH_BYTES];
    *out = NULL;
    int rc = find_files(model, config, model_path, config_path, error);
    if (rc)
        return rc;
    struct colibri_model *m = calloc(1, sizeof *m);
    if (!m)
        return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for a model");
    rc = clb_model_open(m, model_path, config_path, options, error);
    if (rc) {
        colibri_free_model(m);
        return rc;
    }
    *out = m;
    return 0;
}

void colibri_free_model(colibri_model *model)
{
    if (!model)
        return;
    clb_model_close(model);
    free(model);
}

void colibri_model_info(const colibri_model *model, colibri_info *info)
{
    const struct clb_config *c = &model->config;
    *info = (colibri_info){
        .architecture = c->architecture,
        .isa = model->kernels.level,
        .vocab_size = c->vocab_size,
        .max_positions = c->max_positions,
        .n_layers = c->n_layers,
        .n_experts = c->n_experts,
        .top_k = c->top_k,
        .bos_id = c->bos_id,
        .has_tokenizer = model->has_tokenizer,
        .has_chat = model->tokenizer.chat,
        .stop_ids = model->chat.stops,
        .n_stop_ids = (int32_t)model->chat.n_stops,
        .quantised = model->quantised,
        .file_size = model->file.map.size,
    };
}

int colibri_infer(const colibri_model *model, const colibri_infer_options *options,
                  const int32_t *tokens, size_t n_tokens, colibri_step_fn on_step, void *user,
                  colibri_stats *stats, colibri_error *error)
{
    static const colibri_infer_options defaults = {0};
    fenv_t caller;
    // Round to nearest, subnormals kept: whatever the caller has set is restored below.
    if (fegetenv(&caller) || fesetenv(FE_DFL_ENV))
        return clb_error(error, COLIBRI_ERROR_INTERNAL, "the rounding mode cannot be set");
    int rc = clb_infer(model, options ? options : &defaults, tokens, n_tokens, on_step, user, stats,
                       error);
    fesetenv(&caller);
    return rc;
}

static int need_tokenizer(const colibri_model *model, colibri_error *error)
{
    if (model->has_tokenizer)
        return 0;
    return clb_error(error, COLIBRI_ERROR_INPUT,
                     "this model has no tokenizer; give token ids with --tokens and read ids with "
                     "--format ids");
}

int colibri_tokenize(const colibri_model *model, const char *text, size_t n_bytes, int32_t **ids,
                     size_t *n_ids, colibri_error *error)
{
    int rc = need_tokenizer(model, error);
    if (!rc)
        rc = clb_tokenizer_encode(&model->tokenizer, text, n_bytes, ids, n_ids, error);
    int lost = clb_model_check(model, error);
    if (lost && !rc) {
        free(*ids);
        *ids = NULL;
    }
    return lost ? lost : rc;
}

int colibri_tokenize_turn(const colibri_model *model, bool first, const char *system,
                          const char *text, int32_t **ids, size_t *n_ids, colibri_error *error)
{
    int rc =
        clb_chat_encode(&model->chat, &model->tokenizer, first, system, text, ids, n_ids, error);
    int lost = clb_model_check(model, error);
    if (lost && !rc) {
        free(*ids);
        *ids = NULL;
    }
    return lost ? lost : rc;
}

int colibri_detokenize(const colibri_model *model, const int32_t *ids, size_t n_ids, char **text,
                       size_t *n_bytes, colibri_error *error)
{
    int rc = need_tokenizer(model, error);
    if (!rc)
        rc = clb_tokenizer_decode(&model->tokenizer, ids, n_ids, text, n_bytes, error);
    int lost = clb_model_check(model, error);
    if (lost && !rc) {
        free(*text);
        *text = NULL;
    }
    return lost ? lost : rc;
}

struct colibri_decoder {
    const colibri_model *model;
    struct clb_stream stream;
};

int colibri_decoder_create(colibri_decoder **out, const colibri_model *model, colibri_error *error)
{
    *out = NULL;
    int rc = need_tokenizer(model, error);
    if (rc)
        return rc;
    colibri_decoder *d = malloc(sizeof *d);
    if (!d)
        return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for a decoder");
    d->model = model;
    clb_stream_init(&d->stream, &model->tokenizer);
    *out = d;
    return 0;
}

int colibri_decoder_push(colibri_decoder *decoder, int32_t id, const char **text, size_t *n_bytes,
                         colibri_error *error)
{
    int rc = clb_stream_push(&decoder->stream, id, text, n_bytes, error);
    int lost = clb_model_check(decoder->model, error);
    return lost ? lost : rc;
}

int colibri_decoder_end(colibri_decoder *decoder, const char **text, size_t *n_bytes,
                        colibri_error *error)
{
    int rc = clb_stream_end(&decoder->stream, text, n_bytes, error);
    int lost = clb_model_check(decoder->model, error);
    return lost ? lost : rc;
}

void colibri_decoder_free(colibri_decoder *decoder)
{
    if (!decoder)
        return;
    clb_stream_free(&decoder->stream);
    free(decoder);
}
