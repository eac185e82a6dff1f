# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Finds a checkpoint's chat template, and gives the section `tokenizer` the form of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colibri_deploy.chat_fit import NoFormError, fit_form
from colibri_deploy.chat_form import put_form
from colibri_deploy.errors import ConversionError
from colibri_deploy.gguf_file import GgufFile
from colibri_deploy.tokenizer_section import read_added

_SHOWN = 60  # characters of a template in a message
_TOKENS = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """A template, and the texts of special tokens that it may ask for by name."""

    source: str
    tokens: Mapping[str, str]  # "bos_token": "<s>"


def hub_template(directory: Path) -> ChatTemplate | None:
    """The template of a Hugging Face checkpoint. Raises ConversionError."""
    settings = {
        **_read_json(directory / "special_tokens_map.json"),
        **_read_json(directory / "tokenizer_config.json"),
    }
    source: Any = settings.get("chat_template")
    source = _read_json(directory / "chat_template.json").get("chat_template", source)
    path = directory / "chat_template.jinja"
    if path.is_file():
        source = path.read_text(encoding="utf-8", errors="replace")
    if isinstance(source, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in source if isinstance(one, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    tokens = {}
    for name in (f"{kind}_token" for kind in _TOKENS):
        token = settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            tokens[name] = text
    return ChatTemplate(source, tokens)


def gguf_template(file: GgufFile) -> ChatTemplate | None:
    """The template of a GGUF file."""
    source, texts = (file.metadata.get(f"tokenizer.{k}") for k in ("chat_template", "ggml.tokens"))
    if not isinstance(source, str) or not isinstance(texts, list):
        return None
    tokens = {}
    for kind in _TOKENS:
        number = file.metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if isinstance(number, int) and 0 <= number < len(texts):
            tokens[f"{kind}_token"] = str(texts[number])
    return ChatTemplate(source, tokens)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        root = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{path} cannot be read: {error}; fetch it again") from error
    return root if isinstance(root, dict) else {}


def add_chat_form(
    section: bytes, template: ChatTemplate | None, vocab_size: int
) -> tuple[bytes, tuple[str, ...]]:
    """The section `tokenizer` with the template's form, if it has one; and notes for the user."""
    if template is None:
        return section, ()
    try:
        form, notes = fit_form(template.source, template.tokens, read_added(section), vocab_size)
    except NoFormError as error:
        begin = json.dumps(template.source[:_SHOWN], ensure_ascii=False)
        note = f"the chat template {begin} has no compact form: {error}"
        shown = "".join(char if char.isprintable() else "?" for char in note)
        return section, (f"{shown}; the model works, but without --chat",)
    return put_form(section, form), notes
