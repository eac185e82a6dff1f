// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls one product a number of times, for bench/instructions.py to count its instructions: 4 tiles
// of 16 rows, 1,024 columns, 1 to 32 vectors.
//
//     product LEVEL TYPE VECTORS CALLS
#include "cpu.h"
#include "layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 4, COLS = 1024, VECTORS = 32 };

static float x[VECTORS * COLS], y[VECTORS * TILES * CLB_TILE_ROWS];
static int8_t q[VECTORS * COLS];
static float scale[VECTORS * COLS / CLB_BLOCK];
static int32_t sum[VECTORS * COLS / CLB_BLOCK];
static _Alignas(64) uint8_t w[TILES * COLS * CLB_TILE_ROWS * sizeof(float)];

int main(int argc, char **argv)
{
    const int n = argc == 5 ? atoi(argv[3]) : 0, calls = argc == 5 ? atoi(argv[4]) : 0;
    if (n < 1 || n > VECTORS || calls < 1) {
        fprintf(stderr, "usage: product LEVEL f32|f16|bf16|q8|q4|mxfp4 1..32 CALLS\n");
        return 2;
    }
    struct clb_kernels k;
    colibri_error error;
    if (clb_cpu_choose(&k, argv[1], &error)) {
        fprintf(stderr, "product: %s\n", error.message);
        return error.code;
    }
    const struct {
        const char *name;
        size_t pair_bytes; // of 64 columns of a tile
        void (*f32)(float *, size_t, const void *, size_t, int, const float *, size_t, int, int);
        void (*q8)(float *, size_t, const void *, size_t, int, const struct clb_q8 *, int, int);
    } products[] = {
        {"f32", 4096, k.f32_f32_mm, NULL},
        {"f16", 2048, k.f16_f32_mm, NULL},
        {"bf16", 2048, k.bf16_f32_mm, NULL},
        {"q8", CLB_Q8_PAIR_BYTES, NULL, k.q8_q8_mm},
        {"q4", CLB_Q4_PAIR_BYTES, NULL, k.q4_q8_mm},
        {"mxfp4", CLB_MXFP4_PAIR_BYTES, NULL, k.mxfp4_q8_mm},
    };
    memset(w, 0x3c, sizeof w); // a normal number in every type
    for (int i = 0; i < VECTORS * COLS; i++)
        x[i] = (float)(i * 37 % 255 - 127) / 1024;
    k.f32_q8_quantize(q, scale, sum, x, VECTORS * COLS);
    const struct clb_q8 vectors = {.q = q, .scale = scale, .sum = sum, .stride = COLS};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        if (strcmp(products[i].name, argv[2]))
            continue;
        const size_t bytes = COLS / 64 * products[i].pair_bytes, rows = TILES * CLB_TILE_ROWS;
        for (int call = 0; call < calls; call++)
            if (products[i].q8)
                products[i].q8(y, rows, w, bytes, TILES, &vectors, COLS / 64, n);
            else
                products[i].f32(y, rows, w, bytes, TILES, x, COLS, COLS, n);
        printf("%g\n", (double)y[n * (int)rows - 1]);
        return 0;
    }
    fprintf(stderr, "product: there is no type %s\n", argv[2]);
    return 2;
}
