// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Decimal numbers: as JSON writes them, read to the nearest f64; as printf writes them.
#ifndef CLB_DECIMAL_H
#define CLB_DECIMAL_H

#include "base.h"

// Length of the number at p, 0 if there is none. Sets *integer if it has no fraction or exponent.
size_t clb_decimal_length(const char *p, bool *integer);

// The value of the number at p (clb_decimal_length is not 0), if one multiplication or division of
// two exact f64 numbers gives it: at most 15 digits, and an exponent of -22 to 22 behind them.
bool clb_decimal_value(const char *p, double *value);

enum { CLB_DECIMAL_BYTES = 400 };

// Writes x, which is not negative, as printf does with %.*f, or with %.*g if `general`; rounded
// exactly, ties to even. Returns the length; there is no 0 behind. precision is 0 to 50, 1 at least
// if `general`.
size_t clb_decimal_write(char out[CLB_DECIMAL_BYTES], double x, int precision, bool general);

#endif
