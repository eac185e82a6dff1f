// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Files: read whole, or mapped.
#ifndef CLB_FILE_H
#define CLB_FILE_H

#include "guard.h"

// Reads at most `limit` bytes; *text is malloc'ed and ends with a NUL that *size does not count.
int clb_file_read(const char *path, size_t limit, char **text, size_t *size, colibri_error *error);

// Maps a regular file for reading; with `lock` its pages are locked in memory.
int clb_map_open(struct clb_map *map, const char *path, bool lock, colibri_error *error);
void clb_map_close(struct clb_map *map); // an empty map is fine

#endif
