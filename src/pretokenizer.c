// SPDX-FileCopyrightText: 2026 The Colibri authors
// SPDX-License-Identifier: Apache-2.0
//
// The regular expressions of the tokenizers, written out: each function returns where the match
// that begins at `i` ends. A run of characters is looked at a fixed number of times, so that no
// text takes longer than linear time.
#include "pretokenizer.h"

#include "tokenizer.h"
#include "unicode.h"

// Sets of classes
enum {
    LETTERS = 1 << CLB_LETTER,
    NUMBERS = 1 << CLB_NUMBER | 1 << CLB_FIGURE,
    SPACES = 1 << CLB_SPACE,
    DIGITS = NUMBERS | 1 << CLB_NEW_DIGIT,
    OTHERS = 1 << CLB_OTHER | 1 << CLB_MARK | 1 << CLB_NEW_DIGIT, // [^\s\p{L}\p{N}]
};

// Is the character at `i` in `set`? *next is where the one after it starts. False at the end.
static bool is(const uint8_t *p, size_t i, size_t n, unsigned set, size_t *next)
{
    uint32_t cp;
    int length = clb_utf8_next(p + i, n - i, &cp);
    if (length <= 0)
        return false;
    *next = i + (size_t)length;
    return 1u << clb_unicode_class(cp) & set;
}

// The end of the run of at most `most` characters of `set` at `i`
static size_t run(const uint8_t *p, size_t i, size_t n, unsigned set, size_t most)
{
    for (size_t next; most && is(p, i, n, set, &next); most--)
        i = next;
    return i;
}

// '(s|t|re|ve|m|ll|d); without case also the long s, which folds to s
static size_t contraction(const uint8_t *p, size_t i, size_t n, bool any_case)
{
    uint8_t fold = any_case ? 0x20 : 0;
    if (n - i < 2 || p[i] != '\'')
        return i;
    uint8_t a = p[i + 1] | fold;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return i + 2;
    if (n - i < 3)
        return i;
    uint8_t b = p[i + 2] | fold;
    if (((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l') ||
        (any_case && p[i + 1] == 0xC5 && p[i + 2] == 0xBF))
        return i + 3;
    return i;
}

// \s+(?!\S)|\s+ : a run leaves its last character to the word that follows.
// With `lines`, before that: \s*[\r\n]+ : up to the last line break of the run.
static size_t spaces(const uint8_t *p, size_t i, size_t n, bool lines)
{
    size_t end = i, last = i, line = i;
    for (size_t next; is(p, end, n, SPACES, &next); end = next) {
        last = end;
        if (p[end] == '\r' || p[end] == '\n')
            line = next;
    }
    if (lines && line > i)
        return line;
    return end == n || last == i ? end : last;
}

// '(s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
static size_t gpt2(const uint8_t *p, size_t i, size_t n)
{
    size_t end = contraction(p, i, n, false), next;
    if (end > i)
        return end;
    size_t start = p[i] == ' ' ? i + 1 : i;
    static const unsigned sets[] = {LETTERS, NUMBERS, OTHERS};
    for (int k = 0; k < 3; k++)
        if (is(p, start, n, sets[k], &next))
            return run(p, next, n, sets[k], SIZE_MAX);
    return spaces(p, i, n, false);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
// | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
static size_t llama3(const uint8_t *p, size_t i, size_t n)
{
    size_t end = contraction(p, i, n, true), next = i;
    if (end > i)
        return end;
    if (is(p, i, n, LETTERS, &next))
        return run(p, next, n, LETTERS, SIZE_MAX);
    if (is(p, i, n, NUMBERS, &next))
        return run(p, next, n, NUMBERS, 2);
    if (p[i] != '\r' && p[i] != '\n' && is(p, next, n, LETTERS, &end))
        return run(p, end, n, LETTERS, SIZE_MAX);
    if (is(p, p[i] == ' ' ? i + 1 : i, n, OTHERS, &next)) {
        end = run(p, next, n, OTHERS, SIZE_MAX);
        while (end < n && (p[end] == '\r' || p[end] == '\n'))
            end++;
        return end;
    }
    return spaces(p, i, n, true);
}

static size_t before_marker(const uint8_t *p, size_t i, size_t n)
{
    for (i++; n - i >= CLB_MARKER_SIZE; i++)
        if (memcmp(p + i, CLB_MARKER, CLB_MARKER_SIZE) == 0)
            return i;
    return n;
}

static size_t digits(const uint8_t *p, size_t i, size_t n, size_t most)
{
    size_t end = run(p, i, n, DIGITS, most);
    return end > i ? end : run(p, i, n, ~(unsigned)DIGITS, SIZE_MAX);
}

static size_t step_end(uint32_t step, const uint8_t *p, size_t i, size_t n)
{
    switch (step) {
    case CLB_STEP_MARKER:
        return before_marker(p, i, n);
    case CLB_STEP_GPT2:
        return gpt2(p, i, n);
    case CLB_STEP_LLAMA3:
        return llama3(p, i, n);
    case CLB_STEP_DIGIT:
        return digits(p, i, n, 1);
    case CLB_STEP_DIGIT_RUNS:
        return digits(p, i, n, SIZE_MAX);
    default:
        return n;
    }
}

bool clb_pretokenizer_known(uint32_t step)
{
    return step >= CLB_STEP_MARKER && step <= CLB_STEP_DIGIT_RUNS;
}

int clb_pretokenize(const uint8_t *steps, uint32_t n_steps, const uint8_t *p, size_t n,
                    clb_word_fn word, void *user)
{
    if (!n_steps)
        return n ? word(user, p, n) : 0;
    for (size_t i = 0; i < n;) {
        size_t end = step_end(clb_u32(steps), p, i, n);
        // As deep as there are steps: at most CLB_MAX_STEPS
        int rc = clb_pretokenize(steps + 4, n_steps - 1, p + i, end - i, word, user);
        if (rc)
            return rc;
        i = end;
    }
    return 0;
}
