// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
#include "tokenizer.h"

#include "unicode.h"

#include <stdlib.h>

enum {
    VERSION = 2,
    HEADER_SIZE = 16,
    ENTRY_SIZE = 12,
    INFO_SIZE = 32,
    MERGE_SIZE = 12,
    ADDED_SIZE = 16,
    STEP_SIZE = 12
};

static int bad(colibri_error *e, const char *what)
{
    return clb_error(e, COLIBRI_ERROR_FORMAT, "section tokenizer: %s; convert the checkpoint again",
                     what);
}

static uint32_t word_at(const struct clb_tokenizer *t, enum clb_chunk chunk, size_t index)
{
    return clb_u32(t->chunk[chunk] + 4 * index);
}

// Finds the chunks. An unknown one may change the ids, unless its top bit says that it does not.
static int open_chunks(struct clb_tokenizer *t, const uint8_t *blob, size_t size, colibri_error *e)
{
    if (size < HEADER_SIZE || memcmp(blob, "CLBT", 4) != 0)
        return bad(e, "it does not begin with CLBT");
    uint32_t version = clb_u32(blob + 4);
    if (version < VERSION)
        return bad(e, "its version is older than this colibri reads");
    if (version > VERSION)
        return clb_error(e, COLIBRI_ERROR_FORMAT,
                         "section tokenizer: version %lu is not known; use a newer colibri",
                         (unsigned long)version);
    uint32_t n = clb_u32(blob + 8);
    if (n > (size - HEADER_SIZE) / ENTRY_SIZE || size > UINT32_MAX)
        return bad(e, "its size does not fit its table of chunks");
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *entry = blob + HEADER_SIZE + (size_t)i * ENTRY_SIZE;
        uint32_t tag = clb_u32(entry), offset = clb_u32(entry + 4), bytes = clb_u32(entry + 8);
        if (offset > size || bytes > size - offset || offset % 4)
            return bad(e, "a chunk lies outside of it");
        if (tag == CLB_CHAT_CHUNK) {
            t->chat = blob + offset;
            t->chat_size = bytes;
        }
        if (tag >> 31)
            continue;
        if (tag < 1 || tag >= CLB_N_CHUNKS)
            return clb_error(e, COLIBRI_ERROR_FORMAT,
                             "section tokenizer: chunk %lu is not known; use a newer colibri",
                             (unsigned long)tag);
        if (t->chunk[tag])
            return bad(e, "a chunk is there twice");
        t->chunk[tag] = blob + offset;
        t->size[tag] = bytes;
    }
    for (int tag = 1; tag < CLB_N_CHUNKS; tag++)
        if (!t->chunk[tag])
            return bad(e, "a chunk is missing");
    return COLIBRI_OK;
}

static int open_info(struct clb_tokenizer *t, colibri_error *e)
{
    if (t->size[CLB_INFO] != INFO_SIZE)
        return bad(e, "the chunk info has another size");
    t->n_ids = word_at(t, CLB_INFO, 0);
    t->flags = word_at(t, CLB_INFO, 1);
    t->unk_id = word_at(t, CLB_INFO, 2);
    t->lead = word_at(t, CLB_INFO, 3);
    t->decoder = word_at(t, CLB_INFO, 4);
    t->n_added_raw = word_at(t, CLB_INFO, 5);
    if (t->flags & ~(uint32_t)CLB_ALL_FLAGS || t->lead > CLB_LEAD_SPACE ||
        t->decoder & ~(uint32_t)CLB_DECODE_ALL ||
        (t->flags & CLB_NFC && t->flags & (CLB_MARK_SPACES | CLB_PREPEND)))
        return bad(e, "the chunk info asks for something unknown");
    if (t->unk_id != CLB_NO_ID && t->unk_id >= t->n_ids)
        return bad(e, "the unknown token is none of its tokens");
    return COLIBRI_OK;
}

static int open_pieces(struct clb_tokenizer *t, colibri_error *e)
{
    if (t->size[CLB_PIECE_FLAGS] != t->n_ids || t->size[CLB_PIECE_ENDS] / 4 != t->n_ids ||
        t->size[CLB_PIECE_ENDS] % 4)
        return bad(e, "a table of pieces does not have one entry for each id");
    uint32_t start = 0;
    for (uint32_t id = 0; id < t->n_ids; id++) {
        uint32_t end = word_at(t, CLB_PIECE_ENDS, id);
        uint8_t flags = t->chunk[CLB_PIECE_FLAGS][id];
        if (end < start || end > t->size[CLB_PIECE_BYTES] || flags & ~CLB_PIECE_ALL ||
            (flags & CLB_PIECE_BYTE && end - start != 6) ||
            (!(t->decoder & CLB_DECODE_BYTES) && // what is put as it is
             clb_utf8_valid(t->chunk[CLB_PIECE_BYTES] + start, end - start) != end - start))
            return clb_error(e, COLIBRI_ERROR_FORMAT,
                             "section tokenizer: the piece of id %lu is damaged; convert the "
                             "checkpoint again",
                             (unsigned long)id);
        start = end;
    }
    t->n_slots = t->size[CLB_SLOTS] / 4;
    if (t->size[CLB_SLOTS] % 4 || !t->n_slots || t->n_slots & (t->n_slots - 1))
        return bad(e, "the number of slots is no power of two");
    for (uint32_t i = 0; i < t->n_slots; i++)
        if (word_at(t, CLB_SLOTS, i) != CLB_NO_ID && word_at(t, CLB_SLOTS, i) >= t->n_ids)
            return bad(e, "a slot holds no id");
    if (t->size[CLB_BYTE_IDS] != 256 * 4)
        return bad(e, "there are not 256 byte ids");
    for (uint32_t i = 0; i < 256; i++)
        if (word_at(t, CLB_BYTE_IDS, i) != CLB_NO_ID && word_at(t, CLB_BYTE_IDS, i) >= t->n_ids)
            return bad(e, "the id of a byte is none");
    return COLIBRI_OK;
}

static int open_merges(struct clb_tokenizer *t, colibri_error *e)
{
    uint32_t n = t->size[CLB_MERGES] / MERGE_SIZE;
    if (t->size[CLB_MERGES] % MERGE_SIZE || t->size[CLB_MERGE_STARTS] % 4 ||
        t->size[CLB_MERGE_STARTS] / 4 != (uint64_t)t->n_ids + 1 ||
        word_at(t, CLB_MERGE_STARTS, 0) || word_at(t, CLB_MERGE_STARTS, t->n_ids) != n)
        return bad(e, "the tables of merges do not fit each other");
    for (uint32_t id = 0; id < t->n_ids; id++) {
        uint32_t start = word_at(t, CLB_MERGE_STARTS, id);
        uint32_t end = word_at(t, CLB_MERGE_STARTS, (size_t)id + 1);
        if (start > end || end > n)
            return bad(e, "the merges are not in order");
        for (uint32_t i = start; i < end; i++) {
            const uint8_t *merge = t->chunk[CLB_MERGES] + (size_t)i * MERGE_SIZE;
            if (clb_u32(merge) >= t->n_ids || clb_u32(merge + 8) >= t->n_ids ||
                (i > start && clb_u32(merge) <= clb_u32(merge - MERGE_SIZE)))
                return bad(e, "a merge is not in order or has no id");
        }
    }
    return COLIBRI_OK;
}

static int open_added(struct clb_tokenizer *t, colibri_error *e)
{
    t->n_added = t->size[CLB_ADDED] / ADDED_SIZE;
    if (t->size[CLB_ADDED] % ADDED_SIZE || t->n_added_raw > t->n_added)
        return bad(e, "the number of added tokens is wrong");
    const uint8_t *last = NULL;
    uint32_t last_n = 0;
    for (uint32_t i = 0; i < t->n_added; i++) {
        const uint8_t *added = t->chunk[CLB_ADDED] + (size_t)i * ADDED_SIZE;
        uint32_t flags = clb_u32(added + 4), offset = clb_u32(added + 8), n = clb_u32(added + 12);
        if (clb_u32(added) >= t->n_ids || flags & ~(uint32_t)CLB_ADDED_ALL ||
            !(flags & CLB_ADDED_NORMALIZED) != (i < t->n_added_raw) || n < 1 || n > 1024 ||
            offset > t->size[CLB_ADDED_BYTES] || n > t->size[CLB_ADDED_BYTES] - offset)
            return bad(e, "an added token is damaged");
        const uint8_t *pattern = t->chunk[CLB_ADDED_BYTES] + offset;
        if (clb_utf8_valid(pattern, n) < n) // or it could cut a character of the text in two
            return bad(e, "an added token is not UTF-8");
        if (i && i != t->n_added_raw) {
            int order = memcmp(last, pattern, last_n < n ? last_n : n);
            if (order > 0 || (order == 0 && last_n >= n))
                return bad(e, "the added tokens are not in order");
        }
        last = pattern;
        last_n = n;
    }
    return COLIBRI_OK;
}

// The next n of the ranges, *used of which are taken. False if they are not there or no ranges.
static bool take_ranges(const struct clb_tokenizer *t, uint32_t *used, uint32_t n,
                        struct clb_ranges *ranges)
{
    if (n > t->size[CLB_RANGES] / 4 - *used)
        return false;
    *ranges = (struct clb_ranges){t->chunk[CLB_RANGES] + 4 * (size_t)*used, n};
    for (uint32_t i = 1; i < n; i++)
        if (clb_u32(ranges->p + 4 * i) >> 8 <= clb_u32(ranges->p + 4 * i - 4) >> 8)
            return false;
    *used += n;
    return true;
}

static bool symbols_fit(const struct clb_split *step)
{
    for (uint32_t i = 0; i < step->symbols.n; i++)
        if (step->symbols.p[4 * i] >= step->n_symbols)
            return false;
    return true;
}

// The ranges and automata that follow each other in their chunks
static int open_steps(struct clb_tokenizer *t, colibri_error *e)
{
    t->n_steps = t->size[CLB_STEPS] / STEP_SIZE;
    if (t->size[CLB_STEPS] % STEP_SIZE || t->n_steps > CLB_MAX_STEPS)
        return bad(e, "the pre-tokenizer has too many steps");
    uint32_t n_ranges = 0;
    size_t n_entries = 0, entries = t->size[CLB_TRANSITIONS] / 2;
    bool ok = take_ranges(t, &n_ranges, word_at(t, CLB_INFO, 6), &t->classes) &&
              take_ranges(t, &n_ranges, word_at(t, CLB_INFO, 7), &t->combining);
    for (uint32_t i = 0; ok && i < t->n_steps; i++) {
        struct clb_split *step = &t->steps[i];
        step->n_symbols = word_at(t, CLB_STEPS, 3 * i + 1);
        step->n_states = word_at(t, CLB_STEPS, 3 * i + 2);
        step->transitions = t->chunk[CLB_TRANSITIONS] + 2 * n_entries;
        ok = step->n_symbols - 1 < 256 && step->n_states - 1 < CLB_STOP &&
             take_ranges(t, &n_ranges, word_at(t, CLB_STEPS, 3 * i), &step->symbols) &&
             symbols_fit(step);
        if (!ok || (step->n_symbols + 1) * step->n_states > entries - n_entries)
            return bad(e, "a step of the pre-tokenizer does not fit its tables");
        size_t end = n_entries + (step->n_symbols + 1) * step->n_states;
        for (; n_entries < end; n_entries++) {
            uint32_t state = clb_u16(t->chunk[CLB_TRANSITIONS] + 2 * n_entries) & CLB_STOP;
            if (state != CLB_STOP && state >= step->n_states)
                return bad(e, "a transition of the pre-tokenizer leads nowhere");
        }
    }
    if (!ok || 4 * n_ranges != t->size[CLB_RANGES] || 2 * n_entries != t->size[CLB_TRANSITIONS])
        return bad(e, "the ranges of characters are damaged");
    return COLIBRI_OK;
}

// Every number of a table for the normal form is a character, or 0
static int open_characters(struct clb_tokenizer *t, enum clb_chunk chunk, uint32_t row,
                           colibri_error *e)
{
    if (t->size[chunk] % row)
        return bad(e, "a table of characters has another size");
    for (uint32_t i = 0; i < t->size[chunk] / 4; i++)
        if (word_at(t, chunk, i) >= 0x110000 || word_at(t, chunk, i) - 0xD800 < 0x800)
            return bad(e, "a table of characters holds something else");
    return COLIBRI_OK;
}

int clb_tokenizer_open(struct clb_tokenizer *t, const uint8_t *blob, size_t size,
                       uint32_t vocab_size, colibri_error *error)
{
    memset(t, 0, sizeof(*t));
    t->vocab_size = vocab_size;
    int rc = open_chunks(t, blob, size, error);
    if (rc == COLIBRI_OK)
        rc = open_info(t, error);
    if (rc == COLIBRI_OK)
        rc = open_pieces(t, error);
    if (rc == COLIBRI_OK)
        rc = open_merges(t, error);
    if (rc == COLIBRI_OK)
        rc = open_added(t, error);
    if (rc == COLIBRI_OK)
        rc = open_steps(t, error);
    if (rc == COLIBRI_OK)
        rc = open_characters(t, CLB_DECOMPOSITIONS, CLB_DECOMPOSITION_SIZE, error);
    if (rc == COLIBRI_OK)
        rc = open_characters(t, CLB_COMPOSITIONS, CLB_COMPOSITION_SIZE, error);
    if (rc != COLIBRI_OK)
        return rc;
    for (int tag = CLB_PREFIX_IDS; tag <= CLB_SUFFIX_IDS; tag++) {
        if (t->size[tag] % 4)
            return bad(error, "the ids around a text are damaged");
        for (uint32_t i = 0; i < t->size[tag] / 4; i++)
            if (word_at(t, (enum clb_chunk)tag, i) >= vocab_size)
                return bad(error, "an id to put around a text is none of the model's");
    }
    return COLIBRI_OK;
}

void *clb_reserve(void *p, size_t *size, size_t need, size_t item)
{
    if (need <= *size)
        return p;
    size_t more = *size < SIZE_MAX / 2 && 2 * *size > need ? 2 * *size : need;
    uint64_t bytes;
    if (more < 16)
        more = 16;
    if (!clb_mul(more, item, &bytes) || bytes > SIZE_MAX)
        return NULL;
    void *q = realloc(p, (size_t)bytes);
    if (q)
        *size = more;
    return q;
}

const uint8_t *clb_tokenizer_piece(const struct clb_tokenizer *t, uint32_t id, uint32_t *n)
{
    uint32_t start = id ? word_at(t, CLB_PIECE_ENDS, id - 1) : 0;
    uint32_t end = word_at(t, CLB_PIECE_ENDS, id);
    *n = end > start ? end - start : 0; // less: the file has become shorter, see guard.h
    return t->chunk[CLB_PIECE_BYTES] + start;
}

uint32_t clb_tokenizer_find(const struct clb_tokenizer *t, const uint8_t *p, size_t n)
{
    uint32_t hash = 2166136261u; // FNV-1a
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * 16777619u;
    for (uint32_t probe = 0; probe < CLB_MAX_PROBES; probe++) {
        uint32_t id = word_at(t, CLB_SLOTS, (hash + probe) & (t->n_slots - 1));
        if (id == CLB_NO_ID)
            break;
        uint32_t size;
        const uint8_t *piece = clb_tokenizer_piece(t, id, &size);
        if (size == n && memcmp(piece, p, n) == 0)
            return id;
    }
    return CLB_NO_ID;
}

uint32_t clb_tokenizer_merge(const struct clb_tokenizer *t, uint32_t left, uint32_t right,
                             uint32_t *rank)
{
    uint32_t low = word_at(t, CLB_MERGE_STARTS, left);
    uint32_t high = word_at(t, CLB_MERGE_STARTS, (size_t)left + 1);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const uint8_t *merge = t->chunk[CLB_MERGES] + (size_t)middle * MERGE_SIZE;
        uint32_t found = clb_u32(merge);
        if (found == right) {
            *rank = clb_u32(merge + 4);
            return clb_u32(merge + 8);
        }
        if (found < right)
            low = middle + 1;
        else
            high = middle;
    }
    return CLB_NO_ID;
}
