// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// Colibri: Mixture-of-Experts language models on boards with few resources.
//
// A model is loaded once and is immutable after that: any number of threads may call
// colibri_infer on it at the same time. Nothing here prints or exits, and a signal to the process
// interrupts none of the threads that are started here.
#ifndef COLIBRI_H
#define COLIBRI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// What went wrong. The program `colibri` uses the same numbers as exit codes.
enum colibri_code {
    COLIBRI_OK = 0,
    COLIBRI_ERROR_INTERNAL = 1,
    COLIBRI_ERROR_USAGE = 2,     // an option or a combination of options that does not exist
    COLIBRI_ERROR_FILE = 3,      // a file is missing or cannot be read
    COLIBRI_ERROR_CONFIG = 4,    // config.json is not valid or does not fit model.bin
    COLIBRI_ERROR_FORMAT = 5,    // model.bin is not a model that this version reads
    COLIBRI_ERROR_TRUNCATED = 6, // model.bin is shorter or longer than its header says
    COLIBRI_ERROR_CORRUPT = 7,   // a checksum does not match
    COLIBRI_ERROR_ISA = 8,       // the CPU or the build lacks the kernels asked for
    COLIBRI_ERROR_MEMORY = 9,    // memory cannot be allocated or locked
    COLIBRI_ERROR_NUMERIC = 10,  // NaN or Inf where a result is expected, or a wrong kernel
    COLIBRI_ERROR_INPUT = 11,    // token ids or text that the model cannot take
    COLIBRI_ERROR_STOPPED = 12,  // the callback asked to stop
};

typedef struct colibri_error {
    int code;          // enum colibri_code
    char message[500]; // one line: what happened, where, what to do next
} colibri_error;

typedef struct colibri_model colibri_model;

typedef struct colibri_load_options {
    const char *isa; // kernels to use, by name; NULL: the best that this CPU can run
    bool verify; // check all items at load, not only small ones: CRCs, and that values are finite
    bool lock; // mlock the file: it stays in memory, or loading fails; and take the cache's memory
               // for each turn before its first token
    const char *quantize; // "up:int8,down:int8": sections of floats to round to int8, in memory of
                          // their own; NULL: none
} colibri_load_options;

// Maps `model` (model.bin) and reads `config` (config.json). With `config` NULL, `model` is a
// directory that holds both. On success *out is to be given to colibri_free_model.
// `options` may be NULL. Returns 0 or a colibri_code, with *error filled.
// Without `verify` a thread of lowest priority checks the large sections while the model is in use;
// damage that it finds ends later calls with COLIBRI_ERROR_CORRUPT. Load after a fork, not before.
int colibri_load_model(colibri_model **out, const char *model, const char *config,
                       const colibri_load_options *options, colibri_error *error);
void colibri_free_model(colibri_model *model); // NULL is fine

// Optional, for the whole process: a model whose file becomes shorter while it is in use, or whose
// disk fails, ends the call with COLIBRI_ERROR_TRUNCATED instead of killing the process by SIGBUS.
// What concerns no model goes to the handler that was there before. Returns 0 or a colibri_code.
int colibri_guard_sigbus(colibri_error *error);

// Facts about a loaded model.
typedef struct colibri_info {
    const char *architecture; // "mixtral", "llama"
    const char *isa;          // kernels in use
    int32_t vocab_size;
    int32_t max_positions;
    int32_t n_layers;
    int32_t n_experts; // 0: dense
    int32_t top_k;
    int32_t bos_id; // -1: none
    bool has_tokenizer;
    bool has_chat;           // colibri_tokenize_turn knows how turns are written
    const int32_t *stop_ids; // (n_stop_ids) end an answer of a chat; the model's own
    int32_t n_stop_ids;
    bool quantised;     // some section is stored as integers
    uint64_t file_size; // bytes
} colibri_info;
void colibri_model_info(const colibri_model *model, colibri_info *info);

typedef enum colibri_kv {
    COLIBRI_KV_AUTO,
    COLIBRI_KV_F32,
    COLIBRI_KV_F16,
    COLIBRI_KV_Q8,
} colibri_kv;

// One row of logits, handed to the callback. Valid during the call only.
typedef struct colibri_step {
    const float *logits; // (vocab_size)
    int32_t vocab_size;
    int32_t position; // of the token that was fed last, from 0
    int32_t token;    // the token chosen from these logits, or -1: none is chosen here
    bool eos;         // that token is an end-of-sequence or stop token, and ends the turn
    bool prompt;      // before the last token of the prompt (see every_logit)
} colibri_step;

// Called for each row of logits. Anything but 0 ends the call, which then returns
// COLIBRI_ERROR_STOPPED.
typedef int (*colibri_step_fn)(void *user, const colibri_step *step);

// Where a layer sends one token. Valid during the call only.
typedef struct colibri_route {
    int32_t layer, position, token;
    int32_t n_experts;      // that were chosen: the model's top_k
    const int32_t *experts; // (n_experts) ascending
    const float *weights;   // (n_experts) of each
} colibri_route;

// Called for each token that is fed, in each layer that has experts: for each batch layer by layer,
// in each layer by position. Anything but 0 ends the call, as in colibri_step_fn.
typedef int (*colibri_route_fn)(void *user, const colibri_route *route);

// Called with one line about a result that is valid but suspicious, at most once in a call: the
// router of some layer sends 8 or more tokens, all of a batch, to one and the same expert.
typedef void (*colibri_warning_fn)(void *user, const char *message);

// Called when a turn has ended: at an end-of-sequence or stop token, or after n_tokens. What it
// sets *tokens to, *n_tokens of them, is fed next, behind all that was fed and generated but the
// token that ended the turn; then generating goes on. *n_tokens is 0 before: the call ends. The
// tokens stay the callback's, and are read until it is called again or colibri_infer returns.
// Anything but 0 ends the call, as in colibri_step_fn.
typedef int (*colibri_turn_fn)(void *user, const int32_t **tokens, size_t *n_tokens);

// Where the time of a call went. Each of its threads is in one operation at a time: the seconds of
// all operations are prefill_seconds or decode_seconds times the number of threads.
enum { COLIBRI_OPERATIONS = 11 };
typedef struct colibri_operation {
    double seconds;    // of all threads together
    uint64_t bytes;    // of weights and of the key/value cache that were read
    uint64_t products; // of a weight and a number, each added to a sum
} colibri_operation;
typedef struct colibri_profile {
    colibri_operation prefill[COLIBRI_OPERATIONS], decode[COLIBRI_OPERATIONS];
} colibri_profile;
extern const char *const colibri_operation_names[COLIBRI_OPERATIONS];

typedef struct colibri_infer_options {
    int32_t n_tokens;        // how many tokens to generate at most, in each turn
    bool ignore_eos;         // go on after an end-of-sequence or stop token
    const int32_t *stop_ids; // (n_stop_ids) end a turn, beside the model's end-of-sequence tokens
    int32_t n_stop_ids;      // 0: none
    bool every_logit;        // also report the logits of every prompt token (for perplexity)
    bool feed_last;          // feed the last generated token too and report its logits
    int32_t batch;           // prompt tokens per step; 0: 256
    int32_t threads;         // 0: 1
    bool pin;                // each thread to a CPU of its own, of those that the caller may use
    colibri_kv kv;           // type of the key/value cache
    float temperature; // of the choice of a token, up to 100; 0: greedy, the three below unused
    int32_t top_k;     // choose among so many tokens of largest logits; 0: all
    float top_p;       // and among the fewest whose probabilities reach this; 0 or 1: all
    uint64_t seed;     // the choice at a position depends on the seed, on every board alike
    colibri_route_fn on_route;     // NULL: none; `user` is that of colibri_infer
    colibri_warning_fn on_warning; // the same
    colibri_turn_fn on_turn;       // the same; without it there is one turn. With it the tokens of
                                   // all turns may fill the model's positions: then the call ends
                                   // with COLIBRI_ERROR_INPUT
    colibri_profile *profile;      // NULL: none is made
} colibri_infer_options;

typedef struct colibri_stats {
    int32_t prompt_tokens, generated_tokens;
    double prefill_seconds, decode_seconds;
    uint64_t kv_bytes; // address space of the key/value cache
    colibri_kv kv;     // the type that AUTO stood for
} colibri_stats;

// Feeds tokens[n_tokens] (n >= 1), then generates. `stats` may be NULL.
int colibri_infer(const colibri_model *model, const colibri_infer_options *options,
                  const int32_t *tokens, size_t n_tokens, colibri_step_fn on_step, void *user,
                  colibri_stats *stats, colibri_error *error);

// Text to ids, with the special tokens that the checkpoint's tokenizer adds (BOS). Special
// tokens inside the text are recognised. *ids is malloc'ed, free it with free().
int colibri_tokenize(const colibri_model *model, const char *text, size_t n_bytes, int32_t **ids,
                     size_t *n_ids, colibri_error *error);

// The ids of a user's turn as the model's chat form writes it, up to where the answer begins. The
// first turn begins with `system` (NULL: with what the form has instead, if anything); a later one,
// which follows an answer, does not look at it. Special tokens in `system` and `text`, both UTF-8,
// are plain text. *ids is malloc'ed.
int colibri_tokenize_turn(const colibri_model *model, bool first, const char *system,
                          const char *text, int32_t **ids, size_t *n_ids, colibri_error *error);

// The bytes of ids[n_ids] as the checkpoint's decoder joins them, special tokens left out.
// *text is malloc'ed, NUL-terminated UTF-8; what is no UTF-8 has become U+FFFD.
int colibri_detokenize(const colibri_model *model, const int32_t *ids, size_t n_ids, char **text,
                       size_t *n_bytes, colibri_error *error);

// The same, token by token: what push and end return, put together, is what colibri_detokenize
// returns for all ids, and each part is whole characters. After end another text may begin. *text
// is valid until the next call on the decoder; *n_bytes may be 0. The model must outlive it.
typedef struct colibri_decoder colibri_decoder;
int colibri_decoder_create(colibri_decoder **out, const colibri_model *model, colibri_error *error);
int colibri_decoder_push(colibri_decoder *decoder, int32_t id, const char **text, size_t *n_bytes,
                         colibri_error *error);
int colibri_decoder_end(colibri_decoder *decoder, const char **text, size_t *n_bytes,
                        colibri_error *error);
void colibri_decoder_free(colibri_decoder *decoder); // NULL is fine

const char *colibri_version(void);

#ifdef __cplusplus
}
#endif
#endif
