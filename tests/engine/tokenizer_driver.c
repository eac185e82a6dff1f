// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Answers requests about tokenizers: what tokenizer_fixtures.py talks to. A request is one letter,
// a little-endian uint32 n and n bytes; an answer is a code (enum colibri_code), n and n bytes: a
// result or a message.
//   o  vocab_size (uint32), section        opens it; the later requests are about it
//   e  text                                ids
//   d  ids                                 text
//   s  ids                                 text, put together from a stream's parts
//   c  later, has system (one byte each), system, text (each ended by a 0)   ids of a turn
//   w  text                                where its words end (uint32 each), without added tokens
//   m  n, stride (uint32 each), text (n bytes), section   hostile: see mutate()
#include "../../src/chat.h"
#include "../../src/tokenizer.h"
#include "../../src/unicode.h"

#include <stdio.h>
#include <stdlib.h>

static void read_all(void *p, size_t n)
{
    if (fread(p, 1, n, stdin) != n)
        exit(2);
}

static void answer(int code, const void *p, size_t n)
{
    uint32_t head[2] = {(uint32_t)code, (uint32_t)n};
    fwrite(head, 4, 2, stdout);
    if (n)
        fwrite(p, 1, n, stdout);
    fflush(stdout);
}

static void stream(const struct clb_tokenizer *t, const int32_t *ids, size_t n)
{
    struct clb_stream s;
    colibri_error error;
    char *all = NULL;
    size_t n_all = 0, size = 0, bytes;
    const char *text;
    int rc = COLIBRI_OK;
    clb_stream_init(&s, t);
    for (size_t i = 0; i <= n && rc == COLIBRI_OK; i++) {
        rc = i < n ? clb_stream_push(&s, ids[i], &text, &bytes, &error)
                   : clb_stream_end(&s, &text, &bytes, &error);
        if (rc == COLIBRI_OK && clb_utf8_valid((const uint8_t *)text, bytes) < bytes)
            rc = clb_error(&error, COLIBRI_ERROR_INTERNAL, "a part of the stream is not UTF-8");
        if (rc == COLIBRI_OK) {
            all = clb_reserve(all, &size, n_all + bytes + 1, 1);
            if (bytes)
                memcpy(all + n_all, text, bytes);
            n_all += bytes;
        }
    }
    if (rc == COLIBRI_OK)
        answer(rc, all, n_all);
    else
        answer(rc, error.message, strlen(error.message));
    free(all);
    clb_stream_free(&s);
}

struct words {
    const uint8_t *text;
    char *ends;
    size_t n;
};

static int add_word(void *user, const uint8_t *p, size_t n)
{
    struct words *words = user;
    uint32_t end = (uint32_t)(p + n - words->text);
    memcpy(words->ends + 4 * words->n++, &end, 4);
    return COLIBRI_OK;
}

// Opens section[n] and, if it opens, uses it. The copy has no byte to spare, so that a
// sanitizer sees any read outside.
static int use(const uint8_t *section, size_t n, const char *text, size_t n_text)
{
    uint8_t *copy = malloc(n ? n : 1);
    if (n)
        memcpy(copy, section, n);
    struct clb_tokenizer t;
    colibri_error error = {0};
    struct clb_chat chat;
    int rc = clb_tokenizer_open(&t, copy, n, 1000, &error);
    if (rc == COLIBRI_OK)
        rc = clb_chat_open(&chat, &t, &error);
    if (rc == COLIBRI_OK) {
        int32_t *ids;
        size_t n_ids, n_out;
        char *out;
        int32_t every[40];
        for (int i = 0; i < 40; i++)
            every[i] = i;
        if (clb_tokenizer_encode(&t, text, n_text, &ids, &n_ids, &error) == COLIBRI_OK) {
            if (clb_tokenizer_decode(&t, ids, n_ids, &out, &n_out, &error) == COLIBRI_OK)
                free(out);
            free(ids);
        }
        if (clb_tokenizer_decode(&t, every, 40, &out, &n_out, &error) == COLIBRI_OK)
            free(out);
        char said[200];
        snprintf(said, sizeof said, "%.*s", (int)n_text, text);
        for (int i = 0; t.chat && i < 3; i++)
            if (clb_chat_encode(&chat, &t, i < 2, i ? NULL : " told", said, &ids, &n_ids, &error) ==
                COLIBRI_OK)
                free(ids);
    } else if (rc != COLIBRI_ERROR_FORMAT || !error.message[0]) {
        exit(3);
    }
    free(copy);
    return rc;
}

// Every truncation, and every other value of every byte; with a stride above 1, every so manieth
// of these, and every other bit of the byte. Answers how many opened and how many were refused.
static void mutate(uint8_t *section, size_t n, size_t stride, const char *text, size_t n_text)
{
    uint32_t counts[2] = {0, 0};
    for (size_t size = 0; size < n; size += stride)
        counts[use(section, size, text, n_text) != COLIBRI_OK]++;
    for (size_t i = 0; i < n; i += stride) {
        const uint8_t old = section[i];
        for (int change = 1; change<256; change = stride> 1 ? 2 * change : change + 1) {
            section[i] = (uint8_t)(old ^ change);
            counts[use(section, n, text, n_text) != COLIBRI_OK]++;
        }
        section[i] = old;
    }
    answer(COLIBRI_OK, counts, sizeof counts);
}

int main(void)
{
    struct clb_tokenizer t;
    struct clb_chat chat;
    memset(&t, 0, sizeof t);
    uint8_t *section = NULL;
    for (int op; (op = getchar()) != EOF;) {
        uint32_t n;
        read_all(&n, 4);
        uint8_t *data = malloc(n + 1);
        read_all(data, n);
        colibri_error error = {0};
        int32_t *ids = NULL;
        char *text = NULL;
        size_t count = 0;
        int rc = COLIBRI_OK;
        if (op == 'o') {
            free(section);
            section = malloc(n - 4);
            memcpy(section, data + 4, n - 4);
            rc = clb_tokenizer_open(&t, section, n - 4, clb_u32(data), &error);
            if (rc == COLIBRI_OK)
                rc = clb_chat_open(&chat, &t, &error);
        } else if (op == 'c') {
            const char *system = (char *)data + 2, *said = system + strlen(system) + 1;
            rc = clb_chat_encode(&chat, &t, !data[0], data[1] ? system : NULL, said, &ids, &count,
                                 &error);
            count *= 4;
        } else if (op == 'e') {
            rc = clb_tokenizer_encode(&t, (char *)data, n, &ids, &count, &error);
            count *= 4;
        } else if (op == 'd') {
            rc = clb_tokenizer_decode(&t, (int32_t *)(void *)data, n / 4, &text, &count, &error);
        } else if (op == 'w') {
            struct words words = {data, malloc(4 * (size_t)n + 1), 0};
            rc = clb_pretokenize(t.steps, t.n_steps, data, n, add_word, &words);
            text = words.ends;
            count = 4 * words.n;
            memcpy(error.message, "endless", 8);
        }
        if (op == 's')
            stream(&t, (int32_t *)(void *)data, n / 4);
        else if (op == 'm')
            mutate(data + 8 + clb_u32(data), n - 8 - clb_u32(data), clb_u32(data + 4),
                   (char *)data + 8, clb_u32(data));
        else if (rc != COLIBRI_OK)
            answer(rc, error.message, strlen(error.message));
        else
            answer(rc, ids ? (void *)ids : text, count);
        free(ids);
        free(text);
        free(data);
    }
    free(section);
    return 0;
}
