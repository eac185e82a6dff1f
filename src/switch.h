// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Switching a board to another release: the one file operation that no shell does alike.
#ifndef CLB_SWITCH_H
#define CLB_SWITCH_H

#include "base.h"

// Makes `link` a symbolic link to `target`, atomically and durably: before and after a power cut
// it is the old link or the new one. A `link` that exists and is no symbolic link is refused.
int clb_switch_link(const char *link, const char *target, colibri_error *error);

#endif
