// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The command line of the program `colibri`.
#ifndef CLB_OPTIONS_H
#define CLB_OPTIONS_H

#include "base.h"

enum clb_output { CLB_TEXT, CLB_IDS, CLB_JSON };

struct clb_options {
    const char *model, *config, *prompt, *prompt_file, *tokens, *isa, *sha256, *switch_to[2];
    const char *trace_routing, *quantize, *system, *turn_end, *cpus;
    int64_t num_tokens;       // -1: not given
    int64_t batch, threads;   // 0: not given
    int64_t top_k, seed;      // 0: all; 0
    float temperature, top_p; // 0: greedy; all
    const char *kv_name, *format_name;
    colibri_kv kv;
    enum clb_output format;
    bool chat, tokenize, detokenize, ignore_eos, logits, nll, logits_hash, use_mlock, verify,
        selftest, version, help;
    bool bench, profile, realtime;
};

extern const char *const clb_kv_names[]; // by colibri_kv; NULL ends them

// Options may be spelled with - or _, their values given as --name VALUE or --name=VALUE.
int clb_options_parse(struct clb_options *o, int argc, char **argv, colibri_error *error);
void clb_options_help(void); // to stdout

#endif
