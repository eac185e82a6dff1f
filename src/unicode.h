// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// UTF-8, and the classes of characters that pre-tokenizers split on.
#ifndef CLB_UNICODE_H
#define CLB_UNICODE_H

#include "base.h"

// The numbers stand in unicode_table.h, which tests/engine/make_unicode.py writes.
enum clb_class {
    CLB_OTHER = 0,
    CLB_LETTER = 1,   // \p{L}
    CLB_MARK = 2,     // \w, but neither \p{L} nor \p{N}: combining marks, connectors
    CLB_NUMBER = 3,   // \p{N} and \w: decimal digits, letter numbers
    CLB_FIGURE = 4,   // \p{N}, not \w: superscripts, fractions
    CLB_SPACE = 5,    // \s
    CLB_NEW_DIGIT = 6 // a number to `Digits`, not yet to \p{N}: the two know different Unicodes
};

// Reads one character at p[n]. Returns its length (1 to 4) and stores it in *cp; 0 if the
// bytes are a proper beginning of a character (or none); -k if the first k bytes are no part
// of any character: what a decoder replaces by one U+FFFD.
int clb_utf8_next(const uint8_t *p, size_t n, uint32_t *cp);

// Length of the longest valid UTF-8 text at the start of p[n].
size_t clb_utf8_valid(const uint8_t *p, size_t n);

enum clb_class clb_unicode_class(uint32_t cp);

#endif
