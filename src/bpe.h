// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Byte pair encoding of one word.
#ifndef CLB_BPE_H
#define CLB_BPE_H

#include "tokenizer.h"

struct clb_symbol {
    uint32_t id;         // CLB_NO_ID: merged into the one before it
    uint32_t prev, next; // neighbours that are left, or CLB_NO_ID
};

struct clb_candidate {
    uint64_t key; // rank of the merge, then position: the smallest is merged first
    uint32_t id;  // of the result
};

// All zero to begin with; the memory is kept from word to word.
struct clb_bpe {
    const struct clb_tokenizer *t;
    struct clb_symbol *symbols;
    size_t n_symbols, symbols_size;
    struct clb_candidate *heap;
    size_t n_heap, heap_size;
    int32_t *ids; // the result, growing
    size_t n_ids, ids_size;
};

// Appends one id, or the ids of the word p[n] (n < 2^32) in time O(n log n). False: no memory.
bool clb_bpe_add(struct clb_bpe *b, uint32_t id);
bool clb_bpe_word(struct clb_bpe *b, const uint8_t *p, size_t n);
void clb_bpe_free(struct clb_bpe *b);

#endif
