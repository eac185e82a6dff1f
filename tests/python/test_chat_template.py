# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Chat templates as compact forms.

The templates are written here in the syntax that their families use; what they give is compared
with literals in the families' published prompt formats.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel

from colibri_deploy import chat_fit
from colibri_deploy.chat_form import ChatForm, Conversation, Strings, Trims, get_form, put_form
from colibri_deploy.chat_template import ChatTemplate, add_chat_form, hub_template
from colibri_deploy.errors import ConversionError, ModelFormatError
from colibri_deploy.tokenizer import build_tokenizer_section
from colibri_deploy.tokenizer_section import CHAT, pack, unpack

SPECIAL = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>", "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<|start|>", "<|message|>", "<|end|>",
    "<|channel|>", "<|return|>",
)  # fmt: skip
VOCAB = 256 + len(SPECIAL)
FIRST = 256  # the id of the first of them


@pytest.fixture(scope="module")
def section(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A tokenizer of bytes and of special tokens; <|im_start|> is none, as in some checkpoints."""
    directory = tmp_path_factory.mktemp("tokenizer")
    vocab = {char: number for number, char in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    root: dict[str, Any] = json.loads(tokenizer.to_str())
    parts = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    root["pre_tokenizer"] = root["decoder"] = {**parts, "use_regex": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    root["added_tokens"] = [
        {"id": FIRST + n, "content": text, "special": text != "<|im_start|>", **flags}
        for n, text in enumerate(SPECIAL)
    ]
    (directory / "tokenizer.json").write_text(json.dumps(root))
    built = build_tokenizer_section(directory)
    assert built is not None
    return built


def number(token: str) -> int:
    return FIRST + SPECIAL.index(token)


# In each: `m` is the message of the turn, `sys` a system text that came first.
CHATML = (
    "{%- for m in messages -%}"
    "{{ '<|im_start|>' ~ m['role'] ~ '\\n' ~ m['content'] ~ '<|im_end|>\\n' }}"
    "{%- endfor -%}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
QWEN2 = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA2 = (
    "{% set rest = messages %}{% set sys = none %}{% if messages[0]['role'] == 'system' %}"
    "{% set sys = messages[0]['content'] %}{% set rest = messages[1:] %}{% endif %}"
    "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set text = m['content'] %}{% if loop.first and sys is not none %}"
    "{% set text = '<<SYS>>\\n' + sys + '\\n<</SYS>>\\n\\n' + text %}{% endif %}"
    "{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + text.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{% for m in messages %}{% set text = '<|start_header_id|>' + m['role'] + '<|end_header_id|>"
    "\\n\\n' + m['content'] | trim + '<|eot_id|>' %}"
    "{{ (bos_token if loop.first else '') + text }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
LLAMA31 = (
    "{{ bos_token }}{% set sys = '' %}{% if messages[0].role == 'system' %}"
    "{% set sys = messages[0].content %}{% set messages = messages[1:] %}{% endif %}"
    "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    "Today Date: {{ strftime_now('%d %b %Y') }}\n\n{{ sys }}<|eot_id|>{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}{% else %}"
    "{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
ZEPHYR = (
    "{% for m in messages %}\n{{ '<|' + m.role + '|>\\n' + m.content + eos_token }}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
DEEPSEEK2 = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ 'User: ' + m.content + '\\n\\n' }}{% elif m.role == 'assistant' %}"
    "{{ 'Assistant: ' + m.content + eos_token }}{% else %}{{ m.content + '\\n\\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
DEEPSEEK3 = (
    "{% set ns = namespace(sys='') %}{% for m in messages if m.role == 'system' %}"
    "{% set ns.sys = ns.sys + m.content %}{% endfor %}{{ bos_token }}{{ ns.sys }}"
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}"
    "{% elif m.role == 'assistant' %}{{ '<｜Assistant｜>' + m.content + eos_token }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|>You are ChatGPT.\nKnowledge cutoff: 2024-06\n"
    "Current date: {{ strftime_now('%Y-%m-%d') }}\n\nReasoning: medium<|end|>"
    "{% for m in messages %}{% if m.role == 'system' %}"
    "<|start|>developer<|message|># Instructions\n\n{{ m.content }}<|end|>"
    "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% else %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
S = {"bos_token": "<s>", "eos_token": "</s>"}
L3 = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
D = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}

# A template, its tokens, what ends an answer; the text of a conversation u, a, v, with and (None:
# refused) without the system text s, up to where the second answer begins.
FAMILIES: dict[str, tuple[str, dict[str, str], list[str], str, str | None]] = {
    "ChatML": (
        CHATML, {}, ["<|im_end|>"],
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"
        "<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na"
        "<|im_end|>\n<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n",
    ),
    "Qwen2": (
        QWEN2, {}, ["<|im_end|>"],
        "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
        "<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nv<|im_end|>\n"
        "<|im_start|>assistant\n",
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na"
        "<|im_end|>\n<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n",
    ),
    "Llama-2": (
        LLAMA2, S, ["</s>"],
        "<s>[INST] u [/INST] a </s><s>[INST] v [/INST]",
        "<s>[INST] <<SYS>>\ns\n<</SYS>>\n\nu [/INST] a </s><s>[INST] v [/INST]",
    ),
    "Llama-3": (
        LLAMA3, L3, ["<|eot_id|>"],
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nu<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\na<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nv<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\ns<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nu<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\na<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nv<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "Llama-3.1, without the date": (
        LLAMA31, L3, ["<|eot_id|>"],
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
        "December 2023\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nu<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\na<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nv<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
        "December 2023\n\ns<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nu<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\na<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nv<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "Mistral": (MISTRAL, S, ["</s>"], "<s>[INST] u [/INST]a</s>[INST] v [/INST]", None),
    "Zephyr": (
        ZEPHYR, S, ["</s>"],
        "<|user|>\nu</s>\n<|assistant|>\na</s>\n<|user|>\nv</s>\n<|assistant|>\n",
        "<|system|>\ns</s>\n<|user|>\nu</s>\n<|assistant|>\na</s>\n<|user|>\nv</s>\n"
        "<|assistant|>\n",
    ),
    "DeepSeek-V2": (
        DEEPSEEK2, D, ["<｜end▁of▁sentence｜>"],
        "<｜begin▁of▁sentence｜>User: u\n\nAssistant: a<｜end▁of▁sentence｜>User: v\n\nAssistant:",
        "<｜begin▁of▁sentence｜>s\n\nUser: u\n\nAssistant: a<｜end▁of▁sentence｜>User: v\n\n"
        "Assistant:",
    ),
    "DeepSeek-V3": (
        DEEPSEEK3, D, ["<｜end▁of▁sentence｜>"],
        "<｜begin▁of▁sentence｜><｜User｜>u<｜Assistant｜>a<｜end▁of▁sentence｜><｜User｜>v<｜Assistant｜>",
        "<｜begin▁of▁sentence｜>s<｜User｜>u<｜Assistant｜>a<｜end▁of▁sentence｜><｜User｜>v"
        "<｜Assistant｜>",
    ),
    "GPT-OSS, without the date": (
        HARMONY, {}, [],
        "<|start|>system<|message|>You are ChatGPT.\nKnowledge cutoff: 2024-06\n\n"
        "Reasoning: medium<|end|><|start|>user<|message|>u<|end|>"
        "<|start|>assistant<|channel|>final<|message|>a<|end|><|start|>user<|message|>v<|end|>"
        "<|start|>assistant",
        "<|start|>system<|message|>You are ChatGPT.\nKnowledge cutoff: 2024-06\n\n"
        "Reasoning: medium<|end|><|start|>developer<|message|># Instructions\n\ns<|end|>"
        "<|start|>user<|message|>u<|end|><|start|>assistant<|channel|>final<|message|>a<|end|>"
        "<|start|>user<|message|>v<|end|><|start|>assistant",
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_s_form_writes_its_published_format(section: bytes, family: str) -> None:
    source, tokens, stops, plain, told = FAMILIES[family]
    with_form, notes = add_chat_form(section, ChatTemplate(source, tokens), VOCAB)
    form = get_form(with_form)
    assert form is not None, notes
    assert form.render(Conversation(["u", "v"], ["a"]), True) == plain
    if told is None:
        assert not form.takes_system
        (note,) = notes
        assert note.startswith("chat: the chat template has no place for a system text")
    else:
        assert form.render(Conversation(["u", "v"], ["a"], "s"), True) == told
        dated = [line for line in ("Today Date: ", "Current date: ") if line in source]
        assert [*notes] == [
            f"chat: lines with today's date are left out: '{line}...\\n'" for line in dated
        ]
    assert form.stops == tuple(map(number, stops))
    chatml = "<|im_start|>" in plain
    assert form.marks == ((number("<|im_start|>"),) if chatml else ())
    assert unpack(with_form) == {**unpack(section), CHAT: form.to_bytes()}


def test_blanks_are_dropped_where_the_template_drops_them(section: bytes) -> None:
    """Llama-2's template strips the first text together with the system text before it."""
    form = get_form(add_chat_form(section, ChatTemplate(LLAMA2, S), VOCAB)[0])
    assert form is not None
    assert form.trims == Trims(system=0, user=3, user_after_system=2, answer=3)
    said = Conversation([" u \n", "\u3000v"], ["\ta "], " s ")
    assert form.render(said, True) == (
        "<s>[INST] <<SYS>>\n s \n<</SYS>>\n\n u [/INST] a </s><s>[INST] v [/INST]"
    )


GENERATE = "{% if add_generation_prompt %}A:{% endif %}"
LOOP = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for m in messages %}", "it cannot be rendered (Unexpected end of template."),
        ("{{ raise_exception('tools are needed') }}", "it cannot be rendered (tools are needed)"),
        ("{{ ''.__class__.__mro__ }}", "it cannot be rendered (access to attribute '__class__'"),
        ("{{ messages.append(1) }}", "it cannot be rendered ("),
        ("Hello", "it does not write every text once, as it is"),
        (LOOP.replace("m.content", "m.content | upper"), "it does not write every text once"),
        (
            "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}assistant<think>{% endif %}",
            "it writes past answers otherwise than it begins new ones",
        ),
        (
            "{% for m in messages %}{{ loop.index }} {{ m.role }}: {{ m.content }}\n{% endfor %}",
            "what it writes around a text is not the same in every conversation",
        ),
        (
            "<s>{{ strftime_now('%Y') }}" + LOOP,
            "it writes today's date beside special tokens",
        ),
        (LOOP + " " * (1 << 18), "it is longer than 262,144 characters"),
        ("x" * (1 << 17) + LOOP, "it is longer than 65,536 bytes"),
    ],
)
def test_a_template_without_a_form_is_named_with_the_reason(
    section: bytes, source: str, reason: str
) -> None:
    same, (note,) = add_chat_form(section, ChatTemplate(source, {}), VOCAB)
    assert same == section
    begin = json.dumps(source[:60], ensure_ascii=False)
    assert note.startswith(f"the chat template {begin} has no compact form: {reason}")
    assert note.endswith("; the model works, but without --chat")


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}" + LOOP,
        "{{ 'x' * 800000000 }}" + LOOP,
        "{{ 9 ** (9 ** 9) }}" + LOOP,  # computed when it is compiled
    ],
)
def test_a_template_that_computes_without_end_is_stopped(
    section: bytes, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_fit, "_CPU_SECONDS", 1)
    same, (note,) = add_chat_form(section, ChatTemplate(source, {}), VOCAB)
    assert same == section
    assert "has no compact form: it takes too long, or too much memory; the model works" in note


def test_a_template_that_is_late_is_stopped(
    section: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_fit, "_WALL_SECONDS", 0.01)
    same, (note,) = add_chat_form(section, ChatTemplate(CHATML, {}), VOCAB)
    assert same == section
    assert "has no compact form: it takes too long, or too much memory; the model works" in note


def test_a_template_sends_nothing_to_the_terminal(section: bytes) -> None:
    source = "\x9b31m\u202e{{ raise_exception('\x1b]0;pwned\x07\x1b[31m') }}"
    (note,) = add_chat_form(section, ChatTemplate(source, {}), VOCAB)[1]
    assert note.startswith('the chat template "?31m?{{ raise_exception(')
    assert "it cannot be rendered (?]0;pwned??[31m); the model works" in note
    assert note.isprintable()


def test_a_template_that_writes_no_text_has_no_form(section: bytes) -> None:
    for half in ("\ud800", '{{ "\\ud800" }}'):
        same, (note,) = add_chat_form(section, ChatTemplate(half + CHATML, {}), VOCAB)
        assert same == section
        assert "has no compact form: it writes what is no text; " in note
        assert note.isprintable()


def test_a_token_that_the_model_lacks_is_in_no_form(section: bytes) -> None:
    lacking = number("<|im_end|>")  # the model's ids end before it
    same, (note,) = add_chat_form(section, ChatTemplate(CHATML, {}), lacking)
    assert same == section
    assert "it writes '<|im_end|>', which the model does not know" in note


def test_a_form_survives_its_chunk(section: bytes) -> None:
    strings = Strings("é", "", "b", "世", "", "", " ", "<|im_end|>", "z")
    form = ChatForm(strings, Trims(1, 2, 3, 1), True, (5, 6), (7,))
    assert get_form(put_form(section, form)) == form
    assert get_form(section) is None


@pytest.mark.parametrize(
    "change", [lambda c: c[:47], lambda c: c[:-1], lambda c: b"\0\2" + c[2:], lambda c: c + b"\xff"]
)
def test_a_damaged_chunk_is_an_error(section: bytes, change: Any) -> None:
    form = ChatForm(Strings(*"abcdefghi"), Trims(), False)
    chunk = change(form.to_bytes())
    if chunk.endswith(b"\xff"):  # in the last string
        chunk = chunk[:36] + b"\x0a" + chunk[37:]
    with pytest.raises(ModelFormatError, match="chat of the section tokenizer is damaged"):
        get_form(pack({**unpack(section), CHAT: chunk}))


def test_where_a_checkpoint_s_template_is_looked_for(tmp_path: Path) -> None:
    def write(name: str, value: object) -> None:
        (tmp_path / name).write_text(json.dumps(value))

    assert hub_template(tmp_path) is None
    write("special_tokens_map.json", {"bos_token": "<x>", "eos_token": {"content": "</s>"}})
    settings = {"bos_token": "<s>", "pad_token": None}
    write("tokenizer_config.json", {**settings, "chat_template": "a"})
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    assert hub_template(tmp_path) == ChatTemplate("a", tokens)
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "b"}]
    write("tokenizer_config.json", {**settings, "chat_template": named})
    assert hub_template(tmp_path) == ChatTemplate("b", tokens)
    write("chat_template.json", {"chat_template": "c"})
    assert hub_template(tmp_path) == ChatTemplate("c", tokens)
    (tmp_path / "chat_template.jinja").write_text("d")
    assert hub_template(tmp_path) == ChatTemplate("d", tokens)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConversionError, match=r"tokenizer_config\.json cannot be read"):
        hub_template(tmp_path)
