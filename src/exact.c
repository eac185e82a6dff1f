// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "exact.h"

#include <math.h>
#include <string.h>

double clb_exact_power(int e)
{
    uint64_t bits = (uint64_t)(1023 + e) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

double clb_exact_integer(double x)
{
    return x + 0x1.8p52 - 0x1.8p52;
}

double clb_exact_exp(double x)
{
    x = x < -87 ? -87 : x > 88 ? 88 : x;
    if (x != x)
        return x;
    double n = clb_exact_integer(x * 0x1.71547652b82fep+0); // 1 / ln 2
    double r = x - n * 0x1.62e42feep-1 - n * 0x1.a39ef35793c76p-33, y = 1;
    for (int i = 16; i > 0; i--)
        y = 1 + y * r / i;
    return y * clb_exact_power((int)n);
}

// Abramowitz and Stegun, 7.1.6: all terms have one sign. Beyond 6 it is 1.
double clb_exact_erf(double x)
{
    double a = fabs(x), term = a, sum = a;
    for (int n = 1; n < 150; n++)
        sum += term *= 2 * a * a / (2 * n + 1);
    sum = a < 6 ? sum * 0x1.20dd750429b6dp+0 * clb_exact_exp(-a * a) : 1; // 2 / sqrt(pi)
    return x < 0 ? -sum : sum;
}

double clb_exact_decoded(uint32_t bits, int e, int m)
{
    int exponent = (int)(bits >> m) & ((1 << e) - 1), mantissa = (int)bits & ((1 << m) - 1);
    if (exponent)
        mantissa += 1 << m;
    else
        exponent = 1;
    double value = mantissa * clb_exact_power(exponent - (1 << (e - 1)) + 1 - m);
    if (e >= 5 && exponent == (1 << e) - 1)
        value = mantissa == 1 << m ? INFINITY : NAN;
    return bits >> (e + m) & 1 ? -value : value;
}

int clb_exact_tile_bytes(enum clb_weights type, int n_cols)
{
    static const int bytes_of_column[] = {64, 32, 32, 16};
    if (type < CLB_W_Q8)
        return n_cols * bytes_of_column[type];
    return n_cols / 64 * (type == CLB_W_Q8 ? 64 + 64 * 16 : 64 + 32 * 16);
}

double clb_exact_weight(enum clb_weights type, const uint8_t *tile, int r, int c, double *scale)
{
    static const uint8_t exponent[] = {8, 5, 8}, mantissa[] = {23, 10, 7};
    uint32_t bits = 0;
    *scale = 1;
    if (type < CLB_W_Q8) {
        int size = clb_exact_tile_bytes(type, 1) / 16;
        memcpy(&bits, tile + (16 * c + r) * size, (size_t)size);
        return type == CLB_W_I8 ? (int8_t)bits
                                : clb_exact_decoded(bits, exponent[type], mantissa[type]);
    }
    tile += c / 64 * clb_exact_tile_bytes(type, 64);
    c %= 64;
    memcpy(&bits, tile + 2 * (c / 32 * 16 + r), 2);
    *scale = type == CLB_W_MXFP4 ? clb_exact_decoded(bits, 8, 7) : clb_exact_decoded(bits, 5, 10);
    tile += 64;
    if (type == CLB_W_Q8)
        return (int8_t)tile[c / 4 * 64 + 4 * r + c % 4];
    int both = tile[c / 8 * 64 + 4 * r + c % 4], four = c & 4 ? both >> 4 : both & 15;
    return type == CLB_W_Q4 ? four - 8 : 2 * clb_exact_decoded((uint32_t)four, 2, 1);
}
