// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "decimal.h"

#include <ctype.h>
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
