// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// What comes from standard input: the turns of a chat, or token ids.
#ifndef CLB_TALK_H
#define CLB_TALK_H

#include "options.h"

struct clb_talk {
    const struct clb_options *options;
    const colibri_model *model;
    bool begun;   // a turn was returned
    char *text;   // what was read last
    size_t size;  // bytes of its memory
    int32_t *ids; // of the last turn
};

// Reads standard input up to `end`, a zero byte, or its own end. *any is false at that end alone.
int clb_talk_read(struct clb_talk *t, int end, bool *any, colibri_error *error);

// The ids of the next turn, (*n), valid until the next call; *n is 0 if there is none. Turns are
// --prompt, or else the lines of standard input that are not blank.
int clb_talk_next(struct clb_talk *t, const int32_t **ids, size_t *n, colibri_error *error);
void clb_talk_free(struct clb_talk *t);

#endif
