// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "quantize.h"

#include "layout.h"

#include <float.h>
#include <math.h>
#include <sys/mman.h>

enum { HEAD_BYTES = CLB_LINE_BYTES };
static_assert(sizeof(struct clb_quantised) <= HEAD_BYTES, "the weights follow the list's entry");

// 32 columns of a tile of floats, 16 rows each, widened.
static void widen(const uint8_t *p, enum clb_dtype dtype, float v[CLB_BLOCK][CLB_TILE_ROWS])
{
    for (int i = 0; i < CLB_BLOCK * CLB_TILE_ROWS; i++)
        v[i / CLB_TILE_ROWS][i % CLB_TILE_ROWS] =
            dtype == CLB_F32   ? clb_from_bits(clb_u32(p + 4 * i))
            : dtype == CLB_F16 ? clb_f16_to_f32(clb_u16(p + 2 * i))
                               : clb_bf16_to_f32(clb_u16(p + 2 * i));
}

// One block of q8: scales of 16 rows, and 8 lines of integers. False: beyond what f16 scales.
static bool quantise_block(float v[CLB_BLOCK][CLB_TILE_ROWS], uint8_t *scales, uint8_t *lines)
{
    for (int r = 0; r < CLB_TILE_ROWS; r++) {
        float amax = 0;
        for (int c = 0; c < CLB_BLOCK; c++) {
            if (!(fabsf(v[c][r]) <= FLT_MAX))
                return false;
            amax = fabsf(v[c][r]) > amax ? fabsf(v[c][r]) : amax;
        }
        uint16_t half = clb_f32_to_f16(amax / 127);
        float scale = clb_f16_to_f32(half);
        if (scale > FLT_MAX)
            return false;
        memcpy(scales + 2 * r, &half, sizeof half);
        for (int c = 0; c < CLB_BLOCK; c++) {
            float q = scale > 0 ? v[c][r] / scale : 0;
            q = q < -127 ? -127 : q > 127 ? 127 : q;
            q = (q + 0x1.8p23f) - 0x1.8p23f; // to the nearest integer, ties to even
            lines[c / 4 * CLB_LINE_BYTES + 4 * r + c % 4] = (uint8_t)(int8_t)q;
        }
    }
    return true;
}

static bool quantise_item(const struct clb_matrix *m, const uint8_t *from, uint8_t *to, int n_pairs)
{
    const size_t block_bytes = m->tile_bytes / (2 * (size_t)n_pairs);
    float v[CLB_BLOCK][CLB_TILE_ROWS];
    for (int pair = 0; pair < m->n_tiles * n_pairs; pair++, to += CLB_Q8_PAIR_BYTES)
        for (int half = 0; half < 2; half++, from += block_bytes) {
            widen(from, m->dtype, v);
            if (!quantise_block(v, to + half * CLB_LINE_BYTES / 2,
                                to + CLB_LINE_BYTES + half * CLB_Q8_BLOCK_BYTES))
                return false;
        }
    return true;
}

int clb_quantize_matrix(struct clb_matrix *m, int n_layers, int n_experts,
                        struct clb_quantised **list, const char *name, colibri_error *error)
{
    int n_pairs = (m->cols + CLB_TILE_COLS - 1) / CLB_TILE_COLS;
    struct clb_matrix q = *m;
    q.dtype = CLB_Q8;
    q.tile_bytes = (size_t)n_pairs * CLB_Q8_PAIR_BYTES;
    q.expert_stride = (uint64_t)m->n_tiles * q.tile_bytes;
    q.layer_stride = (uint64_t)n_experts * q.expert_stride;
    uint64_t size; // smaller than the floats, which are mapped
    if (!clb_mul((uint64_t)n_layers, q.layer_stride, &size) || size > SIZE_MAX - HEAD_BYTES)
        return clb_error(error, COLIBRI_ERROR_MEMORY, "%s is too large to quantize", name);
    struct clb_quantised *memory = mmap(NULL, (size_t)size + HEAD_BYTES, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for the %llu bytes of %s as int8",
                         (unsigned long long)size, name);
    *memory = (struct clb_quantised){*list, (size_t)size + HEAD_BYTES};
    *list = memory;
    uint8_t *data = (uint8_t *)memory + HEAD_BYTES;
    for (int l = 0; l < n_layers; l++)
        for (int e = 0; e < n_experts; e++)
            if (!quantise_item(m, clb_matrix_item(m, l, e),
                               data + (uint64_t)l * q.layer_stride + (uint64_t)e * q.expert_stride,
                               n_pairs))
                return clb_error(error, COLIBRI_ERROR_NUMERIC,
                                 "%s of layer %d, expert %d holds values that int8 with an f16 "
                                 "scale cannot hold; leave it as it is",
                                 name, l, e);
    q.data = data;
    *m = q;
    return 0;
}

void clb_quantize_free(struct clb_quantised *list)
{
    while (list) {
        struct clb_quantised *next = list->next;
        munmap(list, list->size);
        list = next;
    }
}
