// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Cuts text into the words within which tokens are merged.
#ifndef CLB_PRETOKENIZER_H
#define CLB_PRETOKENIZER_H

#include "base.h"

// A step cuts every piece that the step before it made. The numbers stand in the file.
enum clb_step {
    CLB_STEP_MARKER = 1,     // before every marker (U+2581)
    CLB_STEP_GPT2 = 2,       // the expression of GPT-2
    CLB_STEP_LLAMA3 = 3,     // the expression of Llama 3
    CLB_STEP_DIGIT = 4,      // every digit alone
    CLB_STEP_DIGIT_RUNS = 5, // between digits and others
};

bool clb_pretokenizer_known(uint32_t step);

// Gets a word; anything but 0 ends the cutting.
typedef int (*clb_word_fn)(void *user, const uint8_t *p, size_t n);

// `steps`: n_steps little-endian uint32, all of them known. p[n] is valid UTF-8.
// Takes time linear in n; returns what `word` returned last.
int clb_pretokenize(const uint8_t *steps, uint32_t n_steps, const uint8_t *p, size_t n,
                    clb_word_fn word, void *user);

#endif
