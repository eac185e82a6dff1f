// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Checks what loading leaves unchecked, the large sections, once, while the model is in use: on a
// thread that takes what no other wants of a CPU, and little of that.
#ifndef CLB_SCRUB_H
#define CLB_SCRUB_H

#include "format.h"

#include <pthread.h>
#include <stdatomic.h>

struct clb_scrub {
    const struct clb_format *file;
    pthread_t thread;
    bool started;
    atomic_bool stop;
    atomic_bool failed; // `error` is set
    colibri_error error;
};

// Not for a file larger than the memory that is left, whose pages would push each other out.
int clb_scrub_start(struct clb_scrub *s, const struct clb_format *file, colibri_error *error);
void clb_scrub_stop(struct clb_scrub *s); // a zeroed one is fine

// An error if it has found something so far.
static inline int clb_scrub_check(const struct clb_scrub *s, colibri_error *error)
{
    if (!atomic_load(&s->failed))
        return 0;
    if (error)
        *error = s->error;
    return s->error.code;
}

#endif
