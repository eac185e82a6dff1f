// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Takes the place of src/file.c in the fuzzers: files are bytes in memory, known by their names.
// Nothing touches a disk, and the address sanitizer sees a read past the end of a file to the byte.
#ifndef MEMORY_FILES_H
#define MEMORY_FILES_H

#include <stddef.h>
#include <stdint.h>

enum { MEMORY_MODEL_BYTES = 256 << 10 }; // at most so many

// config.json: stays with the caller.
void memory_config(const uint8_t *data, size_t size);

// model.bin: `size` bytes to be filled in, page-aligned; what is behind them is out of bounds.
uint8_t *memory_model(size_t size);

#endif
