// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Does one thing that its argument names, for the tests of the emulator.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static atomic_int had_turn, turns, wrong;

// Keeps its number in a mask and in a vector register while others have their turns.
static void *hold(void *number)
{
    uint32_t mine = (uint32_t)(uintptr_t)number;
    for (int i = 0; i < 1000; i++) {
        uint32_t mask, lane, spins = 100;
        if (atomic_exchange(&had_turn, (int)mine) != (int)mine)
            atomic_fetch_add(&turns, 1);
        __asm__ volatile("kmovw %3, %%k1\n vpbroadcastd %3, %%zmm16\n"
                         "1: dec %2\n jnz 1b\n"
                         "kmovw %%k1, %0\n valignd $15, %%zmm16, %%zmm16, %%zmm16\n"
                         "vmovd %%xmm16, %1\n"
                         : "=&r"(mask), "=&r"(lane), "+r"(spins)
                         : "r"(mine));
        if (mask != mine || lane != mine)
            atomic_fetch_add(&wrong, 1);
    }
    return NULL;
}

static int run_threads(void)
{
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, hold, (void *)(i + 2)))
            return 3;
    hold((void *)1);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return atomic_load(&wrong) ? 4 : atomic_load(&turns) < 20 ? 5 : 0;
}

int main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";
    if (!strcmp(what, "avx2")) {
        __asm__ volatile("vpaddd %ymm0, %ymm0, %ymm0");
    } else if (!strcmp(what, "avx512")) {
        __asm__ volatile("vpaddd %zmm16, %zmm16, %zmm16");
    } else if (!strcmp(what, "avx512_vnni")) {
        __asm__ volatile("vpdpbusd %zmm16, %zmm16, %zmm16");
    } else if (!strcmp(what, "null")) {
        *(volatile char *)0 = 1;
    } else if (!strcmp(what, "guard")) {
        volatile char *pages =
            mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        pages[4096] = 1;
        mprotect((void *)(pages + 4096), 4096, PROT_NONE);
        pages[4095] = 1; // allowed
        puts("at the guard");
        fflush(stdout);
        pages[4096] = 1;
    } else if (!strcmp(what, "threads")) {
        int status = run_threads();
        if (status)
            return status;
    } else {
        return 2;
    }
    puts("done");
    return 0;
}
