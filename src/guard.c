// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "guard.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_MAPS = 256 };

static _Atomic(struct clb_map *) maps[MAX_MAPS];
static struct sigaction before;
static uintptr_t page_bytes;

bool clb_guard_add(struct clb_map *map)
{
    for (int i = 0; i < MAX_MAPS; i++) {
        struct clb_map *none = NULL;
        if (atomic_compare_exchange_strong(&maps[i], &none, map))
            return true;
    }
    return false;
}

void clb_guard_remove(struct clb_map *map)
{
    for (int i = 0; i < MAX_MAPS; i++) {
        struct clb_map *same = map;
        atomic_compare_exchange_strong(&maps[i], &same, NULL);
    }
}

// Zeros from the page of `address` to the end of the map that it is in.
static bool mend(uintptr_t address)
{
    for (int i = 0; i < MAX_MAPS; i++) {
        struct clb_map *map = atomic_load(&maps[i]);
        uintptr_t start = map ? (uintptr_t)map->data : 0;
        if (!map || address < start || address - start >= map->size)
            continue;
        uintptr_t page = address / page_bytes * page_bytes;
        void *zeros = mmap((void *)page, start + map->size - page, PROT_READ,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        atomic_store(&map->lost, true);
        return zeros != MAP_FAILED;
    }
    return false;
}

static void on_sigbus(int signal, siginfo_t *info, void *context)
{
    int saved = errno;
    bool mended = info->si_code > 0 && mend((uintptr_t)info->si_addr); // from the kernel
    errno = saved;
    if (mended)
        return;
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(signal, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(signal);
    else
        sigaction(signal, &before, NULL); // and the access is tried again
}

int clb_guard_install(colibri_error *error)
{
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO}, now;
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (!sigaction(SIGBUS, NULL, &now) &&
        (now.sa_sigaction == on_sigbus || !sigaction(SIGBUS, &action, &before)))
        return 0;
    return clb_error(error, COLIBRI_ERROR_INTERNAL, "no handler of SIGBUS can be installed: %s",
                     strerror(errno));
}
