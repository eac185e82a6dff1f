// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// What the selftest holds kernels to: functions in f64, and numbers as docs/FORMAT.md lays them
// out, by plain code that shares nothing with the kernels' vocabulary.
#ifndef CLB_EXACT_H
#define CLB_EXACT_H

#include <stddef.h>
#include <stdint.h>

double clb_exact_power(int e);      // 2^e, e from -1022 to 1023
double clb_exact_integer(double x); // the nearest, ties to even; |x| up to 2^51
double clb_exact_exp(double x);     // clamped to [-87, 88] as docs/DESIGN.md has it
double clb_exact_erf(double x);

// A number of one bit of sign, e of exponent and m of mantissa, as IEEE 754 means them; with fewer
// than 5 of exponent there is no Inf and no NaN.
double clb_exact_decoded(uint32_t bits, int e, int m);

enum clb_weights { CLB_W_F32, CLB_W_F16, CLB_W_BF16, CLB_W_I8, CLB_W_Q8, CLB_W_Q4, CLB_W_MXFP4 };

// Bytes of a tile of n_cols columns, a multiple of 64 for the last three types.
int clb_exact_tile_bytes(enum clb_weights type, int n_cols);

// The number at row r and column c of a tile: the first times *scale.
double clb_exact_weight(enum clb_weights type, const uint8_t *tile, int r, int c, double *scale);

#endif
