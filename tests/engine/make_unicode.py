# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Writes src/unicode_table.h: `python tests/engine/make_unicode.py > src/unicode_table.h`.

The classes are those of the `tokenizers` library itself, asked one code point at a time: its
regular expressions, its `Digits` and its added tokens know three versions of Unicode, and ids
are compared with that library, not with a standard. Run it again when the library moves on.
"""

from __future__ import annotations

import sys
import textwrap
from itertools import pairwise

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models
from tokenizers.pre_tokenizers import Digits, Split

# The names and values of enum clb_class in src/unicode.h.
OTHER, LETTER, MARK, NUMBER, FIGURE, SPACE, NEW_DIGIT = range(7)
N_CODE_POINTS = 0x110000
RUNS_PER_BLOCK = 64
BATCH = 4096

CODE_POINTS = [c for c in range(N_CODE_POINTS) if not 0xD800 <= c < 0xE000]


def batches() -> list[list[int]]:
    return [CODE_POINTS[i : i + BATCH] for i in range(0, len(CODE_POINTS), BATCH)]


def matched(regex: str) -> set[int]:
    """Code points that the regular expression of a `Split` matches."""
    split = Split(Regex(regex), "removed", invert=True)
    return {
        ord(char)
        for batch in batches()
        for piece, _ in split.pre_tokenize_str("".join(map(chr, batch)))
        for char in piece
    }


def digits() -> set[int]:
    """Code points that `Digits` cuts out."""
    split = Digits(individual_digits=True)
    found = set()
    for batch in batches():
        for piece, _ in split.pre_tokenize_str("".join(chr(c) + "ab" for c in batch)):
            if len(piece) == 1:
                found.add(ord(piece))
    return found


def word_characters() -> set[int]:
    """Code points before which a `single_word` added token does not match."""
    tokenizer = Tokenizer(models.BPE(vocab={"x": 0}, merges=[], unk_token="x"))
    tokenizer.add_tokens([AddedToken("@@", single_word=True, normalized=False)])
    token = tokenizer.token_to_id("@@")
    found: set[int] = set()
    for batch in batches():
        encodings = tokenizer.encode_batch(["@@" + chr(c) for c in batch])
        found |= {c for c, e in zip(batch, encodings, strict=True) if token not in e.ids}
    return found


def classes() -> list[int]:
    """The class of every code point; surrogates, which no text holds, are OTHER."""
    letters, numbers, spaces = matched(r"\p{L}"), matched(r"\p{N}"), matched(r"\s")
    numeric, words = digits(), word_characters()
    assert letters <= words
    assert numbers <= numeric
    assert not spaces & words
    assert not (numeric - numbers) & words
    result = [OTHER] * N_CODE_POINTS
    for members, value in (
        (words, MARK),
        (numeric, NEW_DIGIT),
        (numbers, FIGURE),
        (numbers & words, NUMBER),
        (letters, LETTER),
        (spaces, SPACE),
    ):
        for c in members:
            result[c] = value
    return result


def runs(values: list[int]) -> list[tuple[int, int, int]]:
    """(first code point, length, class) of each run of equal values."""
    changes = [c for c in range(1, len(values)) if values[c] != values[c - 1]]
    return [(a, b - a, values[a]) for a, b in pairwise([0, *changes, len(values)])]


def encode_run(length: int, value: int) -> bytes:
    rest = (length - 1) >> 4
    out = [value | ((length - 1) & 15) << 3 | (0x80 if rest else 0)]
    while rest:
        out.append(rest & 0x7F | (0x80 if rest >> 7 else 0))
        rest >>= 7
    return bytes(out)


def lines(numbers: list[int], form: str) -> str:
    text = " ".join(form.format(n) + "," for n in numbers)
    return textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    ")


def main() -> None:
    data = bytearray()
    starts, offsets = [], []
    for index, (first, length, value) in enumerate(runs(classes())):
        if index % RUNS_PER_BLOCK == 0:
            starts.append(first)
            offsets.append(len(data))
        data += encode_run(length, value)
    sys.stdout.write(
        "// SPDX-FileCopyrightText: 2026 The Colibri authors\n"
        "// SPDX-License-Identifier: Apache-2.0\n"
        "//\n"
        f"// Written by tests/engine/make_unicode.py from tokenizers {tokenizers.__version__}."
        " Do not edit.\n"
        "// clang-format off\n"
        "#include <stdint.h>\n\n"
        "// First code point and first byte of every "
        f"{RUNS_PER_BLOCK}th run.\n"
        f"static const uint32_t clb_unicode_starts[] = {{\n{lines(starts, '0x{:05X}')}\n}};\n"
        f"static const uint16_t clb_unicode_offsets[] = {{\n{lines(offsets, '{}')}\n}};\n\n"
        "// Runs of code points of one class; unicode.c reads them.\n"
        f"static const uint8_t clb_unicode_runs[] = {{\n{lines(list(data), '{}')}\n}};\n"
    )


if __name__ == "__main__":
    main()
