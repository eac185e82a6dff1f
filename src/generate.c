// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "generate.h"

#include "bench.h"
#include "ids.h"
#include "nll.h"
#include "print.h"
#include "report.h"
#include "sha256.h"
#include "trace.h"
#include "usage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { DEFAULT_TOKENS = 32 };

// What the callback gathers.
struct output {
    const struct clb_options *options;
    const int32_t *prompt;
    struct clb_talk *talk;    // NULL unless it is a chat
    colibri_decoder *decoder; // NULL unless text is streamed
    struct clb_sha256 hash;
    int32_t *ids; // generated
    size_t n_ids;
    double nll;
    struct clb_trace trace;
    double load_seconds;
    int32_t n_decoded;        // tokens that were fed one by one
    colibri_profile *profile; // NULL without --profile
    colibri_error *error;     // what went wrong in the callback
};

static int write_text(struct output *out, const char *text, size_t n)
{
    if (fwrite(text, 1, n, stdout) == n && !fflush(stdout))
        return 0;
    return clb_error(out->error, COLIBRI_ERROR_FILE, "the text cannot be written: %s",
                     strerror(errno));
}

static int on_step(void *user, const colibri_step *step)
{
    struct output *out = user;
    const struct clb_options *o = out->options;
    if (o->nll && step->prompt)
        out->nll += clb_nll(step->logits, step->vocab_size, out->prompt[step->position + 1]);
    if (step->prompt)
        return 0;
    out->n_decoded++;
    if (o->logits_hash) // little-endian, as all boards here are
        clb_sha256_add(&out->hash, step->logits, (size_t)step->vocab_size * sizeof *step->logits);
    if (o->logits)
        for (int32_t i = 0; i < step->vocab_size; i++)
            clb_print(stdout, "%.9g\n", (double)step->logits[i]);
    if (step->token < 0 || step->eos)
        return 0;
    out->ids[out->n_ids++] = step->token;
    const char *text;
    size_t n;
    if (!out->decoder)
        return 0;
    int rc = colibri_decoder_push(out->decoder, step->token, &text, &n, out->error);
    return rc ? rc : write_text(out, text, n);
}

static int end_text(struct output *out)
{
    const char *text;
    size_t n;
    int rc = colibri_decoder_end(out->decoder, &text, &n, out->error);
    if (!rc)
        rc = write_text(out, text, n);
    clb_print(stdout, "\n%s", out->options->turn_end);
    fflush(stdout);
    return rc;
}

static int on_turn(void *user, const int32_t **tokens, size_t *n_tokens)
{
    struct output *out = user;
    int rc = end_text(out);
    out->n_ids = 0;
    out->n_decoded--;
    return rc ? rc : clb_talk_next(out->talk, tokens, n_tokens, out->error);
}

static int on_route(void *user, const colibri_route *route)
{
    struct output *out = user;
    return clb_trace_write(&out->trace, route, out->error);
}

static void on_warning(void *user, const char *message)
{
    (void)user;
    clb_print(stderr, "colibri: warning: %s\n", message);
}

static void print_json_string(const char *s, size_t n)
{
    putchar('"');
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            clb_print(stdout, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            clb_print(stdout, "\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static int print_json(const struct output *out, const colibri_model *model, const int32_t *prompt,
                      size_t n_prompt, const colibri_stats *stats, const char *hash, int threads)
{
    colibri_info info;
    colibri_model_info(model, &info);
    char *text = NULL;
    size_t n = 0;
    int rc = info.has_tokenizer
                 ? colibri_detokenize(model, out->ids, out->n_ids, &text, &n, out->error)
                 : 0;
    if (rc)
        return rc;
    clb_print(stdout,
              "{\"version\": \"%s\", \"architecture\": \"%s\", \"isa\": \"%s\", \"threads\": %d, "
              "\"kv\": \"%s\", \"prompt_ids\": [",
              colibri_version(), info.architecture, info.isa, threads, clb_kv_names[stats->kv]);
    clb_ids_print(", ", prompt, n_prompt);
    clb_print(stdout, "], \"ids\": [");
    clb_ids_print(", ", out->ids, out->n_ids);
    clb_print(stdout, "], ");
    if (text) {
        clb_print(stdout, "\"text\": ");
        print_json_string(text, n);
        clb_print(stdout, ", ");
        free(text);
    }
    if (hash)
        clb_print(stdout, "\"logits_hash\": \"clb1:%s\", ", hash);
    const struct clb_usage usage = clb_usage_now();
    clb_print(stdout,
              "\"load_seconds\": %.6f, \"prefill_seconds\": %.6f, \"decode_seconds\": %.6f, "
              "\"peak_rss_bytes\": %" PRIu64 ", \"page_faults\": %" PRIu64 ", \"read_bytes\": ",
              out->load_seconds, stats->prefill_seconds, stats->decode_seconds,
              usage.peak_rss_bytes, usage.page_faults);
    clb_print(stdout, usage.read_bytes < 0 ? "null" : "%" PRId64, usage.read_bytes);
    if (out->profile)
        clb_report(out->profile, threads, stats->prompt_tokens, out->n_decoded, NULL);
    puts("}");
    return 0;
}

static int print_result(struct output *out, const colibri_model *model, size_t n_prompt,
                        const colibri_stats *stats, int threads)
{
    const struct clb_options *o = out->options;
    char hex[65];
    int rc = 0;
    if (o->logits_hash)
        clb_sha256_hex(&out->hash, hex);
    if (o->nll) {
        clb_print(stdout, "%.9g\n", out->nll / (double)(n_prompt - 1));
    } else if (o->format == CLB_JSON) {
        return print_json(out, model, out->prompt, n_prompt, stats, o->logits_hash ? hex : NULL,
                          threads);
    } else if (out->decoder && !out->talk) {
        rc = end_text(out);
    } else if (o->format == CLB_IDS) {
        clb_ids_print(",", out->ids, out->n_ids);
        puts("");
    }
    if (!rc && o->logits_hash)
        clb_print(stdout, "logits_hash: clb1:%s kv:%s\n", hex, clb_kv_names[stats->kv]);
    if (!rc && out->profile) {
        fflush(stdout);
        clb_report(out->profile, threads, stats->prompt_tokens, out->n_decoded, stderr);
    }
    return rc;
}

int clb_generate(const struct clb_options *o, const colibri_model *model, double load_seconds,
                 const int32_t *prompt, size_t n_prompt, struct clb_talk *talk,
                 colibri_error *error)
{
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    colibri_info info;
    colibri_model_info(model, &info);
    if (o->trace_routing && !info.n_experts)
        return clb_error(error, COLIBRI_ERROR_USAGE,
                         "--trace_routing: the model is dense, it routes nothing");
    if (o->nll && n_prompt < 2)
        return clb_error(error, COLIBRI_ERROR_INPUT,
                         "--nll needs a prompt of at least two tokens: the first is not scored");
    colibri_profile profile;
    colibri_infer_options infer = {
        .n_tokens = (int32_t)(o->logits || o->nll ? 0
                              : o->num_tokens < 0 ? DEFAULT_TOKENS
                                                  : o->num_tokens),
        .ignore_eos = o->ignore_eos,
        .every_logit = o->nll,
        .feed_last = o->logits_hash,
        .batch = (int32_t)o->batch,
        .threads = (int32_t)(o->threads ? o->threads
                             : cpus < 1 ? 1
                                        : cpus),
        .kv = o->kv,
        .temperature = o->temperature,
        .top_k = (int32_t)o->top_k,
        .top_p = o->top_p,
        .seed = (uint64_t)o->seed,
        .on_route = o->trace_routing ? on_route : NULL,
        .on_warning = on_warning,
        .on_turn = talk ? on_turn : NULL,
        .stop_ids = info.stop_ids,
        .n_stop_ids = talk ? info.n_stop_ids : 0,
        .pin = o->cpus,
        .profile = o->profile ? &profile : NULL,
    };
    if (o->bench)
        return clb_bench(o, model, &infer, error);
    colibri_error in_callback = {0};
    struct output out = {
        .options = o,
        .prompt = prompt,
        .talk = talk,
        .load_seconds = load_seconds,
        .n_decoded = talk ? 0 : -1, // the first step of a turn is the prompt's
        .profile = infer.profile,
        .error = &in_callback,
    };
    clb_sha256_init(&out.hash);
    out.ids = malloc(((size_t)infer.n_tokens + 1) * sizeof *out.ids);
    int rc = out.ids ? 0 : clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for the token ids");
    if (!rc && o->format == CLB_TEXT && !o->logits && !o->nll)
        rc = colibri_decoder_create(&out.decoder, model, error);
    if (!rc && o->trace_routing)
        rc = clb_trace_open(&out.trace, o, error);
    colibri_stats stats;
    if (!rc)
        rc = colibri_infer(model, &infer, prompt, n_prompt, on_step, &out, &stats, error);
    if (!rc)
        rc = print_result(&out, model, n_prompt, &stats, infer.threads);
    else if (talk && out.n_ids)
        end_text(&out);
    if (in_callback.code) {
        *error = in_callback;
        rc = in_callback.code;
    }
    rc = clb_trace_close(&out.trace, rc, error);
    colibri_decoder_free(out.decoder);
    free(out.ids);
    return rc;
}
