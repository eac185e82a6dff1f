// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "cpu.h"

#include <stdio.h>

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
#else
#include <sys/auxv.h>

bool clb_cpu_has(const struct clb_feature *f)
{
    return getauxval(f->leaf) >> f->bit & 1;
}
#endif

bool clb_cpu_can(const struct clb_level *level)
{
    for (const struct clb_feature *f = level->needs; f->name; f++)
        if (!clb_cpu_has(f))
            return false;
    return true;
}

static const struct clb_level *find_level(const char *name)
{
    const struct clb_level *found = NULL;
    for (const struct clb_level *l = clb_levels; l->name; l++)
        if (name ? !strcmp(l->name, name) : clb_cpu_can(l))
            found = l;
    return found;
}

int clb_cpu_choose(struct clb_kernels *kernels, const char *name, colibri_error *error)
{
    const struct clb_level *chosen = find_level(name);
    char inside[128] = "";
    for (const struct clb_level *l = clb_levels; l->name; l++)
        snprintf(inside + strlen(inside), sizeof inside - strlen(inside), " %s", l->name);
    if (!chosen)
        return clb_error(error, COLIBRI_ERROR_ISA,
                         "this program has no kernels for the ISA level %s; it has:%s", name,
                         inside);
    for (const struct clb_feature *f = chosen->needs; f->name; f++)
        if (!clb_cpu_has(f))
            return clb_error(error, COLIBRI_ERROR_ISA,
                             "this CPU cannot run the ISA level %s: it lacks %s; leave out --isa "
                             "to get the best level that it can run",
                             chosen->name, f->name);
    memset(kernels, 0, sizeof *kernels);
    for (const struct clb_level *l = clb_levels; l <= chosen; l++)
        if (clb_cpu_can(l))
            l->fill(kernels);
    return 0;
}
