// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// How a model's chat writes what is said: the chunk `chat` of the section `tokenizer`, used in
// place (docs/FORMAT-tokenizer.md).
#ifndef CLB_CHAT_H
#define CLB_CHAT_H

#include "tokenizer.h"

enum clb_chat_string { // in the order of the chunk
    CLB_CHAT_PLAIN,
    CLB_CHAT_SYSTEM,
    CLB_CHAT_SYSTEM_END,
    CLB_CHAT_USER_END,
    CLB_CHAT_GENERATION,
    CLB_CHAT_LEAD,
    CLB_CHAT_TAIL,
    CLB_CHAT_END,
    CLB_CHAT_USER,
    CLB_N_CHAT_STRINGS
};

struct clb_chat {
    uint32_t flags;
    uint32_t n_stops, n_marks;
    const int32_t *stops;                   // (n_stops) in the blob
    const uint8_t *marks;                   // (n_marks) little-endian u32, in the blob
    const uint8_t *text;                    // the strings, one after the other, in the blob
    uint32_t start[CLB_N_CHAT_STRINGS + 1]; // of each in `text`; where one ends the next one starts
};

// Checks the chunk, if there is one: t->chat.
int clb_chat_open(struct clb_chat *c, const struct clb_tokenizer *t, colibri_error *error);

// The ids of a turn, as colibri_tokenize_turn gives them; *ids is malloc'ed.
int clb_chat_encode(const struct clb_chat *c, const struct clb_tokenizer *t, bool first,
                    const char *system, const char *text, int32_t **ids, size_t *n_ids,
                    colibri_error *error);

#endif
