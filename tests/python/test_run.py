# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`run` and `chat`: text comes from the board as it is generated; Ctrl-C ends the engine there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from board_fixtures import Place
from loopback import wait_until
from ssh_servers import NewKey, Server
from tokenizers import Tokenizer

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.golden_model import CHECKPOINT, convert_golden_model, load_goldens
from colibri_deploy.process import Completed, run
from colibri_deploy.run import RunOptions

Deploy = Callable[..., Completed]

PROMPT = "A wise man"
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
(TEXT,) = (str(golden.text) for golden in load_goldens() if golden.prompt.value == PROMPT)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model."""
    directory = tmp_path_factory.mktemp("golden") / "model"
    convert_golden_model(directory)
    return directory


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model, with ChatML's marks instead of its last two tokens, and more positions."""
    folder = tmp_path_factory.mktemp("chat")
    checkpoint = shutil.copytree(CHECKPOINT, folder / "checkpoint")
    path = checkpoint / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    bpe, added = tokenizer["model"], tokenizer["added_tokens"]
    bpe["vocab"] = {token: number for token, number in bpe["vocab"].items() if number < 894}
    del bpe["merges"][-2:]
    for number, mark in ((894, "<|im_start|>"), (895, "<|im_end|>")):
        added.append({**added[0], "id": number, "content": mark})
    path.write_text(json.dumps(tokenizer))
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    config = json.loads((checkpoint / "config.json").read_text())
    config["max_position_embeddings"] = 100_000
    (checkpoint / "config.json").write_text(json.dumps(config))
    convert_checkpoint(checkpoint, folder / "model")
    return folder / "model"


def test_a_prompt_is_continued_with_the_model_that_is_pushed_first(
    sim: Callable[..., Place], deploy: Deploy, model: Path
) -> None:
    place = sim()
    first = deploy("run", *place.arguments, "--model", model, PROMPT)
    assert (first.status, first.stdout, first.stderr) == (0, f"{TEXT}\n", "")
    again = deploy("run", *place.arguments, "--num-tokens", "32", "--threads", "1", PROMPT)
    assert (again.status, again.stdout, again.stderr) == (0, f"{TEXT}\n", "")


def test_only_what_is_given_is_given_to_the_engine() -> None:
    assert RunOptions().arguments() == ()
    options = RunOptions(n_tokens=7, threads=2, kv="q8")
    assert options.arguments() == ("--num_tokens", "7", "--threads", "2", "--kv", "q8")


def test_the_engines_status_is_told_and_is_not_ours(
    sim: Callable[..., Place], deploy: Deploy, model: Path
) -> None:
    place = sim()
    done = deploy("run", *place.arguments, "--model", model, "")
    assert (done.status, done.stdout) == (48, "")
    said, error = done.stderr.splitlines()
    assert said.startswith("colibri: error: the prompt has no tokens")
    assert error.endswith(" ends with status 11")
    assert error.startswith("error: the engine on colibri@127.0.0.1:")


def test_a_board_without_a_model_is_told_to_get_one(
    sim: Callable[..., Place], deploy: Deploy
) -> None:
    place = sim()
    assert deploy("push", *place.arguments).status == 0
    done = deploy("run", *place.arguments, PROMPT)
    assert done.status == 42
    assert done.stderr.endswith(" has no model: push one with --model DIR\n")


@pytest.fixture
def client(build_dir: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`client(verb, *words)` starts colibri-deploy."""
    with ExitStack() as stack:

        def start(verb: str, *words: str | Path) -> subprocess.Popen[str]:
            child = subprocess.Popen(
                [sys.executable, "-m", "colibri_deploy", verb, "--build-dir", build_dir, *words],
                cwd=tmp_path,
                env={**os.environ, "HOME": str(tmp_path), "SSH_AUTH_SOCK": ""},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(child)
            stack.callback(child.kill)
            return child

        yield start


def engines_of(place: Place) -> list[str]:
    """Command lines of what runs from a board's directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_text(errors="replace")
        except OSError:
            continue  # it has ended
        if f"{place.root}/current/colibri\0" in line:
            found.append(line)
    return found


@pytest.fixture
def place_of(
    sim: Callable[..., Place],
    ssh_server: Callable[..., Server],
    new_key: NewKey,
    tmp_path: Path,
) -> Callable[[str], Place]:
    """`place_of(kind)` is a board: "sim", "openssh" or "dropbear"."""

    def start(kind: str) -> Place:
        if kind == "sim":
            return sim()
        server, key = ssh_server(kind), new_key("key")
        server.lets_in(key)
        known = tmp_path / "known_hosts"
        known.write_text(server.known_hosts_line)
        words = ("--host", f"{server.user}@127.0.0.1:{server.port}", "--target", "host")
        more = ("--key", str(key), "--known-hosts", str(known))
        return Place((*words, *more), server.home / ".local/share/colibri")

    return start


@pytest.mark.parametrize(
    ("verb", "kind"),
    [("run", "sim"), ("run", "openssh"), ("run", "dropbear"), ("chat", "openssh")],
)
def test_text_streams_and_ctrl_c_ends_the_engine_on_the_board(
    verb: str,
    kind: str,
    place_of: Callable[[str], Place],
    deploy: Deploy,
    client: Callable[..., subprocess.Popen[str]],
    chat_model: Path,
) -> None:
    place = place_of(kind)
    done = deploy("push", *place.arguments, "--model", chat_model)
    assert done.status == 0, done.stderr
    words = [PROMPT] if verb == "run" else []
    child = client(verb, *place.arguments, "--num-tokens", "90000", *words)
    assert child.stdin is not None
    assert child.stdout is not None
    if verb == "chat":
        child.stdin.write("Bring me water.\n")
        child.stdin.flush()
        assert len(child.stdout.read(20)) == 20
    else:
        assert child.stdout.read(len(TEXT)) == TEXT
    assert len(engines_of(place)) == 1
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=100)
    assert child.returncode == 130
    assert said.startswith("error: stopped, and so is the engine on ")
    wait_until(lambda: not engines_of(place), "the engine goes on", seconds=40)


def test_a_reader_that_has_enough_ends_the_engine_in_silence(
    sim: Callable[..., Place],
    client: Callable[..., subprocess.Popen[str]],
    chat_model: Path,
) -> None:
    words = ("--model", chat_model, "--num-tokens", "90000")
    child = client("run", *sim().arguments, *words, PROMPT)
    assert child.stdout is not None
    child.stdout.read(5)
    child.stdout.close()
    assert child.stderr is not None
    assert (child.wait(timeout=100), child.stderr.read()) == (1, "")


def test_a_chat_is_one_conversation_of_the_board_s_engine(
    sim: Callable[..., Place],
    client: Callable[..., subprocess.Popen[str]],
    chat_model: Path,
    engine: Callable[[str], Path],
) -> None:
    words = ("--model", chat_model, "--num-tokens", "9", "--system", "Be brief.")
    child = client("chat", *sim().arguments, *words)
    answers, said = child.communicate("Bring me water.\n\nWho art thou?\n", timeout=200)
    assert (child.returncode, said) == (0, "")

    library = Tokenizer.from_file(str(chat_model.parent / "checkpoint" / "tokenizer.json"))
    begin = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
    ids, expected = [], []
    for text in (
        f"{begin}Bring me water.<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|>\n<|im_start|>user\nWho art thou?<|im_end|>\n<|im_start|>assistant\n",
    ):
        ids += library.encode(text, add_special_tokens=False).ids
        tokens = ",".join(map(str, ids))
        options = ("--num_tokens", "9", "--format", "ids")
        done = run([engine("host"), "--model", chat_model, "--tokens", tokens, *options])
        answer = [int(number) for number in done.stdout.split(",")]
        ids += answer
        expected.append(f"{library.decode(answer, skip_special_tokens=True)}\n")
    assert answers == "".join(expected)
    assert len({*expected}) == 2


def test_a_chat_with_a_model_that_has_no_chat_form_is_refused(
    sim: Callable[..., Place], deploy: Deploy, model: Path
) -> None:
    done = deploy("chat", *sim().arguments, "--model", model)
    assert (done.status, done.stdout) == (11, "")
    assert "error: no chat with colibri@127.0.0.1:" in done.stderr
    assert done.stderr.endswith(
        ": the model has no chat form; give it a text to continue, or convert it again with a chat "
        "template that has one (`colibri-deploy run`, `colibri-deploy convert`)\n"
    )


def test_a_text_that_is_too_long_for_an_argument_is_refused(
    sim: Callable[..., Place], deploy: Deploy, model: Path
) -> None:
    place = sim()
    assert deploy("push", *place.arguments, "--model", model).status == 0
    text = "é" * 60_000 + "x"
    for words, what in ((("run", text), "prompt"), (("chat", "--system", text), "system text")):
        done = deploy(*words, *place.arguments)
        assert (done.status, done.stdout) == (11, "")
        assert done.stderr == f"error: the {what} is longer than 120,000 bytes\n"
