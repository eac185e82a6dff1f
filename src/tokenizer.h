// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The section `tokenizer` of model.bin, used in place: docs/FORMAT-tokenizer.md describes every
// field. Text to ids is encoder.c, ids to text decoder.c.
#ifndef CLB_TOKENIZER_H
#define CLB_TOKENIZER_H

#include "pretokenizer.h"

#define CLB_NO_ID 0xFFFFFFFFu
#define CLB_MARKER "\xE2\x96\x81" // U+2581, which stands for a space in SentencePiece's tokens

enum {
    CLB_MARKER_SIZE = 3,
    CLB_MAX_PROBES = 32,
    CLB_DECOMPOSITION_SIZE = 20, // bytes of a row
    CLB_COMPOSITION_SIZE = 12
};

// Chunks of the section, by their tag.
enum clb_chunk {
    CLB_INFO = 1,
    CLB_PIECE_ENDS = 2,
    CLB_PIECE_FLAGS = 3,
    CLB_PIECE_BYTES = 4,
    CLB_SLOTS = 5,
    CLB_BYTE_IDS = 6,
    CLB_MERGE_STARTS = 7,
    CLB_MERGES = 8,
    CLB_ADDED = 9,
    CLB_ADDED_BYTES = 10,
    CLB_PREFIX_IDS = 11,
    CLB_SUFFIX_IDS = 12,
    CLB_STEPS = 13,
    CLB_RANGES = 14,
    CLB_TRANSITIONS = 15,
    CLB_DECOMPOSITIONS = 16,
    CLB_COMPOSITIONS = 17,
    CLB_N_CHUNKS = 18
};
#define CLB_CHAT_CHUNK 0x80000001u // the tag of the chunk `chat`, which may be absent: chat.h

enum {                     // info.flags
    CLB_TEXT_BYTES = 1,    // symbols are bytes, not characters
    CLB_BYTE_FALLBACK = 2, // a character without an id becomes the ids of its bytes
    CLB_FUSE_UNK = 4,
    CLB_IGNORE_MERGES = 8, // a word that is a token as it stands is that token
    CLB_MARK_SPACES = 16,  // normalizer: spaces become markers
    CLB_PREPEND = 32,      // normalizer: a marker before every segment
    CLB_MARK_PIECES = 64,  // pre-tokenizer: spaces become markers
    CLB_NFC = 128,         // normalizer: Unicode's normal form C
    CLB_ALL_FLAGS = 255
};

enum { // info.lead: what the pre-tokenizer puts before a piece that does not begin with it
    CLB_LEAD_NONE = 0,
    CLB_LEAD_MARKER = 1, // a marker
    CLB_LEAD_FIRST = 2,  // a marker, at the start of the text only
    CLB_LEAD_SPACE = 3   // a space
};

enum {                       // info.decoder
    CLB_DECODE_BYTES = 1,    // the pieces are bytes; what is not UTF-8 becomes U+FFFD
    CLB_DECODE_MARKERS = 2,  // markers become spaces
    CLB_DECODE_FALLBACK = 4, // runs of byte tokens become the characters that they spell
    CLB_DECODE_STRIP = 8,    // one space at the start of the text is dropped
    CLB_DECODE_FIRST = 16,   // every marker of the first token is dropped
    CLB_DECODE_ALL = 31
};

enum {                     // piece flags
    CLB_PIECE_SPECIAL = 1, // left out when decoding
    CLB_PIECE_BYTE = 2,    // "<0xNN>"
    CLB_PIECE_ABSENT = 4,  // no token has this id
    CLB_PIECE_ALL = 7
};

enum { // values of `classes`
    CLB_CLASS_WORD = 1,
    CLB_CLASS_SPACE = 2
};

enum { // flags of added tokens
    CLB_ADDED_SPECIAL = 1,
    CLB_ADDED_LSTRIP = 2,
    CLB_ADDED_RSTRIP = 4,
    CLB_ADDED_SINGLE_WORD = 8,
    CLB_ADDED_NORMALIZED = 16, // looked for after the normalizer
    CLB_ADDED_ALL = 31
};

struct clb_tokenizer {
    const uint8_t *chunk[CLB_N_CHUNKS]; // by tag; in the blob
    uint32_t size[CLB_N_CHUNKS];        // bytes
    uint32_t vocab_size;                // of the model
    uint32_t n_ids, flags, unk_id, lead, decoder;
    uint32_t n_slots, n_added, n_steps;
    struct clb_split steps[CLB_MAX_STEPS];
    struct clb_ranges classes;   // what may stand beside added tokens
    struct clb_ranges combining; // Unicode's combining classes
    uint32_t n_added_raw;        // added[0, n_added_raw) are looked for in the text as given
    const uint8_t *chat;         // NULL: none
    uint32_t chat_size;          // bytes
};

// Checks the whole blob, which must outlive *t; whatever it holds, the functions below stay
// inside it. Nothing is allocated, so there is nothing to close.
int clb_tokenizer_open(struct clb_tokenizer *t, const uint8_t *blob, size_t size,
                       uint32_t vocab_size, colibri_error *error);

// Text to ids, with those that the checkpoint's post-processor adds. *ids is malloc'ed.
// COLIBRI_ERROR_INPUT: the text is no UTF-8, is longer than 256 MiB, or needs an id that the
// model lacks.
int clb_tokenizer_encode(const struct clb_tokenizer *t, const char *text, size_t n, int32_t **ids,
                         size_t *n_ids, colibri_error *error);

// What of a text is said, and not written by the form of a chat: there special tokens and marks are
// plain text. No added token is recognised that is partly in what is said.
struct clb_speech {
    size_t said[4];       // starts and ends of two parts of the text, in bytes
    const uint8_t *marks; // (n_marks) little-endian u32: ids
    uint32_t n_marks;
    bool later; // there is text before this one
};

// Text to ids as above, without those that the post-processor adds.
int clb_tokenizer_encode_speech(const struct clb_tokenizer *t, const struct clb_speech *speech,
                                const char *text, size_t n, int32_t **ids, size_t *n_ids,
                                colibri_error *error);

// Ids to text without special tokens: UTF-8, malloc'ed, NUL-terminated.
int clb_tokenizer_decode(const struct clb_tokenizer *t, const int32_t *ids, size_t n, char **text,
                         size_t *n_bytes, colibri_error *error);

// The same, token by token. What clb_stream_push and clb_stream_end return, put together, is
// what clb_tokenizer_decode returns for all ids; each part is whole characters. The bytes of a
// character that is not complete yet are held back, and so is a run of byte tokens until
// another token ends it: only then is it known whether it spells text. After the end another text
// may begin.
struct clb_stream {
    const struct clb_tokenizer *t;
    uint8_t *held; // bytes not yet decided on
    size_t n_held, held_size;
    char *out; // text of this push
    size_t n_out, out_size;
    bool any_token, any_text; // something was pushed, something was returned
};

void clb_stream_init(struct clb_stream *s, const struct clb_tokenizer *t);
// *text is valid until the next call on the stream; *n may be 0.
int clb_stream_push(struct clb_stream *s, int32_t id, const char **text, size_t *n,
                    colibri_error *error);
int clb_stream_end(struct clb_stream *s, const char **text, size_t *n, colibri_error *error);
void clb_stream_free(struct clb_stream *s);

// Makes room for `need` items of `item` bytes in the malloc'ed `p`, which has room for *size of
// them: doubles it. Returns the new address; NULL (and p stays) if there is no memory.
void *clb_reserve(void *p, size_t *size, size_t need, size_t item);

// The bytes of a token as the vocabulary has them, in the blob; id < t->n_ids.
const uint8_t *clb_tokenizer_piece(const struct clb_tokenizer *t, uint32_t id, uint32_t *n);

// The id of the model's token that is exactly p[n], or CLB_NO_ID.
uint32_t clb_tokenizer_find(const struct clb_tokenizer *t, const uint8_t *p, size_t n);

// What two neighbouring symbols merge into, or CLB_NO_ID. *rank: smaller ones come first.
uint32_t clb_tokenizer_merge(const struct clb_tokenizer *t, uint32_t left, uint32_t right,
                             uint32_t *rank);

#endif
