// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// SHA-256 (FIPS 180-4).
#ifndef CLB_SHA256_H
#define CLB_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct clb_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
};

void clb_sha256_init(struct clb_sha256 *s);
void clb_sha256_add(struct clb_sha256 *s, const void *data, size_t size);
void clb_sha256_hex(struct clb_sha256 *s, char hex[65]); // finishes; s must be initialised again

#endif
