// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The threads of one call. They share work out by items, never within a sum, so their number
// cannot change a result.
#ifndef CLB_THREADS_H
#define CLB_THREADS_H

#include "profile.h"

#include <pthread.h>

struct clb_pool;

// pthread_create, but the signals that are sent to the process go to the program's own threads: its
// handlers need not expect the stack or the priority of this one.
int clb_thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                     void *arg);

// `n` threads, the caller among them.
int clb_pool_create(struct clb_pool **pool, int n, colibri_error *error);
void clb_pool_free(struct clb_pool *pool); // NULL is fine

// Each thread, the caller's too, has a CPU of its own until the pool is freed, of those that the
// caller may run on now; in turns, if there are more threads than these.
void clb_pool_pin(struct clb_pool *pool);

// From now on a thread's clock (of n) is in `operation` while it has items, and CLB_WAITING while
// it has none. clocks NULL: none.
void clb_pool_time(struct clb_pool *pool, struct clb_clock *clocks, enum clb_operation operation);

// Calls fn(context, item, worker) for each item in [0, n_items), worker in [0, n), and returns
// when all are done.
typedef void (*clb_item_fn)(void *context, int item, int worker);
void clb_pool_run(struct clb_pool *pool, int n_items, clb_item_fn fn, void *context);

// The same for a function that takes neighbours together: items [first, first + n).
typedef void (*clb_span_fn)(void *context, int first, int n, int worker);
void clb_pool_run_spans(struct clb_pool *pool, int n_items, clb_span_fn fn, void *context);

#endif
