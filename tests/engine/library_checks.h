// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// What the checks of colibri.h share, and those that test_library.c runs for its main.
#ifndef LIBRARY_CHECKS_H
#define LIBRARY_CHECKS_H

#include "colibri.h"

#include <stdatomic.h>
#include <stdio.h>

extern atomic_int failures;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            failures++;                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
        }                                                                                          \
    } while (0)

extern atomic_long to_fail; // this allocation fails, counted from 1; 0: none

// What the process holds.
struct holdings {
    long blocks, pages;
    int next_file;
};

struct holdings holdings(void);
bool as_before(struct holdings before);

bool is_line(const colibri_error *e);

// Threads of this process that the signal may interrupt.
int takers_of(int signal);

// test_library_files.c
void check_shorter(const char *path);
void check_shorter_tokenizer(const char *path);
void check_damaged(const char *path);

// test_library_quiet.c. `how`: "1" to "9" threads, and "lock" behind it to lock the model. Prints
// the page faults, and ends the process.
void check_quiet(const char *path, const char *how);

#endif
