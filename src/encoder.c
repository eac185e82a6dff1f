// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Text to ids, in the order of the reference: added tokens are cut out of the text; what lies
// between (a segment) is normalised; added tokens of the normalised kind are cut out; what lies
// between (a piece) is cut into words; each word is merged.
#include "bpe.h"
#include "normalizer.h"
#include "unicode.h"

#include <stdlib.h>

enum { MAX_TEXT = 1 << 28 }; // bytes; three times as many, and the markers, fit into uint32_t

struct encoder {
    const struct clb_tokenizer *t;
    struct clb_bpe bpe;
    uint8_t *segment, *piece; // rewritten text
    size_t segment_size, piece_size;
    const struct clb_speech *speech; // NULL: no part of the text is said
};

struct match {
    uint32_t id, flags;
    size_t start, end;
    size_t blank_end; // of the white space behind the last token that took some along
};

static const uint8_t *added_at(const struct clb_tokenizer *t, uint32_t index)
{
    return t->chunk[CLB_ADDED] + 16 * (size_t)index;
}

// The first entry of [low, high) whose pattern's byte at `depth` is at least `byte`; all begin
// with the same `depth` bytes, and a pattern that ends there sorts first.
static uint32_t lower_bound(const struct clb_tokenizer *t, uint32_t low, uint32_t high,
                            uint32_t depth, int byte)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const uint8_t *added = added_at(t, middle);
        const uint8_t *pattern = t->chunk[CLB_ADDED_BYTES] + clb_u32(added + 8);
        if ((clb_u32(added + 12) > depth ? pattern[depth] : -1) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// The longest of added[low, high) that p[n] begins with, or NULL
static const uint8_t *longest_added(const struct clb_tokenizer *t, uint32_t low, uint32_t high,
                                    const uint8_t *p, size_t n)
{
    const uint8_t *found = NULL;
    for (uint32_t depth = 0; depth < n && low < high; depth++) {
        low = lower_bound(t, low, high, depth, p[depth]);
        high = lower_bound(t, low, high, depth, p[depth] + 1);
        if (low < high && clb_u32(added_at(t, low) + 12) == depth + 1)
            found = added_at(t, low);
    }
    return found;
}

static size_t previous_character(const uint8_t *p, size_t i)
{
    do
        i--;
    while (i && (p[i] & 0xC0) == 0x80);
    return i;
}

static bool is(const struct clb_tokenizer *t, uint8_t class, const uint8_t *p, size_t i, size_t n)
{
    uint32_t cp;
    return clb_utf8_next(p + i, n - i, &cp) > 0 && clb_range_value(&t->classes, cp) == class;
}

// Where the part that has byte i of a text of n bytes ends: one that is said, or one between.
static size_t part_end(const size_t said[4], size_t i, size_t n, bool *is_said)
{
    for (int k = 0; k < 4; k++)
        if (i < said[k]) {
            *is_said = k % 2;
            return said[k];
        }
    return n;
}

// Whether the added token is plain text in what is said.
static bool is_muted(const struct clb_speech *speech, const uint8_t *added)
{
    bool muted = clb_u32(added + 4) & CLB_ADDED_SPECIAL;
    for (uint32_t i = 0; i < speech->n_marks; i++)
        muted |= clb_u32(speech->marks + 4 * i) == clb_u32(added);
    return muted;
}

// The first added token of added[low, high) at or after *from, which moves on behind it. The
// match may be wider than the token: it takes white space along. `after`: the end of the match
// before it. `said`: as in clb_speech, of p.
static bool next_match(const struct encoder *e, uint32_t low, uint32_t high, const uint8_t *p,
                       size_t n, const size_t said[4], size_t *from, size_t after, struct match *m)
{
    const struct clb_tokenizer *t = e->t;
    for (size_t i = *from; low < high && i < n;) {
        const uint8_t *added = longest_added(t, low, high, p + i, n - i);
        bool is_said = false;
        if (added && e->speech)
            added = longest_added(t, low, high, p + i, part_end(said, i, n, &is_said) - i);
        if (!added) {
            i++;
            continue;
        }
        size_t start = i, end = i + clb_u32(added + 12);
        uint32_t flags = clb_u32(added + 4);
        i = end;
        if (is_said && is_muted(e->speech, added))
            continue;
        if (flags & CLB_ADDED_SINGLE_WORD &&
            ((start && is(t, CLB_CLASS_WORD, p, previous_character(p, start), n)) ||
             is(t, CLB_CLASS_WORD, p, end, n)))
            continue;
        if (flags & CLB_ADDED_LSTRIP) {
            while (start > after && is(t, CLB_CLASS_SPACE, p, previous_character(p, start), n))
                start = previous_character(p, start);
            start = start > after ? start : after;
        }
        if (flags & CLB_ADDED_RSTRIP) {
            // A token within white space that was looked at: not again, or it would be quadratic.
            end = m->blank_end > end ? m->blank_end : end;
            while (is(t, CLB_CLASS_SPACE, p, end, n))
                end += (size_t)clb_utf8_next(p + end, n - end, &(uint32_t){0});
            m->blank_end = end;
        }
        *from = i;
        *m = (struct match){clb_u32(added), flags, start, end, m->blank_end};
        return true;
    }
    return false;
}

static int word(void *user, const uint8_t *p, size_t n)
{
    struct encoder *e = user;
    return clb_bpe_word(&e->bpe, p, n) ? COLIBRI_OK : COLIBRI_ERROR_MEMORY;
}

// Copies p[n] behind `lead`, with markers for spaces if `mark`. NULL: no memory
static uint8_t *rewrite(uint8_t **buffer, size_t *size, const char *lead, const uint8_t *p,
                        size_t *n, bool mark)
{
    uint8_t *out = clb_reserve(*buffer, size, 3 * *n + CLB_MARKER_SIZE, 1);
    if (!out)
        return NULL;
    *buffer = out;
    for (; *lead; lead++)
        *out++ = (uint8_t)*lead;
    for (size_t i = 0; i < *n; i++) {
        if (mark && p[i] == ' ') {
            memcpy(out, CLB_MARKER, CLB_MARKER_SIZE);
            out += CLB_MARKER_SIZE;
        } else {
            *out++ = p[i];
        }
    }
    *n = (size_t)(out - *buffer);
    return *buffer;
}

// `first`: the piece stands at the start of the text
static int encode_piece(struct encoder *e, const uint8_t *p, size_t n, bool first)
{
    const struct clb_tokenizer *t = e->t;
    const char *lead = "";
    bool mark = t->flags & CLB_MARK_PIECES;
    if (t->lead == CLB_LEAD_SPACE && p[0] != ' ')
        lead = " ";
    else if ((t->lead == CLB_LEAD_MARKER || (t->lead == CLB_LEAD_FIRST && first)) &&
             !(mark && p[0] == ' ') &&
             !(n >= CLB_MARKER_SIZE && memcmp(p, CLB_MARKER, CLB_MARKER_SIZE) == 0))
        lead = CLB_MARKER;
    if (mark || *lead) {
        p = rewrite(&e->piece, &e->piece_size, lead, p, &n, mark);
        if (!p)
            return COLIBRI_ERROR_MEMORY;
    }
    return clb_pretokenize(t->steps, t->n_steps, p, n, word, e);
}

// Puts what the normaliser makes of p[n] into *out (p itself, or e->segment), its length into *n.
static int normalize(struct encoder *e, const uint8_t *p, size_t *n, const uint8_t **out)
{
    uint32_t flags = e->t->flags;
    *out = p;
    if (flags & CLB_NFC) {
        int rc = clb_normalize(e->t, p, *n, &e->segment, &e->segment_size, n);
        *out = e->segment;
        return rc;
    }
    if (flags & (CLB_MARK_SPACES | CLB_PREPEND))
        *out = rewrite(&e->segment, &e->segment_size, flags & CLB_PREPEND ? CLB_MARKER : "", p, n,
                       flags & CLB_MARK_SPACES);
    return *out ? COLIBRI_OK : COLIBRI_ERROR_MEMORY;
}

// Where the parts that are said lie in the normalised p[n], which starts at `start` of `said`.
static int normalize_said(struct encoder *e, const uint8_t *p, size_t n, size_t start,
                          const size_t said[4], size_t to[4])
{
    int rc = COLIBRI_OK;
    for (int k = 0; k < 4 && rc == COLIBRI_OK; k++) {
        const uint8_t *unused;
        to[k] = said[k] <= start ? 0 : said[k] - start < n ? said[k] - start : n;
        if (to[k]) // what is put before p is part of what p begins with
            rc = normalize(e, p, &to[k], &unused);
    }
    return rc;
}

// Cuts added tokens out of p[n], raw ones first; then the normalised ones out of what is left.
// `said`: as in clb_speech, of p; unused without speech.
static int encode_text(struct encoder *e, const uint8_t *p, size_t n, const size_t said[4],
                       bool first, bool raw)
{
    const struct clb_tokenizer *t = e->t;
    uint32_t low = raw ? 0 : t->n_added_raw, high = raw ? t->n_added_raw : t->n_added;
    struct match m = {0};
    int rc = COLIBRI_OK;
    for (size_t from = 0, start = 0; rc == COLIBRI_OK;) {
        bool found = next_match(e, low, high, p, n, said, &from, start, &m);
        size_t end = found ? m.start : n;
        if (start < end && !raw) {
            rc = encode_piece(e, p + start, end - start, first && !start);
        } else if (start < end) {
            const uint8_t *segment = p + start;
            size_t size = end - start, said_there[4];
            if (e->speech)
                rc = normalize_said(e, segment, size, start, said, said_there);
            if (rc == COLIBRI_OK)
                rc = normalize(e, segment, &size, &segment);
            if (rc == COLIBRI_OK)
                rc = encode_text(e, segment, size, said_there, first && !start, false);
        }
        if (!found)
            break;
        if (rc == COLIBRI_OK && !clb_bpe_add(&e->bpe, m.id))
            rc = COLIBRI_ERROR_MEMORY;
        start = m.end;
    }
    return rc;
}

static bool add_around(struct encoder *e, enum clb_chunk chunk)
{
    for (uint32_t i = 0; i < e->t->size[chunk] / 4; i++)
        if (!clb_bpe_add(&e->bpe, clb_u32(e->t->chunk[chunk] + 4 * i)))
            return false;
    return true;
}

int clb_tokenizer_encode(const struct clb_tokenizer *t, const char *text, size_t n, int32_t **ids,
                         size_t *n_ids, colibri_error *error)
{
    return clb_tokenizer_encode_speech(t, NULL, text, n, ids, n_ids, error);
}

int clb_tokenizer_encode_speech(const struct clb_tokenizer *t, const struct clb_speech *speech,
                                const char *text, size_t n, int32_t **ids, size_t *n_ids,
                                colibri_error *error)
{
    const uint8_t *p = (const uint8_t *)text;
    if (n > MAX_TEXT)
        return clb_error(error, COLIBRI_ERROR_INPUT,
                         "the text has %llu bytes, at most %d can be tokenized at once; split it",
                         (unsigned long long)n, MAX_TEXT);
    size_t valid = clb_utf8_valid(p, n);
    if (valid < n)
        return clb_error(error, COLIBRI_ERROR_INPUT,
                         "the text is not UTF-8 at byte %llu (0x%02X); convert it to UTF-8",
                         (unsigned long long)valid, p[valid]);
    struct encoder e = {.t = t, .bpe.t = t, .speech = speech};
    int rc = COLIBRI_ERROR_MEMORY;
    if (clb_bpe_add(&e.bpe, 0)) { // so that ids is no NULL when there are none
        e.bpe.n_ids = 0;
        if (speech || add_around(&e, CLB_PREFIX_IDS))
            rc = encode_text(&e, p, n, speech ? speech->said : NULL, !speech || !speech->later,
                             true);
        if (rc == COLIBRI_OK && !speech && !add_around(&e, CLB_SUFFIX_IDS))
            rc = COLIBRI_ERROR_MEMORY;
    }
    free(e.segment);
    free(e.piece);
    if (rc == COLIBRI_ERROR_FORMAT)
        clb_error(error, rc,
                  "section tokenizer: its tables make this text endless; convert the "
                  "checkpoint again");
    else if (rc != COLIBRI_OK)
        clb_error(error, rc, "no memory to tokenize %llu bytes; use a shorter text",
                  (unsigned long long)n);
    for (size_t i = 0; rc == COLIBRI_OK && i < e.bpe.n_ids; i++)
        if ((uint32_t)e.bpe.ids[i] >= t->vocab_size)
            rc = clb_error(error, COLIBRI_ERROR_INPUT,
                           "the text holds the token %ld, but the model knows only %lu; remove it",
                           (long)e.bpe.ids[i], (unsigned long)t->vocab_size);
    if (rc == COLIBRI_OK) {
        *ids = e.bpe.ids;
        *n_ids = e.bpe.n_ids;
        e.bpe.ids = NULL;
    }
    clb_bpe_free(&e.bpe);
    return rc;
}
