// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The logits of one sequence, computed with many settings in one process: an emulator starts and
// loads the model once. For each setting it prints the logits hash, and the first position whose
// logits are not those of the first setting with the same type of cache.
//
//     hash_matrix MODEL ISA LENGTH PROMPT KV:THREADS:BATCH:SPLIT...
//
// PROMPT is ids with commas; greedy decoding makes it a sequence of LENGTH tokens, and the hash
// covers the logits after PROMPT and all that follow. SPLIT says how many tokens of the sequence
// are given as the prompt; the others are generated again. It is the length of PROMPT in the first
// setting of each type of cache.
#include "colibri.h"
#include "sha256.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kv_names[] = {
    [COLIBRI_KV_F32] = "f32",
    [COLIBRI_KV_F16] = "f16",
    [COLIBRI_KV_Q8] = "q8",
};
enum { N_KV = sizeof kv_names / sizeof *kv_names };

// What the first setting with some type of cache gave.
struct sequence {
    bool made;
    int32_t *tokens; // (length) at first the prompt
    float *logits;   // (length, vocab_size)
};

struct pass {
    struct sequence *sequence;
    struct clb_sha256 hash;
    int hash_from; // a position
    int n_rows;    // of logits so far
    int different; // the first position whose logits are others, or -1
};

static void require(bool condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "hash_matrix: %s\n", what);
    exit(2);
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    require(memory, "no memory");
    return memory;
}

static int add_row(void *user, const colibri_step *step)
{
    struct pass *pass = user;
    struct sequence *s = pass->sequence;
    size_t n = (size_t)step->vocab_size;
    float *row = s->logits + (size_t)pass->n_rows * n;
    require(step->position == pass->n_rows, "a row of logits is missing");
    if (step->position >= pass->hash_from)
        clb_sha256_add(&pass->hash, step->logits, n * sizeof *row);
    if (!s->made) {
        memcpy(row, step->logits, n * sizeof *row);
        if (step->token >= 0)
            s->tokens[step->position + 1] = step->token;
    } else if (pass->different < 0 && memcmp(row, step->logits, n * sizeof *row) != 0) {
        pass->different = step->position;
    }
    pass->n_rows++;
    return 0;
}

static int kv_type(const char *setting)
{
    for (int kv = 0; kv < N_KV; kv++)
        if (kv_names[kv] && !strncmp(setting, kv_names[kv], strcspn(setting, ":")))
            return kv;
    require(false, "a cache of unknown type");
    return 0;
}

static int read_prompt(const char *text, int32_t *tokens, int length)
{
    int n = 0;
    for (char *end; *text; text = end + (*end == ',')) {
        require(n < length, "the prompt is longer than the sequence");
        tokens[n++] = (int32_t)strtol(text, &end, 10);
        require(end != text, "the prompt is no list of ids");
    }
    return n;
}

int main(int argc, char **argv)
{
    require(argc > 5, "MODEL ISA LENGTH PROMPT KV:THREADS:BATCH:SPLIT...");
    colibri_error error;
    colibri_model *model;
    colibri_load_options load = {.isa = argv[2]};
    require(!colibri_load_model(&model, argv[1], NULL, &load, &error), error.message);
    colibri_info info;
    colibri_model_info(model, &info);
    int length = atoi(argv[3]);
    struct sequence sequences[N_KV];
    int n_prompt = 0;
    for (int kv = 0; kv < N_KV; kv++) {
        sequences[kv] = (struct sequence){
            .tokens = allocate((size_t)length, sizeof(int32_t)),
            .logits = allocate((size_t)length * (size_t)info.vocab_size, sizeof(float)),
        };
        n_prompt = read_prompt(argv[4], sequences[kv].tokens, length);
    }
    for (int i = 5; i < argc; i++) {
        int kv = kv_type(argv[i]);
        struct pass pass = {.sequence = &sequences[kv], .hash_from = n_prompt - 1, .different = -1};
        colibri_infer_options o = {
            .ignore_eos = true, .every_logit = true, .feed_last = true, .kv = (colibri_kv)kv};
        int split;
        const char *numbers = argv[i] + strcspn(argv[i], ":");
        require(sscanf(numbers, ":%d:%d:%d", &o.threads, &o.batch, &split) == 3, argv[i]);
        require(split >= 1 && split <= length, "the split lies outside the sequence");
        require(pass.sequence->made || split == n_prompt, "the first split is not the prompt's");
        o.n_tokens = length - split;
        clb_sha256_init(&pass.hash);
        require(!colibri_infer(model, &o, pass.sequence->tokens, (size_t)split, add_row, &pass,
                               NULL, &error),
                error.message);
        require(pass.n_rows == length, "rows of logits are missing");
        pass.sequence->made = true;
        char hex[65];
        clb_sha256_hex(&pass.hash, hex);
        printf("%s %s", argv[i], hex);
        if (pass.different >= 0)
            printf(" differs from position %d on", pass.different);
        puts("");
    }
    return 0;
}
