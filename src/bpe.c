// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
#include "bpe.h"

#include "unicode.h"

#include <stdlib.h>

bool clb_bpe_add(struct clb_bpe *b, uint32_t id)
{
    int32_t *ids = clb_reserve(b->ids, &b->ids_size, b->n_ids + 1, sizeof *ids);
    if (!ids)
        return false;
    b->ids = ids;
    b->ids[b->n_ids++] = (int32_t)id;
    return true;
}

static bool add_symbol(struct clb_bpe *b, uint32_t id)
{
    size_t n = b->n_symbols;
    struct clb_symbol *symbols = clb_reserve(b->symbols, &b->symbols_size, n + 1, sizeof *symbols);
    if (!symbols)
        return false;
    b->symbols = symbols;
    symbols[n] = (struct clb_symbol){id, n ? (uint32_t)n - 1 : CLB_NO_ID, CLB_NO_ID};
    if (n)
        symbols[n - 1].next = (uint32_t)n;
    b->n_symbols++;
    return true;
}

// The ids of a character's bytes, if each byte has one
static bool has_byte_ids(const struct clb_tokenizer *t, const uint8_t *p, size_t n)
{
    if (!(t->flags & CLB_BYTE_FALLBACK))
        return false;
    for (size_t i = 0; i < n; i++)
        if (clb_u32(t->chunk[CLB_BYTE_IDS] + 4 * p[i]) == CLB_NO_ID)
            return false;
    return true;
}

// Cuts the word into symbols. An unknown one becomes the unknown token, if there is one, but
// only when the next known one comes (or the end), after the bytes of any that fell back to
// them: so does the reference.
static bool make_symbols(struct clb_bpe *b, const uint8_t *p, size_t n)
{
    const struct clb_tokenizer *t = b->t;
    bool unknown = false;
    b->n_symbols = 0;
    for (size_t i = 0, length; i < n; i += length) {
        uint32_t id, cp;
        if (t->flags & CLB_TEXT_BYTES) {
            length = 1;
            id = clb_u32(t->chunk[CLB_BYTE_IDS] + 4 * p[i]);
        } else {
            int bytes = clb_utf8_next(p + i, n - i, &cp);
            length = bytes > 0 ? (size_t)bytes : 1;
            id = clb_tokenizer_find(t, p + i, length);
            if (id == CLB_NO_ID && has_byte_ids(t, p + i, length)) {
                for (size_t k = i; k < i + length; k++)
                    if (!add_symbol(b, clb_u32(t->chunk[CLB_BYTE_IDS] + 4 * p[k])))
                        return false;
                continue;
            }
        }
        if (id == CLB_NO_ID && t->unk_id == CLB_NO_ID)
            continue;
        if (unknown && (id != CLB_NO_ID || !(t->flags & CLB_FUSE_UNK)))
            if (!add_symbol(b, t->unk_id))
                return false;
        unknown = id == CLB_NO_ID;
        if (!unknown && !add_symbol(b, id))
            return false;
    }
    return !unknown || add_symbol(b, t->unk_id);
}

static bool push(struct clb_bpe *b, uint32_t position)
{
    const struct clb_symbol *left = &b->symbols[position];
    uint32_t rank, id = clb_tokenizer_merge(b->t, left->id, b->symbols[left->next].id, &rank);
    if (id == CLB_NO_ID)
        return true;
    struct clb_candidate *heap = clb_reserve(b->heap, &b->heap_size, b->n_heap + 1, sizeof *heap);
    if (!heap)
        return false;
    b->heap = heap;
    uint64_t key = (uint64_t)rank << 32 | position;
    size_t i = b->n_heap++;
    for (; i && heap[(i - 1) / 2].key > key; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = (struct clb_candidate){key, id};
    return true;
}

static struct clb_candidate pop(struct clb_bpe *b)
{
    struct clb_candidate *heap = b->heap, top = heap[0], last = heap[--b->n_heap];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < b->n_heap) {
        if (child + 1 < b->n_heap && heap[child + 1].key < heap[child].key)
            child++;
        if (heap[child].key >= last.key)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

// Merges the pair of the lowest rank, the leftmost first, until none is left. Every merge takes
// one symbol away and adds at most two candidates, so the heap stays within 3n.
static bool merge_symbols(struct clb_bpe *b)
{
    struct clb_symbol *s = b->symbols;
    b->n_heap = 0;
    for (size_t i = 0; i + 1 < b->n_symbols; i++)
        if (!push(b, (uint32_t)i))
            return false;
    while (b->n_heap) {
        struct clb_candidate top = pop(b);
        uint32_t i = (uint32_t)top.key, next = s[i].next, rank;
        if (s[i].id == CLB_NO_ID || next == CLB_NO_ID)
            continue;
        // The symbols may have changed since this candidate was pushed.
        if (clb_tokenizer_merge(b->t, s[i].id, s[next].id, &rank) != top.id)
            continue;
        s[i].id = top.id;
        s[i].next = s[next].next;
        s[next].id = CLB_NO_ID;
        if (s[i].next != CLB_NO_ID) {
            s[s[i].next].prev = i;
            if (!push(b, i))
                return false;
        }
        if (s[i].prev != CLB_NO_ID && !push(b, s[i].prev))
            return false;
    }
    return true;
}

bool clb_bpe_word(struct clb_bpe *b, const uint8_t *p, size_t n)
{
    if (b->t->flags & CLB_IGNORE_MERGES) {
        uint32_t id = clb_tokenizer_find(b->t, p, n);
        if (id != CLB_NO_ID)
            return clb_bpe_add(b, id);
    }
    if (!make_symbols(b, p, n) || !merge_symbols(b))
        return false;
    for (size_t i = 0; i < b->n_symbols; i++)
        if (b->symbols[i].id != CLB_NO_ID && !clb_bpe_add(b, b->symbols[i].id))
            return false;
    return true;
}

void clb_bpe_free(struct clb_bpe *b)
{
    free(b->symbols);
    free(b->heap);
    free(b->ids);
}
