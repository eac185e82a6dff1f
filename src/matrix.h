// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Weight matrices as they lie in the mapped file, and the vectors they are multiplied with.
#ifndef CLB_MATRIX_H
#define CLB_MATRIX_H

#include "format.h"
#include "kernels.h"

// A vector of each layer and expert; data NULL: there is none.
struct clb_vector {
    const uint8_t *data;
    uint64_t layer_stride, expert_stride; // bytes
    int n;                                // elements
};

static inline const float *clb_vector_item(const struct clb_vector *v, int layer, int expert)
{
    return (const float *)(const void *)(v->data + (uint64_t)layer * v->layer_stride +
                                         (uint64_t)expert * v->expert_stride);
}

// One matrix of each layer and expert.
struct clb_matrix {
    const uint8_t *data;                  // layer 0, expert 0
    uint64_t layer_stride, expert_stride; // bytes
    enum clb_dtype dtype;
    enum clb_layout layout;
    int rows, cols; // without padding
    int n_tiles;    // rows / 16, rounded up
    size_t tile_bytes;
    struct clb_vector bias; // (rows) to be added to the product
};

// Vectors to multiply with: f32, and q8 too where some matrix needs it.
struct clb_acts {
    float *f32;       // (n, stride)
    struct clb_q8 q8; // (n, stride), q NULL if no matrix needs it
    size_t stride;    // a multiple of 64; values beyond the vector's end are 0
};

// The vectors from row `first` on.
struct clb_acts clb_acts_from(const struct clb_acts *x, size_t first);

void clb_matrix_init(struct clb_matrix *m, const struct clb_format *f, const struct clb_section *s);

static inline const uint8_t *clb_matrix_item(const struct clb_matrix *m, int layer, int expert)
{
    return m->data + (uint64_t)layer * m->layer_stride + (uint64_t)expert * m->expert_stride;
}

// y (n, y_stride) = rows 16 * tile .. 16 * (tile + n_tiles) of the item times vectors
// first .. first + n of x. All 16 rows of the last tile are written.
void clb_matrix_mm(const struct clb_kernels *k, const struct clb_matrix *m, const uint8_t *item,
                   int tile, int n_tiles, const struct clb_acts *x, size_t first, int n, float *y,
                   size_t y_stride);

// out (cols) = one row, widened to f32.
void clb_matrix_row(const struct clb_matrix *m, const uint8_t *item, int row, float *out);

#endif
