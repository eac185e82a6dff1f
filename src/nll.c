// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "nll.h"

#include <string.h>

static const double ln2 = 0x1.62e42fefa39efp-1;

static double from_bits(uint64_t u)
{
    double a;
    memcpy(&a, &u, sizeof a);
    return a;
}

// exp(x) for x <= 0, relative error below 1e-13
static double exp_negative(double x)
{
    if (x < -700)
        return 0;
    int k = (int)(x / ln2 - 0.5); // nearest integer
    double r = x - k * ln2, y = 1;
    for (int i = 13; i; i--) // Taylor, |r| <= 0.35
        y = 1 + r / i * y;
    return y * from_bits((uint64_t)(1023 + k) << 52);
}

// log(x) for a normal x > 0: log of the exponent, and 2 atanh((m - 1) / (m + 1)) of the mantissa
static double logarithm(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    int exponent = (int)(u >> 52) - 1023;
    double m = from_bits((u & 0xfffffffffffff) | (uint64_t)1023 << 52);
    double s = (m - 1) / (m + 1), z = s * s, y = 0;
    for (int i = 31; i > 0; i -= 2) // |s| <= 1/3
        y = y * z + 1.0 / i;
    return exponent * ln2 + 2 * s * y;
}

double clb_nll(const float *logits, int32_t n, int32_t token)
{
    float max = logits[0];
    for (int32_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp_negative((double)logits[i] - (double)max);
    return logarithm(sum) + (double)max - (double)logits[token];
}
