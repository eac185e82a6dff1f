// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "cpu.h"

#include "print.h"

#if defined(__x86_64__)
enum { XCR0 = 4, OSXSAVE_BIT = 27 };

bool clb_cpu_has(const struct clb_feature *f)
{
    uint32_t r[4];
    clb_cpuid(f->reg == XCR0 ? 1 : 0, 0, r);
    if (f->reg == XCR0) // xgetbv itself is illegal where the OS has not enabled it
        return r[2] >> OSXSAVE_BIT & 1 && clb_xgetbv() >> f->bit & 1;
    if (f->leaf > r[0])
        return false;
    clb_cpuid(f->leaf, f->subleaf, r);
    return r[f->reg] >> f->bit & 1;
}
#elif defined(__riscv)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

// AT_HWCAP has a bit for the letter V since Linux 6.5, but some kernels of boards set it for the
// drafts before 1.0 too. riscv_hwprobe says V only for 1.0; where it is missing, the letter counts.
enum { HWPROBE = 258, KEY_IMA_EXT_0 = 4, IMA_V = 1 << 2, LETTER_V = 21 };

bool clb_cpu_has(const struct clb_feature *f)
{
    struct {
        int64_t key;
        uint64_t value;
    } pair = {.key = KEY_IMA_EXT_0};
    if (f->bit == LETTER_V && !syscall(HWPROBE, &pair, 1, 0, NULL, 0) && pair.key >= 0)
        return pair.value & IMA_V;
    return getauxval(f->leaf) >> f->bit & 1;
}
#else
#include <sys/auxv.h>

bool clb_cpu_has(const struct clb_feature *f)
{
    return getauxval(f->leaf) >> f->bit & 1;
}
#endif

const struct clb_feature *clb_cpu_lacks(const struct clb_level *level)
{
    for (const struct clb_level *l = clb_levels; l <= level; l++)
        for (const struct clb_feature *f = l->needs; f->name; f++)
            if (!clb_cpu_has(f))
                return f;
    return NULL;
}

static const struct clb_level *find_level(const char *name)
{
    const struct clb_level *found = NULL;
    for (const struct clb_level *l = clb_levels; l->name; l++)
        if (name ? !strcmp(l->name, name) : !clb_cpu_lacks(l))
            found = l;
    return found;
}

int clb_cpu_choose(struct clb_kernels *kernels, const char *name, colibri_error *error)
{
    const struct clb_level *chosen = find_level(name);
    char inside[128] = "";
    for (const struct clb_level *l = clb_levels; l->name; l++)
        clb_format(inside + strlen(inside), sizeof inside - strlen(inside), " %s", l->name);
    if (!chosen)
        return clb_error(error, COLIBRI_ERROR_ISA,
                         "this program has no kernels for the ISA level %s; it has:%s", name,
                         inside);
    const struct clb_feature *lacking = clb_cpu_lacks(chosen);
    if (lacking)
        return clb_error(error, COLIBRI_ERROR_ISA,
                         "this CPU cannot run the ISA level %s: it lacks %s; leave out --isa to "
                         "get the best level that it can run",
                         chosen->name, lacking->name);
    memset(kernels, 0, sizeof *kernels);
    for (const struct clb_level *l = clb_levels; l <= chosen; l++)
        l->fill(kernels);
    return 0;
}
