// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "json.h"

#include "decimal.h"
#include "print.h"

#include <stdarg.h>
#include <stdlib.h>

int clb_json_error(struct clb_json *j, const char *format, ...)
{
    char what[300];
    va_list args;
    va_start(args, format);
    clb_vformat(what, sizeof what, format, args);
    va_end(args);
    int line = 1;
    for (const char *p = j->text; p < j->at; p++)
        line += *p == '\n';
    return clb_error(j->error, COLIBRI_ERROR_CONFIG, "%s line %d: %s", j->name, line, what);
}

static void skip_blanks(struct clb_json *j)
{
    while (*j->at && strchr(" \t\r\n", *j->at))
        j->at++;
}

static bool accept(struct clb_json *j, char c)
{
    skip_blanks(j);
    if (*j->at != c)
        return false;
    j->at++;
    return true;
}

// What stands at the current place, for a message: at most 24 bytes of it.
static const char *found(struct clb_json *j, char out[32])
{
    skip_blanks(j);
    if (!*j->at)
        return "the end of the file";
    size_t n = 1 + strcspn(j->at + 1, ",}]\r\n");
    clb_format(out, 32, "%.*s%s", (int)(n > 24 ? 24 : n), j->at, n > 24 ? "..." : "");
    for (char *p = out; *p; p++)
        if (*p < ' ' || *p > '~')
            *p = '?';
    return out;
}

// Escapes are refused: neither keys nor values of config.json need them.
static int read_string(struct clb_json *j, char *out, size_t size)
{
    char seen[32];
    if (!accept(j, '"'))
        return clb_json_error(j, "expected a string, found %s", found(j, seen));
    size_t n = 0;
    while (j->at[n] >= ' ' && j->at[n] <= '~' && j->at[n] != '"' && j->at[n] != '\\')
        n++;
    if (j->at[n] != '"' || n >= size)
        return clb_json_error(j, "the string at %s is not closed, holds an escape or is too long",
                              found(j, seen));
    memcpy(out, j->at, n);
    out[n] = 0;
    j->at += n + 1;
    return 0;
}

int clb_json_next_key(struct clb_json *j, bool *more)
{
    char seen[32];
    bool first = j->at == j->text;
    *more = false;
    if (first && !accept(j, '{'))
        return clb_json_error(j, "expected { at the start, found %s", found(j, seen));
    if (accept(j, '}')) {
        skip_blanks(j);
        return *j->at ? clb_json_error(j, "text after the closing }: %s", found(j, seen)) : 0;
    }
    if (!first && !accept(j, ','))
        return clb_json_error(j, "expected , or } after the value of \"%s\", found %s", j->key,
                              found(j, seen));
    int rc = read_string(j, j->key, sizeof j->key);
    if (rc)
        return rc;
    if (!accept(j, ':'))
        return clb_json_error(j, "expected : after \"%s\", found %s", j->key, found(j, seen));
    *more = true;
    return 0;
}

int clb_json_integer(struct clb_json *j, int64_t min, int64_t max, int64_t *out)
{
    char seen[32];
    bool integer = false;
    skip_blanks(j);
    size_t n = clb_decimal_length(j->at, &integer);
    if (!n || !integer || n > 18)
        return clb_json_error(j, "\"%s\" is %s, expected an integer (digits without quotes)",
                              j->key, found(j, seen));
    long long value = strtoll(j->at, NULL, 10);
    if (value < min || value > max)
        return clb_json_error(j, "\"%s\" is %lld, expected %lld to %lld", j->key, value,
                              (long long)min, (long long)max);
    j->at += n;
    *out = value;
    return 0;
}

int clb_json_number(struct clb_json *j, double *out)
{
    char seen[32];
    bool integer;
    skip_blanks(j);
    size_t n = clb_decimal_length(j->at, &integer);
    if (!n || n > 60)
        return clb_json_error(j, "\"%s\" is %s, expected a number (without quotes)", j->key,
                              found(j, seen));
    if (!clb_decimal_value(j->at, out))
        return clb_json_error(j, "\"%s\" is %s: more than 15 digits, or beyond 1e-22 to 1e22",
                              j->key, found(j, seen));
    j->at += n;
    return 0;
}

int clb_json_string(struct clb_json *j, char *out, size_t size)
{
    return read_string(j, out, size);
}

int clb_json_integers(struct clb_json *j, int64_t min, int64_t max, int32_t *out, int capacity,
                      int *n)
{
    char seen[32];
    if (!accept(j, '['))
        return clb_json_error(j, "\"%s\" is %s, expected an array of integers", j->key,
                              found(j, seen));
    for (*n = 0; !accept(j, ']');) {
        if (*n && !accept(j, ','))
            return clb_json_error(j, "expected , or ] in \"%s\", found %s", j->key, found(j, seen));
        if (*n == capacity)
            return clb_json_error(j, "\"%s\" has more than %d entries", j->key, capacity);
        int64_t value;
        int rc = clb_json_integer(j, min, max, &value);
        if (rc)
            return rc;
        out[(*n)++] = (int32_t)value;
    }
    return 0;
}
