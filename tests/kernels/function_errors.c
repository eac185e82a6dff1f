// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Measures the largest errors of the kernels' exp and gelu for every f32 against the C library's
// f64, in some ten seconds. Bounds in src/selftest.c rest on them.
#include "cpu.h"
#include "layout.h"

#include <math.h>
#include <stdio.h>

enum { N = 4096 };
typedef void kernel(float *y, const float *x, int n);

// Of exp, which is clamped at -87: a share of the result. Smaller |x| than are looked at give 1.
static double exp_error(double x, double y)
{
    double exact = exp(x < -87 ? -87 : x);
    return fabs(y - exact) / exact;
}

// Of gelu: a share of |x|.
static double gelu_error(double x, double y)
{
    return fabs((y - x / 2 * erfc(-x * 0x1.6a09e667f3bcdp-1)) / x); // sqrt(1 / 2)
}

// The largest error for |x| in [from, to], in u = 2^-24.
static void measure(const char *name, kernel *f, double (*error)(double x, double y), float from,
                    float to)
{
    double largest = 0;
    float at = 0;
    int n_values = 0;
    for (uint32_t bits = clb_bits(from); bits <= clb_bits(to);) {
        float x[N], y[N];
        int n = 0;
        for (; n < N && bits <= clb_bits(to); bits++) {
            x[n++] = clb_from_bits(bits);
            x[n++] = -clb_from_bits(bits);
        }
        for (int i = n; i < N; i++)
            x[i] = from;
        f(y, x, N);
        for (int i = 0; i < n; i++) {
            double e = error(x[i], y[i]);
            if (!(e <= largest)) {
                largest = e;
                at = x[i];
            }
        }
        n_values += n;
    }
    printf("%s: %.3f u at %a, the largest of %d\n", name, largest * 0x1p24, (double)at, n_values);
}

int main(void)
{
    struct clb_kernels k;
    if (clb_cpu_choose(&k, NULL, NULL))
        return 1;
    measure("exp", k.f32_exp, exp_error, 0x1p-26f, 88);
    measure("gelu", k.f32_gelu, gelu_error, 0x1p-20f, 30);
    return 0;
}
