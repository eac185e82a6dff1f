# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face checkpoint directory: its JSON files, and its tensors, which are read lazily."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from colibri_deploy.errors import ConversionError, FileMissingError
from colibri_deploy.mapped_tensor import Raw as Raw
from colibri_deploy.mapped_tensor import Tensor as Tensor
from colibri_deploy.safetensors_file import read_safetensors
from colibri_deploy.torch_file import read_state_dict

# Files of weights, the first that is there is taken: one file, or an index of several.
_READERS: dict[str, Callable[[Path], dict[str, Tensor]]] = {
    "model.safetensors": read_safetensors,
    "pytorch_model.bin": read_state_dict,
    "pytorch_model.pt": read_state_dict,
}
_OTHER_FORMATS = ("*.gguf", "*.bin", "*.pt", "*.pth")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The tensors and JSON files of a directory."""

    directory: Path
    config: Mapping[str, Any]
    generation_config: Mapping[str, Any]  # empty if there is none
    tensors: Mapping[str, Tensor]

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Read the JSON files and the headers of all shards.

        Raises FileMissingError, and ConversionError for files that are damaged.
        """
        if not directory.is_dir():
            raise FileMissingError(
                f"{directory} is not a directory; give that of a checkpoint, or a GGUF file"
            )
        config = read_json(directory / "config.json")
        generation = directory / "generation_config.json"
        return cls(
            directory,
            config,
            read_json(generation) if generation.exists() else {},
            _read_tensors(directory),
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises FileMissingError and ConversionError."""
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text)
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConversionError(f"{path} is not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ConversionError(f"{path}, line {error.lineno}: no JSON: {error.msg}") from None
    except RecursionError:
        raise ConversionError(f"{path}: no JSON that can be read: nested too deeply") from None
    if not isinstance(value, dict):
        raise ConversionError(f"{path} is not a JSON object")
    return value


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    for name, reader in _READERS.items():
        if (directory / name).exists():
            return reader(directory / name)
        index = directory / f"{name}.index.json"
        if index.exists():
            return _read_shards(index, reader)
    found = sorted(path.name for pattern in _OTHER_FORMATS for path in directory.glob(pattern))
    hint = ""
    if found:
        hint = f"; {found[0]} must be saved as safetensors first"
        if found[0].endswith(".gguf"):
            hint = f"; to convert {found[0]}, give that file"
    raise FileMissingError(
        f"{directory} has neither model.safetensors nor model.safetensors.index.json, "
        f"pytorch_model.bin or its index{hint}"
    )


def _read_shards(index: Path, reader: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(shard, str) and Path(shard).name == shard for shard in weight_map.values()
    ):
        raise ConversionError(f"{index}: weight_map does not name files of its own directory")
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(weight_map.values())):
        for name, tensor in reader(index.with_name(shard)).items():
            if name in tensors:
                raise ConversionError(f"{name} is in {tensors[name].path.name} and in {shard}")
            tensors[name] = tensor
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].path.name != shard:
            raise ConversionError(f"{index} says that {name} is in {shard}, but it is not there")
    return tensors
