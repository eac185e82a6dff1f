// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "crc32.h"

#include "base.h"

#include <pthread.h>

// table[j][b]: the CRC of byte b followed by j zero bytes. Made at first use: it costs no space
// in the binary.
static uint32_t table[16][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_table(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = b;
        for (int j = 0; j < 16; j++) {
            for (int bit = 0; bit < 8; bit++)
                c = c & 1 ? c >> 1 ^ 0xedb88320 : c >> 1;
            table[j][b] = c;
        }
    }
}

// The part of four bytes, the last of which `behind` bytes follow.
static uint32_t part(uint32_t bytes, int behind)
{
    uint32_t(*t)[256] = table + behind;
    return t[3][bytes & 255] ^ t[2][bytes >> 8 & 255] ^ t[1][bytes >> 16 & 255] ^ t[0][bytes >> 24];
}

uint32_t clb_crc32(uint32_t crc, const void *data, size_t size)
{
    pthread_once(&once, make_table);
    const uint8_t *p = data;
    uint32_t c = ~crc;
    for (; size >= 16; size -= 16, p += 16)
        c = part(clb_u32(p) ^ c, 12) ^ part(clb_u32(p + 4), 8) ^ part(clb_u32(p + 8), 4) ^
            part(clb_u32(p + 12), 0);
    for (; size; size--, p++)
        c = c >> 8 ^ table[0][(c ^ *p) & 255];
    return ~c;
}
