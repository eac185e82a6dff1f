// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "trace.h"

#include "print.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed(const struct clb_trace *t, colibri_error *error)
{
    return clb_error(error, COLIBRI_ERROR_FILE, "%s cannot be written: %s", t->path,
                     strerror(errno));
}

static bool same_file(const struct stat *st, const char *directory, const char *name)
{
    char path[4096];
    struct stat other;
    clb_format(path, sizeof path, "%s%s", directory ? directory : "", name ? name : "");
    return !stat(path, &other) && other.st_dev == st->st_dev && other.st_ino == st->st_ino;
}

int clb_trace_open(struct clb_trace *t, const struct clb_options *o, colibri_error *error)
{
    struct stat st;
    t->path = o->trace_routing;
    int fd = open(t->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &st) || !(t->file = fdopen(fd, "w")))
        return failed(t, error); // and the program ends
    if (same_file(&st, o->model, NULL) || same_file(&st, o->model, "/model.bin") ||
        same_file(&st, o->model, "/config.json") || same_file(&st, o->config, NULL) ||
        same_file(&st, o->prompt_file, NULL))
        return clb_error(error, COLIBRI_ERROR_USAGE,
                         "--trace_routing would overwrite %s, which this call reads", t->path);
    return S_ISREG(st.st_mode) && ftruncate(fd, 0) ? failed(t, error) : 0;
}

int clb_trace_write(const struct clb_trace *t, const colibri_route *route, colibri_error *error)
{
    FILE *f = t->file;
    clb_print(f, "{\"layer\":%d,\"position\":%d,\"token\":%d,\"experts\":", route->layer,
              route->position, route->token);
    for (int i = 0; i < route->n_experts; i++)
        clb_print(f, "%c%d", i ? ',' : '[', route->experts[i]);
    fputs("],\"weights\":", f);
    for (int i = 0; i < route->n_experts; i++)
        clb_print(f, "%c%.9g", i ? ',' : '[', (double)route->weights[i]);
    fputs("]}\n", f);
    return ferror(f) ? failed(t, error) : 0;
}

int clb_trace_close(struct clb_trace *t, int rc, colibri_error *error)
{
    bool lost = t->file && fclose(t->file);
    return lost && !rc ? failed(t, error) : rc;
}
