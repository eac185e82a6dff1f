// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Formatted text, as printf writes it: musl's takes 9 KB. The conversions are
// %c %d %f %g %p %s %u %x %X %%, with the flags '-', '0' and '#', a width, a precision (a number or
// '*'), and the sizes l, ll and z.
#ifndef CLB_PRINT_H
#define CLB_PRINT_H

#include "base.h"

#include <stdarg.h>
#include <stdio.h>

// Like snprintf: returns the length of the whole text, of which `size` - 1 bytes at most are
// written to out, and a 0 behind them. `size` is not 0.
int clb_format(char *out, size_t size, const char *format, ...) CLB_PRINTF(3, 4);
int clb_vformat(char *out, size_t size, const char *format, va_list args) CLB_PRINTF(3, 0);

// Like fprintf; whether it was written, the stream knows.
void clb_print(FILE *file, const char *format, ...) CLB_PRINTF(2, 3);

#endif
