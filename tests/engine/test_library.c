// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// What colibri.h promises to a program that links the library. Run by test_library.py:
//
//     test_library CHECK MODEL
//
// Ends with 0, or with 1 and a line for each promise that was broken.
#include "library_checks.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

// ---- Calls ----

enum { MAX_PROMPT = 300, MAX_ROWS = MAX_PROMPT + 8, MAX_VOCAB = 64 };

struct call {
    const colibri_model *model;
    colibri_infer_options options;
    int32_t prompt[MAX_PROMPT];
    size_t n_prompt;
    int stop_at; // the row after which the callback asks to stop; -1: none
    int stop_at_route;
    int turns; // that follow the first, each of the tokens `more`; -1: stop there
    size_t n_more;
    int32_t more[40];
    // what came of it
    int rc, n_rows, n_routes;
    int32_t tokens[MAX_ROWS], positions[MAX_ROWS];
    size_t n_fed; // behind the prompt: tokens generated, and those of later turns
    int32_t fed[MAX_ROWS];
    colibri_stats stats;
    float logits[MAX_ROWS][MAX_VOCAB];
    colibri_error error;
};

static int on_step(void *user, const colibri_step *step)
{
    struct call *c = user;
    if (c->n_rows == MAX_ROWS || step->vocab_size > MAX_VOCAB)
        abort();
    memcpy(c->logits[c->n_rows], step->logits, (size_t)step->vocab_size * sizeof(float));
    c->tokens[c->n_rows] = step->token;
    c->positions[c->n_rows] = step->position;
    if (step->token >= 0 && !step->eos)
        c->fed[c->n_fed++] = step->token;
    return c->n_rows++ == c->stop_at ? -7 : 0;
}

static int on_route(void *user, const colibri_route *route)
{
    struct call *c = user;
    (void)route;
    return c->n_routes++ == c->stop_at_route;
}

static int on_turn(void *user, const int32_t **tokens, size_t *n_tokens)
{
    struct call *c = user;
    CHECK(!*n_tokens);
    if (c->turns <= 0)
        return c->turns;
    c->turns--;
    *tokens = c->more;
    *n_tokens = c->n_more;
    memcpy(c->fed + c->n_fed, c->more, c->n_more * sizeof *c->more);
    c->n_fed += c->n_more;
    return 0;
}

static void prepare(struct call *c, const colibri_model *model, size_t n_prompt, int seed)
{
    memset(c, 0, sizeof *c);
    c->model = model;
    c->options = (colibri_infer_options){
        .n_tokens = 4, .ignore_eos = true, .every_logit = true, .feed_last = true, .batch = 32};
    c->stop_at = c->stop_at_route = -1;
    c->n_prompt = n_prompt;
    for (size_t i = 0; i < n_prompt; i++)
        c->prompt[i] = (int32_t)((i * i * 7919 + (size_t)seed * 31) % 997 % 50);
}

static void *run(void *user)
{
    struct call *c = user;
    c->n_rows = c->n_routes = 0;
    c->n_fed = 0;
    memset(c->logits, 0, sizeof c->logits);
    c->rc = colibri_infer(c->model, &c->options, c->prompt, c->n_prompt, on_step, c, &c->stats,
                          &c->error);
    return NULL;
}

static bool same(const struct call *a, const struct call *b)
{
    return a->rc == b->rc && a->n_rows == b->n_rows &&
           !memcmp(a->tokens, b->tokens, (size_t)a->n_rows * sizeof *a->tokens) &&
           !memcmp(a->logits, b->logits, sizeof a->logits);
}

static struct call calls[3], expected[2];

// Two calls at the same time on one model: the results of two calls one after the other.
static void check_threads(const colibri_model *model)
{
    prepare(&calls[0], model, MAX_PROMPT, 1);
    prepare(&calls[1], model, 211, 2);
    calls[1].options.threads = 3;
    calls[1].options.batch = 7;
    for (int i = 0; i < 2; i++) {
        run(&calls[i]);
        CHECK(!calls[i].rc);
        CHECK(calls[i].n_rows == (int)calls[i].n_prompt + 4);
        expected[i] = calls[i];
    }
    CHECK(memcmp(calls[0].logits, calls[1].logits, sizeof calls[0].logits));
    for (int round = 0; round < 8; round++) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            CHECK(!pthread_create(&threads[i], NULL, run, &calls[i]));
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < 2; i++)
            CHECK(same(&calls[i], &expected[i]));
    }
}

static int look_at_signals(void *user, const colibri_step *step)
{
    (void)user, (void)step;
    CHECK(takers_of(SIGTERM) == 1);
    CHECK(takers_of(SIGBUS) == 3); // or reading a file that became shorter would end the process
    return 0;
}

// The program's signals are its own thread's.
static void check_signals(const colibri_model *model)
{
    colibri_infer_options options = {.n_tokens = 1, .threads = 3};
    colibri_error error;
    CHECK(!colibri_infer(model, &options, &(int32_t){1}, 1, look_at_signals, NULL, NULL, &error));
    CHECK(takers_of(SIGTERM) == 1);
}

// Whatever the caller has set, the logits are the same, and it finds what it had set.
static void check_modes(const colibri_model *model)
{
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO, FE_TONEAREST};
    for (int threads = 1; threads <= 3; threads += 2) {
        prepare(&calls[0], model, 40, 3);
        calls[0].options.threads = threads;
        run(&calls[0]);
        CHECK(!calls[0].rc);
        for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
            calls[1] = calls[0];
            CHECK(!fesetround(modes[i]));
#ifdef __x86_64__
            unsigned old, flushing, after;
            __asm__ volatile("stmxcsr %0" : "=m"(old));
            flushing = old | 0x8040; // subnormal results and operands are 0
            __asm__ volatile("ldmxcsr %0" : : "m"(flushing));
            run(&calls[1]);
            __asm__ volatile("stmxcsr %0" : "=m"(after));
            __asm__ volatile("ldmxcsr %0" : : "m"(old));
            CHECK((after & ~0x3fu) == (flushing & ~0x3fu)); // but for the flags of exceptions
#else
            run(&calls[1]);
#endif
            CHECK(fegetround() == modes[i]);
            fesetround(FE_TONEAREST);
            CHECK(same(&calls[1], &calls[0]));
            // an error is no way around it
            fesetround(modes[i]);
            calls[1].stop_at = 2;
            run(&calls[1]);
            CHECK(calls[1].rc == COLIBRI_ERROR_STOPPED);
            CHECK(fegetround() == modes[i]);
            fesetround(FE_TONEAREST);
        }
    }
}

// A conversation of three turns, and its tokens as one prompt: all logits are the same.
static void compare_turns(const colibri_model *model, bool feed_last, int32_t stop_id)
{
    struct call *talk = &calls[0], *whole = &calls[1];
    prepare(talk, model, 40, 5);
    talk->options.feed_last = feed_last;
    talk->options.ignore_eos = stop_id < 0;
    talk->options.stop_ids = &stop_id;
    talk->options.n_stop_ids = 1;
    talk->options.on_turn = on_turn;
    talk->turns = 2;
    talk->n_more = 37; // more than a batch
    for (size_t i = 0; i < talk->n_more; i++)
        talk->more[i] = (int32_t)(i * 11 + 3) % 50;
    run(talk);
    CHECK(!talk->rc && !talk->turns);
    CHECK(talk->stats.prompt_tokens == 40 + 2 * 37);
    CHECK(talk->stats.generated_tokens == (int32_t)talk->n_fed - 2 * 37);
    CHECK(stop_id < 0 ? talk->n_fed == 3 * 4 + 2 * 37 : talk->n_fed < 3 * 4 + 2 * 37);

    prepare(whole, model, 40, 5);
    memcpy(whole->prompt + 40, talk->fed, talk->n_fed * sizeof *talk->fed);
    whole->n_prompt += talk->n_fed;
    run(whole);
    CHECK(!whole->rc);
    int n = talk->n_rows, last = -1;
    for (int i = 0; i < n; i++) {
        int position = talk->positions[i];
        CHECK(position > last && position < whole->n_rows);
        CHECK(!memcmp(talk->logits[i], whole->logits[position], sizeof *talk->logits));
        last = position;
    }
    CHECK(n >= 40 + 2 * 37);
}

static void check_turns(const colibri_model *model)
{
    struct holdings before = holdings();
    compare_turns(model, true, -1);
    compare_turns(model, false, -1);
    compare_turns(model, true, calls[0].fed[1]); // ends a turn that would have been longer
    for (int i = 0; i < 2; i++) {
        prepare(&calls[0], model, 5, 5);
        calls[0].options.on_turn = on_turn;
        calls[0].turns = i ? 1 : -1;
        calls[0].more[0] = 50;
        calls[0].n_more = 1;
        run(&calls[0]);
        CHECK(calls[0].rc == (i ? COLIBRI_ERROR_INPUT : COLIBRI_ERROR_STOPPED));
        CHECK(is_line(&calls[0].error) && calls[0].n_rows == 5 + 4);
    }
    CHECK(as_before(before));
}

static void check_stop(const colibri_model *model)
{
    struct holdings before = holdings();
    for (int threads = 1; threads <= 3; threads += 2)
        for (int at = 0; at < 44; at++) {
            prepare(&calls[0], model, 40, 4);
            calls[0].options.threads = threads;
            calls[0].options.batch = 16;
            calls[0].stop_at = at;
            run(&calls[0]);
            CHECK(calls[0].rc == COLIBRI_ERROR_STOPPED);
            CHECK(calls[0].error.code == COLIBRI_ERROR_STOPPED && is_line(&calls[0].error));
            CHECK(calls[0].n_rows == at + 1);
        }
    calls[0].stop_at = 44; // there is no such row
    run(&calls[0]);
    CHECK(!calls[0].rc && calls[0].n_rows == 44);
    calls[0].options.on_route = on_route;
    for (int at = 0; at < 44 * 2; at += 29) {
        calls[0].stop_at_route = at;
        run(&calls[0]);
        CHECK(calls[0].rc == COLIBRI_ERROR_STOPPED && is_line(&calls[0].error));
        CHECK(calls[0].n_routes == at + 1);
    }
    CHECK(as_before(before));
}

static void check_load_errors(const char *path)
{
    static const struct {
        const char *model, *config, *isa;
        int code;
    } wrong[] = {
        {"/none", NULL, NULL, COLIBRI_ERROR_FILE},
        {"/none", "/none.json", NULL, COLIBRI_ERROR_FILE},
        {NULL, NULL, NULL, COLIBRI_ERROR_USAGE},
        {"/proc/self/exe", NULL, NULL, COLIBRI_ERROR_USAGE},
        {"/proc/self/exe", "/proc/self/exe", NULL, COLIBRI_ERROR_FILE}, // too long, for a config
        {"", NULL, "none", COLIBRI_ERROR_ISA},
    };
    colibri_error error;
    struct holdings before = holdings();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        colibri_model *model = (colibri_model *)(void *)&error;
        colibri_load_options options = {.isa = wrong[i].isa};
        int rc = colibri_load_model(&model, wrong[i].model, wrong[i].config, &options, &error);
        CHECK(rc == wrong[i].code || (wrong[i].config && rc == COLIBRI_ERROR_CONFIG));
        CHECK(rc == error.code && is_line(&error));
        CHECK(!model);
    }
    int tries = 0;
    for (int rc = -1; rc; tries++) {
        colibri_model *model = (colibri_model *)(void *)&error;
        atomic_store(&to_fail, tries + 1);
        rc = colibri_load_model(&model, path, NULL, NULL, &error);
        atomic_store(&to_fail, 0);
        CHECK(!rc || (rc == COLIBRI_ERROR_MEMORY && rc == error.code && is_line(&error)));
        CHECK(!rc == !!model);
        colibri_free_model(model);
        CHECK(as_before(before));
        if (failures)
            return;
    }
    CHECK(tries > 3);
    colibri_free_model(NULL);
    colibri_decoder_free(NULL);
}

// A model that is refused: nothing of it stays behind, however far it was loaded.
static void check_refused(const char *path)
{
    struct holdings before = holdings();
    for (int verify = 0; verify < 2; verify++) {
        colibri_error error;
        colibri_model *model = (colibri_model *)(void *)&error;
        colibri_load_options options = {.verify = verify};
        int rc = colibri_load_model(&model, path, NULL, &options, &error);
        CHECK(rc && rc == error.code && is_line(&error));
        CHECK(!model);
        CHECK(as_before(before));
    }
}

static void expect(struct call *c, int code)
{
    struct holdings before = holdings();
    run(c);
    CHECK(c->rc == code);
    if (c->rc != code)
        fprintf(stderr, "code %d instead of %d: %s\n", c->rc, code, c->error.message);
    CHECK(c->error.code == code && is_line(&c->error));
    CHECK(!c->n_rows);
    CHECK(as_before(before));
}

static void check_infer_errors(const colibri_model *model)
{
    struct call *c = &calls[0];
    prepare(c, model, 0, 0);
    expect(c, COLIBRI_ERROR_INPUT);
    const int32_t ids[] = {-1, 50, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        prepare(c, model, 40, 0);
        c->prompt[39] = ids[i];
        expect(c, COLIBRI_ERROR_INPUT);
    }
    for (int i = 0; i < 5; i++) {
        prepare(c, model, 40, 0);
        int32_t *fields[] = {&c->options.batch, &c->options.batch, &c->options.threads,
                             &c->options.threads, &c->options.n_tokens};
        const int32_t values[] = {-1, 4097, -1, 1025, -1};
        *fields[i] = values[i];
        expect(c, COLIBRI_ERROR_USAGE);
    }
    int tries = 0;
    struct holdings before = holdings();
    for (c->rc = -1; c->rc; tries++) {
        prepare(c, model, 40, 0);
        c->options.threads = 3;
        atomic_store(&to_fail, tries + 1);
        run(c);
        atomic_store(&to_fail, 0);
        CHECK(!c->rc || (c->rc == COLIBRI_ERROR_MEMORY && is_line(&c->error)));
        CHECK(as_before(before));
        if (failures)
            return;
    }
    CHECK(tries > 3);
    // Less memory than 1,000,000 positions or 1,000 threads take.
    struct rlimit limit = {128 << 20, 128 << 20};
    CHECK(!setrlimit(RLIMIT_AS, &limit));
    prepare(c, model, 1, 0);
    c->options.n_tokens = 900000;
    expect(c, COLIBRI_ERROR_MEMORY);
    prepare(c, model, 1, 0);
    c->options.threads = 1000;
    expect(c, COLIBRI_ERROR_MEMORY);
    prepare(c, model, 1, 0);
    run(c);
    CHECK(!c->rc);
    int32_t *some;
    size_t n;
    colibri_decoder *decoder = (colibri_decoder *)(void *)c;
    CHECK(colibri_tokenize(model, "a", 1, &some, &n, &c->error) == COLIBRI_ERROR_INPUT);
    CHECK(colibri_decoder_create(&decoder, model, &c->error) == COLIBRI_ERROR_INPUT && !decoder);
    CHECK(as_before(before));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*check)(const colibri_model *);
    } checks[] = {
        {"threads", check_threads}, {"signals", check_signals},
        {"modes", check_modes},     {"stop", check_stop},
        {"turns", check_turns},     {"infer_errors", check_infer_errors},
    };
    if (argc == 4 && !strcmp(argv[1], "quiet"))
        check_quiet(argv[2], argv[3]);
    if (argc != 3)
        return 2;
    if (!strcmp(argv[1], "load_errors")) {
        check_load_errors(argv[2]);
        return !!failures;
    }
    if (!strcmp(argv[1], "refused")) {
        check_refused(argv[2]);
        return !!failures;
    }
    if (!strcmp(argv[1], "shorter")) {
        check_shorter(argv[2]);
        return !!failures;
    }
    if (!strcmp(argv[1], "shorter_tokenizer")) {
        check_shorter_tokenizer(argv[2]);
        return !!failures;
    }
    if (!strcmp(argv[1], "damaged")) {
        check_damaged(argv[2]);
        return !!failures;
    }
    struct holdings before = holdings();
    colibri_error error;
    colibri_model *model;
    if (colibri_load_model(&model, argv[2], NULL, NULL, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 2;
    }
    int found = 0;
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
        if (!strcmp(argv[1], checks[i].name)) {
            checks[i].check(model);
            found++;
        }
    colibri_free_model(model);
    CHECK(as_before(before));
    return found ? !!failures : 2;
}
