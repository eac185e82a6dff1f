// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "rope.h"

// Sine and cosine of an angle in radians, |angle| < 2^20, by f64 arithmetic alone: the same bits
// everywhere, which no libm promises. docs/DESIGN.md has the steps.
static void sine_cosine(float angle, float *sine, float *cosine)
{
    const double magic = 0x1.8p+52; // adding it rounds to an integer
    double a = (double)angle;
    double k = (a * 0x1.45f306dc9c883p-1 + magic) - magic;
    double r = (a - k * 0x1.921fb544p+0) - k * 0x1.0b4611a626331p-34;
    double z = r * r;
    double s = 1.0 / 6227020800.0; // 1/13!
    s = s * z + -1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z + -1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z + -1.0 / 6.0;
    s = r + (r * z) * s;
    double c = -1.0 / 87178291200.0; // 1/14!
    c = c * z + 1.0 / 479001600.0;
    c = c * z + -1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z + -1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    c = c * z + -1.0 / 2.0;
    c = 1.0 + z * c;
    int quadrant = (int)((int64_t)k & 3);
    double sin_a = quadrant & 1 ? c : s, cos_a = quadrant & 1 ? s : c;
    *sine = (float)(quadrant & 2 ? -sin_a : sin_a);
    *cosine = (float)(quadrant == 1 || quadrant == 2 ? -cos_a : cos_a);
}

void clb_rope_angles(float *sines, float *cosines, const float *inv_freq, int half, int position,
                     float scale)
{
    for (int i = 0; i < half; i++) {
        sine_cosine((float)position * inv_freq[i], &sines[i], &cosines[i]);
        sines[i] = sines[i] * scale;
        cosines[i] = cosines[i] * scale;
    }
}
