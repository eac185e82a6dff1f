// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "print.h"

#include "decimal.h"

#include <math.h>

// Where a text goes: bytes that a file gets when they are full, or which are all there is room for.
struct sink {
    char *bytes;
    size_t size, used, length; // length: of the text so far
    FILE *file;                // may be NULL
};

static void flush(struct sink *s)
{
    fwrite(s->bytes, 1, s->used, s->file);
    s->used = 0;
}

static void put(struct sink *s, char c)
{
    if (s->used == s->size && s->file)
        flush(s);
    if (s->used < s->size)
        s->bytes[s->used++] = c;
    s->length++;
}

static void put_text(struct sink *s, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put(s, text[i]);
}

static void put_padding(struct sink *s, char c, int n)
{
    for (int i = 0; i < n; i++)
        put(s, c);
}

static int read_number(const char **format)
{
    int n = 0;
    for (; **format >= '0' && **format <= '9'; ++*format)
        n = 10 * n + **format - '0';
    return n;
}

// Writes the digits of an integer before `end`; returns the first of them. *sign becomes "-" of
// what is negative, "0x" of %p and, with '#', of all but 0.
static char *write_integer(char *end, char kind, bool prefix, int64_t value, const char **sign)
{
    const char *digits = kind == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    const unsigned base = kind == 'd' || kind == 'u' ? 10 : 16;
    uint64_t magnitude = (uint64_t)value;
    if (kind == 'd' && value < 0) {
        *sign = "-";
        magnitude = -magnitude;
    } else if (kind == 'p' || (prefix && value)) {
        *sign = "0x";
    }
    do
        *--end = digits[magnitude % base];
    while (magnitude /= base);
    return end;
}

static void put_aligned(struct sink *s, bool left, bool zeros, int width, const char *sign,
                        const char *text, size_t n)
{
    const int padding = width - (int)(strlen(sign) + n);
    put_padding(s, ' ', left || zeros ? 0 : padding);
    put_text(s, sign, strlen(sign));
    put_padding(s, '0', zeros ? padding : 0);
    put_text(s, text, n);
    put_padding(s, ' ', left ? padding : 0);
}

static void print(struct sink *s, const char *f, va_list args)
{
    while (*f) {
        if (*f != '%') {
            put(s, *f++);
            continue;
        }
        bool left = false, prefix = false, zeros = false;
        for (f++; *f == '-' || *f == '#' || *f == '0'; f++) {
            left |= *f == '-';
            prefix |= *f == '#';
            zeros |= *f == '0';
        }
        const int width = read_number(&f);
        int precision = -1, longs = 0;
        if (*f == '.') {
            f++;
            precision = *f == '*' ? va_arg(args, int) : read_number(&f);
            f += *f == '*';
        }
        for (; *f == 'l' || *f == 'z'; f++)
            longs += *f == 'l' || sizeof(size_t) == sizeof(long) ? 1 : 2;

        const char kind = *f++;
        const char *sign = "", *text;
        char buffer[CLB_DECIMAL_BYTES], *const end = buffer + sizeof buffer;
        size_t n;
        if (kind == 's') {
            text = va_arg(args, const char *);
            n = 0;
            while (n != (size_t)precision && text[n]) // -1: up to the 0
                n++;
        } else if (kind == 'f' || kind == 'g') {
            double x = va_arg(args, double);
            sign = signbit(x) ? "-" : "";
            text = buffer;
            n = clb_decimal_write(buffer, fabs(x), precision < 0 ? 6 : precision, kind == 'g');
        } else if (strchr("dupxX", kind)) {
            int64_t value = kind == 'p'   ? (int64_t)(uintptr_t)va_arg(args, void *)
                            : longs > 1   ? va_arg(args, long long)
                            : longs       ? va_arg(args, long)
                            : kind == 'd' ? va_arg(args, int)
                                          : (int64_t)va_arg(args, unsigned);
            text = write_integer(end, kind, prefix, value, &sign);
            n = (size_t)(end - text);
        } else { // %c or %%
            assert(kind == 'c' || kind == '%');
            buffer[0] = kind == 'c' ? (char)va_arg(args, int) : '%';
            text = buffer;
            n = 1;
        }
        put_aligned(s, left, zeros, width, sign, text, n);
    }
}

int clb_vformat(char *out, size_t size, const char *format, va_list args)
{
    struct sink s = {.bytes = out, .size = size - 1};
    print(&s, format, args);
    out[s.used] = 0;
    return (int)s.length;
}

int clb_format(char *out, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = clb_vformat(out, size, format, args);
    va_end(args);
    return length;
}

void clb_print(FILE *file, const char *format, ...)
{
    char bytes[512];
    struct sink s = {.bytes = bytes, .size = sizeof bytes, .file = file};
    va_list args;
    va_start(args, format);
    print(&s, format, args);
    va_end(args);
    flush(&s);
}
