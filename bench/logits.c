// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The logits after every token of a text, as float32 [n_tokens][vocab_size] of this machine's byte
// order. Token ids come as `colibri --tokenize` prints them.
//
//     logits MODEL f32|f16|q8 < IDS > LOGITS     (the type of the key/value cache)
#include "colibri.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed(int rc, const char *message)
{
    fprintf(stderr, "logits: %s\n", message);
    return rc;
}

static int write_row(void *user, const colibri_step *step)
{
    (void)user;
    size_t n = (size_t)step->vocab_size;
    return fwrite(step->logits, sizeof *step->logits, n, stdout) != n;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"f32", "f16", "q8"};
    static const colibri_kv types[] = {COLIBRI_KV_F32, COLIBRI_KV_F16, COLIBRI_KV_Q8};
    int kv = 0;
    while (argc == 3 && kv < 3 && strcmp(argv[2], names[kv]))
        kv++;
    if (argc != 3 || kv == 3)
        return failed(COLIBRI_ERROR_USAGE, "usage: logits MODEL f32|f16|q8 < IDS > LOGITS");
    colibri_error error;
    colibri_model *model;
    int rc = colibri_load_model(&model, argv[1], NULL, NULL, &error);
    if (rc)
        return failed(rc, error.message);
    colibri_info info;
    colibri_model_info(model, &info);
    int32_t *ids = malloc((size_t)info.max_positions * sizeof *ids);
    if (!ids)
        return failed(COLIBRI_ERROR_MEMORY, "no memory for the token ids");
    size_t n = 0;
    while (n < (size_t)info.max_positions && scanf("%d%*[, \n]", &ids[n]) == 1)
        n++;
    if (!feof(stdin))
        return failed(COLIBRI_ERROR_INPUT, "stdin is no list of token ids, or is too long");
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    colibri_infer_options options = {
        .every_logit = true,
        .threads = (int32_t)(cpus < 1 ? 1 : cpus),
        .kv = types[kv],
    };
    rc = colibri_infer(model, &options, ids, n, write_row, NULL, NULL, &error);
    if (rc == COLIBRI_ERROR_STOPPED || (!rc && fflush(stdout)))
        return failed(COLIBRI_ERROR_FILE, "the logits cannot be written");
    if (rc)
        return failed(rc, error.message);
    free(ids);
    colibri_free_model(model);
    return 0;
}
