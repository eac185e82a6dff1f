// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The input is a model of two files, which is loaded and, if that works, run:
//   0  flags (below)
//   1  the byte that model.bin is filled up with, to the size that its header says
//   2  config.json, a zero byte, then model.bin
#include "config.h"
#include "crc32.h"
#include "fuzzer.h"
#include "memory_files.h"

enum {               // flags
    SEAL_TABLES = 1, // the checksums of header and tables are made right
    SEAL_ITEMS = 2,  // those of the items too
    VERIFY = 4,
    QUANTIZE = 8,
    KV_SHIFT = 4, // type of the cache: 2 bits
};

enum { HEAD = 2, HEADER = 128, ENTRY = 128, MAX_SEALED = 256 << 10 };

// Where model.bin begins in the input.
static size_t file_start(const uint8_t *data, size_t size)
{
    const uint8_t *end = memchr(data + HEAD, 0, size - HEAD);
    return end ? (size_t)(end - data) + 1 : size;
}

// The checksums of a section's items, as far as the items are in the file and *work lasts.
UNTRACED static void seal_items(uint8_t *file, size_t size, const uint8_t *entry, uint8_t *crcs,
                                uint32_t n_crcs, size_t *work)
{
    uint64_t layers = clb_u32(entry + 40), experts = clb_u32(entry + 44);
    uint64_t bytes = clb_u64(entry + 80), first = clb_u32(entry + 88);
    for (uint64_t i = 0; i < layers * experts && first + i < n_crcs; i++) {
        uint64_t at = clb_u64(entry + 56) + i / experts * clb_u64(entry + 64) +
                      i % experts * clb_u64(entry + 72);
        if (at > size || bytes > size - at || bytes + 64 > *work)
            return;
        *work -= bytes + 64;
        put_u32(crcs + 4 * (first + i), clb_crc32(0, file + at, bytes));
    }
}

UNTRACED static void seal(uint8_t *file, size_t size, bool items)
{
    uint64_t n_sections = clb_u32(file + 24), n_crcs = clb_u32(file + 28);
    uint64_t crcs = HEADER + ENTRY * n_sections;
    if (crcs + 4 * n_crcs > size)
        return put_u32(file + 124, clb_crc32(0, file, 124));
    size_t work = MAX_SEALED;
    for (uint64_t i = 0; items && i < n_sections; i++)
        seal_items(file, size, file + HEADER + ENTRY * i, file + crcs, (uint32_t)n_crcs, &work);
    put_u32(file + 56, clb_crc32(0, file + HEADER, ENTRY * n_sections));
    put_u32(file + 60, clb_crc32(0, file + crcs, 4 * n_crcs));
    put_u32(file + 124, clb_crc32(0, file, 124));
}

static void run(const colibri_model *model, colibri_kv kv)
{
    colibri_info info;
    colibri_error error;
    colibri_model_info(model, &info);
    const int32_t tokens[2] = {0, info.vocab_size - 1};
    const colibri_infer_options options = {.n_tokens = 1, .feed_last = true, .kv = kv};
    int rc = colibri_infer(model, &options, tokens, 2, NULL, NULL, NULL, &error);
    must_be_an_outcome(rc, &error);
    int32_t *ids;
    size_t n_ids, n_text;
    if (info.has_tokenizer && !colibri_tokenize(model, "a  b", 4, &ids, &n_ids, &error)) {
        char *text;
        MUST(!colibri_detokenize(model, ids, n_ids, &text, &n_text, &error));
        free(text);
        free(ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD)
        return 0;
    size_t start = file_start(data, size), given = size - start, whole = given;
    uint8_t flags = data[0];
    if (given > MEMORY_MODEL_BYTES)
        return 0;
    if (given >= HEADER) {
        uint64_t said = clb_u64(data + start + 32);
        whole = said > given && said <= MEMORY_MODEL_BYTES ? (size_t)said : given;
    }
    uint8_t *file = memory_model(whole);
    memcpy(file, data + start, given);
    memset(file + given, data[1], whole - given);
    if (flags & SEAL_TABLES && whole >= HEADER)
        seal(file, whole, flags & SEAL_ITEMS);
    memory_config(data + HEAD, start - HEAD - (start > HEAD && !data[start - 1]));
    colibri_load_options options = {.verify = flags & VERIFY,
                                    .quantize = flags & QUANTIZE ? "up:int8,q:int8" : NULL};
    colibri_model *model;
    colibri_error error;
    int rc = colibri_load_model(&model, "model.bin", "config.json", &options, &error);
    must_be_an_outcome(rc, &error);
    if (rc)
        return 0;
    run(model, (colibri_kv)(flags >> KV_SHIFT & 3));
    colibri_free_model(model);
    return 0;
}

// --- mutations that know the format ---

static const char *const names[] = {
    "embeddings",        "attention_norm",
    "attention_q",       "attention_k",
    "attention_v",       "attention_o",
    "ffn_norm",          "router",
    "gate_weights",      "up_weights",
    "down_weights",      "final_norm",
    "lm_head",           "rope",
    "tokenizer",         "attention_norm_bias",
    "final_norm_bias",   "attention_q_bias",
    "attention_k_bias",  "attention_q_norm",
    "attention_k_norm",  "attention_sinks",
    "router_bias",       "router_correction",
    "gate_bias",         "down_bias",
    "shared_router",     "shared_router_bias",
    "shared_up_weights", "shared_down_weights",
    "dense_up_weights",  "dense_down_weights",
    "lm_head_bias",      "position_embeddings",
    "attention_q_a",     "attention_q_a_norm",
    "attention_kv_a",    "attention_kv_a_norm",
    "attention_k_b",     "attention_v_b",
    "ffn_norm_bias",
};

// Offsets of the numbers of an entry; those from `WIDE` on are of 8 bytes.
static const uint8_t fields[] = {32, 36, 40, 44, 48, 52, 88, 56, 64, 72, 80};
enum { WIDE = 7, N_FIELDS = sizeof fields, N_NAMES = sizeof names / sizeof *names };

static uint64_t item_bytes(const uint8_t *entry)
{
    uint64_t rows = clb_u32(entry + 48), cols = clb_u32(entry + 52);
    uint32_t dtype = clb_u32(entry + 32);
    static const uint8_t bytes[] = {4, 2, 2, 0, 0, 0, 1};
    if (clb_u32(entry + 36)) {
        rows = clb_round_up(rows, 16);
        cols = clb_round_up(cols, 64);
        if (dtype >= 3 && dtype <= 5)
            return rows / 16 * (cols / 64) * (dtype == 3 ? 1088 : 576);
    }
    return dtype < sizeof bytes ? rows * cols * bytes[dtype] : 0;
}

// Makes the numbers that follow from others right.
static void mend(uint8_t *file, size_t n_sections)
{
    uint64_t n_items = 0, end = 0;
    for (size_t i = 0; i < n_sections; i++) {
        uint8_t *entry = file + HEADER + ENTRY * i;
        uint64_t layers = clb_u32(entry + 40), experts = clb_u32(entry + 44);
        put_u64(entry + 80, item_bytes(entry));
        put_u32(entry + 88, (uint32_t)n_items);
        uint64_t last = clb_u64(entry + 56) + (layers - 1) * clb_u64(entry + 64) +
                        (experts - 1) * clb_u64(entry + 72) + item_bytes(entry);
        end = last > end ? last : end;
        n_items += layers * experts;
    }
    put_u32(file + 24, (uint32_t)n_sections);
    put_u32(file + 28, (uint32_t)n_items);
    put_u64(file + 48, HEADER + ENTRY * n_sections);
    put_u64(file + 32, end);
}

static void change_field(uint8_t *entry, const uint8_t *other, uint32_t *state)
{
    uint32_t field = draw(state) % N_FIELDS, how = draw(state) % 4;
    uint8_t *p = entry + fields[field];
    uint64_t now = field < WIDE ? clb_u32(p) : clb_u64(p), value;
    if (how == 0)
        value = odd_number(state);
    else if (how == 1)
        value = now + draw(state) % 5 - 2;
    else if (how == 2)
        value = field < WIDE ? clb_u32(other + fields[field]) : clb_u64(other + fields[field]);
    else
        value = now + (draw(state) % 2 ? 4096 : 64) * (1 - 2 * (uint64_t)(draw(state) % 2));
    if (field < WIDE)
        put_u32(p, (uint32_t)value);
    else
        put_u64(p, value);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    uint32_t state = seed + 1;
    size_t start = size < HEAD ? size : file_start(data, size), given = size - start;
    uint8_t *file = data + start;
    uint64_t n_sections = given < HEADER ? 0 : clb_u32(file + 24);
    uint32_t kind = draw(&state) % 10;
    if (!n_sections || n_sections > (given - HEADER) / ENTRY || kind == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    uint8_t *entry = file + HEADER + ENTRY * (draw(&state) % n_sections);
    uint8_t *other = file + HEADER + ENTRY * (draw(&state) % n_sections);
    uint8_t *tables_end = file + HEADER + ENTRY * n_sections;
    if (kind == 1) { // config.json
        size_t room = max_size - given < 4096 ? max_size - given : 4096, n = start;
        uint8_t *grown = malloc(room > n ? room : n);
        memcpy(grown, data, n);
        n = 1 + LLVMFuzzerMutate(grown, n - 1, (room > n ? room : n) - 1);
        memmove(data + n, file, given);
        memcpy(data, grown, n - 1);
        data[n - 1] = 0;
        free(grown);
        return n + given;
    } else if (kind == 2) { // flags, or the filling
        data[draw(&state) % HEAD] = (uint8_t)draw(&state);
    } else if (kind == 3) { // header
        put_u32(file + 4 * (draw(&state) % (HEADER / 4)), (uint32_t)odd_number(&state));
    } else if (kind == 4) { // what is behind the tables
        size_t rest = (size_t)(data + size - tables_end);
        if (rest)
            LLVMFuzzerMutate(tables_end, rest, rest);
    } else if (kind == 5) { // another name
        strncpy((char *)entry, names[draw(&state) % N_NAMES], 32);
    } else if (kind == 6 && n_sections > 1) { // an entry less
        memmove(entry, entry + ENTRY, (size_t)(data + size - entry) - ENTRY);
        n_sections--;
        size -= ENTRY;
    } else if (kind == 7 && size + ENTRY <= max_size) { // an entry more, of another name
        memmove(tables_end + ENTRY, tables_end, (size_t)(data + size - tables_end));
        memmove(tables_end, entry, ENTRY);
        strncpy((char *)tables_end, names[draw(&state) % N_NAMES], 32);
        n_sections++;
        size += ENTRY;
    } else {
        change_field(entry, other, &state);
    }
    if (kind >= 5 && draw(&state) % 4)
        mend(file, (size_t)n_sections);
    return size;
}
