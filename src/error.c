// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "base.h"
#include "log.h"
#include "print.h"

#include <stdarg.h>

int clb_error(colibri_error *error, int code, const char *format, ...)
{
    if (error) {
        va_list args;
        va_start(args, format);
        clb_vformat(error->message, sizeof error->message, format, args);
        va_end(args);
        // It may quote a file: no line breaks, nothing that a terminal obeys.
        for (char *p = error->message; *p; p++)
            if ((unsigned char)*p < ' ' || *p == 0x7f)
                *p = '?';
        error->code = code;
    }
    return code;
}

#if CLB_DEBUG
void (*clb_log_sink)(const char *line);

void clb_log(const char *format, ...)
{
    char line[400];
    va_list args;
    va_start(args, format);
    clb_vformat(line, sizeof line, format, args);
    va_end(args);
    if (clb_log_sink)
        clb_log_sink(line);
}
#endif
