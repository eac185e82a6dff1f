// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "guard.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_MAPS = 256 };

// What the handler reads is here and nowhere else: a model may be freed meanwhile.
static struct slot {
    atomic_bool used, lost;
    _Atomic(uintptr_t) start; // 0: none
    atomic_size_t size;
} slots[MAX_MAPS];
static struct sigaction before;
static atomic_bool installed;
static uintptr_t page_bytes;

bool clb_guard_add(struct clb_map *map)
{
    for (int i = 0; i < MAX_MAPS; i++) {
        struct slot *slot = &slots[i];
        if (atomic_exchange(&slot->used, true))
            continue;
        atomic_store(&slot->lost, false);
        atomic_store(&slot->size, map->size);
        atomic_store(&slot->start, (uintptr_t)map->data);
        map->guard = i + 1;
        return true;
    }
    return false;
}

void clb_guard_remove(struct clb_map *map)
{
    if (!map->guard)
        return;
    struct slot *slot = &slots[map->guard - 1];
    atomic_store(&slot->start, 0);
    atomic_store(&slot->used, false);
}

bool clb_guard_lost(const struct clb_map *map)
{
    return map->guard && atomic_load(&slots[map->guard - 1].lost);
}

// Zeros from the page of `address` to the end of the map that it is in.
static bool mend(uintptr_t address)
{
    for (int i = 0; i < MAX_MAPS; i++) {
        uintptr_t start = atomic_load(&slots[i].start);
        size_t size = atomic_load(&slots[i].size);
        if (!start || address < start || address - start >= size)
            continue;
        uintptr_t page = address / page_bytes * page_bytes;
        atomic_store(&slots[i].lost, true);
        return mmap((void *)page, start + size - page, PROT_READ,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    return false;
}

static void on_sigbus(int signal, siginfo_t *info, void *context)
{
    int saved = errno;
    bool from_kernel = info->si_code > 0;
    bool mended = from_kernel && mend((uintptr_t)info->si_addr);
    errno = saved;
    if (mended)
        return;
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(signal, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(signal);
    } else {
        sigaction(signal, &before, NULL); // and the access is tried again,
        if (!from_kernel)
            raise(signal); // or the signal sent, when this returns
    }
}

int clb_guard_install(colibri_error *error)
{
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    if (atomic_exchange(&installed, true))
        return 0;
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (!sigaction(SIGBUS, NULL, &before) && !sigaction(SIGBUS, &action, NULL))
        return 0;
    atomic_store(&installed, false);
    return clb_error(error, COLIBRI_ERROR_INTERNAL, "no handler of SIGBUS can be installed: %s",
                     strerror(errno));
}
