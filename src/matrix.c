// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "matrix.h"

#include "layout.h"

void clb_matrix_init(struct clb_matrix *m, const struct clb_format *f, const struct clb_section *s)
{
    *m = (struct clb_matrix){
        .data = clb_item(f, s, 0, 0),
        .layer_stride = s->layer_stride,
        .expert_stride = s->expert_stride,
        .dtype = s->dtype,
        .layout = s->layout,
        .rows = (int)s->rows,
        .cols = (int)s->cols,
        .n_tiles = (int)((s->rows + CLB_TILE_ROWS - 1) / CLB_TILE_ROWS),
    };
    if (s->layout == CLB_TILES)
        m->tile_bytes = (size_t)s->item_size / (size_t)m->n_tiles;
}

struct clb_acts clb_acts_from(const struct clb_acts *x, size_t first)
{
    const size_t at = first * x->stride;
    struct clb_acts from = {.f32 = x->f32 + at, .stride = x->stride};
    if (x->q8.q)
        from.q8 = (struct clb_q8){x->q8.q + at, x->q8.scale + at / CLB_BLOCK,
                                  x->q8.sum + at / CLB_BLOCK, x->stride};
    return from;
}

void clb_matrix_mm(const struct clb_kernels *k, const struct clb_matrix *m, const uint8_t *item,
                   int tile, int n_tiles, const struct clb_acts *x, size_t first, int n, float *y,
                   size_t y_stride)
{
    const uint8_t *w = item + (size_t)tile * m->tile_bytes;
    const struct clb_acts from = clb_acts_from(x, first);
    switch (m->dtype) {
    case CLB_F32:
        k->f32_f32_mm(y, y_stride, w, m->tile_bytes, n_tiles, from.f32, x->stride, m->cols, n);
        break;
    case CLB_F16:
        k->f16_f32_mm(y, y_stride, w, m->tile_bytes, n_tiles, from.f32, x->stride, m->cols, n);
        break;
    case CLB_BF16:
        k->bf16_f32_mm(y, y_stride, w, m->tile_bytes, n_tiles, from.f32, x->stride, m->cols, n);
        break;
    case CLB_Q8:
    case CLB_Q4:
    case CLB_MXFP4: {
        int n_pairs = (m->cols + CLB_TILE_COLS - 1) / CLB_TILE_COLS;
        (m->dtype == CLB_Q8 ? k->q8_q8_mm
         : m->dtype == CLB_Q4
             ? k->q4_q8_mm
             : k->mxfp4_q8_mm)(y, y_stride, w, m->tile_bytes, n_tiles, &from.q8, n_pairs, n);
        break;
    }
    default: // clb_model_load lets no other type through
        assert(false);
    }
}

// The value in row `row` (of 16) and column `col` of a tile or of a matrix with one row.
static float value(const struct clb_matrix *m, const uint8_t *p, int rows, int row, int col)
{
    size_t i = (size_t)col * (size_t)rows + (size_t)row;
    if (m->dtype == CLB_F32)
        return clb_from_bits(clb_u32(p + 4 * i));
    if (m->dtype == CLB_F16)
        return clb_f16_to_f32(clb_u16(p + 2 * i));
    if (m->dtype == CLB_BF16)
        return clb_bf16_to_f32(clb_u16(p + 2 * i));
    const bool q8 = m->dtype == CLB_Q8;
    int block_bytes = q8 ? CLB_Q8_BLOCK_BYTES : CLB_Q4_BLOCK_BYTES;
    int half = col % CLB_TILE_COLS / CLB_BLOCK, c = col % CLB_BLOCK;
    const uint8_t *pair =
        p + (size_t)(col / CLB_TILE_COLS) * (size_t)(CLB_LINE_BYTES + 2 * block_bytes);
    const uint8_t *block = pair + CLB_LINE_BYTES + half * block_bytes;
    uint16_t scale = clb_u16(pair + half * CLB_LINE_BYTES / 2 + 2 * row);
    if (q8)
        return (float)(int8_t)block[c / 4 * CLB_LINE_BYTES + 4 * row + c % 4] *
               clb_f16_to_f32(scale);
    uint8_t both = block[c / 8 * CLB_LINE_BYTES + 4 * row + c % 4]; // columns 8 p + i, 8 p + 4 + i
    int code = c % 8 < 4 ? both & 15 : both >> 4;
    if (m->dtype == CLB_Q4)
        return (float)(code - 8) * clb_f16_to_f32(scale);
    return (float)clb_mxfp4_codes[code] * clb_bf16_to_f32(scale);
}

void clb_matrix_row(const struct clb_matrix *m, const uint8_t *item, int row, float *out)
{
    if (m->layout == CLB_ROWS) {
        size_t row_bytes = (size_t)m->cols * (m->dtype == CLB_F32 ? 4 : 2);
        for (int c = 0; c < m->cols; c++)
            out[c] = value(m, item + (size_t)row * row_bytes, 1, 0, c);
        return;
    }
    const uint8_t *tile = item + (size_t)(row / CLB_TILE_ROWS) * m->tile_bytes;
    for (int c = 0; c < m->cols; c++)
        out[c] = value(m, tile, CLB_TILE_ROWS, row % CLB_TILE_ROWS, c);
}
