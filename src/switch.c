// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "switch.h"

#include "print.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PATH_BYTES = 4096 };

static int sync_directory_of(const char *path)
{
    char directory[MAX_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    int n = !slash ? 1 : slash == path ? 1 : (int)(slash - path);
    clb_format(directory, sizeof directory, "%.*s", n, slash ? path : ".");
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int rc = fsync(fd);
    int saved = errno;
    close(fd);
    errno = saved;
    return rc;
}

int clb_switch_link(const char *link, const char *target, colibri_error *error)
{
    char fresh[MAX_PATH_BYTES];
    struct stat st;
    if (clb_format(fresh, sizeof fresh, "%s.%ld", link, (long)getpid()) >= (int)sizeof fresh)
        return clb_error(error, COLIBRI_ERROR_FILE, "the path of the link is too long");
    if (!lstat(link, &st) && !S_ISLNK(st.st_mode))
        return clb_error(error, COLIBRI_ERROR_FILE,
                         "%s is no symbolic link; move it away, then try again", link);
    if (symlink(target, fresh))
        return clb_error(error, COLIBRI_ERROR_FILE, "%s cannot be made: %s", fresh,
                         strerror(errno));
    if (rename(fresh, link) || sync_directory_of(link)) {
        int saved = errno;
        unlink(fresh);
        return clb_error(error, COLIBRI_ERROR_FILE, "%s cannot be switched to %s: %s", link, target,
                         strerror(saved));
    }
    return 0;
}
