// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Unicode's normal form C (UAX #15), with the tables of the file.
#ifndef CLB_NORMALIZER_H
#define CLB_NORMALIZER_H

#include "tokenizer.h"

// Puts the normal form of p[n], which is valid UTF-8, into the malloc'ed *out, which has room for
// *size bytes and grows; its length into *n_out. Takes time linear in n.
// COLIBRI_ERROR_MEMORY, or COLIBRI_ERROR_FORMAT if tables make more than three times as many bytes
// of a text: Unicode's never do.
int clb_normalize(const struct clb_tokenizer *t, const uint8_t *p, size_t n, uint8_t **out,
                  size_t *size, size_t *n_out);

#endif
