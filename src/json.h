// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// A reader for one flat JSON object of numbers, strings and arrays of integers: config.json.
// The text must end with a NUL. Every function returns 0 or COLIBRI_ERROR_CONFIG.
#ifndef CLB_JSON_H
#define CLB_JSON_H

#include "base.h"

struct clb_json {
    const char *name; // of the file, for messages
    const char *text, *at;
    char key[64]; // of the value to be read next
    colibri_error *error;
};

// *more is false at the end of the object, which must be the end of the text too.
int clb_json_next_key(struct clb_json *j, bool *more);
int clb_json_integer(struct clb_json *j, int64_t min, int64_t max, int64_t *out);
int clb_json_number(struct clb_json *j, double *out); // finite
int clb_json_string(struct clb_json *j, char *out, size_t size);
// At most `capacity` integers.
int clb_json_integers(struct clb_json *j, int64_t min, int64_t max, int32_t *out, int capacity,
                      int *n);
// An error at the current place: "config.json line 7: ..."
int clb_json_error(struct clb_json *j, const char *format, ...) CLB_PRINTF(2, 3);

#endif
