# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The comparison with llama.cpp (bench/): its models, its peer, its report. Nothing is timed."""

from __future__ import annotations

import dataclasses
import hashlib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, get_args

import compare
import comparison_report
import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize
from peer import COMMIT, FLAGS, REQUIREMENT, PeerError, PeerFacts, check_peer
from synthetic_gguf import (
    Shape,
    Type,
    UnequalError,
    check_conversion,
    convert,
    is_current,
    write_gguf,
)

SMALL = Shape(64, 2, 4, 2, 96, 4, 2, 128, positions=64)
# As sha256sum shows them: the same seed gives the same bytes, with any version of numpy.
HASHES = {
    "q8": "d8c50c633304f9653cb36467db85c84f4718c21e733424ef7736632e7b127587",
    "q4": "3ef0d6f0f6e6d46d8ce0e92663ee1653fe13d13b70efbc543e37e12cb465e2bb",
    "f16": "6816996a74462cfaa46d491100fc421a42719e30d6280829fe5f28f99391f8b6",
}


@pytest.mark.parametrize("kind", get_args(Type))
def test_same_seed_same_bytes(kind: Type, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, SMALL, kind)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == HASHES[kind]
    other = tmp_path / "other.gguf"
    write_gguf(other, SMALL, kind, seed=2)
    assert other.read_bytes() != path.read_bytes()
    assert is_current(path, SMALL, kind)
    assert not is_current(other, SMALL, kind)


@pytest.mark.parametrize("kind", get_args(Type))
def test_weights_keep_the_size_of_activations(kind: Type, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, SMALL, kind)
    (tensor,) = (one for one in GGUFReader(path).tensors if one.name == "blk.1.ffn_up_exps.weight")
    values = dequantize(tensor.data, tensor.tensor_type)
    assert values.shape == (4, 96, 64)
    assert np.std(values) * np.sqrt(64) == pytest.approx(1, rel=0.03)
    assert np.mean(values) * np.sqrt(64) == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("kind", get_args(Type))
def test_both_files_have_equal_bits(kind: Type, tmp_path: Path) -> None:
    gguf, model = tmp_path / "model.gguf", tmp_path / "model"
    write_gguf(gguf, dataclasses.replace(SMALL, hidden=512, ffn=512, experts=16), kind)
    convert(gguf, model)
    theirs, ours = check_conversion(gguf, model)
    weights = 2 * (512 * 512 * 3 + 2 * 3 * 512 * 512) + 128 * 512
    bits = {"q8": 8.5, "q4": 4.5, "f16": 16}[kind]
    router = 2 * 16 * 512 * 4
    assert theirs == pytest.approx(weights * bits / 8 + router, rel=0.01)
    assert ours == pytest.approx(theirs, rel=0.01)


def test_a_conversion_to_another_type_is_refused(tmp_path: Path) -> None:
    gguf, other, model = tmp_path / "q8.gguf", tmp_path / "q4.gguf", tmp_path / "model"
    write_gguf(gguf, SMALL, "q8")
    write_gguf(other, SMALL, "q4")
    convert(other, model)
    with pytest.raises(UnequalError, match=r"token_embd\.weight is Q8_0, embeddings is not"):
        check_conversion(gguf, model)


def test_weights_of_an_older_recipe_are_written_anew(tmp_path: Path) -> None:
    """One nibble 0, the weight -8, which older files have."""
    gguf = tmp_path / "small-q4.gguf"
    write_gguf(gguf, SMALL, "q4")
    whole = gguf.read_bytes()
    (tensor,) = (one for one in GGUFReader(gguf).tensors if one.name == "blk.0.attn_k.weight")
    old = bytearray(whole)
    old[tensor.data_offset + 2] = 0  # after the block's scale
    gguf.write_bytes(old)
    assert not is_current(gguf, SMALL, "q4")
    assert not is_current(gguf, dataclasses.replace(SMALL, hidden=128), "q4")


@pytest.mark.parametrize(
    "words", [("--measures", "decode,decod"), ("--models", "XL"), ("--types", "q5")]
)
def test_a_name_that_is_none_is_refused_at_once(
    words: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["compare.py", *words])
    with pytest.raises(SystemExit) as caught:
        compare.parse()
    assert caught.value.code == 2
    name = words[1].split(",")[-1]
    assert f"error: {words[0]}: {name!r} is none of " in capsys.readouterr().err


AVX2 = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | FMA = 1 | REPACK = 1 | "


def facts_of(info: str, requirement: str = REQUIREMENT) -> PeerFacts:
    return PeerFacts(requirement.removeprefix("llama-cpp-python=="), COMMIT, FLAGS, info)


def test_a_peer_with_avx2_and_repacking_is_taken() -> None:
    check_peer(facts_of(AVX2), "x86_64")
    check_peer(facts_of("CPU : NEON = 1 | DOTPROD = 1 | REPACK = 1 | "), "aarch64")


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (AVX2.replace("AVX2 = 1 | ", ""), "without AVX2"),
        (AVX2.replace("AVX2 = 1", "AVX2 = 0"), "without AVX2"),
        (AVX2.replace("REPACK = 1 | ", ""), "without REPACK"),
        ("", "without"),
    ],
)
def test_a_peer_without_them_is_refused(info: str, reason: str) -> None:
    with pytest.raises(PeerError, match=reason):
        check_peer(facts_of(info), "x86_64")


def test_another_release_of_the_peer_is_refused() -> None:
    with pytest.raises(PeerError, match=r"0\.1\.0, not llama-cpp-python==0\.3"):
        check_peer(facts_of(AVX2, "llama-cpp-python==0.1.0"), "x86_64")


def row_of(measure: str, tokens: int, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    roof = {
        "bytes": 4_000_000_000,
        "read_gb_s": {"1": 10.0, "4 prefetched": 20.0},
        "numpy_gb_s": 19.5,
        "f32_gflop_s": 200.0,
        "q8_gop_s": 300.0,
        "q4_gop_s": 600.0,
    }
    return {
        "model": "M",
        "type": "q4",
        "level": "avx2",
        "threads": 2,
        "measure": measure,
        "tokens": tokens,
        "batch": 0,
        "bytes_per_token": 1_000_000_000,
        "macs_per_token": 1_500_000_000,
        "file_bytes": 4_000_000_000,
        "cosine": 1.0,
        "roofs": [] if measure == "first" else [roof],
        "seconds": {"colibri": ours, "llama.cpp": theirs},
        "peak_rss_bytes": {"colibri": 100 << 20, "llama.cpp": 300 << 20},
    }


MEASURED = {
    "machine": {"machine": "x86_64", "cpus": 2},
    "builds": {"colibri": "0" * 16, "llama.cpp": dataclasses.asdict(facts_of(AVX2))},
    "rows": [
        row_of("first", 1, [0.25, 0.2, 0.3], [2.0, 2.0, 1.0]),
        row_of("decode", 128, [8.0, 6.4, 10.0], [12.8, 16.0, 12.8]),
        row_of("prefill512", 512, [5.12], [5.12]),
        row_of("prefill4k", 4096, [40.96], [81.92]),
    ],
}


def test_the_table_has_medians_shares_and_what_is_missed() -> None:
    assert [" | ".join(row) for row in comparison_report.cells(MEASURED)] == [
        # 128 tokens in 8 s are 16 a second, of 1 GB each: 16 GB/s of 20
        "M q4 | 2 | decode | 1.60 | 1.4 met | 16.0 (12.8 to 20.0) | 10.0 (8.0 to 10.0) | 80% | "
        "87% MISSED",
        # 100 tokens a second, of 3e9 operations each: 300e9 of 600e9
        "M q4 | 2 | prefill512 | 1.00 | 2.1 MISSED | 100.0 (100.0 to 100.0) | "
        "100.0 (100.0 to 100.0) | 50% | 45% met",
        "M q4 | 2 | first | 8.00 | 5.0 met | 0.250 s (0.200 to 0.300), 100 MiB | "
        "2.000 s (1.000 to 2.000), 300 MiB |  | ",
        # no share: with so many positions attention takes a part of the time
        "M q4 | 2 | prefill4k | 2.00 |  | 100.0 (100.0 to 100.0) | 50.0 (50.0 to 50.0) |  | ",
    ]


def test_a_second_thread_memory_and_the_first_token_have_goals() -> None:
    """Two threads are 1.8 times as fast where the memory's are 2 times."""
    one, two = (row_of("decode", 128, [seconds], [20.0]) for seconds in (14.4, 8.0))
    one["threads"] = 1
    (roof,) = one["roofs"]
    roof |= {"read_gb_s": {"1": 10.0}, "numpy_gb_s": 9.0}
    first = row_of("first", 1, [0.25, 0.2, 0.35], [2.0])
    first["peak_rss_bytes"]["colibri"] = 4_000_000_000 + (33 << 20)
    data = {**MEASURED, "rows": [one, two, first]}
    assert list(comparison_report.other_cells(data)) == [
        ("M q4", "decode, 2 threads to 1", "1.80", "1.85 MISSED"),
        ("M q4", "memory, 2 thr., file + MiB", "33", "32 MISSED"),
        ("M q4", "first, 2 thr., s", "0.250", "0.3 met"),
    ]
    roof["read_gb_s"] = {"1": 12.5}
    assert next(comparison_report.other_cells(data))[2:] == ("1.80", "1.55 met")
    one["seconds"]["colibri"] = [12.0]
    assert next(comparison_report.other_cells(data))[2:] == ("1.50", "1.55 MISSED")


def test_the_roof_is_the_median_of_its_rounds() -> None:
    """In each round the best loop, or numpy where it is faster: 20, 30 and 12 GB/s."""
    row = row_of("decode", 128, [8.0], [12.8])
    (roof,) = row["roofs"]
    faster = {**roof, "numpy_gb_s": 30.0, "q4_gop_s": 900.0}
    slower = {**roof, "read_gb_s": {"1": 12.0}, "numpy_gb_s": 9.0, "q4_gop_s": 300.0}
    row["roofs"] = [faster, slower, roof]
    data = {**MEASURED, "rows": [row]}
    assert list(comparison_report.roof_cells(data)) == [
        ("M q4", "2", "decode", "4.0", "20.0 (4 prefetched)", "19.5", "200", "300", "600")
    ]
    assert next(comparison_report.cells(data))[7] == "80%"  # 16 GB/s of 20


def test_markdown_names_the_peer_and_the_machine() -> None:
    text = comparison_report.markdown(MEASURED)
    assert "| M q4 | 2 | decode | 1.60 | 1.4 met |" in text
    assert "AVX2 = 1" in text
    assert COMMIT in text
    assert "cpus 2" in text


def test_the_plot_puts_points_where_they_belong() -> None:
    root = ET.fromstring(comparison_report.svg(MEASURED))
    name = "{http://www.w3.org/2000/svg}"
    points = [(one.get("cx"), one.get("cy")) for one in root.iter(f"{name}circle")]
    assert len(points) == 4  # two measures of two engines; `first` and `prefill4k` have none
    (line,) = root.iter(f"{name}polyline")
    corners = [tuple(map(float, one.split(","))) for one in line.get("points", "").split()]
    assert len(corners) == 3
    # 600e9 operations at 20 GB/s: the roof bends at 30 operations a byte, and stays level
    assert corners[1][1] == corners[2][1]
    assert corners[1][0] == pytest.approx(60 + 420 * np.log(30) / np.log(4096), abs=0.1)
    # 80 % of the bandwidth in decode: below the roof at 3 operations a byte
    x, y = map(float, (points[0][0] or "", points[0][1] or ""))
    assert x == pytest.approx(60 + 420 * np.log(3) / np.log(4096), abs=0.1)
    assert y == pytest.approx(340 - 300 * np.log(48 / 8) / np.log(128), abs=0.1)
