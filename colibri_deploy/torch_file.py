# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A file that `torch.save` wrote, read without PyTorch and without executing its pickle.

Two layouts (torch/serialization.py): since PyTorch 1.6 a zip archive with `data.pkl`, whose
persistent ids name the storages `data/<key>`, stored uncompressed; before that, pickles one after
another (a magic number, a protocol version, facts on the machine, the value, the keys of the
storages), then each storage: its number of elements as 8 bytes, and its elements.
"""

from __future__ import annotations

import dataclasses
import io
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from colibri_deploy.errors import ConversionError, FileMissingError
from colibri_deploy.mapped_tensor import NUMPY_DTYPES, Tensor, contiguous_strides
from colibri_deploy.torch_pickle import MAX_BYTES, Global, Inert, PickleError, read_pickle

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_PROTOCOL = 1001
_LOCAL_HEADER = 30  # bytes of a zip member's header before its name
_MAX_DIMENSIONS = 64

# PyTorch's names of element types and of typed storages, and safetensors' names
_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "UntypedStorage": "U8",
}
_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
# Keys under which training programs put the weights
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")


@dataclasses.dataclass(frozen=True)
class _Storage:
    """Elements of one type, one after another."""

    stored: str
    n_bytes: int
    offset: int  # in the file


def read_torch_file(path: Path) -> Any:
    """What `torch.save` was given: plain containers and values, and tensors that are not read yet.

    Tensors are `Tensor`s without a name; whatever else the file names is an `Inert` or a `Global`
    of torch_pickle.py. Containers may be shared or contain themselves.

    Raises FileMissingError, and ConversionError for what is damaged, is in a layout that is not
    read, or would run something.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) == b"PK\3\4":
                return _read_zip(path, file)
            file.seek(0)
            return _read_legacy(path, file)
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error.strerror}") from None
    except PickleError as error:
        raise ConversionError(f"{path} {error}") from None


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that holds a dict of nothing else, by name.

    The dict may be the value of one of the keys under which training programs put it. Raises as
    `read_torch_file`, and ConversionError for what is no tensor.
    """
    value = read_torch_file(path)
    while isinstance(value, dict) and not any(isinstance(one, Tensor) for one in value.values()):
        inner = [value[name] for name in _WRAPPERS if isinstance(value.get(name), dict)]
        if len(inner) != 1 or inner[0] is value:
            break
        value = inner[0]
    if not isinstance(value, dict):
        raise ConversionError(f"{path} holds {_described(value)}, not a dict of tensors")
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ConversionError(f"{path}: {name!s:.80} is {_described(tensor)}, not a tensor")
    return {name: dataclasses.replace(tensor, name=name) for name, tensor in value.items()}


def _described(value: Any) -> str:
    if isinstance(value, Inert):
        return f"a {value.made_by.full_name}"
    if isinstance(value, Global):
        return value.full_name
    return f"a {type(value).__name__}"


def _read_zip(path: Path, file: BinaryIO) -> Any:
    try:
        with zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError) as error:
        raise PickleError(f"is damaged or truncated: {error}; download it again") from None
    pickles = [name for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise PickleError("is a zip archive without data.pkl, not what torch.save writes")
    prefix = pickles[0].removesuffix("data.pkl")
    if prefix + "constants.pkl" in members:
        raise PickleError("is a TorchScript program, not a checkpoint; save its state_dict()")

    def place(name: str) -> tuple[int, int]:
        """Offset and size of a member that is stored as it is."""
        info = members.get(prefix + name)
        if info is None:
            raise PickleError(f"is damaged: it has no {name}; download it again")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise PickleError(f"has a compressed or encrypted {name}; save it with torch.save")
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER)
        if len(header) < _LOCAL_HEADER or header[:4] != b"PK\3\4":
            raise PickleError(f"is damaged where {name} starts; download it again")
        lengths = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        offset = info.header_offset + _LOCAL_HEADER + sum(lengths)
        if offset + info.file_size > file.seek(0, 2):
            raise PickleError(f"is truncated: {name} is not all there; download it again")
        return offset, info.file_size

    def content(name: str, limit: int) -> bytes:
        offset, size = place(name)
        if size > limit:
            raise PickleError(f"has a {name} of {size:,} bytes; at most {limit:,} are read")
        file.seek(offset)
        return file.read(size)

    if prefix + "byteorder" in members and content("byteorder", 16) != b"little":
        raise PickleError("is big-endian, which is not supported; save it on another machine")

    def load(identity: Any) -> _Storage:
        stored, key, n_elements = _storage_id(identity)
        offset, size = place(f"data/{key}")
        n_bytes = n_elements * np.dtype(NUMPY_DTYPES[stored]).itemsize
        if n_bytes > size:
            raise PickleError(f"is damaged: data/{key} has {size:,} bytes instead of {n_bytes:,}")
        return _Storage(stored, n_bytes, offset)

    return read_pickle(io.BytesIO(content("data.pkl", MAX_BYTES)), _maker(path), load)


def _read_legacy(path: Path, file: BinaryIO) -> Any:
    def refuse(identity: Any) -> Any:
        raise PickleError("is damaged: a storage where there is none")

    def plain() -> Any:
        return read_pickle(file, _maker(path), refuse)

    try:
        magic = plain()
    except PickleError:
        magic = None
    if magic != _LEGACY_MAGIC:
        raise PickleError("is not what torch.save writes; give its directory's safetensors")
    if plain() != _LEGACY_PROTOCOL:
        raise PickleError("has a protocol that is not known")
    machine = plain()
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise PickleError("is big-endian, which is not supported; save it on another machine")
    # The storages lie behind the value that needs their places: it is read twice.
    start = file.tell()
    stored: dict[str, tuple[str, int]] = {}

    def note(identity: Any) -> _Storage:
        kind, key, n_elements = _storage_id(identity)
        size = n_elements * np.dtype(NUMPY_DTYPES[kind]).itemsize
        stored[key] = kind, size
        return _Storage(kind, size, 0)

    read_pickle(file, _maker(path), note)
    keys = plain()
    if not isinstance(keys, list) or set(keys) != set(stored):
        raise PickleError("is damaged: its list of storages is another one")
    places: dict[str, int] = {}
    for key in keys:
        kind, size = stored[key]
        n_elements = int.from_bytes(file.read(8), "little")
        if n_elements * np.dtype(NUMPY_DTYPES[kind]).itemsize != size:
            raise PickleError(f"is damaged: the storage {key} has {n_elements:,} elements")
        places[key] = file.tell()
        file.seek(size, 1)
    end = file.tell()
    if end > file.seek(0, 2):
        raise PickleError("is truncated: its storages are not all there; download it again")
    file.seek(start)

    def load(identity: Any) -> _Storage:
        kind, key, _ = _storage_id(identity)
        return _Storage(kind, stored[key][1], places[key])

    return read_pickle(file, _maker(path), load)


def _storage_id(identity: Any) -> tuple[str, str, int]:
    """Element type, key and number of elements that a persistent id names."""
    if type(identity) is not tuple or len(identity) < 5 or identity[0] != "storage":
        raise PickleError("is damaged: a persistent id that names no storage")
    kind, key, n_elements = identity[1], identity[2], identity[4]
    if not isinstance(kind, Global) or not isinstance(key, str) or type(n_elements) is not int:
        raise PickleError("is damaged: a persistent id that names no storage")
    if (
        kind.name not in _STORAGES
        or kind.module not in ("torch", "torch.storage")
        or n_elements < 0
    ):
        raise PickleError(f"has a {kind.full_name} of {n_elements} elements, which cannot be read")
    if len(identity) > 5 and identity[5] is not None:
        raise PickleError("has a storage that is a view of another, which is not supported")
    return _STORAGES[kind.name], key, n_elements


def _maker(path: Path) -> Callable[[Global, tuple[Any, ...]], Any]:
    """What becomes of the globals that state dicts consist of."""

    def make(maker: Global, args: tuple[Any, ...]) -> Any:
        match maker.full_name, args:
            case "collections.OrderedDict", ():
                return {}
            case "collections.OrderedDict", (list(pairs),):
                whole = all(isinstance(key, str) for key, _ in pairs)
                return dict(pairs) if whole else NotImplemented
            case "collections.defaultdict", _:
                return {}
            case "torch.Size", (list() | tuple() as sizes,):
                return tuple(sizes)
            case "torch._utils._rebuild_tensor", (_Storage(), _, _, _):
                return _tensor(path, *args)
            case "torch._utils._rebuild_tensor_v2", (_Storage(), _, _, _, _, _, *metadata):
                return NotImplemented if any(metadata) else _tensor(path, *args[:4])
            case "torch._utils._rebuild_tensor_v3", (
                _Storage(),
                _,
                _,
                _,
                _,
                _,
                Global(),
                *metadata,
            ):
                stored = _DTYPES.get(args[6].name)
                if stored is None or any(metadata):
                    return NotImplemented
                return _tensor(path, dataclasses.replace(args[0], stored=stored), *args[1:4])
            case "torch._utils._rebuild_parameter", (Tensor() as tensor, *_):
                return tensor
            case "torch._utils._rebuild_parameter_with_state", (Tensor() as tensor, *_):
                return tensor
            case "torch._tensor._rebuild_from_type_v2", (Global() as inner, _, tuple(rest), _):
                return make(inner, rest)
        return NotImplemented

    return make


def _tensor(path: Path, storage: _Storage, first: Any, shape: Any, strides: Any) -> Tensor:
    """A view of a storage: `first` and `strides` in elements."""
    shape, strides = tuple(shape), tuple(strides)
    numbers = (first, *shape, *strides)
    if (
        len(shape) != len(strides)
        or len(shape) > _MAX_DIMENSIONS
        or not all(type(number) is int and number >= 0 for number in numbers)
    ):
        raise PickleError(f"is damaged: a tensor of shape {list(shape)!s:.80}")
    itemsize = np.dtype(NUMPY_DTYPES[storage.stored]).itemsize
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    n_elements = last + 1 if math.prod(shape) else 0
    if (first + n_elements) * itemsize > storage.n_bytes:
        raise PickleError(f"is damaged: a tensor of shape {list(shape)!s:.80} exceeds its storage")
    whole = strides == contiguous_strides(shape) or n_elements == 0
    return Tensor(
        name="",
        stored=storage.stored,
        shape=shape,
        path=path,
        offset=storage.offset + first * itemsize,
        size=n_elements * itemsize,
        strides=None if whole else strides,
    )
