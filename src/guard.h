// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// What happens when a mapped file becomes shorter, or its disk fails: the kernel sends SIGBUS.
#ifndef CLB_GUARD_H
#define CLB_GUARD_H

#include "base.h"

// A file as it is mapped.
struct clb_map {
    const uint8_t *data;
    size_t size; // bytes
    int guard;   // its place in the table of guarded maps, from 1; 0: none
};

// From now on (for the whole process) zeros are put in place of what is gone of a mapped file, and
// its map is marked as lost. Other SIGBUS go to the handler that was there before.
int clb_guard_install(colibri_error *error);

// For clb_map_open and clb_map_close. False: no room for another map.
bool clb_guard_add(struct clb_map *map);
void clb_guard_remove(struct clb_map *map);

// Whether a part of the file is gone and zeros stand in for it.
bool clb_guard_lost(const struct clb_map *map);

#endif
