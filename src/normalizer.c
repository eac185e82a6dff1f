// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
#include "normalizer.h"

#include "unicode.h"

#include <stdlib.h>

struct normalizer {
    const struct clb_tokenizer *t;
    uint32_t starter; // the last character of class 0, or CLB_NO_ID
    uint32_t *marks;  // those after it, combining class << 24 | character; room for twice as many
    size_t n_marks, marks_size;
    uint8_t *out;
    size_t n_out, out_size;
};

// The row of `chunk` (sorted rows of `row` bytes) that begins with the given numbers, or NULL
static const uint8_t *find(const struct clb_tokenizer *t, enum clb_chunk chunk, size_t row,
                           uint64_t key)
{
    const uint8_t *rows = t->chunk[chunk];
    size_t low = 0, high = t->size[chunk] / row;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const uint8_t *p = rows + middle * row;
        uint64_t found =
            chunk == CLB_COMPOSITIONS ? (uint64_t)clb_u32(p) << 32 | clb_u32(p + 4) : clb_u32(p);
        if (found == key)
            return p;
        if (found < key)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

// What two characters compose to, or CLB_NO_ID. Hangul is arithmetic (the Unicode standard, 3.12);
// its syllables are never decomposed here, as they would only be composed again.
static uint32_t compose(const struct clb_tokenizer *t, uint32_t a, uint32_t b)
{
    enum { SYLLABLES = 0xAC00, LEADS = 0x1100, VOWELS = 0x1161, TAILS = 0x11A7 };
    if (a - LEADS < 19 && b - VOWELS < 21)
        return SYLLABLES + ((a - LEADS) * 21 + b - VOWELS) * 28;
    if (a - SYLLABLES < 11172 && (a - SYLLABLES) % 28 == 0 && b - TAILS - 1 < 27)
        return a + b - TAILS;
    const uint8_t *row = find(t, CLB_COMPOSITIONS, CLB_COMPOSITION_SIZE, (uint64_t)a << 32 | b);
    return row ? clb_u32(row + 8) : CLB_NO_ID;
}

// Composes the marks, in the order of their classes, with the starter; keeps the others. A mark
// behind a kept one of its class is blocked.
static void settle(struct normalizer *z)
{
    uint32_t *kept = z->marks + z->n_marks;
    size_t n_kept = 0;
    uint32_t last = 0;
    for (uint32_t class = 0, next; class < 256; class = next) {
        next = 256;
        for (size_t i = 0; i < z->n_marks; i++) {
            uint32_t mark = z->marks[i], its = mark >> 24;
            if (its > class && its < next)
                next = its;
            if (its != class)
                continue;
            uint32_t composed =
                its == last ? CLB_NO_ID : compose(z->t, z->starter, mark & 0xFFFFFF);
            if (composed != CLB_NO_ID) {
                z->starter = composed;
            } else {
                kept[n_kept++] = mark;
                last = its;
            }
        }
    }
    if (n_kept)
        memmove(z->marks, kept, n_kept * sizeof *kept);
    z->n_marks = n_kept;
}

static bool put(struct normalizer *z, uint32_t cp)
{
    uint8_t *out = clb_reserve(z->out, &z->out_size, z->n_out + 4, 1);
    if (!out)
        return false;
    z->out = out;
    z->n_out += clb_utf8_put(out + z->n_out, cp);
    return true;
}

// Puts what is certain: nothing that follows composes with it.
static bool flush(struct normalizer *z)
{
    bool ok = z->starter == CLB_NO_ID || put(z, z->starter);
    for (size_t i = 0; ok && i < z->n_marks; i++)
        ok = put(z, z->marks[i] & 0xFFFFFF);
    z->n_marks = 0;
    return ok;
}

// Takes a character of the decomposed text.
static bool add(struct normalizer *z, uint32_t cp)
{
    uint32_t class = clb_range_value(&z->t->combining, cp);
    if (class) {
        uint32_t *marks =
            clb_reserve(z->marks, &z->marks_size, 2 * (z->n_marks + 1), sizeof *marks);
        if (!marks)
            return false;
        z->marks = marks;
        marks[z->n_marks++] = class << 24 | cp;
        return true;
    }
    if (z->n_marks)
        settle(z);
    uint32_t composed = z->n_marks ? CLB_NO_ID : compose(z->t, z->starter, cp);
    if (composed == CLB_NO_ID && !flush(z))
        return false;
    z->starter = composed == CLB_NO_ID ? cp : composed;
    return true;
}

int clb_normalize(const struct clb_tokenizer *t, const uint8_t *p, size_t n, uint8_t **out,
                  size_t *size, size_t *n_out)
{
    struct normalizer z = {.t = t, .starter = CLB_NO_ID, .out = *out, .out_size = *size};
    bool ok = true;
    for (size_t i = 0; ok && i < n;) {
        uint32_t cp;
        i += (size_t)clb_utf8_next(p + i, n - i, &cp);
        const uint8_t *row = find(t, CLB_DECOMPOSITIONS, CLB_DECOMPOSITION_SIZE, cp);
        if (!row) {
            ok = add(&z, cp);
            continue;
        }
        for (int part = 1; ok && part < 5 && clb_u32(row + 4 * part); part++)
            ok = add(&z, clb_u32(row + 4 * part));
    }
    if (z.n_marks)
        settle(&z);
    ok = ok && flush(&z);
    free(z.marks);
    *out = z.out;
    *size = z.out_size;
    *n_out = z.n_out;
    if (!ok)
        return COLIBRI_ERROR_MEMORY;
    return z.n_out / 3 > n ? COLIBRI_ERROR_FORMAT : COLIBRI_OK;
}
