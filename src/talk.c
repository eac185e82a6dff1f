// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "talk.h"

#include "tokenizer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int clb_talk_read(struct clb_talk *t, int end, bool *any, colibri_error *error)
{
    for (size_t n = 0;; n++) {
        char *text = clb_reserve(t->text, &t->size, n + 1, 1);
        if (!text)
            return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for standard input");
        t->text = text;
        ssize_t got = read(STDIN_FILENO, text + n, 1);
        if (got < 0)
            return clb_error(error, COLIBRI_ERROR_FILE, "standard input cannot be read: %s",
                             strerror(errno));
        bool more = got;
        *any = more || n;
        if (!more || text[n] == end || !text[n]) {
            text[n] = 0;
            return 0;
        }
    }
}

int clb_talk_next(struct clb_talk *t, const int32_t **ids, size_t *n, colibri_error *error)
{
    const char *text = t->options->prompt;
    *n = 0;
    if (text && t->begun)
        return 0;
    for (bool any; !text; text = t->text[strspn(t->text, " \t\r")] ? t->text : NULL) {
        if (isatty(STDIN_FILENO))
            fputs("> ", stderr);
        int rc = clb_talk_read(t, '\n', &any, error);
        if (rc || !any)
            return rc;
    }
    free(t->ids);
    t->ids = NULL;
    int rc =
        colibri_tokenize_turn(t->model, !t->begun, t->options->system, text, &t->ids, n, error);
    *ids = t->ids;
    t->begun = true;
    return rc;
}

void clb_talk_free(struct clb_talk *t)
{
    free(t->text);
    free(t->ids);
}
