# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""Adding boards to boards.yaml and removing them: comments, order and style stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri_deploy.board import BoardEntry, load_entries
from colibri_deploy.boards_file import add_entry, entry_text, make_entry, remove_entry
from colibri_deploy.errors import BoardsFileError, UnknownBoardError

ENTRY = make_entry("new", {"target": "rpi5", "host": "192.0.2.12", "user": "pi"})
FULL = make_entry(
    "new",
    {
        "target": "jetson-orin",
        "host": "2001:db8::10",
        "user": "first last: #1",
        "port": 2222,
        "key": "~/.ssh/id_boards",
        "jump": ("user@gate:22", "other"),
        "tags": ("lab", "1"),
    },
)

WRITTEN = """\
# Our boards.
boards:
  # the one on the desk
  desk-orin:
    target: jetson-orin   # AGX
    host: "192.0.2.10"

  shelf-pi: {target: rpi5, host: shelf-pi.example}
  last:
    target: rpi4
    host: last.example
    # user: pi

# The end.
"""


def write(path: Path, text: str) -> Path:
    """Writes a file with its line ends as they are."""
    path.write_bytes(text.encode())
    return path


def test_an_entry_as_text() -> None:
    assert entry_text("new", FULL) == (
        "  new:\n"
        "    target: jetson-orin\n"
        "    host: 2001:db8::10\n"
        "    user: 'first last: #1'\n"
        "    port: 2222\n"
        "    key: ~/.ssh/id_boards\n"
        "    jump: ['user@gate:22', other]\n"
        "    tags: [lab, '1']\n"
    )


def test_a_missing_file_is_made_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "config" / "boards.yaml"
    add_entry(path, "new", ENTRY)
    assert path.read_text() == (
        "boards:\n  new:\n    target: rpi5\n    host: 192.0.2.12\n    user: pi\n"
    )
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_an_entry_is_added_after_the_last_one_and_its_comments(tmp_path: Path) -> None:
    path = write(tmp_path / "boards.yaml", WRITTEN)
    path.chmod(0o640)
    add_entry(path, "new", ENTRY)
    added = "  new:\n    target: rpi5\n    host: 192.0.2.12\n    user: pi\n"
    assert path.read_text() == WRITTEN.replace("    # user: pi\n", f"    # user: pi\n{added}")
    assert path.stat().st_mode & 0o777 == 0o640
    remove_entry(path, "new")
    assert path.read_text() == WRITTEN


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("desk-orin", '  desk-orin:\n    target: jetson-orin   # AGX\n    host: "192.0.2.10"\n'),
        ("shelf-pi", "  shelf-pi: {target: rpi5, host: shelf-pi.example}\n"),
        ("last", "  last:\n    target: rpi4\n    host: last.example\n    # user: pi\n"),
    ],
)
def test_only_the_lines_of_the_entry_are_removed(name: str, gone: str, tmp_path: Path) -> None:
    path = write(tmp_path / "boards.yaml", WRITTEN)
    remove_entry(path, name)
    assert path.read_text() == WRITTEN.replace(gone, "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("boards: {}\n", "boards:\n  new:\n    target: rpi5\n"),
        ("boards:   {}   # none yet\nX", "boards:   # none yet\n  new:\n    target: rpi5\n"),
        (
            "boards:\n    a:\n        target: x\n        host: a\n",
            "boards:\n    a:\n        target: x\n        host: a\n    new:\n        target: rpi5\n",
        ),
        (
            "boards:\n  a:\n    target: rpi5\n    host: a",
            "boards:\n  a:\n    target: rpi5\n    host: a\n  new:\n    target: rpi5\n",
        ),
        (
            "boards:\r\n  a:\r\n    target: rpi5\r\n    host: a\r\n",
            "boards:\r\n  a:\r\n    target: rpi5\r\n    host: a\r\n  new:\r\n    target: rpi5\r\n",
        ),
        (
            "boards:\n  a:\n    target: x\n    host: a\n    workdir: >-\n      /data/a\n\n\n# x\n",
            "boards:\n  a:\n    target: x\n    host: a\n    workdir: >-\n      /data/a\n"
            "  new:\n    target: rpi5\n",
        ),
        (
            "boards:\n  a:\n    target: rpi5\n    tags:\n    - lab  # ours\n    host: a\n",
            "boards:\n  a:\n    target: rpi5\n    tags:\n    - lab  # ours\n    host: a\n"
            "  new:\n    target: rpi5\n",
        ),
    ],
)
def test_the_style_of_the_file_is_kept(before: str, after: str, tmp_path: Path) -> None:
    path = write(tmp_path / "boards.yaml", before.removesuffix("X"))
    add_entry(path, "new", ENTRY)
    assert path.read_bytes().decode().startswith(after)
    assert load_entries([path])["new"].entry == ENTRY


def test_the_last_board_leaves_an_empty_list(tmp_path: Path) -> None:
    path = write(tmp_path / "boards.yaml", "# mine\nboards: # all\n  a: {target: x, host: y}\n")
    remove_entry(path, "a")
    assert path.read_text() == "# mine\nboards: {} # all\n"
    add_entry(path, "new", ENTRY)
    assert path.read_text().startswith("# mine\nboards: # all\n  new:\n")


@pytest.mark.parametrize(
    "text",
    [
        "boards: {a: {target: rpi5, host: a}}\n",
        "{boards: {a: {target: rpi5, host: a}}}\n",
        "boards:\n  ? a\n  : &x\n    target: rpi5\n    host: a\n  b: *x\n",
    ],
)
def test_what_cannot_be_edited_is_left_alone(text: str, tmp_path: Path) -> None:
    path = write(tmp_path / "boards.yaml", text)
    with pytest.raises(BoardsFileError, match="not edited here; do it by hand"):
        remove_entry(path, "a")
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_the_entry_to_write_by_hand_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "boards.yaml", "boards: {a: {target: rpi5, host: a}}\n")
    with pytest.raises(BoardsFileError) as caught:
        add_entry(path, "new", ENTRY)
    assert caught.value.details == entry_text("new", ENTRY)
    with pytest.raises(BoardsFileError, match=r"has a board a already"):
        add_entry(path, "a", ENTRY)


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    real = write(tmp_path / "real.yaml", WRITTEN)
    link = tmp_path / "boards.yaml"
    link.symlink_to("real.yaml")
    add_entry(link, "new", ENTRY)
    assert link.is_symlink()
    assert "new" in load_entries([real])


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("a b", {"target": "rpi5", "host": "h"}, "a b: a name is made of letters"),
        ("a", {"target": "rpi5", "host": "-v"}, "a.host: '-v' is neither a host name nor an IP"),
        ("a", {"target": "rpi5", "host": "h", "tags": ("l b",)}, "a.tags.0: a name is made of"),
        ("a", {"target": "rpi5", "host": "h", "jump": ("@x",)}, "a.jump.0: '@x' is no address;"),
    ],
)
def test_what_boards_yaml_may_not_say(name: str, fields: dict[str, object], message: str) -> None:
    with pytest.raises(UnknownBoardError) as caught:
        make_entry(name, fields)
    assert caught.value.message.startswith(message)


NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)
ENTRIES = st.builds(
    BoardEntry,
    target=TEXTS,
    host=st.just("h"),
    user=st.none() | TEXTS,
    port=st.none() | st.integers(1, 65535),
    key=st.none() | TEXTS,
    tags=st.lists(NAMES, max_size=2).map(tuple),
)


@given(
    boards=st.dictionaries(NAMES, ENTRIES, min_size=1, max_size=5),
    gap=st.sampled_from(["", "\n", "  # a comment\n", "\n# another\n\n"]),
    data=st.data(),
)
def test_any_board_can_be_added_and_removed(
    boards: dict[str, BoardEntry],
    gap: str,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("boards") / "boards.yaml"
    for name, entry in boards.items():
        add_entry(path, name, entry)
        write(path, path.read_text() + gap)
    assert {name: found.entry for name, found in load_entries([path]).items()} == boards
    comments = path.read_text().count("# another")
    for name in data.draw(st.permutations(list(boards))):
        remove_entry(path, name)
        del boards[name]
        assert {name: found.entry for name, found in load_entries([path]).items()} == boards
    assert path.read_text().count("# another") == comments
