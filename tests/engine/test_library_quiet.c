// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// What goes on between the first token and the last: no system call, no allocation, and with a
// locked model no page fault.
#include "library_checks.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { QUIET_TOKENS = 600 }; // into the third chunk of the cache

struct quiet {
    int n_steps;
    int expected_steps; // 0: nothing is looked at
    int threads;
    long faults; // at the first token
};

static long minor_and_major_faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

static void on_forbidden_call(int signal, siginfo_t *info, void *context)
{
    char line[60];
    (void)signal;
    (void)context;
    int n = snprintf(line, sizeof line, "system call %d\n", info->si_syscall);
    syscall(SYS_write, 2, line, n);
    syscall(SYS_exit_group, 1);
}

// From now on, and in all threads, the kernel answers other system calls than these with SIGSYS. No
// memory can be had, either: an allocation is an mmap, see library_checks.c. One thread that waits
// for another may yield, or sleep. The clock is a call where the vDSO cannot read it.
static void forbid_system_calls(int threads)
{
    const unsigned allowed[] = {SYS_getrusage,     SYS_write, SYS_exit_group,
                                SYS_clock_gettime, SYS_futex, SYS_sched_yield};
    const int n = threads > 1 ? 6 : 4;
    struct sock_filter filter[16] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0)}; // the call's number
    for (int i = 0; i < n; i++)
        filter[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i],
                                                     (unsigned char)(n - i), 0);
    filter[1 + n] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    filter[2 + n] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = (unsigned short)(3 + n), .filter = filter};
    struct sigaction action = {.sa_sigaction = on_forbidden_call, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSYS, &action, NULL));
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program));
}

static int on_quiet_step(void *user, const colibri_step *step)
{
    struct quiet *q = user;
    (void)step;
    if (!q->expected_steps)
        return 0;
    if (q->n_steps++ == 0) {
        forbid_system_calls(q->threads);
        q->faults = minor_and_major_faults();
    } else if (q->n_steps == q->expected_steps) {
        long faults = minor_and_major_faults() - q->faults;
        char line[60];
        int n = snprintf(line, sizeof line, "%ld page faults\n", faults);
        write(1, line, (size_t)n);
        syscall(SYS_exit_group, !!failures);
    }
    return 0;
}

void check_quiet(const char *path, const char *how)
{
    colibri_load_options load = {.verify = true, .lock = !strcmp(how + 1, "lock")};
    colibri_model *model;
    colibri_error error;
    int rc = colibri_load_model(&model, path, NULL, &load, &error);
    CHECK(!rc);
    colibri_infer_options options = {
        .n_tokens = QUIET_TOKENS, .ignore_eos = true, .threads = *how - '0'};
    struct quiet q = {.threads = options.threads};
    for (int warm = 0; !rc && warm < 2; warm++) { // the program's own pages come with the first run
        q.expected_steps = warm * QUIET_TOKENS;
        rc = colibri_infer(model, &options, (int32_t[]){1, 2, 3}, 3, on_quiet_step, &q, NULL,
                           &error);
    }
    fprintf(stderr, "%d steps: %s\n", q.n_steps, rc ? error.message : "not all");
    failures++;
}
