# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Reading what PyTorch saved: the values are right, and nothing of a pickle is run."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from torch_writer import Call, Encoder, View, save_legacy, save_torch, write_archive

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.errors import ConversionError
from colibri_deploy.mapped_tensor import Tensor
from colibri_deploy.torch_file import read_state_dict, read_torch_file
from colibri_deploy.torch_pickle import Global, Inert

BASE = np.arange(48, dtype="<f4") / np.float32(7)
ORDERED = Call("collections", "OrderedDict", ())


def save_pickle(path: Path, data: bytes) -> Path:
    write_archive(path, {"data.pkl": data, "byteorder": b"little"})
    return path


@pytest.mark.parametrize("save", [save_torch, save_legacy])
def test_every_kind_of_tensor_has_its_values(save: Callable[..., None], tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    bf16 = (BASE.view("<u4") >> 16).astype("<u2")
    values = {
        "whole": BASE.reshape(6, 8),
        "transposed": View(BASE, 0, (8, 6), (1, 8)),
        "part": View(BASE, 17, (2, 4), (8, 1)),
        "repeated": View(BASE, 3, (3, 2), (0, 1)),
        "half": BASE.astype("<f2"),
        "brain": bf16,
        "double": BASE.astype("<f8"),
        "long": np.arange(5, dtype="<i8"),
        "empty": np.zeros((0, 4), "<f4"),
        "scalar": View(BASE, 5, (), ()),
        "parameter": Call("torch._utils", "_rebuild_parameter", (BASE, True, ORDERED)),
    }
    save(path, values)
    tensors = read_state_dict(path)
    assert list(tensors) == list(values)
    matrix = BASE.reshape(6, 8)
    expected = {
        "whole": matrix,
        "transposed": matrix.T,
        "part": matrix[2:4, 1:5],
        "repeated": np.broadcast_to(BASE[3:5], (3, 2)),
        "half": BASE.astype("<f2"),
        "brain": bf16,
        "double": BASE.astype("<f8"),
        "long": np.arange(5),
        "empty": np.zeros((0, 4)),
        "scalar": BASE[5].reshape(()),
        "parameter": BASE,
    }
    for name, array in expected.items():
        assert tensors[name].name == name
        found = tensors[name].elements()
        assert found.shape == array.shape == tensors[name].shape, name
        assert np.array_equal(found, array), name
    assert tensors["brain"].stored == "BF16"
    assert not tensors["whole"].elements().flags.writeable


def rewrite(checkpoint: Path, save: Callable[..., None], n_shards: int) -> None:
    """The checkpoint's safetensors as PyTorch files."""
    path = checkpoint / "model.safetensors"
    arrays = load_file(path)
    path.unlink()
    if n_shards == 1:
        save(checkpoint / "pytorch_model.bin", arrays)
        return
    weight_map: dict[str, str] = {}
    for index in range(n_shards):
        shard = f"pytorch_model-{index + 1:05}-of-{n_shards:05}.bin"
        part = {name: arrays[name] for name in sorted(arrays)[index::n_shards]}
        save(checkpoint / shard, part)
        weight_map |= dict.fromkeys(part, shard)
    index_path = checkpoint / "pytorch_model.bin.index.json"
    index_path.write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(("save", "n_shards"), [(save_torch, 1), (save_torch, 3), (save_legacy, 1)])
def test_a_checkpoint_converts_to_the_bytes_of_its_safetensors(
    save: Callable[..., None], n_shards: int, checkpoint: Path, tmp_path: Path
) -> None:
    convert_checkpoint(checkpoint, tmp_path / "safe")
    rewrite(checkpoint, save, n_shards)
    convert_checkpoint(checkpoint, tmp_path / "torch")
    for name in ("model.bin", "config.json"):
        assert (tmp_path / "safe" / name).read_bytes() == (tmp_path / "torch" / name).read_bytes()


def test_what_training_adds_comes_back_inert(tmp_path: Path) -> None:
    """Namespaces, paths, states of optimizers and generators: names and values, no objects."""
    plain = {"lr": 0.5, "betas": [0.9, 0.95], "who": argparse.Namespace(layers=3, path=Path("/a"))}
    value = pickle.loads(pickle.dumps(plain))
    assert value["who"].layers == 3
    found: Any = read_torch_file(save_pickle(tmp_path / "w.pt", pickle.dumps(plain)))
    assert (found["lr"], found["betas"]) == (0.5, [0.9, 0.95])
    who = found["who"]
    assert isinstance(who, Inert)
    assert who.made_by.full_name == "argparse.Namespace"
    assert who.state["layers"] == 3
    assert isinstance(who.state["path"], Inert)
    assert who.state["path"].args == ("/", "a")
    numbers = pickle.dumps({"rng": np.random.default_rng(1).bit_generator.state, "a": BASE})
    found = read_torch_file(save_pickle(tmp_path / "n.pt", numbers))
    assert found["rng"]["bit_generator"] == "PCG64"
    assert isinstance(found["a"], Inert)  # numpy's, no tensor


def test_weights_are_found_beside_the_rest(tmp_path: Path) -> None:
    args = Call("argparse", "Namespace", ())
    save_torch(tmp_path / "w.pt", {"module": {"a.weight": BASE}, "args": args, "step": 7})
    assert list(read_state_dict(tmp_path / "w.pt")) == ["a.weight"]
    save_torch(tmp_path / "v.pt", {"a.weight": BASE, "args": args})
    with pytest.raises(
        ConversionError, match=r"v\.pt: args is a argparse\.Namespace, not a tensor"
    ):
        read_state_dict(tmp_path / "v.pt")
    save_torch(tmp_path / "u.pt", [BASE])
    with pytest.raises(ConversionError, match=r"u\.pt holds a list, not a dict of tensors"):
        read_state_dict(tmp_path / "u.pt")
    loop = b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s."  # a dict that contains itself
    with pytest.raises(ConversionError, match="model is a dict, not a tensor"):
        read_state_dict(save_pickle(tmp_path / "loop.pt", loop))


class Touch:
    """Unpickled, it makes the file of its name."""

    def __init__(self, maker: Callable[..., Any], *args: Any) -> None:
        self.call = (maker, args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def attacks(mark: Path) -> dict[str, bytes]:
    """Pickles that make the file `mark` when Python's unpickler loads them."""
    command = f"touch {mark}"
    text = b"X" + struct.pack("<I", len(command)) + command.encode()
    method = Touch(getattr, pathlib.Path(mark), "touch")
    return {
        "text protocol": pickle.dumps([("w", Touch(os.system, command))], 0),
        "global": pickle.dumps({"w": Touch(os.system, command)}, 2),
        "stack global": pickle.dumps({"w": Touch(os.system, command)}, 4),
        "dropped": b"\x80\x02cposix\nsystem\n" + text + b"\x85R0}.",
        "inst": b"(" + text + b"iposix\nsystem\n.",
        "obj": b"(cposix\nsystem\n" + text + b"o.",
        "eval": pickle.dumps({"w": Touch(eval, f"__import__('os').system({command!r})")}),
        "what a call returned": pickle.dumps(method)[:-1] + b")R.",
    }


@pytest.mark.parametrize("name", list(attacks(Path("x"))))
def test_a_harmful_pickle_runs_nothing_and_is_refused(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    data = attacks(mark)[name]
    pickle.loads(data)
    assert mark.exists()  # it is harmful
    mark.unlink()
    path = tmp_path / "w.bin"
    for legacy in (False, True):
        if legacy:
            save_legacy(path, {})
            head = path.read_bytes()
            path.write_bytes(head.replace(Encoder().dump({}), data))
        else:
            save_pickle(path, data)
        with pytest.raises(ConversionError) as caught:
            read_state_dict(path)
        if name == "what a call returned":
            assert caught.value.message == f"{path} holds a builtins.getattr, not a dict of tensors"
        else:
            assert "which no checkpoint needs; nothing was run" in caught.value.message
    assert not mark.exists()


def test_bombs_of_shared_parts_and_of_numbers_cost_nothing(tmp_path: Path) -> None:
    doubled = b"\x80\x02]q\x00" + b"".join(
        b"](h" + bytes([n]) + b"h" + bytes([n]) + b"eq" + bytes([n + 1]) for n in range(200)
    )
    found = read_torch_file(save_pickle(tmp_path / "a", doubled + b"."))
    assert found[0] is found[1]
    for data, message in (
        # A tuple in a tuple ... as a key: its hash would visit 2^60 places.
        (b"Nq\x000" + b"h\x00h\x00\x86q\x000" * 60 + b"}h\x00Ns.", "a tuple is used as a key"),
        (b"}h\x00Ns.", "is damaged"),
        (b"\x80\x02" + b"(" * 1000 + b".", "is damaged"),
        (b"\x8b\xff\xff\xff\x7f", "is damaged"),  # an integer of 2 GB
        (b"\x8d" + b"\xff" * 7 + b"\x0f", "is damaged"),  # a text of 1 EB
        (b"I" + b"9" * 5000 + b"\n.", "is damaged"),
        (b"\x82\x01.", "has the opcode EXT1"),
        (b"N)R.", "is damaged: a NoneType is called"),
        (b"N", "is damaged"),
        (b"", "is damaged"),
    ):
        with pytest.raises(ConversionError, match=message):
            read_torch_file(save_pickle(tmp_path / "b", data))
    big = b"\x80\x02Nr\xff\xff\xff\x7f."  # Python's unpickler would make room for 2^31 values
    assert read_torch_file(save_pickle(tmp_path / "c", big)) is None
    deep = b"\x80\x02]" + b"q\x00](h\x00e" * 100_000 + b"."
    assert isinstance(read_torch_file(save_pickle(tmp_path / "d", deep)), list)


def test_archives_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    encoder = Encoder()
    data = encoder.dump({"w": BASE})
    good = {"data.pkl": data, "byteorder": b"little", "data/0": BASE.tobytes()}
    path = tmp_path / "w.bin"

    def refused(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> str:
        write_archive(path, members, compression)
        with pytest.raises(ConversionError) as caught:
            read_state_dict(path)
        return caught.value.message

    assert "has a compressed or encrypted byteorder" in refused(good, zipfile.ZIP_DEFLATED)
    assert "is big-endian, which is not supported" in refused(good | {"byteorder": b"big"})
    assert "is a TorchScript program, not a checkpoint" in refused(good | {"constants.pkl": b""})
    assert "data/0 has 4 bytes instead of 192" in refused(good | {"data/0": b"1234"})
    del good["data/0"]
    assert "it has no data/0; download it again" in refused(good)
    assert "is a zip archive without data.pkl" in refused({"x": b""})
    path.write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(ConversionError, match="is damaged or truncated"):
        read_state_dict(path)
    for content in (b"", b"GGUF" + bytes(40), bytes(200)):
        path.write_bytes(content)
        with pytest.raises(ConversionError, match=r"is not what torch\.save writes"):
            read_state_dict(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.bin"
    for save in (save_torch, save_legacy):
        save(path, {"w": BASE, "v": BASE.astype("<f2")})
        data = path.read_bytes()
        for size in range(0, len(data), 7):
            path.write_bytes(data[:size])
            with pytest.raises(ConversionError):
                read_state_dict(path)
    save_legacy(path, {"w": BASE}, little_endian=False)
    with pytest.raises(ConversionError, match="is big-endian"):
        read_state_dict(path)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (View(BASE, 1, (6, 8), (8, 1)), "exceeds its storage"),
        (View(BASE, 0, (7, 8), (8, 1)), "exceeds its storage"),
        (View(BASE, 0, (2, 2), (1 << 62, 1)), "exceeds its storage"),
        (View(BASE, -1, (2,), (1,)), "is damaged: a tensor of shape"),
        (View(BASE, 8, (2,), (-1,)), "is damaged: a tensor of shape"),
        (View(BASE, 0, (2, 2), (1,)), "is damaged: a tensor of shape"),
        (
            View(BASE, 0, (8,), (1,), "_rebuild_sparse_tensor"),
            "w is a torch._utils._rebuild_sparse",
        ),
        (Call("torch.storage", "_load_from_bytes", (1,)), "w is a torch.storage._load_from_bytes"),
        (Call("torch", "float32"), "w is torch.float32, not a tensor"),
    ],
)
def test_tensors_that_reach_beyond_their_storage_are_refused(
    view: Any, message: str, tmp_path: Path
) -> None:
    save_torch(tmp_path / "w.bin", {"w": view})
    with pytest.raises(ConversionError, match=message):
        read_state_dict(tmp_path / "w.bin")


def test_globals_keep_their_names(tmp_path: Path) -> None:
    save_torch(tmp_path / "w.pt", {"dtype": Call("torch", "float16"), "w": BASE})
    found = read_torch_file(tmp_path / "w.pt")
    assert isinstance(found["dtype"], Global)
    assert found["dtype"].full_name == "torch.float16"
    assert isinstance(found["w"], Tensor)
