# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Writes what `torch.save` writes, byte by byte, without PyTorch (torch/serialization.py)."""

from __future__ import annotations

import dataclasses
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_STORAGES = {
    "f8": "DoubleStorage",
    "f4": "FloatStorage",
    "f2": "HalfStorage",
    "u2": "BFloat16Storage",  # bit patterns
    "i8": "LongStorage",
    "i4": "IntStorage",
    "u1": "ByteStorage",
    "b1": "BoolStorage",
}


@dataclasses.dataclass(frozen=True)
class Call:
    """A global called with arguments; without them, the global itself."""

    module: str
    name: str
    args: tuple[Any, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Object:
    """An object of a class with these attributes."""

    module: str
    name: str
    attributes: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class View:
    """A tensor that is a part of a storage."""

    storage: Array  # one dimension
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements
    rebuild: str = "_rebuild_tensor_v2"


class Encoder:
    """Values to the opcodes of protocol 2, as PyTorch's pickler writes them."""

    def __init__(self, legacy: bool = False) -> None:
        self.storages: list[Array] = []
        self._legacy = legacy

    def dump(self, value: Any) -> bytes:
        return b"\x80\x02" + self._value(value) + b"."

    def _value(self, value: Any) -> bytes:
        match value:
            case None:
                return b"N"
            case bool():
                return b"\x88" if value else b"\x89"
            case int():
                data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
                return b"\x8a" + bytes([len(data)]) + data
            case float():
                return b"G" + struct.pack(">d", value)
            case str():
                data = value.encode()
                return b"X" + struct.pack("<I", len(data)) + data
            case tuple():
                return b"(" + b"".join(map(self._value, value)) + b"t"
            case list():
                return b"](" + b"".join(map(self._value, value)) + b"e"
            case dict():
                pairs = b"".join(self._value(key) + self._value(one) for key, one in value.items())
                return b"}(" + pairs + b"u"
            case Call():
                name = f"c{value.module}\n{value.name}\n".encode()
                return name if value.args is None else name + self._value(value.args) + b"R"
            case Object():
                made = f"c{value.module}\n{value.name}\n".encode() + b")\x81"
                return made + self._value(value.attributes) + b"b"
            case View():
                return self._view(value)
            case np.ndarray():
                strides = tuple(stride // value.itemsize for stride in value.strides)
                return self._view(View(value.reshape(-1), 0, value.shape, strides))
        raise TypeError(type(value).__name__)

    def _view(self, view: View) -> bytes:
        known = [one is view.storage for one in self.storages]
        if True not in known:
            self.storages.append(view.storage)
        key = known.index(True) if True in known else len(known)
        kind = Call("torch", _STORAGES[view.storage.dtype.str[1:]])
        identity = ("storage", kind, str(key), "cpu", view.storage.size)
        if self._legacy:
            identity = (*identity, None)  # type: ignore[assignment]
        args = (
            self._value(identity) + b"Q",
            self._value(view.first),
            self._value(view.shape),
            self._value(view.strides),
            self._value(False),
            self._value(Call("collections", "OrderedDict", ())),
        )
        return f"ctorch._utils\n{view.rebuild}\n".encode() + b"(" + b"".join(args) + b"tR"


def save_torch(path: Path, value: Any) -> None:
    """The zip archive of PyTorch 1.6 and later."""
    encoder = Encoder()
    data = encoder.dump(value)
    members = {"data.pkl": data, "byteorder": b"little"}
    for key, storage in enumerate(encoder.storages):
        members[f"data/{key}"] = storage.tobytes()
    write_archive(path, members | {"version": b"3\n"})


def write_archive(
    path: Path, members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED
) -> None:
    """An archive of members under one folder."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"archive/{name}", content)


def save_legacy(path: Path, value: Any, little_endian: bool = True) -> None:
    """The layout before PyTorch 1.6."""
    plain, encoder = Encoder(), Encoder(legacy=True)
    data = encoder.dump(value)
    machine = {
        "protocol_version": 1001,
        "little_endian": little_endian,
        "type_sizes": {"short": 2, "int": 4, "long": 4},
    }
    with path.open("wb") as file:
        for head in (0x1950A86A20F9469CFC6C, 1001, machine):
            file.write(plain.dump(head))
        file.write(data)
        file.write(plain.dump([str(key) for key in range(len(encoder.storages))]))
        for storage in encoder.storages:
            file.write(struct.pack("<q", storage.size) + storage.tobytes())
