// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Cuts text into the words within which tokens are merged. How is data: the file has an automaton
// for each step, which conversion made of the checkpoint's regular expression.
#ifndef CLB_PRETOKENIZER_H
#define CLB_PRETOKENIZER_H

#include "unicode.h"

enum {
    CLB_MAX_STEPS = 8,
    CLB_MATCH = 0x8000, // in a transition: a match ends before this character
    CLB_STOP = 0x7FFF   // the state in which no match can follow
};

// A step cuts every piece that the step before it made: into matches and what lies between.
struct clb_split {
    struct clb_ranges symbols;  // of characters; each is below n_symbols
    const uint8_t *transitions; // little-endian uint16 [n_states][n_symbols + 1]; last: end of text
    uint32_t n_symbols, n_states;
};

// Gets a word; anything but COLIBRI_OK ends the cutting.
typedef int (*clb_word_fn)(void *user, const uint8_t *p, size_t n);

// p[n] is valid UTF-8. Returns what `word` returned last, or COLIBRI_ERROR_FORMAT if the steps
// would look at more than 64 n + 2^24 characters, so that no file makes this take longer than
// linear time: most real steps look at a character 5 times at most, and DeepSeek's \s+$ at a run
// of k spaces k^2 times.
int clb_pretokenize(const struct clb_split *steps, uint32_t n_steps, const uint8_t *p, size_t n,
                    clb_word_fn word, void *user);

#endif
