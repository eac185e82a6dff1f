# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What smoke catches: one fault at a time on a board, and which of the steps find it."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from board_fixtures import Place, report_of
from test_mutations import build_mutant
from test_results import FEW, read_junit

from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.golden_model import SHA256
from colibri_deploy.model import Model
from colibri_deploy.process import Completed, run
from colibri_deploy.targets import machine_arch

Deploy = Callable[..., Completed]

STEPS = ("version", "sha256", "verify", "selftest", "golden", "model")
TITLE = "what smoke catches: by which step, and what of it"
PROMPT = ("--tokens", "7,8", "--num-tokens", "1")


# What a step says, and what of it has found the fault.
FINDERS = {
    " is damaged: SHA-256 ": "SHA-256",
    " fails with status 7: ": "CRC",
    "kernel f32_rms_norm of level ": "kernel",
    " differ from position ": "tokens",
    "the logits hash is ": "hash",
}


@pytest.fixture(scope="module")
def wrong_engine(
    root: Path, require: Callable[[bool, str], None], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An engine with a wrong kernel: root mean squares over one element too many."""
    require(machine_arch() == "x86_64", "mutants are built for x86_64")
    change = ("templates/ops/norm.c.j2", "(float)n + eps", "(float)(n + 1) + eps")
    return build_mutant(root, tmp_path_factory.mktemp("mutant"), [change])


@pytest.fixture(scope="module")
def large_model(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mixtral whose experts the engine does not check at load: over 8 MiB of each matrix."""
    folder = tmp_path_factory.mktemp("large")
    words = "hidden=256 ffn=1056 experts=4 top-k=2 layers=2 heads=4 kv-heads=2 vocab=50".split()
    options = [f"--{word}" for word in words]
    run([sys.executable, root / "tests/golden/synthetic.py", folder / "checkpoint", *options])
    convert_checkpoint(folder / "checkpoint", folder / "model")
    return folder / "model"


def use_engine(build_dir: Path, engine: Path) -> None:
    """Puts an engine where `push` takes it from."""
    path = build_dir / "host" / "colibri"
    path.unlink()
    path.write_bytes(engine.read_bytes())
    path.chmod(0o755)


def flip(path: Path, at: int) -> None:
    """Flips one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def unused_expert(engine: Path, model: Path, tmp_path: Path) -> tuple[int, int]:
    """A layer and an expert of it that PROMPT does not use."""
    trace = tmp_path / "trace"
    words = ("--tokens", "7,8", "--num_tokens", "1", "--format", "ids", "--logits_hash")
    run([engine, "--model", model, *words, "--ignore_eos", "--trace_routing", trace])
    routes = [json.loads(line) for line in trace.read_text().splitlines()]
    used = {(route["layer"], expert) for route in routes for expert in route["experts"]}
    config = Model.open(model).config
    every = itertools.product(range(config.n_layers), range(config.n_experts))
    return next(one for one in every if one not in used)


@dataclass(frozen=True)
class Scene:
    """A board on which everything is right so far, and what it takes to change that."""

    place: Place
    build_dir: Path
    engine: Path
    model: Path
    tmp_path: Path
    push: Callable[[], None]
    smoke: Callable[[], dict[str, str]]
    wrong_engine: Callable[[], Path]


def plant_nothing(scene: Scene) -> None:
    """Leaves the board as it is."""


def plant_wrong_kernel(scene: Scene) -> None:
    """Pushes an engine that was built with one."""
    use_engine(scene.build_dir, scene.wrong_engine())
    scene.push()


def plant_bit_in_binary(scene: Scene) -> None:
    """Damages a letter of the help text: no instruction, no number."""
    path = scene.place.stored("colibri")
    flip(path, path.read_bytes().index(b"Usage: colibri"))


def plant_bit_in_router(scene: Scene) -> None:
    """Damages what every token needs."""
    flip_item(scene, "router", 0, 0)


def plant_bit_in_unused_expert(scene: Scene) -> None:
    """Damages what the prompt does not need."""
    flip_item(scene, "down_weights", *unused_expert(scene.engine, scene.model, scene.tmp_path))


def flip_item(scene: Scene, name: str, layer: int, expert: int) -> None:
    """Flips a bit of a matrix in the user's model on the board."""
    section = Model.open(scene.model).file.section(name)
    at = section.offset + layer * section.layer_stride + expert * section.expert_stride
    flip(scene.place.stored("model.bin"), at + 5)


def plant_bit_in_golden_model(scene: Scene) -> None:
    """Damages a weight of it, after the first test has brought it."""
    scene.smoke()
    flip(scene.place.root / "store" / SHA256["model.bin"], 1_000_000)


@pytest.mark.parametrize(
    ("what", "plant", "finders"),
    [
        ("nothing", plant_nothing, {}),
        (
            "a wrong kernel",
            plant_wrong_kernel,
            {"selftest": "kernel", "golden": "hash", "model": "hash"},  # no token changes
        ),
        ("a flipped bit in the binary", plant_bit_in_binary, {"sha256": "SHA-256"}),
        (
            "one in the model's router",
            plant_bit_in_router,
            {"sha256": "SHA-256", "verify": "CRC", "model": "CRC"},
        ),
        (
            "one in an expert not used",
            plant_bit_in_unused_expert,
            {"sha256": "SHA-256", "verify": "CRC"},
        ),
        ("one in the golden model", plant_bit_in_golden_model, {"golden": "SHA-256"}),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_a_planted_fault_is_found_by(
    what: str,
    plant: Callable[[Scene], None],
    finders: dict[str, str],
    sim: Callable[..., Place],
    deploy: Deploy,
    build_dir: Path,
    engine: Callable[[str], Path],
    request: pytest.FixtureRequest,
    report_row: Callable[..., None],
    tmp_path: Path,
) -> None:
    place = sim()
    is_large = plant is plant_bit_in_unused_expert
    model: Path = request.getfixturevalue("large_model" if is_large else "small_model")
    words = (*place.arguments, "--model", model)

    def push() -> None:
        done = deploy("push", *words)
        assert done.status == 0, done.stderr

    def smoke() -> dict[str, str]:
        """What has found something, by step."""
        done = deploy("smoke", *words, *PROMPT, "--json")
        steps = report_of(done, "smoke")["steps"]
        assert [step["name"] for step in steps] == list(STEPS)
        failed = [step for step in steps if step["outcome"] == "failed"]
        assert done.status == (37 if failed else 0)
        found = {step["name"]: step["detail"] for step in failed}
        return {
            name: next((finder for said, finder in FINDERS.items() if said in detail), detail)
            for name, detail in found.items()
        }

    push()
    plant(
        Scene(
            place, build_dir, engine("host"), model, tmp_path, push, smoke,
            lambda: request.getfixturevalue("wrong_engine"),
        )
    )  # fmt: skip
    found = smoke()
    if plant is plant_nothing:
        report_row(TITLE, "", *STEPS)
    report_row(TITLE, what, *(found.get(step, "-") for step in STEPS))
    assert found == finders


def test_a_wrong_kernel_is_named_and_the_release_before_comes_back(
    sim: Callable[..., Place],
    deploy: Deploy,
    small_model: Path,
    build_dir: Path,
    wrong_engine: Path,
    tmp_path: Path,
) -> None:
    place = sim()
    words = (*place.arguments, "--model", small_model)
    good = report_of(deploy("push", *words, "--json"), "push")["release"]
    right = (build_dir / "host" / "colibri").read_bytes()
    use_engine(build_dir, wrong_engine)
    bad = report_of(deploy("push", *words, "--json"), "push")["release"]
    assert place.current.resolve().name == bad
    done = deploy("smoke", *words, "--json", "out.json", "--junit", "out.xml")
    assert done.status == 37
    back = f"release {good} is current again, in place of {bad}"
    assert f"rollback: {back}\n" in done.stderr
    assert " fails the smoke test at selftest: kernel f32_rms_norm of level " in done.stderr
    assert f"\nrollback passed: {back}\n" in done.stdout
    assert place.current.resolve().name == good
    assert place.stored("colibri").read_bytes() == right
    (steps,) = read_junit(tmp_path / "out.xml").values()
    assert (steps["version"], steps["sha256"], steps["verify"]) == ("passed", "passed", "passed")
    assert (steps["selftest"], steps["golden"], steps["model"]) == ("failed", "failed", "failed")
    assert steps["rollback"] == "passed"
    assert not (place.current.parent / "releases" / bad).exists()
    nothing = deploy("rollback", *place.arguments)
    assert nothing.status == 42
    assert f"has no release before {good}: push" in nothing.stderr
    done = deploy("smoke", *words, *FEW, "--json")
    assert (done.status, report_of(done, "smoke")["ok"]) == (0, True)
