# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of DeepSpeed's MoE layer in Megatron-DeepSpeed's GPT as the source of a conversion.

`DeepSpeedEngine._save_moe_checkpoint` (deepspeed/runtime/engine.py) writes a directory with

* `mp_rank_RR_model_states.pt`: a dict, of which `module` holds all but the experts, `args` the
  training program's arguments and `checkpoint_version` Megatron's order of q, k and v;
* `layer_L_expert_E_mp_rank_RR_model_states.pt`: the tensors of one expert; L counts MoE layers.

RR is the rank in tensor parallelism. Optimizer states are not read.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from colibri_deploy.chat_template import hub_template
from colibri_deploy.checkpoint import read_json
from colibri_deploy.errors import ConversionError
from colibri_deploy.families import deepspeed_moe
from colibri_deploy.families.hub_config import HubConfig
from colibri_deploy.mapped_tensor import Tensor
from colibri_deploy.source import Source
from colibri_deploy.tokenizer import build_tokenizer_section
from colibri_deploy.torch_file import read_state_dict, read_torch_file
from colibri_deploy.torch_pickle import Inert

_MODEL = "mp_rank_{:02d}_model_states.pt"
_EXPERT = re.compile(r"layer_\d+_expert_\d+_mp_rank_00_model_states\.pt")
# Names that changed in Megatron, and today's
_OLD_NAMES = (
    (re.compile(r"language_model\.transformer\."), "language_model.encoder."),
    (re.compile(r"(encoder\.layers\.\d+\.)attention\."), r"\1self_attention."),
)


def deepspeed_directory(path: Path) -> Path | None:
    """The directory of a checkpoint: this one, or the one that its file `latest` names."""
    if (path / _MODEL.format(0)).is_file():
        return path
    latest = path / "latest"
    if latest.is_file() and latest.stat().st_size < 256:
        tag = path / latest.read_text(encoding="utf-8", errors="replace").strip()
        if tag.parent == path and (tag / _MODEL.format(0)).is_file():
            return tag
    return None


def open_deepspeed_source(path: Path, directory: Path) -> Source:
    """Read a checkpoint that lies in `directory`, of which the user said `path`.

    A tokenizer, and a `config.json` with arguments that go before the checkpoint's, are looked for
    in both. Raises FileMissingError and ConversionError.
    """
    file = directory / _MODEL.format(0)
    if (directory / _MODEL.format(1)).exists():
        raise ConversionError(f"{directory} has parts of tensor parallelism, which are not merged")
    value = read_torch_file(file)
    if not isinstance(value, dict) or not isinstance(value.get("module"), dict):
        raise ConversionError(f"{file} holds no `module`: with pipeline parallelism it has none")
    tensors = dict(_named(file, value["module"], ""))
    for expert in sorted(directory.iterdir()):
        if _EXPERT.fullmatch(expert.name):
            tensors |= {_today(name): one for name, one in read_state_dict(expert).items()}
    tensors = {name: dataclasses.replace(one, name=name) for name, one in tensors.items()}
    beside = next((one for one in (directory, path) if (one / "config.json").is_file()), None)
    arguments = _arguments(value.get("args")) | {
        name: value[name] for name in ("checkpoint_version",) if name in value
    }
    arguments |= read_json(beside / "config.json") if beside else {}
    args = HubConfig(arguments, where=f"{file}, args")
    config = deepspeed_moe.read_config(args, {name: one.shape for name, one in tensors.items()})
    tied = deepspeed_moe.HEAD not in tensors
    tokenizers = [build_tokenizer_section(one) for one in dict.fromkeys((directory, path))]
    return Source(
        path=path,
        kind="a DeepSpeed-MoE GPT",
        shapes_from="its arguments",
        config=config,
        tied=tied,
        sections=deepspeed_moe.sections(args, config, tied),
        computed={},
        tensors=tensors,
        ignored=(),
        tokenizer=next((one for one in tokenizers if one), None),
        chat_template=hub_template(directory) or hub_template(path),
        notes=_notes(config.top_k),
    )


def _notes(top_k: int) -> tuple[str, ...]:
    """Where the training program does what a model that is in use should not."""
    dropped = "every token goes to its experts: none is dropped for an expert's capacity"
    sampled = "the second expert is the one of the second largest score: it is not sampled"
    return (dropped,) if top_k == 1 else (dropped, sampled)


def _named(file: Path, module: dict[Any, Any], prefix: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested dicts, whose keys are joined by dots."""
    for key, value in module.items():
        name = f"{prefix}{key}"
        if isinstance(value, Tensor):
            yield _today(name), value
        elif isinstance(value, dict):
            yield from _named(file, value, f"{name}.")
        elif value is not None:
            raise ConversionError(f"{file}: {name:.80} is no tensor")


def _today(name: str) -> str:
    for old, new in _OLD_NAMES:
        name = old.sub(new, name, count=1)
    return name


def _arguments(args: Any) -> dict[str, Any]:
    """The attributes of an argparse.Namespace, or the entries of a dict."""
    if isinstance(args, Inert) and args.made_by.full_name == "argparse.Namespace":
        args = args.state
    return {name: args[name] for name in args} if isinstance(args, dict) else {}
