// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE // affinity
#include "threads.h"

#include "usage.h"

#include <fenv.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    STACK_BYTES = 256 << 10, // musl's default is 128 KB
    PAUSES = 16,             // between two looks at the clock
};

// How long to spin before sleeping: longer than a token's serial parts take, which saves the some
// 50 us until a sleeper is awake. Boards run other programs too.
static const double SPIN_SECONDS = 200e-6;

// A number that threads wait for to change.
struct signal {
    _Alignas(CLB_ALIGN) atomic_int value;
    atomic_int sleepers;
};

struct clb_pool {
    int n;
    pthread_t *threads; // (n - 1)
    int started;
    bool pinned;
    cpu_set_t cpus; // of the caller, before it was pinned
    bool spins; // no: there are more threads than CPUs, and one that spins keeps another from work
    struct clb_clock *clocks; // NULL, or (n)
    enum clb_operation operation;

    // The job. Written before `generation` is raised, read after it was seen to change.
    clb_item_fn fn;
    void *context;
    int n_items;
    bool quit;
    _Alignas(CLB_ALIGN) atomic_int next; // first item that nobody has claimed
    struct signal working;               // workers, without the caller, that have not finished
    struct signal generation;            // raised with each job
};

struct worker {
    struct clb_pool *pool;
    int index;
};

// Waits until the signal is not `old`.
static void wait_for(const struct clb_pool *p, struct signal *s, int old)
{
    double start = clb_usage_seconds();
    while (p->spins && clb_usage_seconds() - start < SPIN_SECONDS)
        for (int i = 0; i < PAUSES; i++) {
            if (atomic_load(&s->value) != old)
                return;
            clb_pause();
        }
    atomic_fetch_add(&s->sleepers, 1);
    while (atomic_load(&s->value) == old)
        syscall(SYS_futex, &s->value, FUTEX_WAIT_PRIVATE, old, NULL);
    atomic_fetch_sub(&s->sleepers, 1);
}

// Changes the signal; who sleeps is woken.
static int change(struct signal *s, int by)
{
    int value = atomic_fetch_add(&s->value, by) + by;
    if (atomic_load(&s->sleepers))
        syscall(SYS_futex, &s->value, FUTEX_WAKE_PRIVATE, INT_MAX);
    return value;
}

static struct clb_clock *clock_of(const struct clb_pool *p, int index)
{
    return p->clocks ? p->clocks + index : NULL;
}

// Claims items while there are some: a part of what is left, so that claims are few, neighbours
// stay together, and a slow core does not end last.
static void work(struct clb_pool *p, int index)
{
    clb_clock_turn(clock_of(p, index), p->operation);
    int first = atomic_load(&p->next);
    while (first < p->n_items) {
        int n = (p->n_items - first) / (2 * p->n) + 1;
        if (!atomic_compare_exchange_weak(&p->next, &first, first + n))
            continue;
        for (int i = first; i < first + n; i++)
            p->fn(p->context, i, index);
        first = atomic_load(&p->next);
    }
    clb_clock_turn(clock_of(p, index), CLB_WAITING);
}

int clb_thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                     void *arg)
{
    // Not those that the thread itself raises, which would end the process, handler or not; nor
    // those above 31, some of which are libc's. Libc's functions for sets would be larger.
    uint64_t own = 1 << SIGBUS | 1 << SIGSEGV | 1 << SIGFPE | 1 << SIGILL | 1 << SIGTRAP;
    uint64_t blocked = (UINT32_MAX & ~(own | 1u << SIGSYS)) >> 1, before;
    syscall(SYS_rt_sigprocmask, SIG_BLOCK, &blocked, &before, sizeof blocked);
    int rc = pthread_create(thread, attr, start, arg);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof before);
    return rc;
}

static void *worker_main(void *arg)
{
    struct worker w = *(struct worker *)arg;
    struct clb_pool *p = w.pool;
    free(arg);
    fesetenv(FE_DFL_ENV); // round to nearest, subnormals kept
    for (int seen = 0;; seen++) {
        wait_for(p, &p->generation, seen);
        if (p->quit)
            return NULL;
        work(p, w.index);
        change(&p->working, -1);
    }
}

static int start_worker(struct clb_pool *p, const pthread_attr_t *attr)
{
    struct worker *w = malloc(sizeof *w);
    if (!w)
        return 1;
    *w = (struct worker){p, p->started + 1};
    if (clb_thread_start(&p->threads[p->started], attr, worker_main, w)) {
        free(w);
        return 1;
    }
    p->started++;
    return 0;
}

int clb_pool_create(struct clb_pool **pool, int n, colibri_error *error)
{
    struct clb_pool *p = aligned_alloc(CLB_ALIGN, sizeof *p);
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    *pool = NULL;
    if (!p || !threads) {
        free(p);
        free(threads);
        return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for %d threads", n);
    }
    memset(p, 0, sizeof *p);
    p->n = n;
    p->threads = threads;
    p->spins = n <= sysconf(_SC_NPROCESSORS_ONLN);
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
    p->quit = true;
    change(&p->generation, 1);
    for (int i = 0; i < p->started; i++)
        pthread_join(p->threads[i], NULL);
    if (p->pinned)
        sched_setaffinity(0, sizeof p->cpus, &p->cpus);
    free(p->threads);
    free(p);
}

void clb_pool_pin(struct clb_pool *p)
{
    p->pinned = !sched_getaffinity(0, sizeof p->cpus, &p->cpus);
    for (int i = 0, cpu = 0; p->pinned && i < p->n; i++, cpu++) {
        while (!CPU_ISSET(cpu % CPU_SETSIZE, &p->cpus))
            cpu++;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu % CPU_SETSIZE, &one);
        pthread_setaffinity_np(i ? p->threads[i - 1] : pthread_self(), sizeof one, &one);
    }
}

void clb_pool_time(struct clb_pool *p, struct clb_clock *clocks, enum clb_operation operation)
{
    p->clocks = clocks;
    p->operation = operation;
}

void clb_pool_run(struct clb_pool *p, int n_items, clb_item_fn fn, void *context)
{
    p->fn = fn;
    p->context = context;
    p->n_items = n_items;
    atomic_store(&p->next, 0);
    bool alone = p->n == 1 || n_items <= 1;
    if (!alone) {
        atomic_store(&p->working.value, p->n - 1);
        change(&p->generation, 1);
    }
    work(p, 0);
    for (int left; !alone && (left = atomic_load(&p->working.value));)
        wait_for(p, &p->working, left);
    clb_clock_turn(clock_of(p, 0), CLB_OTHER);
}
