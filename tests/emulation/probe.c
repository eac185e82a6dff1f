// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Does one thing that its argument names, for the tests of the emulator.
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

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
    } else {
        return 2;
    }
    puts("done");
    return 0;
}
