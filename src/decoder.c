// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Ids to text.
#include "tokenizer.h"
#include "unicode.h"

#include <stdlib.h>

#define REPLACEMENT "\xEF\xBF\xBD" // U+FFFD

static bool append(uint8_t **to, size_t *n_to, size_t *size, const void *p, size_t n)
{
    uint8_t *q = clb_reserve(*to, size, *n_to + n + 1, 1);
    if (!q)
        return false;
    *to = q;
    if (n)
        memcpy(q + *n_to, p, n);
    *n_to += n;
    return true;
}

// Returns text; a space at its very start is dropped if the decoder does so.
static bool put(struct clb_stream *s, const void *p, size_t n)
{
    const char *text = p;
    if (n && !s->any_text) {
        s->any_text = true;
        if (s->t->decoder & CLB_DECODE_STRIP && *text == ' ') {
            text++;
            n--;
        }
    }
    uint8_t *out = (uint8_t *)s->out;
    bool ok = append(&out, &s->n_out, &s->out_size, text, n);
    s->out = (char *)out;
    return ok;
}

static bool hold(struct clb_stream *s, const void *p, size_t n)
{
    return append(&s->held, &s->n_held, &s->held_size, p, n);
}

// Returns the held bytes, each part that is no UTF-8 as one U+FFFD. Without `all` a proper
// beginning of a character at the end stays held.
static bool put_replaced(struct clb_stream *s, bool all)
{
    if (!s->n_held)
        return true;
    size_t i = 0;
    while (i < s->n_held) {
        size_t valid = clb_utf8_valid(s->held + i, s->n_held - i);
        if (!put(s, s->held + i, valid))
            return false;
        i += valid;
        uint32_t cp;
        int length = clb_utf8_next(s->held + i, s->n_held - i, &cp);
        if (i == s->n_held || (length == 0 && !all))
            break;
        if (!put(s, REPLACEMENT, 3))
            return false;
        i = length ? i + (size_t)-length : s->n_held;
    }
    s->n_held -= i;
    memmove(s->held, s->held + i, s->n_held);
    return true;
}

// Returns a run of byte tokens: what they spell, or one U+FFFD for each
static bool put_run(struct clb_stream *s)
{
    bool ok = true;
    if (!s->n_held)
        return ok;
    if (clb_utf8_valid(s->held, s->n_held) == s->n_held)
        ok = put(s, s->held, s->n_held);
    else
        for (size_t i = 0; ok && i < s->n_held; i++)
            ok = put(s, REPLACEMENT, 3);
    s->n_held = 0;
    return ok;
}

static unsigned hex(uint8_t c)
{
    return c <= '9' ? c - (unsigned)'0' : (c | 0x20u) - 'a' + 10;
}

static bool put_piece(struct clb_stream *s, uint32_t id)
{
    const struct clb_tokenizer *t = s->t;
    uint32_t n;
    const uint8_t *p = clb_tokenizer_piece(t, id, &n);
    bool first = !s->any_token;
    s->any_token = true;
    if (t->decoder & CLB_DECODE_BYTES)
        return hold(s, p, n) && put_replaced(s, false);
    if (t->decoder & CLB_DECODE_FALLBACK && t->chunk[CLB_PIECE_FLAGS][id] & CLB_PIECE_BYTE)
        return hold(s, &(uint8_t){(uint8_t)(hex(p[3]) << 4 | hex(p[4]))}, 1);
    if (!put_run(s))
        return false;
    uint32_t start = 0;
    if (t->decoder & CLB_DECODE_MARKERS)
        for (uint32_t i = 0; n - i >= CLB_MARKER_SIZE;) {
            if (memcmp(p + i, CLB_MARKER, CLB_MARKER_SIZE) != 0) {
                i++;
                continue;
            }
            if (!put(s, p + start, i - start) ||
                (!(first && t->decoder & CLB_DECODE_FIRST) && !put(s, " ", 1)))
                return false;
            start = i += CLB_MARKER_SIZE;
        }
    return put(s, p + start, n - start);
}

static int no_memory(colibri_error *error)
{
    return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for the text of the tokens");
}

static int push(struct clb_stream *s, int32_t id, colibri_error *error)
{
    const struct clb_tokenizer *t = s->t;
    if (id < 0 || (uint32_t)id >= t->vocab_size)
        return clb_error(error, COLIBRI_ERROR_INPUT,
                         "%ld is no token, the model has the tokens 0 to %ld", (long)id,
                         (long)t->vocab_size - 1);
    if ((uint32_t)id >= t->n_ids ||
        t->chunk[CLB_PIECE_FLAGS][id] & (CLB_PIECE_SPECIAL | CLB_PIECE_ABSENT))
        return COLIBRI_OK;
    return put_piece(s, (uint32_t)id) ? COLIBRI_OK : no_memory(error);
}

static int end(struct clb_stream *s, colibri_error *error)
{
    bool ok = s->t->decoder & CLB_DECODE_BYTES ? put_replaced(s, true) : put_run(s);
    return ok ? COLIBRI_OK : no_memory(error);
}

void clb_stream_init(struct clb_stream *s, const struct clb_tokenizer *t)
{
    *s = (struct clb_stream){.t = t};
}

int clb_stream_push(struct clb_stream *s, int32_t id, const char **text, size_t *n,
                    colibri_error *error)
{
    s->n_out = 0;
    int rc = push(s, id, error);
    *text = s->n_out ? s->out : "";
    *n = s->n_out;
    return rc;
}

int clb_stream_end(struct clb_stream *s, const char **text, size_t *n, colibri_error *error)
{
    s->n_out = 0;
    int rc = end(s, error);
    s->any_token = s->any_text = false;
    *text = s->n_out ? s->out : "";
    *n = s->n_out;
    return rc;
}

void clb_stream_free(struct clb_stream *s)
{
    free(s->held);
    free(s->out);
    memset(s, 0, sizeof *s);
}

int clb_tokenizer_decode(const struct clb_tokenizer *t, const int32_t *ids, size_t n, char **text,
                         size_t *n_bytes, colibri_error *error)
{
    struct clb_stream s;
    clb_stream_init(&s, t);
    int rc = COLIBRI_OK;
    for (size_t i = 0; i < n && rc == COLIBRI_OK; i++)
        rc = push(&s, ids[i], error);
    if (rc == COLIBRI_OK)
        rc = end(&s, error);
    if (rc == COLIBRI_OK && !put(&s, "", 0)) // room for the final zero even if there is no text
        rc = no_memory(error);
    if (rc == COLIBRI_OK) {
        s.out[s.n_out] = 0;
        *text = s.out;
        *n_bytes = s.n_out;
        s.out = NULL;
    }
    clb_stream_free(&s);
    return rc;
}
