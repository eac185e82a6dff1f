// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "scrub.h"

#include "log.h"
#include "threads.h"
#include "usage.h"

#include <poll.h>
#include <sys/resource.h>

enum { REST_MS = 1 }; // after 64 KB: at most 64 MB/s of the memory's bandwidth

static bool rest(void *user)
{
    struct clb_scrub *s = user;
    poll(NULL, 0, REST_MS); // nanosleep would be larger
    return !atomic_load(&s->stop);
}

static void *scrub(void *user)
{
    struct clb_scrub *s = user;
    // as the thread that loads may not be: --realtime
    pthread_setschedparam(pthread_self(), SCHED_OTHER, &(struct sched_param){0});
    setpriority(PRIO_PROCESS, 0, 19); // of this thread, on Linux
    if (clb_format_verify(s->file, CLB_LARGE, rest, s, "model.bin", &s->error))
        atomic_store(&s->failed, true);
    CLB_LOG("scrub: %s", atomic_load(&s->failed) ? s->error.message : "done");
    return NULL;
}

int clb_scrub_start(struct clb_scrub *s, const struct clb_format *file, colibri_error *error)
{
    bool any = false;
    for (uint32_t i = 0; i < file->n_sections; i++)
        any |= clb_is_large(&file->sections[i]);
    // -1 where it is not known
    if (!any || file->map.size > (uint64_t)clb_usage_available()) {
        CLB_LOG("scrub: no section is large, or the file is larger than the memory that is left");
        return 0;
    }
    s->file = file;
    s->started = !clb_thread_start(&s->thread, NULL, scrub, s);
    return s->started ? 0
                      : clb_error(error, COLIBRI_ERROR_MEMORY, "no thread to check model.bin with");
}

void clb_scrub_stop(struct clb_scrub *s)
{
    atomic_store(&s->stop, true);
    if (s->started)
        pthread_join(s->thread, NULL);
}
