// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "decimal.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

size_t clb_decimal_length(const char *p, bool *integer)
{
    const char *s = p;
    s += *s == '-';
    if (*s == '0')
        s++;
    else if (*s >= '1' && *s <= '9')
        s += strspn(s, "0123456789");
    else
        return 0;
    *integer = true;
    if (*s == '.') {
        size_t n = strspn(s + 1, "0123456789");
        if (!n)
            return 0;
        s += 1 + n;
        *integer = false;
    }
    if (*s == 'e' || *s == 'E') {
        const char *e = s + 1;
        e += *e == '+' || *e == '-';
        size_t n = strspn(e, "0123456789");
        if (!n)
            return 0;
        s = e + n;
        *integer = false;
    }
    return strchr(" \t\r\n,]}", *s) ? (size_t)(s - p) : 0; // or the end of the text
}

bool clb_decimal_value(const char *p, double *value)
{
    uint64_t digits = 0;
    int n_digits = 0, exponent = 0;
    bool negative = *p == '-', fraction = false;
    const char *s = p + negative;
    for (; isdigit((unsigned char)*s) || *s == '.'; s++) {
        if (*s == '.') {
            fraction = true;
            continue;
        }
        n_digits += n_digits || *s != '0';
        exponent -= fraction;
        if (n_digits > 15)
            return false;
        digits = digits * 10 + (uint64_t)(*s - '0');
    }
    if (*s == 'e' || *s == 'E') {
        long written = strtol(s + 1, NULL, 10);
        if (written < -100 || written > 100)
            return false;
        exponent += (int)written;
    }
    if (exponent < -22 || exponent > 22)
        return false;
    double power = 1, v = (double)digits;
    for (int i = 0; i != exponent; i += exponent < 0 ? -1 : 1)
        power *= 10;
    v = exponent < 0 ? v / power : v * power;
    *value = negative ? -v : v;
    return true;
}

// All digits of any f64, in limbs of nine: 36 limbs before the point and 120 behind it.
enum { LIMB = 1000000000, POINT = 36, LIMBS = POINT + 120, UNITS = 9 * POINT - 1 };

// digits[UNITS] is the last one in front of the point. x is finite and not negative.
static void exact_digits(char digits[9 * LIMBS], double x)
{
    uint32_t limbs[LIMBS] = {0};
    uint64_t bits, mantissa;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52);
    mantissa = bits & (((uint64_t)1 << 52) - 1);
    if (exponent)
        mantissa |= (uint64_t)1 << 52;
    else
        exponent = 1;
    limbs[POINT - 2] = (uint32_t)(mantissa / LIMB);
    limbs[POINT - 1] = (uint32_t)(mantissa % LIMB);
    for (exponent -= 1075; exponent > 0; exponent--) {
        uint32_t carry = 0;
        for (int i = POINT - 1; i >= 0; i--) {
            limbs[i] = 2 * limbs[i] + carry;
            carry = limbs[i] >= LIMB;
            limbs[i] -= carry * LIMB;
        }
    }
    int used = POINT;
    while (exponent < 0) {
        int step = exponent < -29 ? 29 : -exponent;
        used = used + 4 < LIMBS ? used + 4 : LIMBS; // as many digits more as the step has bits
        uint64_t rest = 0;
        for (int i = 0; i < used; i++) {
            rest = rest * LIMB + limbs[i];
            limbs[i] = (uint32_t)(rest >> step);
            rest &= ((uint64_t)1 << step) - 1;
        }
        exponent += step;
    }
    memset(digits, '0', 9 * LIMBS);
    for (int i = 0; i < used; i++)
        for (int last = 9 * i + 8; limbs[i]; limbs[i] /= 10)
            digits[last--] = (char)('0' + limbs[i] % 10);
}

// Keeps n digits, rounded to nearest, ties to even.
static void round_digits(char digits[9 * LIMBS], int n)
{
    int i = n + 1;
    while (i < 9 * LIMBS && digits[i] == '0')
        i++;
    const bool tie = digits[n] == '5' && i == 9 * LIMBS;
    if (tie ? digits[n - 1] % 2 : digits[n] >= '5') {
        for (i = n - 1; digits[i] == '9'; i--)
            digits[i] = '0';
        digits[i]++;
    }
}

size_t clb_decimal_write(char out[CLB_DECIMAL_BYTES], double x, int precision, bool general)
{
    if (!isfinite(x)) {
        memcpy(out, isnan(x) ? "nan" : "inf", 3);
        return 3;
    }
    char digits[9 * LIMBS], *p = out;
    exact_digits(digits, x);
    int first = 0;
    while (first < 9 * LIMBS && digits[first] == '0')
        first++;
    if (first == 9 * LIMBS)
        first = UNITS;
    int end = general ? first + precision : UNITS + 1 + precision;
    round_digits(digits, end);
    first -= digits[first - 1] != '0';
    const int exponent = UNITS - first;
    const bool scientific = general && (exponent < -4 || exponent >= precision);
    while (general && end > first + 1 && digits[end - 1] == '0')
        end--;
    if (!scientific && end <= UNITS)
        end = UNITS + 1;
    const int units = scientific ? first : UNITS;
    for (int i = first < units ? first : units; i < end; i++) {
        *p++ = digits[i];
        if (i == units && i + 1 < end)
            *p++ = '.';
    }
    if (scientific) {
        const int magnitude = abs(exponent);
        *p++ = 'e';
        *p++ = exponent < 0 ? '-' : '+';
        if (magnitude >= 100)
            *p++ = (char)('0' + magnitude / 100);
        *p++ = (char)('0' + magnitude / 10 % 10);
        *p++ = (char)('0' + magnitude % 10);
    }
    return (size_t)(p - out);
}
