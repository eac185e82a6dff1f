# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""`push` over real SSH: what is sent, and that bad luck leaves the board as it was.

The servers are the emulated board's and OpenSSH's; the client is a process of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from board_fixtures import Place, report_of
from loopback import commands_end

from colibri_deploy import push as push_module
from colibri_deploy import upload
from colibri_deploy.board import load_boards
from colibri_deploy.cli.byte_progress import ByteProgress
from colibri_deploy.convert import convert_checkpoint
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.process import Completed, run
from colibri_deploy.sim import Faults
from colibri_deploy.ssh import Connection
from colibri_deploy.store import cksum
from colibri_deploy.targets import load_targets, machine_arch, select

Deploy = Callable[..., Completed]

FOREIGN = "jetson-orin" if machine_arch() != "aarch64" else "x86-64"


@pytest.fixture
def pushed(deploy: Deploy) -> Callable[..., dict[str, Any]]:
    """`pushed(place, *args)` pushes and returns the record; the files are keyed by name."""

    def push(place: Place, *args: str | Path) -> dict[str, Any]:
        done = deploy("push", *place.arguments, *args, "--json")
        assert done.status == 0, done.stderr
        record = report_of(done, "push")
        record["files"] = {file["name"]: file for file in record["files"]}
        return record

    return push


@pytest.fixture
def sizes(engine: Callable[[str], Path], small_model: Path) -> dict[str, int]:
    """The sizes in bytes of what is pushed."""
    paths = (engine("host"), small_model / "model.bin", small_model / "config.json")
    return {path.name: path.stat().st_size for path in paths}


def in_store(place: Place) -> int:
    """The bytes of files in the store, without the lists of their chunks."""
    files = (path for path in place.root.glob("store/*") if ".chunks" not in path.name)
    return sum(path.stat().st_size for path in files)


def settled(place: Place) -> int:
    """The same, once the commands of a cut connection have ended."""
    home = place.root.parents[2]
    assert home.name == "home"
    commands_end(home)
    return in_store(place)


def runs(place: Place) -> bool:
    """Whether the current release is one that works."""
    done = run([place.current / "colibri", "--version"], check=False)
    return done.status == 0 and done.stdout.startswith("colibri ")


def test_everything_is_sent_once(
    sim: Callable[..., Place],
    pushed: Callable[..., dict[str, Any]],
    sizes: dict[str, int],
    small_model: Path,
) -> None:
    place = sim()
    first = pushed(place, "--model", small_model)
    assert {name: file["sent"] for name, file in first["files"].items()} == sizes
    assert first["bytes_sent"] == sum(sizes.values())
    assert first["previous"] is None
    assert place.current.readlink() == Path("releases", first["release"])
    assert sorted(path.name for path in place.current.iterdir()) == sorted([*sizes, "manifest"])
    for name, file in first["files"].items():
        assert place.stored(name) == place.root / "store" / file["sha256"]
    run(["sha256sum", "--check", "--strict", "manifest"], cwd=place.current)
    second = pushed(place, "--model", small_model)
    assert second["bytes_sent"] == 0
    assert second["release"] == second["previous"] == first["release"]
    assert place.partials() == []


def test_an_engine_alone_keeps_the_model_that_is_there(
    sim: Callable[..., Place],
    pushed: Callable[..., dict[str, Any]],
    build_dir: Path,
    small_model: Path,
) -> None:
    place = sim()
    first = pushed(place, "--model", small_model)
    engine = build_dir / "host" / "colibri"
    changed = engine.read_bytes() + b"\0"
    engine.unlink()
    engine.write_bytes(changed)
    second = pushed(place)
    assert second["bytes_sent"] == len(changed)
    assert second["previous"] == first["release"] != second["release"]
    assert (place.current / "model.bin").read_bytes() == (small_model / "model.bin").read_bytes()
    assert runs(place)


def test_a_push_without_a_model_is_an_engine(
    sim: Callable[..., Place], pushed: Callable[..., dict[str, Any]]
) -> None:
    place = sim()
    assert list(pushed(place)["files"]) == ["colibri"]
    assert runs(place)


def test_a_dry_run_says_what_would_be_sent_and_writes_nothing(
    sim: Callable[..., Place],
    deploy: Deploy,
    pushed: Callable[..., dict[str, Any]],
    sizes: dict[str, int],
    small_model: Path,
) -> None:
    place = sim()
    total = sum(sizes.values())
    done = deploy("push", *place.arguments, "--model", small_model, "--dry-run")
    assert (done.status, done.stderr) == (0, "")
    assert f"dry run: {total:,} bytes would be sent, release " in done.stdout
    assert not place.root.exists()
    record = pushed(place, "--dry-run", "--model", small_model)
    assert record["bytes_to_send"] == total
    pushed(place)
    record = pushed(place, "--dry-run", "--model", small_model)
    assert record["bytes_to_send"] == total - sizes["colibri"]
    assert "model.bin" not in {path.name for path in place.current.iterdir()}


def test_what_was_pushed_is_told(
    sim: Callable[..., Place], deploy: Deploy, small_model: Path, sizes: dict[str, int]
) -> None:
    place = sim()
    first = deploy("push", *place.arguments, "--model", small_model)
    assert (first.status, first.stderr) == (0, "")
    rows = [" ".join(line.split()) for line in first.stdout.splitlines()]
    assert rows[0] == f"{' '.join(place.arguments[1:2])}, {os.uname().machine}: {place.root}"
    model = f"{sizes['model.bin']:,}"
    assert any(row.startswith(f"model.bin {model} ") and f"{model} bytes" in row for row in rows)
    assert rows[-1].endswith("is current (before: none)")
    second = deploy("push", *place.arguments, "--model", small_model)
    assert second.stdout.count("nothing, it is there") == 3
    assert "sent 0 bytes in " in second.stdout


# Each command reads the script first. They are: look, twice; lock and, beside those that follow,
# hold; look; receive and seal for each of the three files; release; prune.
@pytest.mark.parametrize("where", ["probe", "engine", "model", "release"])
def test_a_push_that_was_cut_goes_on_where_it_ended(
    where: str,
    sim: Callable[..., Place],
    deploy: Deploy,
    pushed: Callable[..., dict[str, Any]],
    root: Path,
    sizes: dict[str, int],
    small_model: Path,
) -> None:
    script = (root / "colibri_deploy" / "board.sh").stat().st_size  # and about 200 bytes each time
    engine, total = sizes["colibri"], sum(sizes.values())
    cut_after = {
        "probe": script // 2,
        "engine": 6 * script + engine // 2,
        "model": 8 * script + engine + sizes["model.bin"] // 2,
        "release": 11 * script + total + script // 2,
    }[where]
    place = sim("host", Faults(cut_after=cut_after))
    done = deploy("push", *place.arguments, "--model", small_model)
    assert done.status == 29
    assert done.stderr.startswith("error: lost the connection to colibri@127.0.0.1:")
    assert len(done.stderr.splitlines()) == 1
    assert not place.current.exists()
    left = settled(place)
    again = sim("host")
    record = pushed(again, "--model", small_model)
    assert record["bytes_sent"] == total - left
    resumed = {name: file["resumed_at"] for name, file in record["files"].items()}
    assert resumed == {
        "colibri": left if where == "engine" else 0,
        "model.bin": left - engine if where == "model" else 0,
        "config.json": 0,
    }
    assert {"probe": left == 0, "release": left == total}.get(where, 0 < left < total)
    assert again.partials() == []
    assert runs(again)


def test_a_push_that_was_cut_leaves_the_release_before_it_current(
    sim: Callable[..., Place],
    deploy: Deploy,
    pushed: Callable[..., dict[str, Any]],
    small_model: Path,
) -> None:
    first = pushed(sim(), "--model", small_model)
    place = sim("host", Faults(cut_after=20_000))
    done = deploy("push", *place.arguments)
    assert done.status == 29
    assert place.current.readlink() == Path("releases", first["release"])
    assert runs(place)


def test_a_cut_upload_that_was_damaged_is_sent_anew(
    sim: Callable[..., Place],
    deploy: Deploy,
    pushed: Callable[..., dict[str, Any]],
    sizes: dict[str, int],
    small_model: Path,
) -> None:
    place = sim("host", Faults(cut_after=sizes["colibri"] + sizes["model.bin"] // 2))
    assert deploy("push", *place.arguments, "--model", small_model).status == 29
    settled(place)
    (partial,) = place.partials()
    flip(partial, 100)
    at = partial.stat().st_size
    record = pushed(sim(), "--model", small_model)
    assert record["files"]["model.bin"]["resumed_at"] == at
    assert record["bytes_sent"] == 2 * sizes["model.bin"] - at + sizes["config.json"]
    assert run(["sha256sum", "--check", "manifest"], cwd=place.current).status == 0


def flip(path: Path, at: int) -> None:
    """Flips one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["colibri", "model.bin", "config.json"])
def test_a_damaged_file_in_the_store_is_sent_again(
    name: str,
    sim: Callable[..., Place],
    pushed: Callable[..., dict[str, Any]],
    sizes: dict[str, int],
    small_model: Path,
) -> None:
    place = sim()
    pushed(place, "--model", small_model)
    flip(place.stored(name), sizes[name] // 2)
    record = pushed(place, "--model", small_model)
    assert record["bytes_sent"] == record["files"][name]["sent"] == sizes[name]
    assert [one for one, file in record["files"].items() if file["repaired"]] == [name]
    run(["sha256sum", "--check", "manifest"], cwd=place.current)
    assert runs(place)


def test_a_file_in_the_store_that_was_cut_short_is_sent_again(
    sim: Callable[..., Place],
    pushed: Callable[..., dict[str, Any]],
    sizes: dict[str, int],
    small_model: Path,
) -> None:
    place = sim()
    pushed(place, "--model", small_model)
    os.truncate(place.stored("model.bin"), 5)
    assert pushed(place, "--model", small_model)["bytes_sent"] == sizes["model.bin"]


def test_a_damaged_model_that_is_not_here_is_named(
    sim: Callable[..., Place],
    deploy: Deploy,
    pushed: Callable[..., dict[str, Any]],
    small_model: Path,
) -> None:
    place = sim()
    pushed(place, "--model", small_model)
    flip(place.stored("model.bin"), 1000)
    done = deploy("push", *place.arguments)
    assert done.status == 36
    assert done.stderr.startswith("error: model.bin is damaged on colibri@127.0.0.1:")
    assert done.stderr.endswith("it was removed; push it again with --model\n")


def link_gone(release: Path) -> None:
    (release / "model.bin").unlink()


def link_astray(release: Path) -> None:
    (release / "config.json").unlink()
    (release / "config.json").symlink_to("../../store/nonsense")


def engine_link_to_a_directory(release: Path) -> None:
    (release / "colibri").unlink()
    (release / "colibri").symlink_to("../../store")


def file_in_place_of_a_link(release: Path) -> None:
    content = (release / "config.json").read_bytes()
    (release / "config.json").unlink()
    (release / "config.json").write_bytes(content[:-2])


def manifest_empty(release: Path) -> None:
    (release / "manifest").write_bytes(b"")


def manifest_a_directory(release: Path) -> None:
    (release / "manifest").unlink()
    (release / "manifest").mkdir()


def release_gone(release: Path) -> None:
    shutil.rmtree(release)


def release_a_file(release: Path) -> None:
    shutil.rmtree(release)
    release.touch()


DAMAGES: dict[Callable[[Path], None], list[str]] = {
    link_gone: ["model.bin"],
    link_astray: ["config.json"],
    engine_link_to_a_directory: ["colibri"],
    file_in_place_of_a_link: ["config.json"],
    manifest_empty: ["manifest"],
    manifest_a_directory: ["manifest"],
    release_gone: [],
    release_a_file: [],
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: str(damage.__name__))
def test_a_damaged_release_is_mended_by_the_next_push(
    damage: Callable[[Path], None],
    sim: Callable[..., Place],
    deploy: Deploy,
    pushed: Callable[..., dict[str, Any]],
    small_model: Path,
) -> None:
    place = sim()
    first = pushed(place, "--model", small_model)
    assert first["mended"] == []
    damage(place.current.resolve())
    assert deploy("smoke", *place.arguments, "--model", small_model).status == 37
    second = pushed(place, "--model", small_model)
    assert (second["release"], second["bytes_sent"]) == (first["release"], 0)
    assert second["mended"] == DAMAGES[damage]
    assert sorted(path.name for path in place.current.iterdir()) == sorted(
        [*first["files"], "manifest"]
    )
    assert [path.name for path in place.root.glob("releases/*")] == [first["release"]]
    run(["sha256sum", "--check", "--strict", "manifest"], cwd=place.current)
    done = deploy("smoke", *place.arguments, "--model", small_model)
    assert done.status == 0
    assert done.stdout.endswith("verified\n")
    assert pushed(place, "--model", small_model)["mended"] == []


def test_what_was_mended_is_told(
    sim: Callable[..., Place],
    deploy: Deploy,
    pushed: Callable[..., dict[str, Any]],
    small_model: Path,
) -> None:
    place = sim()
    pushed(place, "--model", small_model)
    link_gone(place.current)
    link_astray(place.current)
    done = deploy("push", *place.arguments)  # the manifest says which files there were
    assert (done.status, done.stderr) == (0, "")
    assert "\nmended in the release: config.json, model.bin\n" in done.stdout
    assert deploy("smoke", *place.arguments, "--model", small_model).status == 0


def manifest_cut(release: Path) -> None:
    manifest = release / "manifest"
    manifest.write_text(manifest.read_text().splitlines()[0] + "\n")


@pytest.mark.parametrize("damage", [manifest_cut, manifest_empty, release_gone])
def test_a_damaged_manifest_does_not_cost_the_model(
    damage: Callable[[Path], None],
    sim: Callable[..., Place],
    deploy: Deploy,
    pushed: Callable[..., dict[str, Any]],
    small_model: Path,
) -> None:
    place = sim()
    first = pushed(place, "--model", small_model)
    damage(place.current.resolve())
    for words in ((), ("--dry-run",)):
        done = deploy("push", *place.arguments, *words)
        assert (done.status, done.stdout) == (36, "")
        assert done.stderr.startswith(
            f"error: the manifest of release {first['release']} is damaged on colibri@127.0.0.1:"
        )
        assert "push it again with --model" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert place.current.readlink() == Path("releases", first["release"])
    pushed(place, "--model", small_model)
    assert deploy("smoke", *place.arguments, "--model", small_model).status == 0


def test_an_engine_alone_whose_manifest_is_damaged_is_mended_without_a_model(
    sim: Callable[..., Place], deploy: Deploy, pushed: Callable[..., dict[str, Any]]
) -> None:
    place = sim()
    pushed(place)
    manifest_empty(place.current)
    assert pushed(place)["mended"] == ["manifest"]
    assert deploy("smoke", *place.arguments).status == 0


def test_a_board_of_another_architecture_is_refused_before_anything_is_sent(
    sim: Callable[..., Place], deploy: Deploy, build_dir: Path
) -> None:
    place = sim()
    (build_dir / FOREIGN).mkdir()
    shutil.copy(build_dir / "host" / "colibri", build_dir / FOREIGN)
    done = deploy("push", *place.arguments, "--target", FOREIGN)
    assert done.status == 33
    assert f" is {os.uname().machine}, but the target {FOREIGN} is " in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not place.root.exists()
    assert deploy("smoke", *place.arguments, "--target", FOREIGN).status == 33


def test_an_engine_that_was_not_built_and_a_bad_model_are_told_first(
    sim: Callable[..., Place], deploy: Deploy, build_dir: Path, small_model: Path, tmp_path: Path
) -> None:
    place = sim()
    done = deploy("push", *place.arguments, "--target", FOREIGN)
    assert done.status == 3
    assert done.stderr == (
        f"error: {build_dir}/{FOREIGN}/colibri does not exist; "
        f"build it: colibri-deploy build --target {FOREIGN}\n"
    )
    assert deploy("push", *place.arguments, "--model", tmp_path / "none").status == 3
    model = tmp_path / "model"
    shutil.copytree(small_model, model)
    os.truncate(model / "model.bin", 600_000)
    assert deploy("push", *place.arguments, "--model", model).status == 6
    assert not place.root.exists()


def test_a_file_that_cannot_grow_is_a_full_board_and_the_next_push_goes_on(
    sim: Callable[..., Place],
    deploy: Deploy,
    pushed: Callable[..., dict[str, Any]],
    sizes: dict[str, int],
    small_model: Path,
) -> None:
    first = pushed(sim())
    place = sim("host", Faults(file_blocks=1000))
    done = deploy("push", *place.arguments, "--model", small_model)
    assert done.status == 35
    assert done.stderr.startswith("error: no room on colibri@127.0.0.1:")
    assert "File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert place.current.readlink() == Path("releases", first["release"])
    assert runs(place)
    record = pushed(sim(), "--model", small_model)
    assert record["files"]["model.bin"]["resumed_at"] == 512_000
    assert record["bytes_sent"] == sizes["model.bin"] - 512_000 + sizes["config.json"]


@pytest.fixture
def small_disk(
    sim: Callable[..., Place], require: Callable[[bool, str], None]
) -> Iterator[Callable[[int], Place]]:
    """`small_disk(size)` is a board whose directory is a file system of that many KiB."""
    with ExitStack() as stack:

        def make(kib: int) -> Place:
            place = sim()
            place.root.mkdir(parents=True)
            options = ("-t", "tmpfs", "-o", f"size={kib}k")
            done = run(["mount", *options, "tmpfs", place.root], check=False)
            require(done.status == 0, f"no file system can be mounted: {done.stderr.strip()}")
            stack.callback(run, ["umount", place.root])
            return place

        yield make


def test_a_board_without_room_is_told_so_before_anything_is_sent(
    small_disk: Callable[[int], Place], deploy: Deploy, sizes: dict[str, int], small_model: Path
) -> None:
    place = small_disk(1000)
    done = deploy("push", *place.arguments, "--model", small_model)
    assert done.status == 35
    assert (
        f"{sum(sizes.values()):,} bytes are to be sent, 1,024,000 are free under {place.root}"
        in done.stderr
    )
    assert list(place.root.iterdir()) == []


def test_a_disk_that_fills_up_on_the_way_leaves_the_release_before_it(
    small_disk: Callable[[int], Place],
    deploy: Deploy,
    pushed: Callable[..., dict[str, Any]],
    sizes: dict[str, int],
    small_model: Path,
) -> None:
    """The bytes and a page for each small file that is there fit, those to come do not."""
    small = ("manifest", "list of chunks", "lock")
    pages = -(-sizes["colibri"] // 4096) + sizes["model.bin"] // 4096 + 1 + len(small)
    place = small_disk(4 * pages)
    first = pushed(place)
    done = deploy("push", *place.arguments, "--model", small_model)
    assert done.status == 35
    assert "No space left on device" in done.stderr
    assert place.current.readlink() == Path("releases", first["release"])
    assert runs(place)
    run(["mount", "-o", f"remount,size={4 * pages + 100}k", place.root])
    assert pushed(place, "--model", small_model)["bytes_sent"] < sizes["model.bin"]


NOISE = (
    """printf 'Welcome\\n\\n%s' "$PATH"; printf 'no tty\\n' >&2; eval "$SSH_ORIGINAL_COMMAND" """
)


def test_openssh_with_noise_on_both_outputs_and_odd_characters_in_the_path(
    sshd: Callable[..., Place],
    deploy: Deploy,
    pushed: Callable[..., dict[str, Any]],
    sizes: dict[str, int],
    small_model: Path,
) -> None:
    place = sshd("desk", NOISE, "it's a $HOME `b`; \\$(reboot) *")
    assert pushed(place, "--model", small_model)["bytes_sent"] == sum(sizes.values())
    assert pushed(place, "--model", small_model)["bytes_sent"] == 0
    assert place.stored("colibri").is_file()
    done = deploy("smoke", *place.arguments, "--model", small_model)
    assert done.status == 0
    assert done.stdout.endswith("verified\n")


@pytest.fixture
def busybox(
    sshd: Callable[..., Place], require_program: Callable[[str], Path], tmp_path: Path
) -> Place:
    """A board on which every tool is BusyBox, without sha256sum."""
    tools = tmp_path / "tools"
    tools.mkdir()
    run([require_program("busybox"), "--install", "-s", tools])
    (tools / "sha256sum").unlink()
    board = tmp_path / "board"
    command = """exec ./ash -c "$(printf %s "$SSH_ORIGINAL_COMMAND" | ./sed 's,/bin/sh,./ash,')" """
    board.write_text(f"#!{tools}/ash\ncd {tools}\nPATH={tools}\n{command}\n")
    board.chmod(0o755)
    return sshd("desk", str(board))


def test_busybox_mends_what_is_damaged(
    busybox: Place,
    pushed: Callable[..., dict[str, Any]],
    sizes: dict[str, int],
    small_model: Path,
) -> None:
    place = busybox
    assert pushed(place, "--model", small_model)["bytes_sent"] == sum(sizes.values())
    flip(place.stored("colibri"), sizes["colibri"] // 2)
    flip(place.stored("model.bin"), sizes["model.bin"] // 2)
    for damage in (link_gone, link_astray, manifest_empty):
        damage(place.current)
    record = pushed(place, "--model", small_model)
    assert record["bytes_sent"] == sizes["colibri"] + sizes["model.bin"]
    assert record["mended"] == ["config.json", "manifest", "model.bin"]
    assert runs(place)
    assert pushed(place, "--model", small_model)["mended"] == []


def test_busybox_puts_a_file_together_rolls_back_and_undeploys(
    busybox: Place,
    deploy: Deploy,
    pushed: Callable[..., dict[str, Any]],
    make_checkpoint: Callable[..., Path],
    tmp_path: Path,
) -> None:
    place, model = busybox, tmp_path / "model"
    checkpoint = make_checkpoint(tmp_path / "checkpoint", hidden=64, ffn=256, experts=12)
    convert_checkpoint(checkpoint, model)
    first = pushed(place, "--model", model)
    flip(model / "model.bin", 20 << 16)
    flip(model / "model.bin", 30 << 16)
    assert pushed(place, "--model", model)["bytes_sent"] == 2 << 16
    assert (place.current / "model.bin").read_bytes() == (model / "model.bin").read_bytes()
    assert deploy("rollback", *place.arguments).status == 0
    assert place.current.readlink() == Path("releases", first["release"])
    assert runs(place)
    flip(place.stored("model.bin"), 20 << 16)
    assert deploy("rollback", *place.arguments, "--to", first["release"]).status == 42
    assert deploy("undeploy", *place.arguments).status == 0
    assert not place.root.exists()


def test_busybox_receives_a_file_in_ranges(
    busybox: Place,
    engine: Callable[[str], Path],
    small_model: Path,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push_module, "n_connections", lambda *_: 2)
    monkeypatch.setattr(upload, "SEGMENT_BYTES", 1 << 16)
    board = load_boards([tmp_path / "boards.yaml"])["desk"]
    target = select(load_targets(root), "host")
    with Connection.open(board, KnownHosts(tmp_path / "known_hosts")) as connection:
        bar = ByteProgress()
        plan = push_module.plan_push(connection, target, engine("host"), small_model, bar)
        push_module.push(connection, plan, bar)
    model = (small_model / "model.bin").read_bytes()
    assert (busybox.current / "model.bin").read_bytes() == model
    assert busybox.partials() == []
    assert runs(busybox)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_536, 100_003])
def test_cksum_is_that_of_posix(size: int) -> None:
    data = bytes(i * i % 251 for i in range(size))
    done = subprocess.run(["cksum"], input=data, capture_output=True, check=True)
    assert cksum(data) == done.stdout.decode().strip()
