// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "threads.h"

#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum {
    STACK_BYTES = 256 << 10, // musl's default is 128 KB
    SPINS = 2000,            // some microseconds, then sleep: boards run other programs too
};

struct clb_pool {
    int n;
    pthread_t *threads; // (n - 1)
    int started;

    // The job. Written before `generation` is raised, read after it was seen to change.
    clb_item_fn fn;
    void *context;
    int n_items;
    atomic_int next;       // first item that nobody has claimed
    atomic_int working;    // workers, without the caller, that have not finished
    atomic_int generation; // raised with each job
    atomic_bool quit;

    pthread_mutex_t mutex;
    pthread_cond_t job_posted, job_done;
};

struct worker {
    struct clb_pool *pool;
    int index;
};

static void work(struct clb_pool *p, int index)
{
    for (int i; (i = atomic_fetch_add(&p->next, 1)) < p->n_items;)
        p->fn(p->context, i, index);
}

static int wait_for_job(struct clb_pool *p, int seen)
{
    for (int i = 0; i < SPINS; i++) {
        int now = atomic_load(&p->generation);
        if (now != seen)
            return now;
        clb_pause();
    }
    pthread_mutex_lock(&p->mutex);
    while (atomic_load(&p->generation) == seen)
        pthread_cond_wait(&p->job_posted, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
    return atomic_load(&p->generation);
}

static void *worker_main(void *arg)
{
    struct worker w = *(struct worker *)arg;
    free(arg);
    fesetenv(FE_DFL_ENV); // round to nearest, subnormals kept
    for (int seen = 0;;) {
        seen = wait_for_job(w.pool, seen);
        if (atomic_load(&w.pool->quit))
            return NULL;
        work(w.pool, w.index);
        if (atomic_fetch_sub(&w.pool->working, 1) == 1) {
            pthread_mutex_lock(&w.pool->mutex);
            pthread_cond_signal(&w.pool->job_done);
            pthread_mutex_unlock(&w.pool->mutex);
        }
    }
}

static void post(struct clb_pool *p)
{
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->generation, 1);
    pthread_cond_broadcast(&p->job_posted);
    pthread_mutex_unlock(&p->mutex);
}

static int start_worker(struct clb_pool *p, const pthread_attr_t *attr)
{
    struct worker *w = malloc(sizeof *w);
    if (!w)
        return 1;
    *w = (struct worker){p, p->started + 1};
    if (pthread_create(&p->threads[p->started], attr, worker_main, w)) {
        free(w);
        return 1;
    }
    p->started++;
    return 0;
}

int clb_pool_create(struct clb_pool **pool, int n, colibri_error *error)
{
    struct clb_pool *p = calloc(1, sizeof *p);
    *pool = NULL;
    if (p)
        p->threads = calloc((size_t)n, sizeof *p->threads);
    if (!p || !p->threads) {
        free(p);
        return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for %d threads", n);
    }
    p->n = n;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->job_posted, NULL);
    pthread_cond_init(&p->job_done, NULL);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    int failed = 0;
    while (!failed && p->started < n - 1)
        failed = start_worker(p, &attr);
    pthread_attr_destroy(&attr);
    if (failed) {
        int started = p->started;
        clb_pool_free(p);
        return clb_error(error, COLIBRI_ERROR_MEMORY,
                         "thread %d of %d cannot be started; ask for fewer with --threads",
                         started + 2, n);
    }
    *pool = p;
    return 0;
}

void clb_pool_free(struct clb_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->quit, true);
    post(p);
    for (int i = 0; i < p->started; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->job_done);
    pthread_cond_destroy(&p->job_posted);
    pthread_mutex_destroy(&p->mutex);
    free(p->threads);
    free(p);
}

void clb_pool_run(struct clb_pool *p, int n_items, clb_item_fn fn, void *context)
{
    if (p->n == 1 || n_items <= 1) {
        for (int i = 0; i < n_items; i++)
            fn(context, i, 0);
        return;
    }
    p->fn = fn;
    p->context = context;
    p->n_items = n_items;
    atomic_store(&p->next, 0);
    atomic_store(&p->working, p->n - 1);
    post(p);
    work(p, 0);
    for (int i = 0; i < SPINS; i++) {
        if (!atomic_load(&p->working))
            return;
        clb_pause();
    }
    pthread_mutex_lock(&p->mutex);
    while (atomic_load(&p->working))
        pthread_cond_wait(&p->job_done, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
}
