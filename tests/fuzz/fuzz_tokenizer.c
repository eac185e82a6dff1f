// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The input is a section `tokenizer` and a text:
//   0  how many ids more than the tokenizer the model has (signed)
//   1  bytes of text, n (little-endian u16)
//   3  the text, n bytes, then the section
#include "chat.h"
#include "fuzzer.h"
#include "tokenizer.h"
#include "unicode.h"

enum { HEAD = 3, MAX_IDS = 400 };

static size_t text_bytes(const uint8_t *data, size_t size)
{
    size_t n = clb_u16(data + 1);
    return n < size - HEAD ? n : size - HEAD;
}

// What comes out token by token is what comes out at once, in whole characters.
static void stream(const struct clb_tokenizer *t, const int32_t *ids, size_t n, const char *whole,
                   size_t n_whole)
{
    struct clb_stream s;
    colibri_error error;
    size_t at = 0;
    clb_stream_init(&s, t);
    for (size_t i = 0; i <= n; i++) {
        const char *part;
        size_t n_part;
        int rc = i < n ? clb_stream_push(&s, ids[i], &part, &n_part, &error)
                       : clb_stream_end(&s, &part, &n_part, &error);
        MUST(!rc && n_part <= n_whole - at && !memcmp(whole + at, part, n_part));
        MUST(clb_utf8_valid((const uint8_t *)part, n_part) == n_part);
        at += n_part;
    }
    MUST(at == n_whole);
    clb_stream_free(&s);
}

static void decode(const struct clb_tokenizer *t, const int32_t *ids, size_t n)
{
    colibri_error error;
    char *text;
    size_t n_text;
    int rc = clb_tokenizer_decode(t, ids, n, &text, &n_text, &error);
    must_be_an_outcome(rc, &error);
    if (rc)
        return;
    stream(t, ids, n, text, n_text);
    free(text);
}

// The text as what is said in a chat: at first, with itself as the system text and without, and
// later.
static void converse(const struct clb_tokenizer *t, const char *text, size_t n_text)
{
    struct clb_chat chat;
    colibri_error error;
    int32_t *ids;
    size_t n_ids;
    int rc = clb_chat_open(&chat, t, &error);
    must_be_an_outcome(rc, &error);
    if (rc || !t->chat)
        return;
    char *said = malloc(n_text + 1);
    memcpy(said, text, n_text);
    said[n_text] = 0;
    for (int turn = 0; turn < 3; turn++) {
        const char *system = turn ? NULL : said;
        rc = clb_chat_encode(&chat, t, turn < 2, system, said, &ids, &n_ids, &error);
        must_be_an_outcome(rc, &error);
        if (!rc)
            free(ids);
    }
    free(said);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD)
        return 0;
    size_t n_text = text_bytes(data, size), n_blob = size - HEAD - n_text, n_ids;
    char *text = malloc(n_text); // of this size, so that a read past the end is seen
    uint8_t *blob = malloc(n_blob);
    memcpy(text, data + HEAD, n_text);
    memcpy(blob, data + HEAD + n_text, n_blob);
    // info is the first chunk of every section that conversion writes
    size_t info = n_blob >= 28 ? clb_u32(blob + 20) : 0;
    uint32_t known = info + 4 <= n_blob ? clb_u32(blob + info) : 0;
    struct clb_tokenizer t;
    colibri_error error;
    int rc = clb_tokenizer_open(&t, blob, n_blob, known + (uint32_t)(int8_t)data[0], &error);
    must_be_an_outcome(rc, &error);
    int32_t *ids;
    if (!rc) {
        rc = clb_tokenizer_encode(&t, text, n_text, &ids, &n_ids, &error);
        must_be_an_outcome(rc, &error);
        if (!rc) {
            decode(&t, ids, n_ids < MAX_IDS ? n_ids : MAX_IDS);
            free(ids);
        }
        converse(&t, text, n_text);
        int32_t drawn[MAX_IDS];
        size_t n = n_text < MAX_IDS ? n_text : MAX_IDS;
        for (size_t i = 0; i < n && t.vocab_size; i++)
            drawn[i] = (int32_t)(((uint32_t)(uint8_t)text[i] * 7 + i) % t.vocab_size);
        if (t.vocab_size)
            decode(&t, drawn, n);
    }
    free(text);
    free(blob);
    return 0;
}

// Insertions would move the section away from its offsets: change numbers where they stand.
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    uint32_t state = seed + 1;
    if (size < HEAD + 4 || draw(&state) % 8 == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    size_t n_text = text_bytes(data, size), n_blob = size - HEAD - n_text;
    uint8_t *text = data + HEAD, *blob = text + n_text;
    uint32_t kind = draw(&state) % 4;
    if (kind == 0 || n_blob < 16 + 12) { // the text, which may grow or shrink
        size_t room = max_size - size + n_text, n;
        room = room < 4 * n_text + 16 ? room : 4 * n_text + 16;
        room = room < UINT16_MAX ? room : UINT16_MAX;
        uint8_t *grown = malloc(room + 1);
        memcpy(grown, text, n_text < room ? n_text : room);
        n = LLVMFuzzerMutate(grown, n_text < room ? n_text : room, room);
        memmove(text + n, blob, n_blob);
        memcpy(text, grown, n);
        free(grown);
        data[1] = (uint8_t)n;
        data[2] = (uint8_t)(n >> 8);
        return HEAD + n + n_blob;
    }
    size_t n_chunks = clb_u32(blob + 8);
    n_chunks = n_chunks < (n_blob - 16) / 12 ? n_chunks : (n_blob - 16) / 12;
    if (kind == 1 || !n_chunks) { // anywhere
        LLVMFuzzerMutate(blob, n_blob, n_blob);
        return size;
    }
    const uint8_t *entry = blob + 16 + 12 * (draw(&state) % n_chunks);
    size_t offset = clb_u32(entry + 4), bytes = clb_u32(entry + 8);
    if (kind == 2 || offset >= n_blob || bytes > n_blob - offset || bytes < 4) {
        put_u32(blob + 4 * (draw(&state) % (16 / 4 + 3 * n_chunks)), (uint32_t)odd_number(&state));
        return size;
    }
    uint8_t *number = blob + offset + 4 * (draw(&state) % (bytes / 4)); // of a chunk
    put_u32(number, draw(&state) % 2 ? clb_u32(number) + draw(&state) % 5 - 2
                                     : (uint32_t)odd_number(&state));
    return size;
}
