// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The one header for compiler extensions, and what every file needs: errors, checked
// arithmetic, unaligned little-endian reads.
#ifndef CLB_BASE_H
#define CLB_BASE_H

#include "colibri.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#define CLB_PRINTF(string, first) __attribute__((format(printf, string, first)))
#define CLB_ALIGN 64        // bytes: a cache line, a tile line, the widest vector
#define CLB_PAGE_BYTES 4096 // of memory: the smallest that there are

// Fills *error (which may be NULL) and returns `code`.
int clb_error(colibri_error *error, int code, const char *format, ...) CLB_PRINTF(3, 4);

// Checked arithmetic on sizes that come from a file: false on overflow, *out untouched then.
static inline bool clb_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b && a > UINT64_MAX / b)
        return false;
    *out = a * b;
    return true;
}

static inline bool clb_add(uint64_t a, uint64_t b, uint64_t *out)
{
    if (a > UINT64_MAX - b)
        return false;
    *out = a + b;
    return true;
}

static inline uint64_t clb_round_up(uint64_t n, uint64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static inline uint16_t clb_u16(const void *p)
{
    const uint8_t *b = p;
    return (uint16_t)(b[0] | b[1] << 8);
}

static inline uint32_t clb_u32(const void *p)
{
    const uint8_t *b = p;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t clb_u64(const void *p)
{
    const uint8_t *b = p;
    return clb_u32(b) | (uint64_t)clb_u32(b + 4) << 32;
}

#if defined(__x86_64__)
// Registers eax, ebx, ecx, edx of cpuid.
static inline void clb_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t r[4])
{
    __asm__ volatile("cpuid"
                     : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3])
                     : "a"(leaf), "c"(subleaf));
}

// XCR0: which registers the operating system saves. Needs OSXSAVE.
static inline uint32_t clb_xgetbv(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}
#endif

// Waiting for another thread.
static inline void clb_pause(void)
{
#if defined(__x86_64__)
    __asm__ volatile("pause");
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
