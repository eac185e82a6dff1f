# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that could make a text take for ever, or an error that could obey a terminal."""

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bad_inputs import SHAPE, TOKENIZER
from synthetic import write_checkpoint
from tokenizers import Tokenizer

from colibri_deploy.convert import convert_checkpoint

BLANKS = {" ": 3, "\t": 10, "\u3000": 11}


def blank_tokens() -> dict[str, Any]:
    """Blanks as added tokens: all but the tab take the blanks behind them along."""
    root = copy.deepcopy(TOKENIZER)
    for content, number in BLANKS.items():
        token: dict[str, Any] = dict.fromkeys(("single_word", "lstrip", "normalized"), False)
        token |= {"id": number, "content": content, "special": False, "rstrip": content != "\t"}
        root["added_tokens"].append(token)
    return root


@pytest.fixture(scope="module")
def tokenize(
    engine: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[int]]:
    """A function from a text to its ids, by the program."""
    directory = tmp_path_factory.mktemp("blanks")
    write_checkpoint(directory / "checkpoint", SHAPE)
    text = json.dumps(blank_tokens())
    (directory / "checkpoint" / "tokenizer.json").write_text(text, encoding="utf-8")
    convert_checkpoint(directory / "checkpoint", directory / "model", "f32")

    def ids(text: str) -> list[int]:
        (directory / "text").write_text(text, encoding="utf-8", newline="")
        named: list[str | Path] = [engine("x86_64"), "--model", directory / "model", "--tokenize"]
        command = [*named, "--prompt_file", directory / "text"]
        done = subprocess.run(command, capture_output=True, check=True, timeout=300)
        return [int(word) for word in done.stdout.split(b",")]

    return ids


@pytest.mark.parametrize(
    "text", ["a  b", " \t \u3000\t a", "\t\t  \t", "ab\u3000 \u3000 \t<end> ", " a \t  ab  \u3000"]
)
def test_blanks_that_are_tokens_give_the_ids_of_the_library(
    text: str, tokenize: Callable[[str], list[int]]
) -> None:
    library = Tokenizer.from_str(json.dumps(blank_tokens()))
    assert tokenize(text) == library.encode(text).ids


@pytest.mark.parametrize("blanks", [" ", " \t", "\u3000\t \t"])
def test_a_long_run_of_blanks_takes_linear_time(
    blanks: str, tokenize: Callable[[str], list[int]]
) -> None:
    """Quadratic time would be hours."""
    ids = tokenize(blanks * (1_000_000 // len(blanks)) + "a")
    assert len(ids) >= 1_000_000 // len(blanks)
    assert ids[-1] == 1
