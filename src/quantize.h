// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Weights that were stored as floats, rounded to q8 at load time: the same bits that a conversion
// to q8 gives (docs/FORMAT.md).
#ifndef CLB_QUANTIZE_H
#define CLB_QUANTIZE_H

#include "matrix.h"

// Memory of quantised weights, in a list.
struct clb_quantised {
    struct clb_quantised *next;
    size_t size; // bytes, these included
};

// Makes q8 of the items (n_layers x n_experts) of a matrix of floats in tiles, in memory that is
// put into the list. `name` is for errors.
int clb_quantize_matrix(struct clb_matrix *m, int n_layers, int n_experts,
                        struct clb_quantised **list, const char *name, colibri_error *error);
void clb_quantize_free(struct clb_quantised *list);

#endif
