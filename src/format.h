// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// model.bin: the header, the sections and their checksums (docs/FORMAT.md). Every number of the
// file is checked here, once; the rest of the engine trusts struct clb_section.
#ifndef CLB_FORMAT_H
#define CLB_FORMAT_H

#include "file.h"

enum clb_dtype { CLB_F32, CLB_F16, CLB_BF16, CLB_Q8, CLB_Q4, CLB_MXFP4, CLB_U8, CLB_N_DTYPES };
enum clb_layout { CLB_ROWS, CLB_TILES };
enum { CLB_MAX_SECTIONS = 256, CLB_MAX_ITEMS = 1 << 22 };

// Integers with a scale for each row and block of columns, in tiles.
static inline bool clb_is_quantised(enum clb_dtype dtype)
{
    return dtype == CLB_Q8 || dtype == CLB_Q4 || dtype == CLB_MXFP4;
}

extern const char *const clb_dtype_names[CLB_N_DTYPES];

struct clb_section {
    char name[32];
    enum clb_dtype dtype;
    enum clb_layout layout;
    uint32_t n_layers, n_experts, rows, cols;                // rows and cols without padding
    uint64_t offset, layer_stride, expert_stride, item_size; // bytes
    uint32_t first_crc;
};

struct clb_format {
    struct clb_map map;
    struct clb_section *sections; // (n_sections)
    uint32_t n_sections, n_items;
    const uint8_t *crcs; // (n_items) little-endian u32
};

// Opens and checks header, section table and CRC table; items are not read.
int clb_format_open(struct clb_format *f, const char *path, bool lock, colibri_error *error);
void clb_format_close(struct clb_format *f); // a half-opened or zeroed one is fine

const struct clb_section *clb_format_find(const struct clb_format *f, const char *name);

static inline const uint8_t *clb_item(const struct clb_format *f, const struct clb_section *s,
                                      uint32_t layer, uint32_t expert)
{
    return f->map.data + s->offset + layer * s->layer_stride + expert * s->expert_stride;
}

// Whether a section has more than 8 MiB: it is too large to be checked at every load.
static inline bool clb_is_large(const struct clb_section *s)
{
    return s->item_size > (8 << 20) / (s->n_layers * s->n_experts);
}

// Checks the CRC of each item of the small sections, of the large ones, or of all; with CLB_FINITE
// also that no value or scale is NaN or infinite. Calls rest(user), unless it is NULL, after each
// 64 KB, and ends early with 0 if that is false.
enum clb_part { CLB_SMALL = 1, CLB_LARGE = 2, CLB_FINITE = 4, CLB_ALL = 7 };
typedef bool (*clb_rest_fn)(void *user);
int clb_format_verify(const struct clb_format *f, enum clb_part part, clb_rest_fn rest, void *user,
                      const char *path, colibri_error *error);

#endif
