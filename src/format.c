// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "format.h"

#include "crc32.h"
#include "layout.h"
#include "log.h"

#include <stdlib.h>

// The structs on disk; read field by field, so that byte order and alignment do not matter.
enum {
    HEADER_BYTES = 128,
    SECTION_BYTES = 128,
    TILE_ITEM_ALIGN = 4096,
    ROW_ITEM_ALIGN = 64,
    CRC_BYTES = 64 << 10, // read before a rest
};

static const char magic[16] = "COLIBRIv1";

const char *const clb_dtype_names[CLB_N_DTYPES] = {"f32", "f16", "bf16", "q8", "q4", "mxfp4", "u8"};

static int damaged(const char *path, const char *what, colibri_error *error)
{
    return clb_error(error, COLIBRI_ERROR_CORRUPT,
                     "%s: %s does not match its checksum: the file is damaged, copy or convert it "
                     "again",
                     path, what);
}

static int not_valid(const char *path, const char *what, colibri_error *error)
{
    return clb_error(error, COLIBRI_ERROR_FORMAT, "%s: %s; convert the model again", path, what);
}

static bool all_zero(const uint8_t *p, size_t n)
{
    while (n && !*p)
        p++, n--;
    return !n;
}

static int check_header(struct clb_format *f, const char *path, colibri_error *error)
{
    const uint8_t *h = f->map.data;
    if (f->map.size < HEADER_BYTES)
        return clb_error(error, COLIBRI_ERROR_TRUNCATED,
                         "%s has %zu bytes, less than a header: copy or convert it again", path,
                         f->map.size);
    if (memcmp(h, magic, sizeof magic))
        return clb_error(error, COLIBRI_ERROR_FORMAT,
                         "%s is no Colibri model: it does not start with COLIBRIv1; make one with "
                         "colibri-deploy convert",
                         path);
    if (clb_u32(h + 16) > 1)
        return clb_error(error, COLIBRI_ERROR_FORMAT,
                         "%s has format version %u, this Colibri reads 1: a newer one is needed",
                         path, clb_u32(h + 16));
    if (clb_crc32(0, h, HEADER_BYTES - 4) != clb_u32(h + 124))
        return damaged(path, "the header", error);
    if (clb_u32(h + 16) != 1 || clb_u32(h + 20) != 0x01020304 || !all_zero(h + 64, 60))
        return not_valid(path, "version, byte order or a reserved field is not valid", error);
    uint64_t file_size = clb_u64(h + 32);
    if (file_size != f->map.size)
        return clb_error(error, COLIBRI_ERROR_TRUNCATED,
                         "%s has %zu bytes, its header says %llu: copy it again", path, f->map.size,
                         (unsigned long long)file_size);
    f->n_sections = clb_u32(h + 24);
    f->n_items = clb_u32(h + 28);
    uint64_t crcs = HEADER_BYTES + (uint64_t)f->n_sections * SECTION_BYTES;
    if (!f->n_sections || f->n_sections > CLB_MAX_SECTIONS || f->n_items > CLB_MAX_ITEMS ||
        clb_u64(h + 40) != HEADER_BYTES || clb_u64(h + 48) != crcs ||
        crcs + 4 * (uint64_t)f->n_items > file_size)
        return not_valid(path, "the tables do not fit into the file", error);
    f->crcs = h + crcs;
    if (clb_crc32(0, h + HEADER_BYTES, (size_t)f->n_sections * SECTION_BYTES) != clb_u32(h + 56))
        return damaged(path, "the section table", error);
    if (clb_crc32(0, f->crcs, 4 * (size_t)f->n_items) != clb_u32(h + 60))
        return damaged(path, "the CRC table", error);
    return 0;
}

// What dtype, layout and shape imply; 0 if they do not go together or overflow.
static uint64_t item_size(const struct clb_section *s)
{
    static const uint8_t value_bytes[CLB_N_DTYPES] = {
        [CLB_F32] = 4, [CLB_F16] = 2, [CLB_BF16] = 2, [CLB_U8] = 1};
    uint64_t rows = s->rows, cols = s->cols, size;
    if (s->layout == CLB_TILES) {
        rows = clb_round_up(rows, CLB_TILE_ROWS);
        cols = clb_round_up(cols, CLB_TILE_COLS);
        if (clb_is_quantised(s->dtype)) {
            uint64_t pairs = cols / CLB_TILE_COLS;
            uint64_t pair_bytes = s->dtype == CLB_Q8 ? CLB_Q8_PAIR_BYTES : CLB_Q4_PAIR_BYTES;
            return clb_mul(rows / CLB_TILE_ROWS, pairs * pair_bytes, &size) ? size : 0;
        }
        if (s->dtype == CLB_U8)
            return 0;
    }
    if (!clb_mul(rows, cols, &size) || !clb_mul(size, value_bytes[s->dtype], &size))
        return 0;
    return size;
}

static int parse_section(const struct clb_format *f, const uint8_t *p, struct clb_section *s)
{
    size_t name_size = 0;
    for (; name_size < sizeof s->name - 1 && p[name_size] > ' ' && p[name_size] < 0x7f; name_size++)
        s->name[name_size] = (char)p[name_size];
    if (!name_size || !all_zero(p + name_size, sizeof s->name - name_size) ||
        !all_zero(p + 92, SECTION_BYTES - 92))
        return 1;
    uint32_t dtype = clb_u32(p + 32), layout = clb_u32(p + 36);
    if (dtype >= CLB_N_DTYPES || layout > CLB_TILES)
        return 1;
    s->dtype = (enum clb_dtype)dtype;
    s->layout = (enum clb_layout)layout;
    s->n_layers = clb_u32(p + 40);
    s->n_experts = clb_u32(p + 44);
    s->rows = clb_u32(p + 48);
    s->cols = clb_u32(p + 52);
    s->offset = clb_u64(p + 56);
    s->layer_stride = clb_u64(p + 64);
    s->expert_stride = clb_u64(p + 72);
    s->item_size = clb_u64(p + 80);
    s->first_crc = clb_u32(p + 88);
    uint64_t align = s->layout == CLB_TILES ? TILE_ITEM_ALIGN : ROW_ITEM_ALIGN;
    if (!s->n_layers || !s->n_experts || !s->rows || !s->cols || s->rows > INT32_MAX / 2 ||
        s->cols > INT32_MAX / 2 || s->offset % align || s->layer_stride % align ||
        s->expert_stride % align || (s->n_layers == 1 && s->layer_stride) ||
        (s->n_experts == 1 && s->expert_stride) || !s->item_size || s->item_size != item_size(s))
        return 1;
    uint64_t layers, experts, end;
    return !clb_mul(s->n_layers - 1, s->layer_stride, &layers) ||
           !clb_mul(s->n_experts - 1, s->expert_stride, &experts) ||
           !clb_add(layers, experts, &end) || !clb_add(end, s->offset, &end) ||
           !clb_add(end, s->item_size, &end) || end > f->map.size;
}

struct extent {
    uint64_t start, end;
};

// Restores the heap below `root`: no child starts after its parent.
static void sift_down(struct extent *heap, size_t root, size_t n)
{
    for (size_t child; (child = 2 * root + 1) < n; root = child) {
        child += child + 1 < n && heap[child + 1].start > heap[child].start;
        if (heap[root].start >= heap[child].start)
            return;
        struct extent swap = heap[root];
        heap[root] = heap[child];
        heap[child] = swap;
    }
}

// Heapsort, ascending by start: libc's qsort takes 9 KB of the binary.
static void sort_extents(struct extent *extents, size_t n)
{
    for (size_t i = n / 2; i-- > 0;)
        sift_down(extents, i, n);
    for (size_t i = n; i-- > 1;) {
        struct extent largest = extents[0];
        extents[0] = extents[i];
        extents[i] = largest;
        sift_down(extents, 0, i);
    }
}

// Items are disjoint, and behind the tables.
static int check_overlap(const struct clb_format *f, const char *path, colibri_error *error)
{
    struct extent *extents = malloc((size_t)f->n_items * sizeof *extents);
    if (!extents)
        return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for the table of %u items",
                         f->n_items);
    size_t n = 0;
    for (uint32_t i = 0; i < f->n_sections; i++) {
        const struct clb_section *s = &f->sections[i];
        for (uint32_t l = 0; l < s->n_layers; l++)
            for (uint32_t e = 0; e < s->n_experts; e++) {
                uint64_t start = (uint64_t)(clb_item(f, s, l, e) - f->map.data);
                extents[n++] = (struct extent){start, start + s->item_size};
            }
    }
    sort_extents(extents, n);
    uint64_t end = (uint64_t)(f->crcs - f->map.data) + 4 * (uint64_t)f->n_items;
    bool overlap = false;
    for (size_t i = 0; i < n; i++) {
        overlap |= extents[i].start < end;
        end = extents[i].end;
    }
    free(extents);
    return overlap ? not_valid(path, "two items overlap", error) : 0;
}

static int read_sections(struct clb_format *f, const char *path, colibri_error *error)
{
    f->sections = calloc(f->n_sections, sizeof *f->sections);
    if (!f->sections)
        return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for %u sections", f->n_sections);
    uint64_t items = 0;
    for (uint32_t i = 0; i < f->n_sections; i++) {
        struct clb_section *s = &f->sections[i];
        if (parse_section(f, f->map.data + HEADER_BYTES + (size_t)i * SECTION_BYTES, s))
            return clb_error(error, COLIBRI_ERROR_FORMAT,
                             "%s: entry %u of the section table (%.31s) is not valid; convert the "
                             "model again",
                             path, i, s->name);
        if (clb_format_find(f, s->name) != s)
            return clb_error(error, COLIBRI_ERROR_FORMAT,
                             "%s: two sections are named %s; convert the model again", path,
                             s->name);
        if (s->first_crc != items)
            return clb_error(error, COLIBRI_ERROR_FORMAT,
                             "%s: the checksums of section %s are not where they belong; convert "
                             "the model again",
                             path, s->name);
        items += (uint64_t)s->n_layers * s->n_experts;
        if (items > f->n_items)
            break;
        CLB_LOG("section: %s %s %ux%u, %ux%u, at %llu, %llu bytes each", s->name,
                clb_dtype_names[s->dtype], s->n_layers, s->n_experts, s->rows, s->cols,
                (unsigned long long)s->offset, (unsigned long long)s->item_size);
    }
    if (items != f->n_items)
        return not_valid(path, "the section table counts more or fewer items than the header",
                         error);
    return check_overlap(f, path, error);
}

int clb_format_open(struct clb_format *f, const char *path, bool lock, colibri_error *error)
{
    memset(f, 0, sizeof *f);
    int rc = clb_map_open(&f->map, path, lock, error);
    if (!rc)
        rc = check_header(f, path, error);
    if (!rc)
        rc = read_sections(f, path, error);
    if (rc)
        clb_format_close(f);
    return rc;
}

void clb_format_close(struct clb_format *f)
{
    clb_map_close(&f->map);
    free(f->sections);
    f->sections = NULL;
}

const struct clb_section *clb_format_find(const struct clb_format *f, const char *name)
{
    for (uint32_t i = 0; i < f->n_sections; i++)
        if (!strcmp(f->sections[i].name, name))
            return &f->sections[i];
    return NULL;
}

// Whether every float of an item is finite: its values, or the scales of its pairs of blocks.
static bool is_finite(const struct clb_section *s, const uint8_t *p)
{
    // The upper half of an f32 is a bf16; f16 has fewer bits of exponent.
    static const uint16_t exponents[CLB_N_DTYPES] = {0x7f80, 0x7c00, 0x7f80,
                                                     0x7c00, 0x7c00, 0x7f80};
    const unsigned exponent = exponents[s->dtype];
    const size_t step = s->dtype == CLB_F32 ? 4 : 2;
    size_t floats = (size_t)s->item_size, stride = floats; // bytes
    if (clb_is_quantised(s->dtype)) {
        floats = CLB_LINE_BYTES;
        stride = s->dtype == CLB_Q8 ? CLB_Q8_PAIR_BYTES : CLB_Q4_PAIR_BYTES;
    }
    for (const uint8_t *end = p + s->item_size; p < end; p += stride)
        for (size_t i = step; i <= floats; i += step)
            if ((clb_u16(p + i - 2) & exponent) == exponent)
                return false;
    return true;
}

int clb_format_verify(const struct clb_format *f, enum clb_part part, clb_rest_fn rest, void *user,
                      const char *path, colibri_error *error)
{
    for (const struct clb_section *s = f->sections; s < f->sections + f->n_sections; s++) {
        if (!(part & (clb_is_large(s) ? CLB_LARGE : CLB_SMALL)))
            continue;
        for (uint32_t i = 0; i < s->n_layers * s->n_experts; i++) {
            uint32_t l = i / s->n_experts, e = i % s->n_experts, crc = 0;
            const uint8_t *p = clb_item(f, s, l, e), *end = p + s->item_size;
            for (size_t n; p < end; p += n) {
                n = end - p < CRC_BYTES ? (size_t)(end - p) : CRC_BYTES;
                crc = clb_crc32(crc, p, n);
                if (rest && !rest(user))
                    return 0;
            }
            if (crc != clb_u32(f->crcs + 4 * (size_t)(s->first_crc + i)))
                return clb_error(error, COLIBRI_ERROR_CORRUPT,
                                 "%s: section %s, layer %u, expert %u does not match its "
                                 "checksum: the file is damaged, copy or convert it again",
                                 path, s->name, l, e);
            if (part & CLB_FINITE && s->dtype != CLB_U8 && !is_finite(s, clb_item(f, s, l, e)))
                return clb_error(error, COLIBRI_ERROR_FORMAT,
                                 "%s: section %s, layer %u, expert %u holds NaN or Inf; convert "
                                 "the model again",
                                 path, s->name, l, e);
        }
    }
    return 0;
}
