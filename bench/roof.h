// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// What the machine can do at each ISA level (templates/ops/roof.c.j2).
#ifndef ROOF_H
#define ROOF_H

#include <stddef.h>
#include <stdint.h>

struct clb_roof {
    const char *level;
    float (*read)(const float *p, size_t n);       // n floats, a multiple of 256
    float (*muladd)(const float *p, size_t n);     // n * 128 multiplications and additions
    float (*dot)(const int8_t *p, size_t n);       // n * 512 of int8
    float (*dot_q4)(const int8_t *p, size_t n);    // n * 1024 of int4 by int8
    float (*dot_mxfp4)(const int8_t *p, size_t n); // n * 1024 of codes by int8
};

#define ROOF(level)                                                                                \
    float clb_roof_read_##level(const float *p, size_t n);                                         \
    float clb_roof_muladd_##level(const float *p, size_t n);                                       \
    float clb_roof_dot_##level(const int8_t *p, size_t n);                                         \
    float clb_roof_dot_q4_##level(const int8_t *p, size_t n);                                      \
    float clb_roof_dot_mxfp4_##level(const int8_t *p, size_t n);
CLB_LEVELS(ROOF)
#undef ROOF

#define ROOF(level)                                                                                \
    {#level,                                                                                       \
     clb_roof_read_##level,                                                                        \
     clb_roof_muladd_##level,                                                                      \
     clb_roof_dot_##level,                                                                         \
     clb_roof_dot_q4_##level,                                                                      \
     clb_roof_dot_mxfp4_##level},
static const struct clb_roof clb_roofs[] = {CLB_LEVELS(ROOF)};
#undef ROOF

#endif
