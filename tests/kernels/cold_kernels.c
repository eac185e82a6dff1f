// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Prints the SHA-256 of what the kernels give that no model of this version uses, for every level
// that this CPU can run: nothing else holds their bits. tests/golden/reference.py computes the
// same from docs/DESIGN.md.
//
// Element i of the input s is made of the i-th number that splitmix64 gives from the seed s: its
// highest 24 bits less 2^23, times 2^-19 and 2^-k, where k is its lowest 3 bits. The first four of
// input 1 are 0, -0, 2^-149 and -2^-149.
#include "cpu.h"
#include "layout.h"
#include "sha256.h"

#include <stdio.h>

enum { N = 4096, INPUTS = 3 };

static const int lengths[] = {1, 2, 15, 16, 17, 100, 1000, N};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static float x[INPUTS][N], y[N];
static const struct clb_kernels *k;

static void fill(float *p, uint64_t seed)
{
    for (int i = 0; i < N; i++) {
        uint64_t z = seed += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        z ^= z >> 31;
        p[i] = (float)((int)(z >> 40) - (1 << 23)) * 0x1p-19f / (float)(1 << (z & 7));
    }
}

static void layer_norm(int n)
{
    k->f32_layer_norm(y, x[0], x[1], x[2], n, 1e-5f);
}

static void gelu(int n)
{
    k->f32_gelu(y, x[0], n);
}

static void gelu_tanh(int n)
{
    k->f32_gelu_tanh(y, x[0], n);
}

static void rope_pairs(int n)
{
    memcpy(y, x[0], sizeof y);
    k->f32_rope_pairs(y, x[1], x[2], n / 2);
}

// The hash of the first n elements of y for every length n that is a multiple of `multiple`.
static void print(const char *kernel, void (*call)(int n), int multiple)
{
    struct clb_sha256 hash;
    char hex[65];
    clb_sha256_init(&hash);
    for (int i = 0; i < N_LENGTHS; i++) {
        if (lengths[i] % multiple)
            continue;
        call(lengths[i]);
        clb_sha256_add(&hash, y, (size_t)lengths[i] * sizeof *y);
    }
    clb_sha256_hex(&hash, hex);
    printf("%s %s: %s\n", k->level, kernel, hex);
}

int main(void)
{
    struct clb_kernels kernels;
    k = &kernels;
    for (int i = 0; i < INPUTS; i++)
        fill(x[i], (uint64_t)i + 1);
    memcpy(x[0], (float[]){0.0f, -0.0f, 0x1p-149f, -0x1p-149f}, 4 * sizeof(float));
    for (const struct clb_level *l = clb_levels; l->name; l++) {
        if (clb_cpu_choose(&kernels, l->name, NULL))
            continue;
        print("f32_layer_norm", layer_norm, 1);
        print("f32_gelu", gelu, 16);
        print("f32_gelu_tanh", gelu_tanh, 16);
        print("f32_rope_pairs", rope_pairs, 2);
    }
    return 0;
}
