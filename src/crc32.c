// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "crc32.h"

#include "base.h"

#include <pthread.h>

// table[j][b]: the CRC of byte b followed by j zero bytes. Made at first use: it costs no space
// in the binary.
static uint32_t table[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_table(void)
{
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = b;
        for (int k = 0; k < 8; k++)
            c = c & 1 ? c >> 1 ^ 0xedb88320 : c >> 1;
        table[0][b] = c;
    }
    for (int j = 1; j < 8; j++)
        for (int b = 0; b < 256; b++)
            table[j][b] = table[j - 1][b] >> 8 ^ table[0][table[j - 1][b] & 255];
}

uint32_t clb_crc32(const void *data, size_t size)
{
    pthread_once(&once, make_table);
    const uint8_t *p = data;
    uint32_t c = 0xffffffff;
    for (; size >= 8; size -= 8, p += 8) {
        uint32_t a = clb_u32(p) ^ c, b = clb_u32(p + 4);
        c = table[7][a & 255] ^ table[6][a >> 8 & 255] ^ table[5][a >> 16 & 255] ^
            table[4][a >> 24] ^ table[3][b & 255] ^ table[2][b >> 8 & 255] ^
            table[1][b >> 16 & 255] ^ table[0][b >> 24];
    }
    for (; size; size--, p++)
        c = c >> 8 ^ table[0][(c ^ *p) & 255];
    return ~c;
}
