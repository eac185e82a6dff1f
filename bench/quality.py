#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What q8 and q4 cost the model of the demonstration, next to what Q8_0 and Q4_0 cost llama.cpp.

Both engines get the same token ids, and their logits after every token of a text are compared with
those of an f32 model. All weights come from one float32 GGUF file. BUILD is a Meson build with the
programs `colibri` and `bench/logits`; WORK keeps the models, 5 GB, for the next run. Needs the
package llama-cpp-python besides the project's own.

    python bench/quality.py BUILD WORK TEXT [--tokens N]
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import gguf
import llama_cpp
import numpy as np
import numpy.typing as npt

from colibri_deploy.convert import DTypeChoice, convert_checkpoint
from colibri_deploy.demo_model import obtain_demo_model
from colibri_deploy.upcycle import Upcycling

Logits = npt.NDArray[np.float32]  # [positions, vocab_size]
Floats = npt.NDArray[np.float64]
Ids = tuple[int, ...]

_ROWS = 64  # positions that are compared at a time, in float64
_KV_TYPES = {"f32": llama_cpp.GGML_TYPE_F32, "f16": llama_cpp.GGML_TYPE_F16}
_FILE_TYPES = {  # of the GGUF files: llama.cpp's ftype, and whether all matrices get this type
    "q8_0": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, True),
    "q4_0": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, True),
    "q4_0-default": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, False),
}


@dataclasses.dataclass(frozen=True)
class Model:
    """A GGUF file run by llama.cpp, or run by Colibri as converted with --dtype."""

    engine: Literal["colibri", "llama.cpp"]
    gguf: str  # "f32" or one of _FILE_TYPES
    kv: str = "f16"
    dtype: DTypeChoice = "keep"
    upcycling: Upcycling | None = None


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of the report: a model, and the one that its logits are compared with."""

    name: str
    model: Model
    reference: Model


COLIBRI_F32 = Model("colibri", "f32", "f32")
LLAMA_F32 = Model("llama.cpp", "f32", "f32")


def cases() -> Iterator[Case]:
    """The rows of the report."""
    mixture = Upcycling(4, 2)
    yield Case("Colibri f32 (llama.cpp F32)", COLIBRI_F32, LLAMA_F32)
    yield Case("llama.cpp F32 (Colibri f32)", LLAMA_F32, COLIBRI_F32)
    yield Case("Colibri f32, KV f16", Model("colibri", "f32"), COLIBRI_F32)
    yield Case("Colibri f32, KV q8", Model("colibri", "f32", "q8"), COLIBRI_F32)
    yield Case("llama.cpp F32, KV f16", Model("llama.cpp", "f32"), LLAMA_F32)
    upcycled = dataclasses.replace(COLIBRI_F32, upcycling=mixture)
    yield Case("Colibri f32, upcycled", upcycled, COLIBRI_F32)
    dtypes: tuple[tuple[DTypeChoice, str], ...] = (("q8", "q8_0"), ("q4", "q4_0"))
    for dtype, file in dtypes:
        own = Model("colibri", "f32", dtype=dtype)
        same, llama = Model("colibri", file), Model("llama.cpp", file)
        name, kind = f"Colibri, weights of llama.cpp's {file.upper()}", f"llama.cpp {file.upper()}"
        yield Case(f"Colibri {dtype}", own, COLIBRI_F32)
        yield Case(kind, llama, LLAMA_F32)
        yield Case(name, same, COLIBRI_F32)
        yield Case(f"{name} ({kind})", same, llama)
        yield Case(f"{kind}, KV f32", dataclasses.replace(llama, kv="f32"), LLAMA_F32)
        yield Case(f"{name}, KV f32", dataclasses.replace(same, kv="f32"), COLIBRI_F32)
        widened = Model("colibri", file, "f32", "f32")
        yield Case(f"{name}, as f32, KV f32", widened, COLIBRI_F32)
        upcycled = dataclasses.replace(own, upcycling=mixture)
        yield Case(f"Colibri {dtype}, upcycled", upcycled, COLIBRI_F32)
    yield Case("Colibri q8, KV q8", Model("colibri", "f32", "q8", "q8"), COLIBRI_F32)
    yield Case("Colibri mxfp4", Model("colibri", "f32", dtype="mxfp4"), COLIBRI_F32)
    default = Model("llama.cpp", "q4_0-default")
    yield Case("llama.cpp Q4_0, its default mixture", default, LLAMA_F32)


def dequantise(source: Path, target: Path) -> None:
    """Copy a GGUF file with all tensors as F32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name == "general.file_type":
            writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        elif name != "general.architecture" and not name.startswith("GGUF."):
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantise(source: Path, target: Path, file_type: int, pure: bool) -> None:
    """What `llama-quantize [--pure] SOURCE TARGET TYPE` does."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype, parameters.pure = file_type, pure
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), parameters):
        raise SystemExit(f"llama.cpp cannot quantise {source}")


def obtain_gguf(work: Path, name: str) -> Path:
    """The GGUF file `Model.gguf`, made in `work` unless it lies there."""
    path = work / f"{name}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        if name == "f32":
            dequantise(obtain_demo_model(), part)
        else:
            quantise(obtain_gguf(work, "f32"), part, *_FILE_TYPES[name])
        part.replace(path)
    return path


def describe_gguf(work: Path, name: str) -> str:
    """How many matrices have which type, and which type the embeddings, also the head, have."""
    tensors = gguf.GGUFReader(obtain_gguf(work, name)).tensors
    types = {tensor.name: tensor.tensor_type.name for tensor in tensors if len(tensor.shape) > 1}
    counts = collections.Counter(types.values()).most_common()
    listed = ", ".join(f"{count} matrices {kind}" for kind, count in counts)
    return f"{name}.gguf: {listed}; token_embd {types['token_embd.weight']}"


def obtain_colibri(work: Path, model: Model) -> Path:
    """Colibri's model directory, made in `work` unless it lies there."""
    mixture = "-upcycled" if model.upcycling else ""
    directory = work / f"{model.gguf}-{model.dtype}{mixture}"
    if not directory.exists():
        source = obtain_gguf(work, model.gguf)
        convert_checkpoint(source, directory, model.dtype, upcycling=model.upcycling)
    return directory


def run_colibri(program: Path, directory: Path, kv: str, ids: Ids) -> Logits:
    """The logits after each of the ids, by the program bench/logits."""
    listed = ",".join(map(str, ids)).encode()
    words: list[str | Path] = [program, directory, kv]
    done = subprocess.run(words, input=listed, check=True, stdout=subprocess.PIPE)
    return np.frombuffer(done.stdout, np.float32).reshape(len(ids), -1)


def run_llama(path: Path, kv: str, ids: Ids) -> Logits:
    """The logits after each of the ids, by llama.cpp on all CPUs."""
    cpus = os.cpu_count()
    llama = llama_cpp.Llama(
        str(path),
        n_ctx=len(ids),
        n_threads=cpus,
        n_threads_batch=cpus,
        type_k=_KV_TYPES[kv],
        type_v=_KV_TYPES[kv],
        flash_attn=False,
        logits_all=True,
        verbose=False,
    )
    llama.eval(ids)
    logits: Logits = llama.scores[: len(ids)].copy()
    llama.close()
    return logits


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A model's logits against its reference's, over the positions of a text."""

    kl: Floats  # [positions] KL(reference || model) of the next token's distribution, nats
    nll: Floats  # [positions - 1] of the token that follows, nats
    agreement: float  # share of the positions where both like the same token best
    largest: float  # difference of a logit

    def row(self) -> str:
        """Its cells of a table in Markdown; the error is that of the mean."""
        error = self.kl.std(ddof=1) / np.sqrt(len(self.kl))
        return (
            f"{self.kl.mean():.3g} ± {error:.2g} | {np.exp(self.nll.mean()):.4f} | "
            f"{self.agreement:.1%} | {self.largest:.2g}"
        )


def compare(reference: Logits, other: Logits, ids: Ids) -> Comparison:
    """Compare logits [len(ids), vocab_size] after each of the ids."""
    kl, nll, same, largest = [], [], 0, 0.0
    for start in range(0, len(ids), _ROWS):
        one, two = reference[start : start + _ROWS], other[start : start + _ROWS]
        expected, found = log_softmax(one), log_softmax(two)
        kl.append((np.exp(expected) * (expected - found)).sum(axis=1))
        following = ids[start + 1 : start + 1 + _ROWS]
        nll.append(-found[np.arange(len(following)), following])
        same += int((one.argmax(axis=1) == two.argmax(axis=1)).sum())
        largest = max(largest, float(np.abs(one - two).max()))
    return Comparison(np.concatenate(kl), np.concatenate(nll), same / len(ids), largest)


def log_softmax(logits: Logits) -> Floats:
    """Of each row, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def tokenize(program: Path, directory: Path, text: Path) -> Ids:
    """A text's token ids, by Colibri's tokenizer."""
    words: list[str | Path] = [program, "--model", directory, "--prompt_file", text, "--tokenize"]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return tuple(map(int, done.stdout.split(",")))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    for name in ("build", "work", "text"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--tokens", type=int, help="take so many of the text's tokens")
    arguments = parser.parse_args()
    build, work = arguments.build, arguments.work
    work.mkdir(parents=True, exist_ok=True)
    directory = obtain_colibri(work, COLIBRI_F32)
    ids = tokenize(build / "colibri", directory, arguments.text)[: arguments.tokens]

    @functools.lru_cache(maxsize=4)  # some are the reference of several
    def logits(model: Model) -> Logits:
        if model.engine == "llama.cpp":
            return run_llama(obtain_gguf(work, model.gguf), model.kv, ids)
        return run_colibri(build / "bench/logits", obtain_colibri(work, model), model.kv, ids)

    print(f"{len(ids)} tokens of {arguments.text}; llama-cpp-python {llama_cpp.__version__}")
    print(llama_cpp.llama_print_system_info().decode())
    for file in _FILE_TYPES:
        print(describe_gguf(work, file))
    print("\n| model (reference) | mean KL | perplexity | same best token | logit difference |")
    print("| --- | --- | --- | --- | --- |")
    for case in cases():
        comparison = compare(logits(case.reference), logits(case.model), ids)
        print(f"| {case.name} | {comparison.row()} |", flush=True)


if __name__ == "__main__":
    main()
