// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Token ids as text.
#ifndef CLB_IDS_H
#define CLB_IDS_H

#include "base.h"

// Reads "1,2,3", with commas or blanks between, into *ids, (*n), which the caller frees, also after
// an error.
int clb_ids_parse(const char *text, int32_t **ids, size_t *n, colibri_error *error);

// To stdout.
void clb_ids_print(const char *separator, const int32_t *ids, size_t n);

#endif
