// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// How numbers lie in model.bin (docs/FORMAT.md), shared with the rendered kernels.
#ifndef CLB_LAYOUT_H
#define CLB_LAYOUT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    CLB_TILE_ROWS = 16,       // rows of a tile, lanes of a vector
    CLB_TILE_COLS = 64,       // columns are padded to this: one pair of blocks
    CLB_BLOCK = 32,           // columns that share a scale
    CLB_LINE_BYTES = 64,      // 16 rows by 4 columns of int8; also the scales of a pair
    CLB_Q8_BLOCK_BYTES = 512, // 8 lines
    CLB_Q8_PAIR_BYTES = CLB_LINE_BYTES + 2 * CLB_Q8_BLOCK_BYTES,
    CLB_Q4_BLOCK_BYTES = 256, // 4 lines of 16 rows by 8 columns
    CLB_Q4_PAIR_BYTES = CLB_LINE_BYTES + 2 * CLB_Q4_BLOCK_BYTES,
    CLB_MXFP4_BLOCK_BYTES = CLB_Q4_BLOCK_BYTES, // codes lie as the integers of q4 do
    CLB_MXFP4_PAIR_BYTES = CLB_Q4_PAIR_BYTES,
};

// Twice the values of the codes of mxfp4 (e2m1: sign, two bits of exponent, one of mantissa).
static const int8_t clb_mxfp4_codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static inline uint32_t clb_bits(float a)
{
    uint32_t u;
    memcpy(&u, &a, sizeof u);
    return u;
}

static inline float clb_from_bits(uint32_t u)
{
    float a;
    memcpy(&a, &u, sizeof a);
    return a;
}

static inline float clb_bf16_to_f32(uint16_t h)
{
    return clb_from_bits((uint32_t)h << 16);
}

// Exact. The product moves the exponent bias from 15 to 127 and normalises subnormals.
static inline float clb_f16_to_f32(uint16_t h)
{
    uint32_t u =
        (uint32_t)(int16_t)h << 13 & 0x8fffe000; // sign, exponent and fraction in their places
    if ((u & 0x0f800000) == 0x0f800000)          // Inf or NaN
        return clb_from_bits(u | 0x7f800000);
    return clb_from_bits(u) * 0x1p112f;
}

// Nearest, ties to even; too large becomes Inf; NaN stays NaN.
static inline uint16_t clb_f32_to_f16(float a)
{
    uint32_t u = clb_bits(a), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) // 65520: half way to the first value beyond the largest
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { // below 2^-14: subnormal, a multiple of 2^-24
        float rounded = clb_from_bits(magnitude) + 0.5f;
        return (uint16_t)(sign | (clb_bits(rounded) - clb_bits(0.5f)));
    }
    uint32_t odd = magnitude >> 13 & 1;
    return (uint16_t)(sign | (((magnitude + 0xfff + odd) >> 13) - (112 << 10)));
}

#endif
