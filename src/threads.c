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
    STACK_BYTES = 256 << 10,  // musl's default is 128 KB
    TOUCHED_BYTES = 32 << 10, // of a stack, before the first job: no later one waits for a page
    PAUSES = 16,              // between two looks at the clock
};

// Most waits end within KEEP_SECONDS. Who waits longer looks on, but lets others have its CPU: the
// thread that it waits for may need one, as boards run other programs too. After SPIN_SECONDS it
// sleeps. A token's serial parts are shorter, which saves the some 50 us until a sleeper is awake.
static const double KEEP_SECONDS = 20e-6, SPIN_SECONDS = 200e-6;

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
    double keeps;   // KEEP_SECONDS; 0: there are more threads than CPUs

    // The job. Written while no item is left, and read by who has claimed one: until that one is
    // finished there is no other job. A thread that comes late finds nothing left, or helps with
    // the job that there is by then.
    struct clb_clock *clocks; // NULL, or (n)
    enum clb_operation operation;
    clb_item_fn fn; // or
    clb_span_fn span;
    void *context;
    int n_items;
    struct signal left;     // items that nobody has claimed; -1: the workers shall end
    struct signal finished; // items of this job, without those of the caller; at first: workers
                            // that have started
};

struct worker {
    struct clb_pool *pool;
    int index;
};

// Waits until the signal is not `old`; what it is then.
static int wait_for(const struct clb_pool *p, struct signal *s, int old)
{
    int value;
    double start = clb_usage_seconds();
    for (double waited = 0; waited < SPIN_SECONDS; waited = clb_usage_seconds() - start)
        for (int i = 0; i < PAUSES; i++) {
            value = atomic_load_explicit(&s->value, memory_order_acquire);
            if (value != old)
                return value;
            if (waited < p->keeps)
                clb_pause();
            else
                sched_yield();
        }
    atomic_fetch_add(&s->sleepers, 1);
    while ((value = atomic_load(&s->value)) == old)
        syscall(SYS_futex, &s->value, FUTEX_WAIT_PRIVATE, old, NULL);
    atomic_fetch_sub(&s->sleepers, 1);
    return value;
}

// Changes the signal; who sleeps is woken. Sequentially consistent, as falling asleep is: either
// the sleeper sees the change, or this thread sees the sleeper.
static void change(struct signal *s, int by)
{
    atomic_fetch_add(&s->value, by);
    if (atomic_load(&s->sleepers))
        syscall(SYS_futex, &s->value, FUTEX_WAKE_PRIVATE, INT_MAX);
}

static struct clb_clock *clock_of(const struct clb_pool *p, int index)
{
    return p->clocks ? p->clocks + index : NULL;
}

static void run_items(const struct clb_pool *p, int first, int n, int index)
{
    clb_clock_turn(clock_of(p, index), p->operation);
    if (p->span)
        p->span(p->context, first, n, index);
    for (int i = first; i < first + n && !p->span; i++)
        p->fn(p->context, i, index);
}

// Claims items while there are some: a part of what is left, so that claims are few, neighbours
// stay together, and a slow core does not end last. Returns how many.
static int work(struct clb_pool *p, int index)
{
    int done = 0, left = atomic_load_explicit(&p->left.value, memory_order_relaxed);
    while (left > 0) {
        int n = left / (2 * p->n) + 1;
        if (!atomic_compare_exchange_weak_explicit(&p->left.value, &left, left - n,
                                                   memory_order_acquire, memory_order_relaxed))
            continue;
        run_items(p, p->n_items - left, n, index);
        done += n;
        left = atomic_load_explicit(&p->left.value, memory_order_relaxed);
    }
    return done;
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

// Not inlined: its frame lies where those of the jobs will be, below that of worker_main.
static __attribute__((noinline)) void touch_stack(void)
{
    volatile char stack[TOUCHED_BYTES];
    for (int i = 0; i < TOUCHED_BYTES; i += CLB_PAGE_BYTES)
        stack[i] = 0;
}

static void *worker_main(void *arg)
{
    struct worker w = *(struct worker *)arg;
    struct clb_pool *p = w.pool;
    free(arg);
    fesetenv(FE_DFL_ENV); // round to nearest, subnormals kept
    touch_stack();
    change(&p->finished, 1);
    while (wait_for(p, &p->left, 0) > 0) {
        int done = work(p, w.index);
        if (!done)
            continue;
        clb_clock_turn(clock_of(p, w.index), CLB_WAITING);
        change(&p->finished, done);
    }
    return NULL;
}

// Waits until workers have finished n items.
static void wait_for_workers(struct clb_pool *p, int n)
{
    for (int finished = 0; finished != n;)
        finished = wait_for(p, &p->finished, finished);
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
    p->keeps = n > sysconf(_SC_NPROCESSORS_ONLN) ? 0 : KEEP_SECONDS;
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
    wait_for_workers(p, n - 1);
    *pool = p;
    return 0;
}

void clb_pool_free(struct clb_pool *p)
{
    if (!p)
        return;
    change(&p->left, -1);
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

static void run(struct clb_pool *p, int n_items, clb_item_fn fn, clb_span_fn span, void *context)
{
    p->fn = fn;
    p->span = span;
    p->context = context;
    p->n_items = n_items;
    if (p->n == 1 || n_items <= 1) {
        run_items(p, 0, n_items, 0);
    } else {
        atomic_store_explicit(&p->finished.value, 0, memory_order_relaxed);
        change(&p->left, n_items);
        int others = n_items - work(p, 0);
        clb_clock_turn(clock_of(p, 0), CLB_WAITING);
        wait_for_workers(p, others);
    }
    clb_clock_turn(clock_of(p, 0), CLB_OTHER);
}

void clb_pool_run(struct clb_pool *p, int n_items, clb_item_fn fn, void *context)
{
    run(p, n_items, fn, NULL, context);
}

void clb_pool_run_spans(struct clb_pool *p, int n_items, clb_span_fn fn, void *context)
{
    run(p, n_items, NULL, fn, context);
}
