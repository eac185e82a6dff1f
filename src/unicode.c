// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
#include "unicode.h"

#include "unicode_table.h"

int clb_utf8_next(const uint8_t *p, size_t n, uint32_t *cp)
{
    if (!n)
        return 0;
    uint32_t c = p[0];
    if (c < 0x80) {
        *cp = c;
        return 1;
    }
    // The second byte alone decides on overlong forms, surrogates and the upper limit.
    uint8_t low = 0x80, high = 0xBF;
    int length;
    if (c >= 0xC2 && c <= 0xDF) {
        length = 2;
        c &= 0x1F;
    } else if (c >= 0xE0 && c <= 0xEF) {
        length = 3;
        low = c == 0xE0 ? 0xA0 : 0x80;
        high = c == 0xED ? 0x9F : 0xBF;
        c &= 0x0F;
    } else if (c >= 0xF0 && c <= 0xF4) {
        length = 4;
        low = c == 0xF0 ? 0x90 : 0x80;
        high = c == 0xF4 ? 0x8F : 0xBF;
        c &= 0x07;
    } else {
        return -1;
    }
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= n)
            return 0;
        if (p[i] < low || p[i] > high)
            return -i;
        c = c << 6 | (p[i] & 0x3F);
        low = 0x80;
        high = 0xBF;
    }
    *cp = c;
    return length;
}

size_t clb_utf8_valid(const uint8_t *p, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        int length = clb_utf8_next(p + i, n - i, &cp);
        if (length <= 0)
            break;
        i += (size_t)length;
    }
    return i;
}

enum clb_class clb_unicode_class(uint32_t cp)
{
    if (cp < 0x80) { // most of most texts
        if ((cp | 0x20) - 'a' < 26)
            return CLB_LETTER;
        if (cp - '0' < 10)
            return CLB_NUMBER;
        if (cp == '_')
            return CLB_MARK;
        return cp == ' ' || cp - '\t' < 5 ? CLB_SPACE : CLB_OTHER;
    }
    if (cp > 0x10FFFF)
        return CLB_OTHER;
    size_t low = 0, high = sizeof(clb_unicode_starts) / sizeof(*clb_unicode_starts);
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (clb_unicode_starts[middle] <= cp)
            low = middle;
        else
            high = middle;
    }
    // Runs of one class: 3 bits class, then length - 1 in 4 bits and as many groups of 7 as
    // the top bits announce. The runs reach U+10FFFF, so this ends.
    const uint8_t *p = clb_unicode_runs + clb_unicode_offsets[low];
    for (uint32_t end = clb_unicode_starts[low];;) {
        uint8_t byte = *p++;
        enum clb_class class = (enum clb_class)(byte & 7);
        uint32_t length = byte >> 3 & 15;
        for (int shift = 4; byte & 0x80; shift += 7) {
            byte = *p++;
            length |= (uint32_t)(byte & 0x7F) << shift;
        }
        end += length + 1;
        if (cp < end)
            return class;
    }
}
