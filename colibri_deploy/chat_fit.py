# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Fits a chat form to a checkpoint's chat template, which is a program in Jinja.

The template is rendered as transformers does (`utils/chat_template_utils.py`), in a sandbox, for
one conversation whose texts are easy to find again: what stands between them is the form. It is
taken only if it then gives, byte for byte, what the template gives for many other conversations.

A template may compute without end. So this happens in a process of its own, with limits.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from colibri_deploy.chat_form import MAX_BYTES, ChatForm, Conversation, Strings, Trims
from colibri_deploy.errors import ProcessError
from colibri_deploy.process import run
from colibri_deploy.tokenizer_section import ADDED_FLAGS

_MAX_TEMPLATE = 1 << 18  # characters
_MAX_TEXT = 1 << 20  # characters of a conversation
_MEMORY = 1 << 29  # bytes of addresses, beside those of Python itself
_CPU_SECONDS = 20
_WALL_SECONDS = 300.0  # where the machine is busy; a template cannot sleep
_TOO_MUCH = "it takes too long, or too much memory"
_DATE = "\ue000date\ue001"  # what a template gets for today
_DATE_LINE = re.compile(rf"[^\n]*{_DATE}[^\n]*\n?")

Added = Mapping[int, tuple[str, int]]  # text and flags of each added token


class NoFormError(Exception):
    """Why a template has no form."""


def fit_form(
    source: str, tokens: Mapping[str, str], added: Added, vocab_size: int
) -> tuple[ChatForm, tuple[str, ...]]:
    """The form of a template, and what the user should know of it.

    `tokens` are the texts of special tokens that it may ask for by name. Raises NoFormError, and
    ProcessError if the process that fits it fails by itself.
    """
    asked = {
        "cpu_seconds": _CPU_SECONDS,
        "source": source,
        "tokens": dict(tokens),
        "added": [[number, *one] for number, one in added.items()],
        "vocab_size": vocab_size,
    }
    try:
        with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:
            json.dump(asked, file)
            file.flush()
            done = run(
                [sys.executable, "-P", "-m", __name__, file.name],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                timeout_s=_WALL_SECONDS,
            )
    except ProcessError as error:
        if error.status is not None and error.status < 128:
            raise
        raise NoFormError(_TOO_MUCH) from error  # it was ended
    answer = json.loads(done.stdout)
    if "reason" in answer:
        raise NoFormError(answer["reason"])
    return ChatForm.from_bytes(bytes.fromhex(answer["form"])), tuple(answer["notes"])


def main() -> None:
    """The process itself."""
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="ascii"))
    _limit(resource.RLIMIT_CPU, asked["cpu_seconds"])
    n_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    _limit(resource.RLIMIT_AS, n_pages * resource.getpagesize() + _MEMORY)
    added = {number: (text, flags) for number, text, flags in asked["added"]}
    answer: dict[str, object]
    try:
        form, notes = _fit(asked["source"], asked["tokens"], added, asked["vocab_size"])
        answer = {"form": form.to_bytes().hex(), "notes": notes}
    except UnicodeEncodeError:
        answer = {"reason": "it writes what is no text"}
    except MemoryError:
        answer = {"reason": _TOO_MUCH}
    except NoFormError as error:
        answer = {"reason": str(error)}
    json.dump(answer, sys.stdout)


def _limit(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(what, (most, most))


def _fit(
    source: str, tokens: Mapping[str, str], added: Added, vocab_size: int
) -> tuple[ChatForm, tuple[str, ...]]:
    """As `fit_form`, without limits. Raises NoFormError, UnicodeEncodeError and MemoryError."""
    render = _Renderer(source, tokens, [text for text, _ in added.values() if text.strip()])
    strings = _plain_strings(render, added)
    form = _with_trims(render, ChatForm(strings, Trims(), takes_system=False))
    notes = []
    try:
        before, between, _ = _around(render(Conversation(["«u»"], [], "«s»"), True), "«s»", "«u»")
        strings = dataclasses.replace(strings, system=before, system_end=between)
        form = _with_trims(render, dataclasses.replace(form, strings=strings, takes_system=True))
    except NoFormError:
        notes.append("chat: the chat template has no place for a system text, or a changing one")
    if render.dropped:
        lines = ", ".join(sorted(repr(line) for line in render.dropped))
        notes.append(f"chat: lines with today's date are left out: {lines}")
    stops, marks = _ids(form.strings, added, vocab_size)
    form = dataclasses.replace(form, stops=stops, marks=marks)
    if len(form.to_bytes()) > MAX_BYTES:
        raise NoFormError(f"it is longer than {MAX_BYTES:,} bytes")
    return form, tuple(notes)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks answers for training; what is in it is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 # as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _to_json(value: object, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class _Renderer:
    """Renders conversations with a template; lines with today's date are left out."""

    def __init__(self, source: str, tokens: Mapping[str, str], added: list[str]) -> None:
        if len(source) > _MAX_TEMPLATE:
            raise NoFormError(f"it is longer than {_MAX_TEMPLATE:,} characters")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda _: _DATE
        self._render = _guarded(lambda: environment.from_string(source).render)
        self._tokens = tokens
        self._added = added
        self.dropped: set[str] = set()

    def __call__(self, said: Conversation, generate: bool) -> str:
        """What the template makes of a conversation. Raises NoFormError."""
        messages = [] if said.system is None else [{"role": "system", "content": said.system}]
        for index, user in enumerate(said.users):
            messages.append({"role": "user", "content": user})
            messages += [
                {"role": "assistant", "content": answer} for answer in said.answers[index:][:1]
            ]
        text = _guarded(
            lambda: self._render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=generate,
                **self._tokens,
            )
        )
        if len(text) > _MAX_TEXT:
            raise NoFormError(f"it writes more than {_MAX_TEXT:,} characters")
        return _DATE_LINE.sub(self._drop, text) if _DATE in text else str(text)

    def _drop(self, line: re.Match[str]) -> str:
        if any(token in line[0] for token in self._added):
            raise NoFormError("it writes today's date beside special tokens")
        self.dropped.add(line[0].replace(_DATE, "..."))
        return ""


def _guarded(action: Callable[[], Any]) -> Any:
    """Whatever a template does wrong is a reason to have no form."""
    try:
        return action()
    except (NoFormError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise NoFormError(f"it cannot be rendered ({reason:.100})") from error


def _around(text: str, *said: str) -> list[str]:
    """What stands before, between and after the texts that were said."""
    parts = re.split("|".join(map(re.escape, said)), text)
    if re.findall("|".join(map(re.escape, said)), text) != list(said):
        raise NoFormError("it does not write every text once, as it is")
    return parts


def _without(prefix: str, text: str, why: str) -> str:
    if not text.startswith(prefix):
        raise NoFormError(why)
    return text[len(prefix) :]


def _plain_strings(render: _Renderer, added: Added) -> Strings:
    """The strings of conversations without a system text."""
    one = Conversation(["«u»"], [])
    two = Conversation(["«u»", "«v»"], ["«a»"])
    plain, answer = _around(render(one, True), "«u»")
    user_end = _around(render(one, False), "«u»")[1]
    generation = _without(user_end, answer, "it begins an answer otherwise than after a text")
    _, past, between, _ = _around(render(two, True), "«u»", "«a»", "«v»")
    lead = _without(answer, past, "it writes past answers otherwise than it begins new ones")
    ends = [at for at, _ in _find_added(between, added)]
    tail, rest = between[: ends[0]] if ends else "", between[ends[0] if ends else 0 :]
    # An answer that is the last one may be marked otherwise; then its end is one token.
    last = _around(render(Conversation(["«u»"], ["«a»"]), False), "«u»", "«a»")[2]
    end = last.removeprefix(tail)
    if not end or not rest.startswith(end):
        end = next((token for _, token in _find_added(rest, added)), "")
    return Strings(
        plain=plain,
        system="",
        system_end="",
        user_end=user_end,
        generation=generation,
        lead=lead,
        tail=tail,
        end=end,
        user=rest[len(end) :],
    )


_PAD = "\u3000 \n\t"
_SAID = ("Hi.", "What is 2+2?\nAnd 3 + 3?\n\nAnd", "{{ x }} {% if y %} 'a' \"b\" \\n", "é 世界 <b>")


def _probes(system: bool) -> Iterator[tuple[Conversation, bool]]:
    """Conversations of 1 to 4 turns, and whether an answer is to begin.

    Those that end with an answer are what a model is trained with, and no prompts: they are not
    among them.
    """
    for pad, turns, generate in itertools.product(("", _PAD), range(1, 5), (True, False)):
        users = [f"{pad}{text}{pad}" for text in _SAID[:turns]]
        answers = [f"{pad}{text} 1{pad}" for text in _SAID[1:turns]]
        for told in ("Be brief.\nBe kind.", f"{_PAD}Be brief.{_PAD}") if system else (None,):
            yield Conversation(users, answers, told), generate


def _with_trims(render: _Renderer, form: ChatForm) -> ChatForm:
    """The form with those trims that reproduce every probe. Raises NoFormError."""
    probes = [
        (said, generate, render(said, generate)) for said, generate in _probes(form.takes_system)
    ]
    system = range(4) if form.takes_system else (0,)
    for values in itertools.product(system, range(4), system, range(4)):
        found = dataclasses.replace(form, trims=Trims(*values))
        if all(found.render(said, generate) == text for said, generate, text in probes):
            return found
    raise NoFormError("what it writes around a text is not the same in every conversation")


def _find_added(text: str, added: Added) -> Iterator[tuple[int, str]]:
    """The added tokens in a string, and where they stand; the longest where several do."""
    texts = sorted({one for one, _ in added.values() if one.strip()}, key=len, reverse=True)
    if texts:
        for match in re.finditer("|".join(map(re.escape, texts)), text):
            yield match.start(), match[0]


def _ids(strings: Strings, added: Added, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """The stops and the marks of a form."""
    numbers = {text: number for number, (text, _) in added.items()}
    used = {token for text in dataclasses.astuple(strings) for _, token in _find_added(text, added)}
    for token in sorted(used):
        if numbers[token] >= vocab_size:
            raise NoFormError(f"it writes {token!r}, which the model does not know")
    special = ADDED_FLAGS["special"]
    marks = (numbers[token] for token in used if not added[numbers[token]][1] & special)
    # Where a past answer begins with a token, it is one of several messages of the model, and what
    # ends it ends a message.
    stops = [numbers[token] for at, token in _find_added(strings.end, added) if at == 0]
    if any(_find_added(strings.lead, added)):
        stops = []
    return tuple(stops), tuple(sorted(marks))


if __name__ == "__main__":
    main()
