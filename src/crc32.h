// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// CRC32 of zlib and PNG: reflected polynomial 0xEDB88320, initial value and final xor ~0.
#ifndef CLB_CRC32_H
#define CLB_CRC32_H

#include <stddef.h>
#include <stdint.h>

// The CRC of what `crc` (0: nothing) is the CRC of, followed by data[size].
uint32_t clb_crc32(uint32_t crc, const void *data, size_t size);

#endif
