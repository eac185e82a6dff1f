# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`--chat` and `--detokenize` of the program, with a real model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.golden_model import CHECKPOINT
from colibri_deploy.process import run

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model, with a chat template; it has 320 positions."""
    folder = tmp_path_factory.mktemp("chat")
    checkpoint = shutil.copytree(CHECKPOINT, folder / "checkpoint")
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    convert_checkpoint(checkpoint, folder / "model")
    return folder / "model"


Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture(scope="module")
def colibri(engine: Callable[[str], Path], chat_model: Path) -> Run:
    """`colibri(*words, stdin=b"")` runs the program with the model."""
    program = engine("host")

    def run_it(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        command: list[str | Path] = [program, "--model", chat_model, *words]
        return subprocess.run(command, input=stdin, capture_output=True, check=False)

    return run_it


def test_a_chat_of_lines(colibri: Run) -> None:
    words = ("--chat", "--num_tokens", "6", "--logits_hash", "--turn_end", "<END>", "--ignore_eos")
    done = colibri(*words, stdin=b"What art thou?\n\n \t\nAnd whence?")
    assert (done.returncode, done.stderr) == (0, b"")
    one, two, rest = done.stdout.decode().split("<END>")
    lines = colibri("--chat", "--tokenize", stdin=b"What art thou?\n\nAnd whence?\n").stdout
    first, second = lines.decode().split()
    options = ("--num_tokens", "6", "--format", "ids", "--ignore_eos")
    answer = colibri("--tokens", first, *options).stdout.decode().strip()
    whole = f"{first},{answer},{second}"
    assert one == colibri("--detokenize", "--tokens", answer).stdout.decode()
    more = ("--num_tokens", "6", "--ignore_eos")
    assert two == colibri("--tokens", whole, *more).stdout.decode()
    assert rest.startswith("logits_hash: clb1:")


def test_a_chat_that_fills_the_positions_ends_with_a_line(colibri: Run) -> None:
    error = (
        b"colibri: error: the conversation fills the 320 positions of the model; begin a new one\n"
    )
    words = ("--chat", "--ignore_eos", "--num_tokens")
    done = colibri(*words, "1000", "--prompt", "What art thou?")
    assert (done.returncode, done.stderr) == (11, error)
    assert len(done.stdout) > 300
    assert done.stdout.endswith(b"\n")
    done = colibri(*words, "250", stdin=b"Who?\n" + b"a b c d " * 30 + b"\n")
    assert (done.returncode, done.stderr) == (11, error)


def test_one_turn_with_a_system_text(colibri: Run) -> None:
    ids = colibri("--chat", "--system", "Be kind.", "--prompt", "Hail<|endoftext|>", "--tokenize")
    library = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    library.encode_special_tokens = True
    turns = ("[system] Be kind.", "[user] Hail<|endoftext|>", "[assistant]")
    system, user, answer = (library.encode(text).ids for text in turns)
    expected = [*system, 0, *user, 0, *answer]
    assert ids.stdout.decode().strip() == ",".join(map(str, expected))


def test_the_program_gives_every_text_back(colibri: Run, tmp_path: Path) -> None:
    file = tmp_path / "text"

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.text(min_size=1, max_size=60))
    def gives_back(text: str) -> None:
        file.write_bytes(text.encode())
        ids = colibri("--tokenize", "--prompt_file", str(file)).stdout
        back = colibri("--detokenize", stdin=ids)
        assert (back.returncode, back.stdout.decode()) == (0, f"{text}\n")
        assert colibri("--detokenize", "--tokens", ids.decode()).stdout == back.stdout

    gives_back()


def test_inspect_shows_the_form(chat_model: Path) -> None:
    command: list[str | Path] = [sys.executable, "-m", "colibri_deploy", "inspect", chat_model]
    record = json.loads(run([*command, "--json"]).stdout)["chat"]
    assert (record["plain"], record["end"]) == ("[user] ", "<|endoftext|>")
    assert (record["takes_system"], record["stops"], record["marks"]) == (True, [0], [])
    assert ' user_end       "<|endoftext|>"' in run(command).stdout


def test_ids_that_are_none_are_refused(colibri: Run) -> None:
    done = colibri("--detokenize", stdin=b"1 2\n3,x")
    assert (done.returncode, done.stdout) == (11, b"")
    assert done.stderr == b'colibri: error: "x" is no list of token ids like 1,2,3\n'
    assert colibri("--detokenize", "--tokens", "896").returncode == 11


@pytest.mark.parametrize("what", ["--chat", "--detokenize"])
def test_standard_input_that_cannot_be_read_is_an_error(
    what: str, engine: Callable[[str], Path], chat_model: Path
) -> None:
    command: list[str | Path] = [engine("host"), "--model", chat_model, what]
    done = run(["sh", "-c", 'exec "$@" < /', "sh", *command], check=False)
    assert (done.status, done.stdout) == (3, "")
    message = "standard input cannot be read: Is a directory"
    assert done.stderr == f"colibri: error: {message}\n"


def test_no_ids_are_no_text(colibri: Run) -> None:
    done = colibri("--detokenize", stdin=b" \n")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\n", b"")
