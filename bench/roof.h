// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// What the machine can do at each ISA level (templates/ops/roof.c.j2).
#ifndef ROOF_H
#define ROOF_H

#include <stddef.h>
#include <stdint.h>

enum { CLB_ROOF_READS = 8, CLB_ROOF_4_STREAMS = 4 };

struct clb_roof {
    const char *level;
    // n floats, a multiple of 256, in 1, 2, 4 and 8 streams: each without and with prefetch
    float (*read[CLB_ROOF_READS])(const float *p, size_t n);
    float (*muladd)(const float *p, size_t n);     // n * 128 multiplications and additions
    float (*dot)(const int8_t *p, size_t n);       // n * 512 of int8
    float (*dot_q4)(const int8_t *p, size_t n);    // n * 1024 of int4 by int8
    float (*dot_mxfp4)(const int8_t *p, size_t n); // n * 1024 of codes by int8
};

#define ROOF(level)                                                                                \
    float clb_roof_read_1_##level(const float *p, size_t n);                                       \
    float clb_roof_read_1_ahead_##level(const float *p, size_t n);                                 \
    float clb_roof_read_2_##level(const float *p, size_t n);                                       \
    float clb_roof_read_2_ahead_##level(const float *p, size_t n);                                 \
    float clb_roof_read_4_##level(const float *p, size_t n);                                       \
    float clb_roof_read_4_ahead_##level(const float *p, size_t n);                                 \
    float clb_roof_read_8_##level(const float *p, size_t n);                                       \
    float clb_roof_read_8_ahead_##level(const float *p, size_t n);                                 \
    float clb_roof_muladd_##level(const float *p, size_t n);                                       \
    float clb_roof_dot_##level(const int8_t *p, size_t n);                                         \
    float clb_roof_dot_q4_##level(const int8_t *p, size_t n);                                      \
    float clb_roof_dot_mxfp4_##level(const int8_t *p, size_t n);
CLB_LEVELS(ROOF)
#undef ROOF

#define ROOF(level)                                                                                \
    {#level,                                                                                       \
     {clb_roof_read_1_##level, clb_roof_read_1_ahead_##level, clb_roof_read_2_##level,             \
      clb_roof_read_2_ahead_##level, clb_roof_read_4_##level, clb_roof_read_4_ahead_##level,       \
      clb_roof_read_8_##level, clb_roof_read_8_ahead_##level},                                     \
     clb_roof_muladd_##level,                                                                      \
     clb_roof_dot_##level,                                                                         \
     clb_roof_dot_q4_##level,                                                                      \
     clb_roof_dot_mxfp4_##level},
static const struct clb_roof clb_roofs[] = {CLB_LEVELS(ROOF)};
#undef ROOF

#endif
