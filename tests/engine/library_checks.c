// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// An allocator of our own, and what the process holds.
#include "library_checks.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

atomic_int failures;

// ---- An allocator of our own: it counts, it fails on demand, and what is freed is gone ----

static atomic_long live; // blocks that are not freed
atomic_long to_fail;

enum { BLOCK_HEADER = 4096 };

void *aligned_alloc(size_t align, size_t size)
{
    long left = atomic_load(&to_fail);
    if (left && atomic_fetch_sub(&to_fail, 1) == 1)
        return NULL;
    if (align > BLOCK_HEADER || size > SIZE_MAX / 2)
        return NULL;
    size_t *p =
        mmap(NULL, size + BLOCK_HEADER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    *p = size;
    atomic_fetch_add(&live, 1);
    return (char *)p + BLOCK_HEADER;
}

void free(void *block)
{
    if (!block)
        return;
    size_t *p = (size_t *)(void *)((char *)block - BLOCK_HEADER);
    atomic_fetch_sub(&live, 1);
    munmap(p, *p + BLOCK_HEADER);
}

void *malloc(size_t size)
{
    return aligned_alloc(16, size);
}

void *calloc(size_t n, size_t size)
{
    return size && n > SIZE_MAX / 2 / size ? NULL : malloc(n * size); // pages come zeroed
}

void *realloc(void *block, size_t size)
{
    void *other = malloc(size);
    if (!block || !other)
        return other;
    size_t old = *(size_t *)(void *)((char *)block - BLOCK_HEADER);
    memcpy(other, block, old < size ? old : size);
    free(block);
    return other;
}

int posix_memalign(void **out, size_t align, size_t size)
{
    *out = aligned_alloc(align, size);
    return *out ? 0 : 12; // ENOMEM
}

// ---- What the process holds ----

struct holdings holdings(void)
{
    struct holdings h = {.blocks = atomic_load(&live)};
    char text[100] = "";
    FILE *f = fopen("/proc/self/statm", "r"); // its buffer is one of our blocks
    if (f && fgets(text, sizeof text, f))
        h.pages = atol(text);
    if (f)
        fclose(f);
    h.next_file = dup(0);
    close(h.next_file);
    return h;
}

bool as_before(struct holdings before)
{
    struct holdings now = holdings();
    if (now.blocks != before.blocks || now.pages != before.pages ||
        now.next_file != before.next_file)
        fprintf(stderr, "blocks %ld, was %ld; pages %ld, was %ld; next file %d, was %d\n",
                now.blocks, before.blocks, now.pages, before.pages, now.next_file,
                before.next_file);
    return now.blocks == before.blocks && now.pages == before.pages &&
           now.next_file == before.next_file;
}

bool is_line(const colibri_error *e)
{
    size_t n = strnlen(e->message, sizeof e->message);
    return n && n < sizeof e->message && !strchr(e->message, '\n');
}

int takers_of(int signal)
{
    int takers = 0;
    char text[300];
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        unsigned long long blocked = 0;
        snprintf(text, sizeof text, "/proc/self/task/%s/status", task->d_name);
        FILE *f = task->d_name[0] == '.' ? NULL : fopen(text, "r");
        while (f && fgets(text, sizeof text, f) && !sscanf(text, "SigBlk: %llx", &blocked)) {
        }
        if (f) {
            takers += !(blocked >> (signal - 1) & 1);
            fclose(f);
        }
    }
    closedir(tasks);
    return takers;
}
