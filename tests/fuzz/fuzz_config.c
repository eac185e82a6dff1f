// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The input is a config.json.
#include "config.h"
#include "fuzzer.h"
#include "memory_files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct clb_config c;
    colibri_error error;
    memory_config(data, size);
    int rc = clb_config_read(&c, "config.json", &error);
    must_be_an_outcome(rc, &error);
    if (rc)
        return 0;
    MUST(strnlen(c.architecture, sizeof c.architecture) < sizeof c.architecture);
    MUST(c.top_k <= c.n_experts && c.n_heads % c.n_kv_heads == 0 && c.rope_dim <= c.head_dim);
    MUST(c.norm_eps > 0 && c.norm_eps < 1e30f);
    for (int i = 0; i < c.n_eos; i++)
        MUST(c.eos_ids[i] >= 0 && c.eos_ids[i] < c.vocab_size);
    for (int i = 0; i < c.window_layers.n; i++)
        MUST(c.window_layers.at[i] < c.n_layers);
    return 0;
}
