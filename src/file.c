// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "file.h"

#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_regular(const char *path, int *fd, uint64_t *size, colibri_error *error)
{
    struct stat st;
    // O_NONBLOCK: a FIFO must be refused, not waited for
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0)
        return clb_error(error, COLIBRI_ERROR_FILE, "%s cannot be opened: %s; check its path", path,
                         strerror(errno));
    if (fstat(*fd, &st) || !S_ISREG(st.st_mode)) {
        close(*fd);
        return clb_error(error, COLIBRI_ERROR_FILE, "%s is not a regular file; name a file", path);
    }
    *size = (uint64_t)st.st_size;
    return 0;
}

int clb_file_read(const char *path, size_t limit, char **text, size_t *size, colibri_error *error)
{
    int fd;
    uint64_t bytes;
    int rc = open_regular(path, &fd, &bytes, error);
    if (rc)
        return rc;
    char *p = bytes > limit ? NULL : malloc((size_t)bytes + 1);
    size_t n = 0;
    if (bytes > limit)
        rc = clb_error(error, COLIBRI_ERROR_FILE,
                       "%s has %llu bytes, more than the %zu allowed; shorten it", path,
                       (unsigned long long)bytes, limit);
    else if (!p)
        rc = clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for the %llu bytes of %s",
                       (unsigned long long)bytes, path);
    while (!rc && n < bytes) {
        ssize_t got = read(fd, p + n, (size_t)bytes - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            rc = clb_error(error, COLIBRI_ERROR_FILE, "%s cannot be read: %s", path,
                           got ? strerror(errno) : "it became shorter");
        else
            n += (size_t)got;
    }
    close(fd);
    if (rc) {
        free(p);
        return rc;
    }
    p[n] = 0;
    *text = p;
    *size = n;
    return 0;
}

static int lock_map(const struct clb_map *map, const char *path, colibri_error *error)
{
    if (!mlock(map->data, map->size))
        return 0;
    int saved = errno;
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    return clb_error(error, COLIBRI_ERROR_MEMORY,
                     "the %zu MiB of %s cannot be locked in memory: %s (the limit is %llu MiB; "
                     "raise it with ulimit -l, or leave out --use_mlock)",
                     map->size >> 20, path, strerror(saved),
                     (unsigned long long)limit.rlim_cur >> 20);
}

int clb_map_open(struct clb_map *map, const char *path, bool lock, colibri_error *error)
{
    int fd;
    uint64_t size;
    *map = (struct clb_map){0};
    int rc = open_regular(path, &fd, &size, error);
    if (rc)
        return rc;
    if (!size || size > SIZE_MAX / 2) {
        close(fd);
        return clb_error(error, COLIBRI_ERROR_TRUNCATED,
                         "%s has %llu bytes: copy or convert it again", path,
                         (unsigned long long)size);
    }
    void *data = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
    int saved = errno;
    close(fd);
    if (data == MAP_FAILED)
        return clb_error(error, COLIBRI_ERROR_MEMORY, "%s cannot be mapped: %s", path,
                         strerror(saved));
    *map = (struct clb_map){.data = data, .size = (size_t)size};
    if (!clb_guard_add(map)) {
        clb_map_close(map);
        return clb_error(error, COLIBRI_ERROR_MEMORY, "%s is one model too many in this process",
                         path);
    }
    // Advice only: where the kernel refuses it, reading still works. In pages of 2 MB, which the
    // page cache has on some file systems, the processor finds addresses faster (docs/DESIGN.md).
    if (madvise(data, map->size, MADV_HUGEPAGE))
        madvise(data, map->size, MADV_WILLNEED);
    madvise(data, map->size, MADV_DONTFORK);
    CLB_LOG("map: %s, %zu bytes at %p", path, map->size, data);
    if (lock && (rc = lock_map(map, path, error)))
        clb_map_close(map);
    return rc;
}

void clb_map_close(struct clb_map *map)
{
    clb_guard_remove(map);
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->size);
    *map = (struct clb_map){0};
}
