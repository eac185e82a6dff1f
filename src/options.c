// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0

#include "options.h"

#include "decimal.h"
#include "print.h"

#include <stdio.h>
#include <stdlib.h>

enum kind { FLAG, TEXT, TEXT_PAIR, NUMBER, DECIMAL };

static const struct option {
    const char *name, *value; // value: what it stands for in the help
    enum kind kind;
    size_t offset;
    const char *help;
} options[] = {
#define AT(field) offsetof(struct clb_options, field)
    {"model", "PATH", TEXT, AT(model), "model.bin, or a directory with model.bin and config.json"},
    {"config", "FILE", TEXT, AT(config), "config.json, if --model is a file"},
    {"prompt", "TEXT", TEXT, AT(prompt), "the prompt"},
    {"prompt_file", "FILE", TEXT, AT(prompt_file), "a file with the prompt, taken byte for byte"},
    {"tokens", "IDS", TEXT, AT(tokens), "the prompt as token ids: 1,2,3"},
    {"chat", 0, FLAG, AT(chat), "talk: a turn is --prompt, or else each line of standard input"},
    {"system", "TEXT", TEXT, AT(system), "what the model is told before a chat"},
    {"turn_end", "TEXT", TEXT, AT(turn_end), "print this after each answer of a chat"},
    {"num_tokens", "N", NUMBER, AT(num_tokens), "tokens to generate at most (default 32)"},
    {"ignore_eos", 0, FLAG, AT(ignore_eos), "go on after an end-of-sequence token"},
    {"temperature", "T", DECIMAL, AT(temperature),
     "choose tokens at random; 0 (default): greedily"},
    {"top_k", "K", NUMBER, AT(top_k), "and only among the K likeliest"},
    {"top_p", "P", DECIMAL, AT(top_p), "and only among the likeliest that reach the probability P"},
    {"seed", "N", NUMBER, AT(seed), "the same seed gives the same text, on every board"},
    {"format", "KIND", TEXT, AT(format_name), "text (default), ids or json"},
    {"tokenize", 0, FLAG, AT(tokenize), "print the token ids of the prompt and stop"},
    {"detokenize", 0, FLAG, AT(detokenize),
     "print the text of --tokens, or of ids on standard input, and stop"},
    {"logits", 0, FLAG, AT(logits), "print the logits after the prompt, one a line, and stop"},
    {"nll", 0, FLAG, AT(nll), "print the mean negative log likelihood of the prompt and stop"},
    {"logits_hash", 0, FLAG, AT(logits_hash), "print the hash of all logits at the end"},
    {"trace_routing", "FILE", TEXT, AT(trace_routing), "write each token's experts, as JSON lines"},
    {"kv", "TYPE", TEXT, AT(kv_name),
     "key/value cache: f32, f16, q8, auto (f16 for integer weights)"},
    {"batch", "N", NUMBER, AT(batch), "prompt tokens per step (default 256)"},
    {"threads", "N", NUMBER, AT(threads), "threads (default: one per CPU)"},
    {"isa", "LEVEL", TEXT, AT(isa), "kernels to use, see --version (default: the best usable)"},
    {"quantize", "LIST", TEXT, AT(quantize), "round sections of floats at load: up:int8,down:int8"},
    {"cpus", "LIST", TEXT, AT(cpus), "CPUs to run on, a thread on each: 0,2,3"},
    {"realtime", 0, FLAG, AT(realtime), "run before all other programs (SCHED_FIFO), or fail"},
    {"profile", 0, FLAG, AT(profile), "show which operations take the time"},
    {"bench", 0, FLAG, AT(bench), "measure speed, next to this machine's limits, and stop"},
    {"use_mlock", 0, FLAG, AT(use_mlock), "keep the model in memory, or fail"},
    {"verify", 0, FLAG, AT(verify), "check every checksum of the model first"},
    {"selftest", 0, FLAG, AT(selftest), "check the kernels of all levels, or of --isa, and stop"},
    {"sha256", "FILE", TEXT, AT(sha256), "print the SHA-256 of a file and stop"},
    {"switch", "LINK TARGET", TEXT_PAIR, AT(switch_to),
     "point a symbolic link elsewhere, atomically"},
    {"version", 0, FLAG, AT(version), "version, ISA levels and CPU features"},
    {"help", 0, FLAG, AT(help), "this text"},
};
const char *const clb_kv_names[] = {"auto", "f32", "f16", "q8", NULL};

enum { N_OPTIONS = sizeof options / sizeof *options };

void clb_options_help(void)
{
    puts("Usage: colibri --model DIR --prompt TEXT [options]\n");
    for (int i = 0; i < N_OPTIONS; i++) {
        char left[40];
        clb_format(left, sizeof left, "--%s%s%s", options[i].name, options[i].value ? " " : "",
                   options[i].value ? options[i].value : "");
        clb_print(stdout, "  %-22s %s\n", left, options[i].help);
    }
    puts("\nExit codes: 0 done, 2 usage, 3 missing file, 4 config.json, 5 not a model, 6 truncated,"
         "\n7 damaged, 8 ISA level, 9 memory, 10 NaN, Inf or a wrong kernel, 11 prompt.");
}

// The option that arg (after --) names; *value is what follows its '=', or NULL.
static const struct option *find(const char *arg, const char **value)
{
    size_t n = strcspn(arg, "=");
    *value = arg[n] ? arg + n + 1 : NULL;
    for (int i = 0; i < N_OPTIONS; i++) {
        const char *name = options[i].name;
        size_t k = 0;
        while (k < n && name[k] && (arg[k] == '-' ? '_' : arg[k]) == name[k])
            k++;
        if (k == n && !name[k])
            return &options[i];
    }
    return NULL;
}

static int set(struct clb_options *o, const struct option *option, const char *value,
               colibri_error *error)
{
    char *field = (char *)o + option->offset;
    if (option->kind == TEXT || option->kind == TEXT_PAIR) {
        *(const char **)(void *)field = value;
        return 0;
    }
    if (option->kind == DECIMAL) {
        bool integer;
        double number;
        size_t length = clb_decimal_length(value, &integer);
        if (!length || value[length] || !clb_decimal_value(value, &number) || number < 0)
            return clb_error(error, COLIBRI_ERROR_USAGE, "--%s is %s, expected a number like 0.8",
                             option->name, value);
        *(float *)(void *)field = (float)number;
        return 0;
    }
    char *end;
    long n = strtol(value, &end, 10);
    if (*end || end == value || n < 0 || n > INT32_MAX)
        return clb_error(error, COLIBRI_ERROR_USAGE, "--%s is %s, expected a number from 0",
                         option->name, value);
    *(int64_t *)(void *)field = n;
    return 0;
}

// Which of the names (NULL-terminated) is `given`; 0 if none was given, -1 if it is none of them.
static int choice(const char *given, const char *const *names)
{
    if (!given)
        return 0;
    for (int i = 0; names[i]; i++)
        if (!strcmp(given, names[i]))
            return i;
    return -1;
}

static int check(struct clb_options *o, colibri_error *error)
{
    static const char *const formats[] = {"text", "ids", "json", NULL};
    int format = choice(o->format_name, formats), kv = choice(o->kv_name, clb_kv_names);
    if (format < 0)
        return clb_error(error, COLIBRI_ERROR_USAGE, "--format is %s, expected text, ids or json",
                         o->format_name);
    if (kv < 0)
        return clb_error(error, COLIBRI_ERROR_USAGE, "--kv is %s, expected auto, f32, f16 or q8",
                         o->kv_name);
    o->format = (enum clb_output)format;
    o->kv = (colibri_kv)kv;
    int prompts = !!o->prompt + !!o->prompt_file + !!o->tokens + o->bench;
    if (prompts > 1)
        return clb_error(error, COLIBRI_ERROR_USAGE,
                         "give one of --prompt, --prompt_file, --tokens and --bench");
    int numbers = o->tokenize + o->detokenize + o->logits + o->nll;
    if (numbers + o->bench > 1)
        return clb_error(error, COLIBRI_ERROR_USAGE,
                         "give one of --tokenize, --detokenize, --logits, --nll and --bench");
    if (numbers && (o->format == CLB_JSON || o->num_tokens > 0 || *o->turn_end))
        return clb_error(error, COLIBRI_ERROR_USAGE,
                         "--tokenize, --detokenize, --logits and --nll generate nothing: they go "
                         "with none of --num_tokens, --turn_end and --format json");
    if ((o->tokenize || o->detokenize || o->bench) &&
        (o->logits_hash || o->trace_routing || (o->profile && !o->bench)))
        return clb_error(error, COLIBRI_ERROR_USAGE,
                         "--tokenize, --detokenize and --bench go with none of --logits_hash, "
                         "--trace_routing and, but for --bench, --profile");
    if (o->detokenize && (o->chat || o->prompt || o->prompt_file))
        return clb_error(error, COLIBRI_ERROR_USAGE, "--detokenize takes ids");
    if (o->chat &&
        (o->tokens || o->prompt_file || o->logits || o->nll || o->bench || o->format != CLB_TEXT))
        return clb_error(error, COLIBRI_ERROR_USAGE,
                         "--chat goes with none of --tokens, --prompt_file, --logits, --nll, "
                         "--bench and --format");
    if (!o->chat && (o->system || *o->turn_end))
        return clb_error(error, COLIBRI_ERROR_USAGE, "--system and --turn_end go with --chat");
    if (o->temperature == 0 && (o->top_k || o->top_p > 0 || o->seed))
        return clb_error(error, COLIBRI_ERROR_USAGE,
                         "--top_k, --top_p and --seed go with --temperature");
    if (o->help || o->version || o->selftest || o->sha256 || o->switch_to[0])
        return 0;
    if (!o->model)
        return clb_error(error, COLIBRI_ERROR_USAGE, "name a model with --model; see --help");
    if (!prompts && !o->chat && !o->detokenize &&
        (!o->verify || numbers || o->logits_hash || o->trace_routing || o->profile))
        return clb_error(error, COLIBRI_ERROR_USAGE,
                         "give a prompt with --prompt, --prompt_file or --tokens; see --help");
    return 0;
}

int clb_options_parse(struct clb_options *o, int argc, char **argv, colibri_error *error)
{
    *o = (struct clb_options){.num_tokens = -1, .turn_end = ""};
    for (int i = 1; i < argc; i++) {
        const char *value = NULL;
        const char *name = strcmp(argv[i], "-h") ? argv[i] : "--help";
        const struct option *option = strncmp(name, "--", 2) ? NULL : find(name + 2, &value);
        if (!option)
            return clb_error(error, COLIBRI_ERROR_USAGE, "unknown option %s; see --help", argv[i]);
        if (option->kind == FLAG) {
            if (value)
                return clb_error(error, COLIBRI_ERROR_USAGE, "--%s takes no value", option->name);
            *((bool *)((char *)o + option->offset)) = true;
            continue;
        }
        bool pair = option->kind == TEXT_PAIR;
        if (i + !value + pair >= argc)
            return clb_error(error, COLIBRI_ERROR_USAGE, "--%s needs a value (%s)", option->name,
                             option->value);
        int rc = set(o, option, value ? value : argv[++i], error);
        if (rc)
            return rc;
        if (pair)
            o->switch_to[1] = argv[++i];
    }
    return check(o, error);
}
