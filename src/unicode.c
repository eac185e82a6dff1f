// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
#include "unicode.h"

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

size_t clb_utf8_put(uint8_t out[4], uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = n; --i; cp >>= 6)
        out[i] = (uint8_t)(0x80 | (cp & 0x3F));
    out[0] = (uint8_t)(0xF00 >> n | cp);
    return n;
}

uint8_t clb_range_value(const struct clb_ranges *ranges, uint32_t cp)
{
    uint32_t low = 0, high = ranges->n;
    while (low < high) { // the first range behind cp
        uint32_t middle = low + (high - low) / 2;
        if (clb_u32(ranges->p + 4 * (size_t)middle) >> 8 <= cp)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? ranges->p[4 * (size_t)(low - 1)] : 0;
}
