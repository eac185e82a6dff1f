// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// A loaded model that answers one request a line, for bench/compare.py. A request is numbers:
// threads, batch (0: the default), tokens to generate, then the prompt's ids. The answer is JSON.
//
//     session MODEL [LEVEL]
#include "colibri.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_TOKENS = 1 << 16 };

struct generated {
    int32_t ids[MAX_TOKENS];
    int n;
};

static int fail(const colibri_error *error)
{
    fprintf(stderr, "session: %s\n", error->message);
    return error->code;
}

static int keep_token(void *user, const colibri_step *step)
{
    struct generated *g = user;
    if (step->token >= 0 && g->n < MAX_TOKENS)
        g->ids[g->n++] = step->token;
    return 0;
}

// The numbers of one line; -1 at the end of stdin.
static int read_line(int32_t *numbers)
{
    int n = 0, c = '\n';
    while (n < MAX_TOKENS && scanf("%d", &numbers[n]) == 1) {
        n++;
        do
            c = getchar();
        while (c == ' ');
        if (c == '\n')
            return n;
        ungetc(c, stdin);
    }
    return -1;
}

int main(int argc, char **argv)
{
    static int32_t numbers[MAX_TOKENS];
    static struct generated g;
    colibri_error error;
    colibri_model *model;
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: session MODEL [LEVEL]\n");
        return COLIBRI_ERROR_USAGE;
    }
    // All checksums first: no thread shall read the file in the background while others are timed.
    colibri_load_options load = {.isa = argc > 2 ? argv[2] : NULL, .verify = true};
    if (colibri_load_model(&model, argv[1], NULL, &load, &error))
        return fail(&error);
    colibri_info info;
    colibri_model_info(model, &info);
    printf("{\"isa\": \"%s\"}\n", info.isa);
    fflush(stdout);
    for (int n; (n = read_line(numbers)) > 3;) {
        colibri_infer_options options = {
            .n_tokens = numbers[2],
            .ignore_eos = true,
            .batch = numbers[1],
            .threads = numbers[0],
            .kv = COLIBRI_KV_F16,
        };
        colibri_stats stats;
        g.n = 0;
        if (colibri_infer(model, &options, numbers + 3, (size_t)n - 3, keep_token, &g, &stats,
                          &error))
            return fail(&error);
        printf("{\"prefill_seconds\": %.9f, \"decode_seconds\": %.9f, \"ids\": [",
               stats.prefill_seconds, stats.decode_seconds);
        for (int i = 0; i < g.n; i++)
            printf("%s%d", i ? ", " : "", g.ids[i]);
        puts("]}");
        fflush(stdout);
    }
    colibri_free_model(model);
    return 0;
}
