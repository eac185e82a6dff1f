// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "ids.h"

#include "print.h"

#include <stdlib.h>

int clb_ids_parse(const char *text, int32_t **ids, size_t *n, colibri_error *error)
{
    *ids = malloc((strlen(text) / 2 + 1) * sizeof **ids);
    *n = 0;
    if (!*ids)
        return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for the token ids");
    for (const char *p = text + strspn(text, " \t\n"); *p;) {
        char *end;
        long value = strtol(p, &end, 10);
        if (end == p || value < 0 || value > INT32_MAX || !strchr(", \t\n", *end))
            return clb_error(error, COLIBRI_ERROR_INPUT,
                             "\"%.20s\" is no list of token ids like 1,2,3", p);
        (*ids)[(*n)++] = (int32_t)value;
        p = end + strspn(end, ", \t\n");
    }
    return 0;
}

void clb_ids_print(const char *separator, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        clb_print(stdout, "%s%d", i ? separator : "", ids[i]);
}
