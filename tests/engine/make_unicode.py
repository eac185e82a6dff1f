# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the package's Unicode table:

    python tests/engine/make_unicode.py > colibri_deploy/unicode_table.py

All of it is asked of the `tokenizers` library itself, one code point at a time: its regular
expressions, its `Digits`, its added tokens and its NFC know several versions of Unicode, and ids
are compared with that library, not with a standard. Run it again when the library moves on.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models
from tokenizers.normalizers import NFC, NFD
from tokenizers.pre_tokenizers import Digits, Split

BATCH = 4096
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]

# One mark of each canonical combining class that the library knows (Unicode's UnicodeData.txt)
REPRESENTATIVES = {
    1: 0x334, 7: 0x93C, 8: 0x3099, 9: 0x94D, 10: 0x5B0, 11: 0x5B1, 12: 0x5B2,
    13: 0x5B3, 14: 0x5B4, 15: 0x5B5, 16: 0x5B6, 17: 0x5B7, 18: 0x5B8, 19: 0x5B9, 20: 0x5BB,
    21: 0x5BC, 22: 0x5BD, 23: 0x5BF, 24: 0x5C1, 25: 0x5C2, 26: 0xFB1E, 27: 0x64B, 28: 0x64C,
    29: 0x64D, 30: 0x618, 31: 0x619, 32: 0x61A, 33: 0x651, 34: 0x652, 35: 0x670, 36: 0x711,
    84: 0xC55, 91: 0xC56, 103: 0xE38, 107: 0xE48, 118: 0xEB8, 122: 0xEC8, 129: 0xF71, 130: 0xF72,
    132: 0xF74, 202: 0x321, 214: 0x1DCE, 216: 0x31B, 218: 0x302A, 220: 0x323, 222: 0x59A,
    224: 0x302E, 226: 0x1D16D, 228: 0x302B, 230: 0x300, 232: 0x315, 233: 0x35C, 234: 0x35D,
    240: 0x345,
}  # fmt: skip


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


def classes() -> list[str]:
    """The class of every code point; surrogates, which no text holds, are of the class C.

    A general category, or its first letter, or C for all that is none of these; W for white
    space; then _ for a word character that is neither letter nor mark, and 0 for a character that
    `Digits` takes for one and \\p{N} does not.
    """
    result = ["C"] * 0x110000
    for name in ("Lu", "Lt", "Ll", "Lm", "Lo", "M", "N", "P", "S"):
        for c in matched(rf"\p{{{name}}}"):
            assert result[c] == "C", (hex(c), name)
            result[c] = name
    spaces, words, numeric = matched(r"\s"), word_characters(), digits()
    for c in CODE_POINTS:
        kind = result[c]
        if c in spaces:
            assert kind == "C"
            assert c not in words
            result[c] = "W"
        elif kind[0] in "LM":
            assert c in words
        else:
            assert kind != "N" or c in numeric
            new = c in numeric and kind != "N"
            result[c] = kind + ("_" if c in words else "") + ("0" if new else "")
    return result


def decompositions() -> dict[int, str]:
    """The full canonical decompositions, without those of Hangul syllables."""
    found = {}
    for c in CODE_POINTS:
        if not 0xAC00 <= c < 0xAC00 + 11172:
            parts = NFD().normalize_str(chr(c))
            if parts != chr(c):
                found[c] = parts
    return found


def combining_classes() -> list[int]:
    """The canonical combining class of every code point, by what NFD puts in order."""
    order = NFD().normalize_str

    def goes_first(a: int, b: int) -> bool:
        """Whether the class of `b` is below that of `a`, and not 0."""
        return order("a" + chr(a) + chr(b)) != "a" + order(chr(a)) + order(chr(b))

    ranks = sorted(REPRESENTATIVES)
    assert all(
        goes_first(REPRESENTATIVES[high], REPRESENTATIVES[low])
        for i, high in enumerate(ranks)
        for low in ranks[:i]
    )
    result = [0] * 0x110000
    composed = decompositions()
    for c in CODE_POINTS:
        if c in composed:
            continue  # never left in a decomposed text
        if goes_first(0x345, c) or goes_first(c, 0x334) or c in REPRESENTATIVES.values():
            above = [rank for rank in ranks if goes_first(REPRESENTATIVES[rank], c)]
            result[c] = ranks[len(ranks) - len(above) - 1]
            assert not goes_first(c, REPRESENTATIVES[result[c]]), hex(c)
    return result


def runs(values: Sequence[object]) -> list[str]:
    """Each run of equal values: the value, and how many there are if more than one."""
    counted = [(value, len(list(run))) for value, run in groupby(values)]
    return [f"{value}:{count}" if count > 1 else f"{value}" for value, count in counted]


def spelled() -> list[str]:
    out = []
    following = -1
    for c, parts in decompositions().items():
        if c != following:
            out.append(f"@{c:X}")
        following = c + 1
        again = NFC().normalize_str(parts) == chr(c)
        out.append(("+" if again else "-").join(f"{ord(part):X}" for part in parts))
    return out


def assignment(name: str, words: Iterable[str]) -> str:
    return f'{name} = """\n{textwrap.fill(" ".join(words), 100)}\n"""\n'


def main() -> None:
    sys.stdout.write(
        "# SPDX-FileCopyrightText: 2026 The Colibri authors\n"
        "# SPDX-License-Identifier: Apache-2.0\n"
        f'"""Written by tests/engine/make_unicode.py from tokenizers {tokenizers.__version__}; '
        'unicode_sets.py reads it."""\n\n'
        "# Classes of characters, from U+0000 on: name:number of code points (1)\n"
        + assignment("CLASSES", runs(classes()))
        + "\n# Canonical combining classes, from U+0000 on: class:number of code points (1)\n"
        + assignment("COMBINING_CLASSES", runs(combining_classes()))
        + "\n# Full canonical decompositions of code points that follow each other from @ on; "
        "NFC\n# composes those with + again. Hangul syllables are left out.\n"
        + assignment("DECOMPOSITIONS", spelled())
    )


if __name__ == "__main__":
    main()
