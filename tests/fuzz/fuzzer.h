// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// What the fuzzers share: the functions of libFuzzer, and what must hold whatever the input is.
#ifndef FUZZER_H
#define FUZZER_H

#include "base.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size); // libFuzzer's own

// Of what the fuzzer itself does no coverage is wanted.
#define UNTRACED __attribute__((no_sanitize("coverage")))

#define MUST(condition) ((condition) ? (void)0 : abort())

// A result is 0, or a known code with one line that can be printed as it is.
static inline void must_be_an_outcome(int rc, const colibri_error *error)
{
    MUST(rc >= 0 && rc <= COLIBRI_ERROR_STOPPED && rc != COLIBRI_ERROR_INTERNAL);
    if (!rc)
        return;
    MUST(error->code == rc && *error->message);
    for (const char *p = error->message; *p; p++)
        MUST((unsigned char)*p >= ' ' && *p != 0x7f);
}

// A number of a sequence that `state` (not 0) goes through: xorshift.
static inline uint32_t draw(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

// A number that is often wrong: small, a power of two or beside one, or the largest.
static inline uint64_t odd_number(uint32_t *state)
{
    uint32_t kind = draw(state) % 4;
    uint64_t power = (uint64_t)1 << draw(state) % 64;
    return kind == 0 ? draw(state) % 20 : power + (kind == 1 ? (uint64_t)-1 : kind - 2);
}

static inline void put_u32(uint8_t *p, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(value >> 8 * i);
}

static inline void put_u64(uint8_t *p, uint64_t value)
{
    put_u32(p, (uint32_t)value);
    put_u32(p + 4, (uint32_t)(value >> 32));
}

#endif
