// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The program `colibri`: one call from the command line.
#include "bench.h"
#include "cpu.h"
#include "file.h"
#include "log.h"
#include "nll.h"
#include "options.h"
#include "print.h"
#include "report.h"
#include "schedule.h"
#include "selftest.h"
#include "sha256.h"
#include "switch.h"
#include "talk.h"
#include "usage.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEFAULT_TOKENS = 32, MAX_PROMPT_BYTES = 64 << 20 };

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

// "1,2,3", with commas or blanks between.
static int parse_ids(const char *text, int32_t **ids, size_t *n, colibri_error *error)
{
    *ids = malloc((strlen(text) / 2 + 1) * sizeof **ids);
    *n = 0;
    if (!*ids)
        return clb_error(error, COLIBRI_ERROR_MEMORY, "no memory for the token ids");
    for (const char *p = text + strspn(text, " \t\n"); *p;) {
        char *end;
        long value = strtol(p, &end, 10);
        if (end == p || value < 0 || value > INT32_MAX || !strchr(", \t\n", *end))
            return clb_error(error, COLIBRI_ERROR_INPUT,
                             "\"%.20s\" is no list of token ids like 1,2,3", p);
        (*ids)[(*n)++] = (int32_t)value;
        p = end + strspn(end, ", \t\n");
    }
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
        rc = parse_ids(list ? list : talk->text, &talk->ids, &n_ids, error);
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
        return parse_ids(o->tokens, ids, n, error);
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
    FILE *trace; // NULL without --trace_routing
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

static int trace_failed(const struct output *out, colibri_error *error)
{
    return clb_error(error, COLIBRI_ERROR_FILE, "%s cannot be written: %s",
                     out->options->trace_routing, strerror(errno));
}

static bool same_file(const struct stat *st, const char *directory, const char *name)
{
    char path[4096];
    struct stat other;
    clb_format(path, sizeof path, "%s%s", directory ? directory : "", name ? name : "");
    return !stat(path, &other) && other.st_dev == st->st_dev && other.st_ino == st->st_ino;
}

// Opens the file for the trace. It is emptied only when it is known to be no input of this call.
static int open_trace(struct output *out, colibri_error *error)
{
    const struct clb_options *o = out->options;
    struct stat st;
    int fd = open(o->trace_routing, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &st) || !(out->trace = fdopen(fd, "w")))
        return trace_failed(out, error); // and the program ends
    if (same_file(&st, o->model, NULL) || same_file(&st, o->model, "/model.bin") ||
        same_file(&st, o->model, "/config.json") || same_file(&st, o->config, NULL) ||
        same_file(&st, o->prompt_file, NULL))
        return clb_error(error, COLIBRI_ERROR_USAGE,
                         "--trace_routing would overwrite %s, which this call reads",
                         o->trace_routing);
    return S_ISREG(st.st_mode) && ftruncate(fd, 0) ? trace_failed(out, error) : 0;
}

// One line of JSON for each token and layer.
static int on_route(void *user, const colibri_route *route)
{
    const struct output *out = user;
    FILE *f = out->trace;
    clb_print(f, "{\"layer\":%d,\"position\":%d,\"token\":%d,\"experts\":", route->layer,
              route->position, route->token);
    for (int i = 0; i < route->n_experts; i++)
        clb_print(f, "%c%d", i ? ',' : '[', route->experts[i]);
    fputs("],\"weights\":", f);
    for (int i = 0; i < route->n_experts; i++)
        clb_print(f, "%c%.9g", i ? ',' : '[', (double)route->weights[i]);
    fputs("]}\n", f);
    return ferror(f) ? trace_failed(out, out->error) : 0;
}

static void on_warning(void *user, const char *message)
{
    (void)user;
    clb_print(stderr, "colibri: warning: %s\n", message);
}

static void print_ids(const char *separator, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        clb_print(stdout, "%s%d", i ? separator : "", ids[i]);
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
    print_ids(", ", prompt, n_prompt);
    clb_print(stdout, "], \"ids\": [");
    print_ids(", ", out->ids, out->n_ids);
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
        print_ids(",", out->ids, out->n_ids);
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

static int generate(const struct clb_options *o, const colibri_model *model, double load_seconds,
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
        rc = open_trace(&out, error);
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
    if (out.trace && fclose(out.trace) && !rc)
        rc = trace_failed(&out, error);
    colibri_decoder_free(out.decoder);
    free(out.ids);
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
        return rc || !n ? rc : generate(o, talk->model, load_seconds, ids, n, talk, error);
    while (!rc && n) {
        print_ids(",", ids, n);
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
        rc = generate(o, model, load_seconds, NULL, 0, NULL, error);
    } else if (o->detokenize) {
        rc = detokenize(&talk, error);
    } else if (o->chat) {
        rc = chat(&talk, load_seconds, error);
    } else if (!o->prompt && !o->prompt_file && !o->tokens) { // --verify alone
        puts("verified: every checksum of the model matches");
    } else {
        rc = read_prompt(o, model, &prompt, &n_prompt, error);
        if (!rc && o->tokenize) {
            print_ids(",", prompt, n_prompt);
            puts("");
        } else if (!rc) {
            rc = generate(o, model, load_seconds, prompt, n_prompt, NULL, error);
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
