// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Preloaded before bochscpu-python 0.4.0; bochs_run.py builds it. Dynamic linking finds these
// functions before those of the package, which changes three things.
//
// The package always asks Bochs for one CPU model. The call goes to the creator of the model that
// is wanted.
//
// Bochs reports every instruction, branch and access to Rust, which offers it to Python. Only far
// branches and exceptions are wanted there; the other reports end here. The checker of the kernels
// takes 14 seconds of CPU time instead of 23. The end of a thread's slice is reported as a far
// branch.
//
// The package was linked against glibc 2.38, whose C23 headers rename the functions at the end. An
// older glibc has them under their old names only.
#include <stdarg.h>

void *(*bochs_cpu_creator)(void *cpu); // set by bochs_run.py

// create_corei3_cnl_cpuid(BX_CPU_C*)
void *_Z23create_corei3_cnl_cpuidP8BX_CPU_C(void *cpu)
{
    return bochs_cpu_creator(cpu);
}

unsigned long long bochs_instructions;      // executed so far
unsigned long long bochs_slice_end = -1ULL; // when that many are, Python has the word

// The package's bx_instr_far_branch(), which calls Python's hook; set by bochs_run.py.
void (*bochs_far_branch)(unsigned cpu, unsigned what, unsigned short from_cs,
                         unsigned long long from, unsigned short to_cs, unsigned long long to);

void bx_instr_before_execution(unsigned cpu, void *instruction)
{
    (void)instruction;
    if (++bochs_instructions >= bochs_slice_end) {
        bochs_slice_end = -1ULL;
        bochs_far_branch(cpu, 0, 0, 0, 0, 0);
    }
}

// They are called with arguments, and look at none of them.
#define IGNORED(name)                                                                              \
    void bx_instr_##name(void)                                                                     \
    {                                                                                              \
    }
IGNORED(after_execution)
IGNORED(cache_cntrl)
IGNORED(cnear_branch_not_taken)
IGNORED(cnear_branch_taken)
IGNORED(lin_access)
IGNORED(opcode)
IGNORED(phy_access)
IGNORED(prefetch_hint)
IGNORED(repeat_iteration)
IGNORED(tlb_cntrl)
IGNORED(ucnear_branch)

long strtol(const char *, char **, int);
unsigned long strtoul(const char *, char **, int);
long long strtoll(const char *, char **, int);
unsigned long long strtoull(const char *, char **, int);
int vsscanf(const char *, const char *, va_list);

long __isoc23_strtol(const char *text, char **end, int base)
{
    return strtol(text, end, base);
}

unsigned long __isoc23_strtoul(const char *text, char **end, int base)
{
    return strtoul(text, end, base);
}

long long __isoc23_strtoll(const char *text, char **end, int base)
{
    return strtoll(text, end, base);
}

unsigned long long __isoc23_strtoull(const char *text, char **end, int base)
{
    return strtoull(text, end, base);
}

int __isoc23_sscanf(const char *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int fields = vsscanf(text, format, arguments);
    va_end(arguments);
    return fields;
}
