// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// What colibri.h promises when a model's file changes under it.
#include "library_checks.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- A file that becomes shorter ----

static sigjmp_buf after_sigbus;

static void on_sigbus(int signal)
{
    (void)signal;
    siglongjmp(after_sigbus, 1);
}

static int infer_some(const colibri_model *model, int threads, colibri_error *error)
{
    colibri_infer_options options = {.n_tokens = 8, .ignore_eos = true, .threads = threads};
    static const int32_t prompt[] = {1, 2, 3};
    return colibri_infer(model, &options, prompt, 3, NULL, NULL, NULL, error);
}

void check_shorter(const char *path)
{
    char file[4096];
    colibri_error error;
    colibri_model *model, *other;
    struct sigaction ours = {.sa_handler = on_sigbus};
    snprintf(file, sizeof file, "%s/model.bin", path);
    sigaction(SIGBUS, &ours, NULL);
    CHECK(!colibri_guard_sigbus(&error) && !colibri_guard_sigbus(&error));
    CHECK(!colibri_load_model(&model, path, NULL, NULL, &error));
    CHECK(!infer_some(model, 1, &error));
    CHECK(!truncate(file, 70000)); // in the middle of the sections
    for (int threads = 1; threads <= 3; threads++) {
        CHECK(infer_some(model, threads, &error) == COLIBRI_ERROR_TRUNCATED);
        CHECK(strstr(error.message, "model.bin became shorter while it was in use"));
        CHECK(is_line(&error));
    }
    CHECK(colibri_load_model(&other, path, NULL, NULL, &error) == COLIBRI_ERROR_TRUNCATED);
    // what is no model's goes to the handler of before
    FILE *f = tmpfile();
    CHECK(f && !ftruncate(fileno(f), 4096));
    volatile char *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fileno(f), 0);
    CHECK(page != MAP_FAILED && !page[0]);
    CHECK(!ftruncate(fileno(f), 0));
    volatile bool back = false;
    if (!sigsetjmp(after_sigbus, 1))
        CHECK(page[0] && false);
    else
        back = true;
    CHECK(back);
    fclose(f);
    colibri_free_model(model);
}

// The tokenizer is the last section.
void check_shorter_tokenizer(const char *path)
{
    static const int32_t ids[] = {300, 301, 302, 303};
    char file[4096], *text;
    const char *part;
    int32_t *found;
    size_t n;
    struct stat st;
    colibri_error error;
    colibri_model *model;
    colibri_decoder *decoder;
    snprintf(file, sizeof file, "%s/model.bin", path);
    CHECK(!colibri_guard_sigbus(&error));
    CHECK(!colibri_load_model(&model, path, NULL, NULL, &error));
    CHECK(!colibri_decoder_create(&decoder, model, &error));
    CHECK(!colibri_tokenize(model, "The king", 8, &found, &n, &error) && n > 1);
    CHECK(!stat(file, &st) && !truncate(file, st.st_size - 24000));
    CHECK(colibri_tokenize(model, "The king", 8, &found, &n, &error) == COLIBRI_ERROR_TRUNCATED);
    CHECK(!found);
    CHECK(colibri_detokenize(model, ids, 4, &text, &n, &error) == COLIBRI_ERROR_TRUNCATED);
    CHECK(!text);
    for (int i = 0; i < 4; i++)
        CHECK(colibri_decoder_push(decoder, ids[i], &part, &n, &error) == COLIBRI_ERROR_TRUNCATED);
    CHECK(colibri_decoder_end(decoder, &part, &n, &error) == COLIBRI_ERROR_TRUNCATED);
    colibri_decoder_free(decoder);
    colibri_free_model(model);
}

// ---- A large section that is damaged: found in the background ----

static void *infer_until_error(void *user)
{
    colibri_error error;
    int rc = 0;
    for (int tries = 0; !rc && tries < 100000; tries++)
        rc = infer_some(user, 1, &error);
    CHECK(rc == COLIBRI_ERROR_CORRUPT && is_line(&error));
    CHECK(strstr(error.message, "section down_weights, layer 0, expert 8 does not match"));
    return NULL;
}

void check_damaged(const char *path)
{
    struct holdings before = holdings();
    colibri_error error;
    colibri_model *model;
    for (int i = 0; i < 20; i++) { // freed before the check is through
        CHECK(!colibri_load_model(&model, path, NULL, NULL, &error));
        colibri_free_model(model);
        CHECK(as_before(before));
    }
    pthread_t other;
    CHECK(!colibri_load_model(&model, path, NULL, NULL, &error));
    CHECK(takers_of(SIGTERM) == 1);
    CHECK(!pthread_create(&other, NULL, infer_until_error, model));
    infer_until_error(model);
    pthread_join(other, NULL);
    CHECK(infer_some(model, 3, &error) == COLIBRI_ERROR_CORRUPT); // and so does every later call
    CHECK(infer_some(model, 1, NULL) == COLIBRI_ERROR_CORRUPT);
    colibri_free_model(model);
    CHECK(as_before(before));
}
