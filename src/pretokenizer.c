// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
#include "pretokenizer.h"

struct cutter {
    clb_word_fn word;
    void *user;
    uint64_t work_left; // characters that may still be looked at
};

// Where the match that begins at `i` ends; `i` if there is none
static size_t match_end(struct cutter *c, const struct clb_split *step, const uint8_t *p, size_t i,
                        size_t n)
{
    size_t end = i;
    for (size_t state = 0; state != CLB_STOP && c->work_left; c->work_left--) {
        uint32_t cp, symbol = step->n_symbols;
        int length = clb_utf8_next(p + i, n - i, &cp);
        if (length > 0)
            symbol = clb_range_value(&step->symbols, cp);
        uint32_t entry = clb_u16(step->transitions + 2 * (state * (step->n_symbols + 1) + symbol));
        if (entry & CLB_MATCH)
            end = i;
        if (length <= 0)
            break;
        state = entry & CLB_STOP;
        i += (size_t)length;
    }
    return end;
}

// Where the piece that begins at `i` ends: a match, or what lies before the next one
static size_t piece_end(struct cutter *c, const struct clb_split *step, const uint8_t *p, size_t i,
                        size_t n)
{
    uint32_t cp;
    for (size_t at = i; at < n; at += (size_t)clb_utf8_next(p + at, n - at, &cp)) {
        size_t end = match_end(c, step, p, at, n);
        if (end > at)
            return at > i ? at : end;
    }
    return n;
}

static int cut(struct cutter *c, const struct clb_split *steps, uint32_t n_steps, const uint8_t *p,
               size_t n)
{
    if (!n_steps)
        return n ? c->word(c->user, p, n) : COLIBRI_OK;
    for (size_t i = 0; i < n;) {
        size_t end = piece_end(c, steps, p, i, n);
        if (!c->work_left)
            return COLIBRI_ERROR_FORMAT;
        // As deep as there are steps: at most CLB_MAX_STEPS
        int rc = cut(c, steps + 1, n_steps - 1, p + i, end - i);
        if (rc != COLIBRI_OK)
            return rc;
        i = end;
    }
    return COLIBRI_OK;
}

int clb_pretokenize(const struct clb_split *steps, uint32_t n_steps, const uint8_t *p, size_t n,
                    clb_word_fn word, void *user)
{
    struct cutter c = {word, user, 64 * (uint64_t)n + (1 << 24)};
    return cut(&c, steps, n_steps, p, n);
}
