// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
#include "chat.h"

#include <stdlib.h>

enum {
    MAX_SIZE = 1 << 16,                         // bytes of the chunk
    HEADER_SIZE = 4 * (3 + CLB_N_CHAT_STRINGS), // flags, ends of the strings, n_stops, n_marks
};

enum { // flags
    TAKES_SYSTEM = 1,
    ALL_FLAGS = 511,
    // then two bits for each kind of text: blanks are dropped at its left, at its right
    TRIM_SYSTEM = 1,
    TRIM_USER = 3,
    TRIM_USER_AFTER_SYSTEM = 5,
    TRIM_LEFT = 1,
    TRIM_RIGHT = 2
};

static bool open_chunk(struct clb_chat *c, const uint8_t *chunk, uint32_t size, uint32_t vocab_size)
{
    if (size < HEADER_SIZE || size > MAX_SIZE)
        return false;
    c->flags = clb_u32(chunk);
    c->n_stops = clb_u32(chunk + HEADER_SIZE - 8);
    c->n_marks = clb_u32(chunk + HEADER_SIZE - 4);
    uint64_t n_ids = (uint64_t)c->n_stops + c->n_marks;
    if (c->flags & ~(uint32_t)ALL_FLAGS || n_ids > (size - HEADER_SIZE) / 4)
        return false;
    const uint8_t *ids = chunk + HEADER_SIZE;
    for (uint32_t i = 0; i < n_ids; i++)
        if (clb_u32(ids + 4 * i) >= vocab_size)
            return false;
    c->stops = (const int32_t *)(const void *)ids;
    c->marks = ids + 4 * c->n_stops;
    c->text = ids + 4 * n_ids;
    size -= (uint32_t)(c->text - chunk);
    for (uint32_t i = 0; i < CLB_N_CHAT_STRINGS; i++) {
        uint32_t start = c->start[i], end = clb_u32(chunk + 4 + 4 * i);
        if (end < start || end > size || clb_utf8_valid(c->text + start, end - start) < end - start)
            return false;
        c->start[i + 1] = end;
    }
    return true;
}

int clb_chat_open(struct clb_chat *c, const struct clb_tokenizer *t, colibri_error *error)
{
    memset(c, 0, sizeof *c);
    if (!t->chat || open_chunk(c, t->chat, t->chat_size, t->vocab_size))
        return COLIBRI_OK;
    return clb_error(error, COLIBRI_ERROR_FORMAT,
                     "section tokenizer: the chunk chat is damaged; convert the checkpoint again");
}

// Python's str.isspace
static bool is_blank(uint32_t c)
{
    return c - 0x09 < 5 || c - 0x1C < 5 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           c - 0x2000 < 11 || c - 0x2028 < 2 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// A text that is being put together.
struct writer {
    uint8_t *out;
    size_t n;
    struct clb_speech speech;
};

static void put(struct writer *w, const void *p, size_t n)
{
    memcpy(w->out + w->n, p, n);
    w->n += n;
}

// Puts the strings from `first` to `last`.
static void put_form(struct writer *w, const struct clb_chat *c, enum clb_chat_string first,
                     enum clb_chat_string last)
{
    put(w, c->text + c->start[first], c->start[last + 1] - c->start[first]);
}

// Puts what is said, as part `part` of it; `trim` are its flags, from the lowest bit on.
static void put_said(struct writer *w, int part, const char *text, uint32_t trim)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t n = strlen(text), start = n, end = 0; // of what is not blank
    uint32_t cp;
    for (size_t i = 0, next; i < n; i = next) {
        int length = clb_utf8_next(p + i, n - i, &cp);
        next = length > 0 ? i + (size_t)length : n; // no UTF-8: an error, later
        if (length > 0 && is_blank(cp))
            continue;
        start = i < start ? i : start;
        end = next;
    }
    start = trim & TRIM_LEFT ? start : 0;
    end = trim & TRIM_RIGHT ? end : n;
    w->speech.said[2 * part] = w->n;
    if (start < end)
        put(w, p + start, end - start);
    w->speech.said[2 * part + 1] = w->n;
}

int clb_chat_encode(const struct clb_chat *c, const struct clb_tokenizer *t, bool first,
                    const char *system, const char *text, int32_t **ids, size_t *n_ids,
                    colibri_error *error)
{
    if (!t->chat)
        return clb_error(error, COLIBRI_ERROR_INPUT,
                         "the model has no chat form; give it a text to continue, or convert it "
                         "again with a chat template that has one");
    if (first && system && !(c->flags & TAKES_SYSTEM))
        return clb_error(error, COLIBRI_ERROR_INPUT, "the model takes no --system");
    struct writer w = {.speech = {.marks = c->marks, .n_marks = c->n_marks, .later = !first}};
    w.out = malloc(t->chat_size + strlen(text) + (system ? strlen(system) : 0));
    if (!w.out)
        return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for a turn");
    int trim = TRIM_USER;
    if (!first) {
        put_form(&w, c, CLB_CHAT_END, CLB_CHAT_USER);
    } else if (system) {
        trim = TRIM_USER_AFTER_SYSTEM;
        put_form(&w, c, CLB_CHAT_SYSTEM, CLB_CHAT_SYSTEM);
        put_said(&w, 0, system, c->flags >> TRIM_SYSTEM);
        put_form(&w, c, CLB_CHAT_SYSTEM_END, CLB_CHAT_SYSTEM_END);
    } else {
        put_form(&w, c, CLB_CHAT_PLAIN, CLB_CHAT_PLAIN);
    }
    put_said(&w, 1, text, c->flags >> trim);
    put_form(&w, c, CLB_CHAT_USER_END, CLB_CHAT_GENERATION);
    int rc = clb_tokenizer_encode_speech(t, &w.speech, (char *)w.out, w.n, ids, n_ids, error);
    free(w.out);
    return rc;
}
