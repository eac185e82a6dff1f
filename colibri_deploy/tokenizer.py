# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the section `tokenizer` of model.bin from a checkpoint's tokenizer.json.

docs/FORMAT-tokenizer.md describes the section. The ids follow tokenizer.json to the letter, as
the library `tokenizers` reads it; what the engine could not do exactly so is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colibri_deploy.errors import ConversionError
from colibri_deploy.pretokenizer import (
    DIGIT,
    DIGIT_RUNS,
    GPT2,
    MARKER_SPLIT,
    ExpressionError,
    compile_expression,
)
from colibri_deploy.tokenizer_section import (
    ADDED_FLAGS,
    BYTE_FALLBACK,
    DECODE_BYTES,
    DECODE_FALLBACK,
    DECODE_FIRST,
    DECODE_MARKERS,
    DECODE_STRIP,
    FUSE_UNK,
    IGNORE_MERGES,
    LEAD_FIRST,
    LEAD_MARKER,
    LEAD_NONE,
    LEAD_SPACE,
    MARK_PIECES,
    MARK_SPACES,
    MARKER,
    MAX_IDS,
    MAX_STEPS,
    NFC,
    NO_ID,
    PREPEND,
    TEXT_BYTES,
    Added,
    Model,
    Pipeline,
    TokenizerError,
    damaged,
    section_bytes,
    sort_added,
    unsupported,
    utf8,
)

Json = Mapping[str, Any]


def _object(value: Any, where: str) -> Json:
    if not isinstance(value, dict):
        raise damaged(f"{where} is no object")
    return value


def _flatten(value: Any, where: str, key: str) -> list[Json]:
    """The members of a (possibly nested) Sequence; a single object is a sequence of one."""
    if value is None:
        return []
    node = _object(value, where)
    if node.get("type") != "Sequence":
        return [node]
    members = node.get(key)
    if not isinstance(members, list):
        raise damaged(f"{where} is a Sequence without {key}")
    return [leaf for member in members for leaf in _flatten(member, where, key)]


def _is_replace(node: Json, pattern: str, content: str) -> bool:
    return node.get("pattern") == {"String": pattern} and node.get("content") == content


def _read_normalizer(value: Any, pipeline: Pipeline) -> None:
    for node in _flatten(value, "normalizer", "normalizers"):
        if node.get("type") == "Prepend" and node.get("prepend") == MARKER:
            flag = PREPEND
        elif node.get("type") == "Replace" and _is_replace(node, " ", MARKER):
            flag = MARK_SPACES
        elif node.get("type") == "NFC":
            flag = NFC
        else:
            raise unsupported(f"the normalizer {json.dumps(node, ensure_ascii=False)}")
        if flag & pipeline.flags:
            raise unsupported(f"the normalizer {node['type']!r} twice")
        pipeline.flags |= flag
    if pipeline.flags & NFC and pipeline.flags & (MARK_SPACES | PREPEND):
        raise unsupported("the normalizer 'NFC' together with Replace or Prepend")


def _prepend_scheme(node: Json) -> str:
    """Metaspace's `prepend_scheme`, also in its older form `add_prefix_space`."""
    if node.get("replacement") != MARKER:
        raise unsupported(f"Metaspace with the replacement {node.get('replacement')!r}")
    scheme = node.get("prepend_scheme")
    if scheme is None:
        scheme = "always" if node.get("add_prefix_space", True) else "never"
    if scheme not in ("always", "first", "never"):
        raise unsupported(f"Metaspace with the prepend_scheme {scheme!r}")
    return str(scheme)


def _split_step(node: Json) -> str:
    expression = _object(node.get("pattern"), "the pattern of Split").get("Regex")
    name = f"the pre-tokenizer {json.dumps(node, ensure_ascii=False)}"
    if not isinstance(expression, str):
        raise unsupported(name)
    try:
        automaton = compile_expression(expression)
    except ExpressionError as error:
        raise unsupported(f"{name} ({error})") from None
    kept = node.get("behavior"), bool(node.get("invert", False))
    # What lies between matches stays, or there is nothing between them.
    if kept[0] != "Isolated" and not (kept == ("Removed", True) and automaton.leaves_nothing):
        raise unsupported(f"{name}, which drops or joins parts of the text,")
    return expression


def _read_pre_tokenizer(value: Any, pipeline: Pipeline) -> None:
    nodes = _flatten(value, "pre_tokenizer", "pretokenizers")
    for index, node in enumerate(nodes):
        kind = node.get("type")
        if pipeline.bytewise:
            raise unsupported(f"the pre-tokenizer {kind!r} after ByteLevel")
        if kind == "ByteLevel":
            if node.get("add_prefix_space", True):
                if index:
                    raise unsupported(f"ByteLevel with add_prefix_space after {nodes[0]['type']}")
                pipeline.lead = LEAD_SPACE
            if node.get("use_regex", True):
                pipeline.steps.append(GPT2)
            pipeline.flags |= TEXT_BYTES
        elif kind == "Metaspace" and len(nodes) == 1:
            schemes = {"always": LEAD_MARKER, "first": LEAD_FIRST, "never": LEAD_NONE}
            pipeline.lead = schemes[_prepend_scheme(node)]
            pipeline.flags |= MARK_PIECES
            if node.get("split", True):
                pipeline.steps.append(MARKER_SPLIT)
        elif kind == "Digits":
            pipeline.steps.append(DIGIT if node.get("individual_digits") else DIGIT_RUNS)
        elif kind == "Split":
            pipeline.steps.append(_split_step(node))
        else:
            raise unsupported(f"the pre-tokenizer {kind!r} in {[n.get('type') for n in nodes]}")
    if len(pipeline.steps) > MAX_STEPS:
        raise unsupported(f"a pre-tokenizer of {len(pipeline.steps)} steps")
    if pipeline.bytewise and pipeline.flags & (MARK_SPACES | PREPEND):
        raise unsupported("a normalizer before the pre-tokenizer ByteLevel")


def _read_decoder(value: Any, pipeline: Pipeline) -> None:
    nodes = _flatten(value, "decoder", "decoders")
    kinds = [str(node.get("type")) for node in nodes]
    if kinds == ["ByteLevel"]:
        pipeline.decoder = DECODE_BYTES
    elif kinds == ["Metaspace"]:
        never = _prepend_scheme(nodes[0]) == "never"
        pipeline.decoder = DECODE_MARKERS | (0 if never else DECODE_FIRST)
    elif "Fuse" in kinds:
        order = ["Replace", "ByteFallback", "Fuse", "Strip"]
        if kinds != [kind for kind in order if kind in kinds]:
            raise unsupported(f"the decoder {kinds}")
        for node, kind in zip(nodes, kinds, strict=True):
            if kind == "Replace" and _is_replace(node, MARKER, " "):
                pipeline.decoder |= DECODE_MARKERS
            elif kind == "ByteFallback":
                pipeline.decoder |= DECODE_FALLBACK
            elif kind == "Strip" and (node.get("start"), node.get("stop")) in ((0, 0), (1, 0)):
                if node.get("content") != " ":
                    raise unsupported(f"the decoder Strip of {node.get('content')!r}")
                pipeline.decoder |= DECODE_STRIP if node["start"] else 0
            elif kind != "Fuse":
                raise unsupported(f"the decoder {json.dumps(node, ensure_ascii=False)}")
    else:
        raise unsupported(f"the decoder {kinds or None}")
    if pipeline.bytewise != bool(pipeline.decoder & DECODE_BYTES):
        raise unsupported(f"the decoder {kinds} with this pre-tokenizer")


def _read_post_processor(value: Any) -> tuple[list[int], list[int]]:
    """The ids that are put before and after a text."""
    around: tuple[list[int], list[int]] = ([], [])
    templates = 0
    for node in _flatten(value, "post_processor", "processors"):
        kind = node.get("type")
        if kind == "ByteLevel":  # moves offsets only
            continue
        templates += 1
        if kind != "TemplateProcessing" or templates > 1:
            raise unsupported(f"the post-processor {kind!r}")
        tokens = _object(node.get("special_tokens"), "special_tokens of the post-processor")
        seen_text = 0
        for entry in node.get("single") or []:
            part = _object(entry, "a part of the post-processor's template")
            name = _object(next(iter(part.values()), None), "a part of the template").get("id")
            if "Sequence" in part and name == "A":
                seen_text += 1
            elif "SpecialToken" in part:
                token = _object(tokens.get(str(name)), f"the template's token {name!r}")
                around[min(seen_text, 1)].extend(token.get("ids") or [])
            else:
                raise unsupported(f"the template part {json.dumps(part)}")
        if seen_text != 1:
            raise unsupported(f"a template that has the text {seen_text} times")
    return around


def _pair(merge: Any) -> tuple[str, str]:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(p, str) for p in parts):
        raise damaged(f"the merge {merge!r} is no pair")
    return parts[0], parts[1]


def _read_model(value: Any) -> Model:
    node = _object(value, "model")
    kind = node.get("type", "BPE" if "merges" in node else None)
    if kind != "BPE":
        raise unsupported(f"the model {kind!r}")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if node.get(name):
            raise unsupported(f"a BPE with {name} {node[name]!r}")
    vocab = dict(_object(node.get("vocab"), "the vocabulary"))
    for token, number in vocab.items():
        if type(number) is not int or not 0 <= number < MAX_IDS:
            raise damaged(f"the token {token!r} has the id {number!r}")
    if len(set(vocab.values())) != len(vocab):
        raise damaged("two tokens of the vocabulary have the same id")
    merges = []
    for merge in node.get("merges") or []:
        if isinstance(merge, str) and merge.startswith("#version"):
            continue
        left, right = _pair(merge)
        for token in (left, right, left + right):
            if token not in vocab:
                raise damaged(f"the merge {merge!r} needs {token!r}, which is no token")
        merges.append((vocab[left], vocab[right], vocab[left + right]))
    unk = node.get("unk_token")
    if unk is not None and unk not in vocab:
        raise damaged(f"the unknown token {unk!r} is not in the vocabulary")
    flags = {
        "byte_fallback": BYTE_FALLBACK,
        "fuse_unk": FUSE_UNK,
        "ignore_merges": IGNORE_MERGES,
    }
    return Model(
        vocab=vocab,
        merges=merges,
        unk_id=NO_ID if unk is None else vocab[unk],
        flags=sum(flag for name, flag in flags.items() if node.get(name)),
    )


def _read_added(value: Any, vocab: Mapping[str, int], pipeline: Pipeline) -> list[Added]:
    """The added tokens, raw ones first, each kind in the order of its bytes.

    The library numbers tokens itself when they are not in the vocabulary: one after the other.
    A file that says otherwise would mean different ids to different readers.
    """
    found: dict[str, Added] = {}
    following = len(vocab)
    for entry in value or []:
        node = _object(entry, "an added token")
        content, number = node.get("content"), node.get("id")
        if not isinstance(content, str) or type(number) is not int:
            raise damaged(f"the added token {json.dumps(entry)} has no content or id")
        if not content:
            continue
        flags = sum(bit for name, bit in ADDED_FLAGS.items() if node.get(name))
        normalized = flags & ADDED_FLAGS["normalized"]
        pattern = utf8(pipeline.normalize(content) if normalized else content)
        token = Added(content, number, flags, pattern)
        if found.get(content, token) != token:
            raise damaged(f"the added token {content!r} is there twice, with different flags")
        if content not in found:
            expected = vocab.get(content, following)
            if number != expected:
                raise unsupported(f"the id {number} of the added token {content!r} ({expected}?)")
            if content not in vocab:
                following += 1
        found[content] = token
    return sort_added(found.values())


def _section(root: Json) -> bytes:
    pipeline = Pipeline()
    _read_normalizer(root.get("normalizer"), pipeline)
    _read_pre_tokenizer(root.get("pre_tokenizer"), pipeline)
    _read_decoder(root.get("decoder"), pipeline)
    prefix, suffix = _read_post_processor(root.get("post_processor"))
    model = _read_model(root.get("model"))
    added = _read_added(root.get("added_tokens"), model.vocab, pipeline)
    return section_bytes(pipeline, model, added, prefix, suffix)


def build_tokenizer_section(checkpoint_dir: Path) -> bytes | None:
    """The section's bytes; None if the checkpoint has no tokenizer.json.

    `truncation` and `padding` of the file are left out: they are settings of a training run.

    Raises:
        ConversionError: the file is damaged, or has something that the engine does not do.
    """
    path = checkpoint_dir / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        root = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConversionError(f"{path} cannot be read: {error}; fetch it again") from error
    try:
        return _section(_object(root, "the file"))
    except TokenizerError as error:
        hint = (
            "fetch the checkpoint again"
            if error.damaged
            else "update colibri-deploy, or remove tokenizer.json to convert without a tokenizer "
            "and give prompts as token ids"
        )
        raise ConversionError(f"tokenizer.json: {error.message}; {hint}") from None
