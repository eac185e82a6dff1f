// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The program `colibri`: one call from the command line.
#include "cpu.h"
#include "file.h"
#include "generate.h"
#include "ids.h"
#include "log.h"
#include "print.h"
#include "schedule.h"
#include "selftest.h"
#include "sha256.h"
#include "switch.h"
#include "usage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

enum { MAX_PROMPT_BYTES = 64 << 20 };

static int print_version(void)
{
    struct clb_kernels chosen;
    colibri_error error;
    int rc = clb_cpu_choose(&chosen, NULL, &error);
    if (rc)
        return rc;
    clb_print(stdout, "colibri %s (%s)\nisa inside:", colibri_version(), CLB_ARCH);
    for (const struct clb_level *l = clb_levels; l->name; l++)
        clb_print(stdout, " %s", l->name);
    clb_print(stdout, "\nisa usable:");
    for (const struct clb_level *l = clb_levels; l->name; l++)
        if (!clb_cpu_lacks(l))
            clb_print(stdout, " %s", l->name);
    clb_print(stdout, "\nisa chosen: %s\ncpu features:", chosen.level);
    for (const struct clb_level *l = clb_levels; l->name; l++)
        for (const struct clb_feature *f = l->needs; f->name; f++)
            clb_print(stdout, " %s%s", clb_cpu_has(f) ? "" : "no-", f->name);
    clb_print(stdout, "\n");
    return 0;
}

static int print_sha256(const char *path, colibri_error *error)
{
    static unsigned char buffer[64 << 10];
    struct clb_sha256 s;
    char hex[65];
    FILE *f = fopen(path, "rb");
    clb_sha256_init(&s);
    size_t n = 0;
    while (f && (n = fread(buffer, 1, sizeof buffer, f)) > 0)
        clb_sha256_add(&s, buffer, n);
    if (!f || ferror(f)) {
        int saved = errno;
        if (f)
            fclose(f);
        return clb_error(error, COLIBRI_ERROR_FILE, "%s cannot be read: %s", path, strerror(saved));
    }
    fclose(f);
    clb_sha256_hex(&s, hex);
    clb_print(stdout, "%s  %s\n", hex, path);
    return 0;
}

// Prints the text of ids that are given, or read.
static int detokenize(struct clb_talk *talk, colibri_error *error)
{
    const char *list = talk->options->tokens;
    char *text;
    size_t n_ids, n;
    int rc = list ? 0 : clb_talk_read(talk, 0, &(bool){false}, error);
    if (!rc)
        rc = clb_ids_parse(list ? list : talk->text, &talk->ids, &n_ids, error);
    if (!rc)
        rc = colibri_detokenize(talk->model, talk->ids, n_ids, &text, &n, error);
    if (rc)
        return rc;
    fwrite(text, 1, n, stdout);
    puts("");
    free(text);
    return 0;
}

static int read_prompt(const struct clb_options *o, const colibri_model *model, int32_t **ids,
                       size_t *n, colibri_error *error)
{
    if (o->tokens)
        return clb_ids_parse(o->tokens, ids, n, error);
    if (o->prompt)
        return colibri_tokenize(model, o->prompt, strlen(o->prompt), ids, n, error);
    char *text;
    size_t size;
    int rc = clb_file_read(o->prompt_file, MAX_PROMPT_BYTES, &text, &size, error);
    if (rc)
        return rc;
    rc = colibri_tokenize(model, text, size, ids, n, error);
    free(text);
    return rc;
}

static int chat(struct clb_talk *talk, double load_seconds, colibri_error *error)
{
    const struct clb_options *o = talk->options;
    const int32_t *ids;
    size_t n;
    // Before anything is read: does the model know how?
    int rc = colibri_tokenize_turn(talk->model, true, o->system, "", &talk->ids, &n, error);
    if (!rc)
        rc = clb_talk_next(talk, &ids, &n, error);
    if (!o->tokenize)
        return rc || !n ? rc : clb_generate(o, talk->model, load_seconds, ids, n, talk, error);
    while (!rc && n) {
        clb_ids_print(",", ids, n);
        puts("");
        rc = clb_talk_next(talk, &ids, &n, error);
    }
    return rc;
}

// Whether the model is larger than the memory it can have: then storage sets the pace.
static bool warn_of_storage(const colibri_model *model)
{
    colibri_info info;
    colibri_model_info(model, &info);
    int64_t available = clb_usage_available();
    if (available < 0 || info.file_size <= (uint64_t)available)
        return false;
    clb_print(stderr,
              "colibri: warning: the model has %" PRIu64 " MB, the memory %" PRId64
              " MB available: "
              "weights are read from storage again and again, and its speed is the limit\n",
              info.file_size / 1000000, available / 1000000);
    return true;
}

static void report_storage(void)
{
    const struct clb_usage usage = clb_usage_now();
    fflush(stdout); // the line break at the end of the text comes first
    if (usage.read_bytes >= 0)
        clb_print(stderr, "colibri: read %" PRId64 " MB from storage in %" PRIu64 " page faults\n",
                  usage.read_bytes / 1000000, usage.page_faults);
    else
        clb_print(stderr, "colibri: waited for storage in %" PRIu64 " page faults\n",
                  usage.page_faults);
}

static int run(const struct clb_options *o, colibri_error *error)
{
    colibri_load_options load = {
        .isa = o->isa,
        .verify = o->verify || o->bench, // nothing is to be checked while it measures
        .lock = o->use_mlock,
        .quantize = o->quantize,
    };
    colibri_model *model;
    int32_t *prompt = NULL;
    size_t n_prompt = 0;
    int rc = o->cpus ? clb_schedule_cpus(o->cpus, error) : 0;
    if (!rc && o->realtime)
        rc = clb_schedule_realtime(error);
    double start = clb_usage_seconds();
    if (!rc)
        rc = colibri_load_model(&model, o->model, o->config, &load, error);
    double load_seconds = clb_usage_seconds() - start;
    if (rc)
        return rc;
    bool larger = warn_of_storage(model);
    struct clb_talk talk = {.options = o, .model = model};
    if (o->bench) {
        rc = clb_generate(o, model, load_seconds, NULL, 0, NULL, error);
    } else if (o->detokenize) {
        rc = detokenize(&talk, error);
    } else if (o->chat) {
        rc = chat(&talk, load_seconds, error);
    } else if (!o->prompt && !o->prompt_file && !o->tokens) { // --verify alone
        puts("verified: every checksum of the model matches");
    } else {
        rc = read_prompt(o, model, &prompt, &n_prompt, error);
        if (!rc && o->tokenize) {
            clb_ids_print(",", prompt, n_prompt);
            puts("");
        } else if (!rc) {
            rc = clb_generate(o, model, load_seconds, prompt, n_prompt, NULL, error);
        }
    }
    if (larger)
        report_storage();
    clb_talk_free(&talk);
    free(prompt);
    colibri_free_model(model);
    return rc;
}

#if CLB_DEBUG
static void log_to_stderr(const char *line)
{
    clb_print(stderr, "%s\n", line);
}
#endif

int main(int argc, char **argv)
{
    struct clb_options options;
    colibri_error error = {0};
#if CLB_DEBUG
    clb_log_sink = log_to_stderr;
#endif
    int rc = clb_options_parse(&options, argc, argv, &error);
    if (!rc && options.help)
        clb_options_help();
    else if (!rc && options.version)
        rc = print_version();
    else if (!rc && options.selftest)
        rc = clb_selftest(options.isa, &error);
    else if (!rc && options.sha256)
        rc = print_sha256(options.sha256, &error);
    else if (!rc && options.switch_to[0])
        rc = clb_switch_link(options.switch_to[0], options.switch_to[1], &error);
    else if (!rc && !(rc = colibri_guard_sigbus(&error)))
        rc = run(&options, &error);
    if (!rc && (fflush(stdout) || ferror(stdout)))
        rc = clb_error(&error, COLIBRI_ERROR_FILE, "the output cannot be written: %s",
                       strerror(errno));
    if (rc)
        clb_print(stderr, "colibri: error: %s\n", error.message);
    return rc;
}
