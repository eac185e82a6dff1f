// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// UTF-8, and what the file says about characters: Unicode's tables are data of a tokenizer that
// needs them, in the version that the checkpoint's library knows.
#ifndef CLB_UNICODE_H
#define CLB_UNICODE_H

#include "base.h"

// Reads one character at p[n]. Returns its length (1 to 4) and stores it in *cp; 0 if the
// bytes are a proper beginning of a character (or none); -k if the first k bytes are no part
// of any character: what a decoder replaces by one U+FFFD.
int clb_utf8_next(const uint8_t *p, size_t n, uint32_t *cp);

// Length of the longest valid UTF-8 text at the start of p[n].
size_t clb_utf8_valid(const uint8_t *p, size_t n);

// Writes one character; returns its length.
size_t clb_utf8_put(uint8_t out[4], uint32_t cp);

// A value for every code point: little-endian uint32 [n], each the first code point of a range,
// times 256, plus its value; rising.
struct clb_ranges {
    const uint8_t *p;
    uint32_t n; // 0: every value is 0
};

uint8_t clb_range_value(const struct clb_ranges *ranges, uint32_t cp);

#endif
