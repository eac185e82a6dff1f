// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Many short jobs for src/threads.c. Compiled by test_threads.py with the thread sanitizer, to
// which nothing here is atomic: two threads in one item, one number for two threads, and an item
// that does not see what the job before wrote are data races, or wrong numbers.
//
//     threads_driver THREADS
#include "threads.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_THREADS = 16, MAX_ITEMS = 60, JOBS = 4000, POOLS = 60, JOBS_TO_SLEEP = 500 };

struct job {
    const int *from; // (n_items) what the job before wrote
    int *to;         // (n_items)
    int *runs;       // (n_threads) items that each thread has run
    int n_items;
    int burn; // turns of an idle loop in each item
};

static void item(void *context, int i, int worker)
{
    const struct job *job = context;
    for (volatile int turn = 0; turn < job->burn; turn = turn + 1)
        ;
    job->to[i] = job->from[(i + 1) % MAX_ITEMS] + 1;
    job->runs[worker]++;
}

// The n-th number of a fixed sequence, below `limit`.
static int draw(int n, int limit)
{
    return (int)((uint32_t)n * 2654435761u >> 8) % limit;
}

// Whether `jobs` jobs run each of their items once.
static bool run_jobs(struct clb_pool *pool, int n_threads, struct clb_clock *clocks, int jobs)
{
    int values[2][MAX_ITEMS] = {{0}}, runs[MAX_THREADS] = {0}, expected[2][MAX_ITEMS] = {{0}};
    int total = 0;
    for (int n = 0; n < jobs; n++) {
        struct job job = {
            .from = values[n % 2],
            .to = values[1 - n % 2],
            .runs = runs,
            .n_items = draw(n, MAX_ITEMS + 1),
            .burn = draw(n + jobs, 200),
        };
        clb_pool_time(pool, clocks, n % 2 ? CLB_O : CLB_HEAD);
        clb_pool_run(pool, job.n_items, item, &job);
        memcpy(expected[1 - n % 2], expected[n % 2], sizeof *expected);
        for (int i = 0; i < job.n_items; i++)
            expected[1 - n % 2][i] = expected[n % 2][(i + 1) % MAX_ITEMS] + 1;
        memcpy(job.to + job.n_items, job.from + job.n_items,
               (size_t)(MAX_ITEMS - job.n_items) * sizeof *job.to);
        if (memcmp(values[1 - n % 2], expected[1 - n % 2], sizeof *expected) != 0) {
            fprintf(stderr, "job %d of %d items gives other numbers\n", n, job.n_items);
            return false;
        }
        total += job.n_items;
        if (n % 50 == 0)
            clb_clock_collect(clocks, n_threads, (colibri_operation[COLIBRI_OPERATIONS]){{0}});
        if (n % JOBS_TO_SLEEP == 0)
            poll(NULL, 0, 2); // longer than workers spin
    }
    for (int i = 0; i < n_threads; i++)
        total -= runs[i];
    if (total)
        fprintf(stderr, "%d items were not run\n", total);
    return !total;
}

int main(int argc, char **argv)
{
    static struct clb_clock clocks[MAX_THREADS];
    const int n_threads = argc > 1 ? atoi(argv[1]) : 0;
    bool right = n_threads > 0 && n_threads <= MAX_THREADS;
    for (int n = 0; right && n < POOLS; n++) {
        struct clb_pool *pool;
        colibri_error error;
        if (clb_pool_create(&pool, n_threads, &error)) {
            fprintf(stderr, "%s\n", error.message);
            return 1;
        }
        right = run_jobs(pool, n_threads, n % 2 ? clocks : NULL, n ? n % 3 : JOBS);
        if (!n)
            right = right && run_jobs(pool, n_threads, clocks, JOBS);
        clb_pool_free(pool);
    }
    return !right;
}
