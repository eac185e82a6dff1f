# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""boards.yaml and addresses: what is read, and what a wrong one is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_deploy.board import Board, load_boards, parse_address, select_board
from colibri_deploy.errors import BoardsFileError, UnknownBoardError
from colibri_deploy.process import Completed

GOOD = """\
boards:
  desk-orin:
    target: jetson-orin
    host: 192.0.2.10
    user: nvidia
    port: 2222
    key: ~/.ssh/id_boards
    workdir: /opt/colibri
  shelf-pi:
    target: rpi5
    host: shelf-pi.example
"""


@pytest.fixture
def boards_yaml(tmp_path: Path) -> Callable[[str], Path]:
    """Writes boards.yaml."""

    def write(text: str) -> Path:
        path = tmp_path / "boards.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_good_file_is_read(boards_yaml: Callable[[str], Path]) -> None:
    boards = load_boards([boards_yaml(GOOD)])
    assert boards == {
        "desk-orin": Board(
            name="desk-orin",
            host="192.0.2.10",
            user="nvidia",
            port=2222,
            target="jetson-orin",
            key=Path.home() / ".ssh/id_boards",
            workdir="/opt/colibri",
        ),
        "shelf-pi": Board(
            name="shelf-pi",
            host="shelf-pi.example",
            user=None,
            port=None,
            target="rpi5",
            key=None,
            workdir=".local/share/colibri",
        ),
    }
    assert boards["desk-orin"].address == "nvidia@192.0.2.10:2222"


def test_the_projects_board_hides_the_users_of_the_same_name(
    boards_yaml: Callable[[str], Path], tmp_path: Path
) -> None:
    user = tmp_path / "user.yaml"
    user.write_text(GOOD.replace("192.0.2.10", "192.0.2.11") + "  z: {target: rpi5, host: z}\n")
    boards = load_boards([boards_yaml(GOOD), user, tmp_path / "none.yaml"])
    assert list(boards) == ["desk-orin", "shelf-pi", "z"]
    assert boards["desk-orin"].host == "192.0.2.10"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2222", "'2222'", "line 6, field boards.desk-orin.port: input should be a valid integer"),
        ("2222", "70000", "line 6, field boards.desk-orin.port: input should be less than or equ"),
        (
            "    port: 2222",
            "    prot: 2222",
            "line 6, field boards.desk-orin.prot: no such field; "
            "fields are target, host, user, port, key, workdir",
        ),
        ("    target: rpi5\n", "", "line 9, field boards.shelf-pi.target: missing"),
        (
            "192.0.2.10",
            "-oProxyCommand=x",
            "line 4, field boards.desk-orin.host: "
            "'-oProxyCommand=x' is neither a host name nor an IP address",
        ),
        ("shelf-pi:", "shelf pi:", "line 9, field boards.shelf pi.[key]: a name is made of lette"),
        ("shelf-pi:", "desk-orin:", "line 9, field desk-orin: already given in line 2"),
        ("/opt/colibri", '"/opt/\\n"', "line 8, field boards.desk-orin.workdir: expected a text "),
        ("boards:", "board:", "line 1, field boards: missing"),
        (GOOD, "boards: []\n", "line 1, field boards: input should be a valid dictionary"),
        (GOOD, "- desk-orin\n", "line 1: expected fields like 'boards:'"),
        ("nvidia", "[nvidia", "line 6: not valid YAML: expected ',' or ']', but got ':'"),
    ],
)
def test_a_wrong_file_is_told_file_line_and_field(
    old: str, new: str, message: str, boards_yaml: Callable[[str], Path]
) -> None:
    assert old in GOOD
    path = boards_yaml(GOOD.replace(old, new, 1))
    with pytest.raises(BoardsFileError) as caught:
        load_boards([path])
    assert caught.value.message.startswith(f"{path}, {message}")
    assert caught.value.exit_code == 27


@pytest.mark.parametrize(
    ("address", "user", "host", "port"),
    [
        ("user@192.0.2.10", "user", "192.0.2.10", None),
        ("user@192.0.2.10:2222", "user", "192.0.2.10", 2222),
        ("desk-orin.example", None, "desk-orin.example", None),
        ("first last@desk-orin", "first last", "desk-orin", None),
        ("u@h@desk-orin", "u@h", "desk-orin", None),
        ("user@[2001:db8::10]:2222", "user", "2001:db8::10", 2222),
        ("user@2001:db8::10", "user", "2001:db8::10", None),
        ("user@[fe80::1%eth0]", "user", "fe80::1%eth0", None),
    ],
)
def test_addresses(address: str, user: str | None, host: str, port: int | None) -> None:
    board = parse_address(address)
    assert (board.user, board.host, board.port) == (user, host, port)
    assert parse_address(board.address) == board


@pytest.mark.parametrize(
    "address",
    ["", "@desk-orin", "user@", "user@-oProxyCommand=x", "-v", "user@desk orin", "user@desk:",
     "user@desk:ssh", "user@desk:0", "user@desk:65536", "us\ner@desk", "user@desk;reboot"],
)  # fmt: skip
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UnknownBoardError) as caught:
        parse_address(address)
    assert caught.value.message.startswith(f"{address!r}")
    assert caught.value.exit_code == 28


def test_an_unknown_board_is_told_the_nearest_one(boards_yaml: Callable[[str], Path]) -> None:
    files = [boards_yaml(GOOD)]
    with pytest.raises(UnknownBoardError) as caught:
        select_board(load_boards(files), "orin", files)
    assert caught.value.message == (
        "no board 'orin': did you mean 'desk-orin'? boards are desk-orin, shelf-pi"
    )
    with pytest.raises(UnknownBoardError, match=r"there are none in x\.yaml"):
        select_board({}, "orin", [Path("x.yaml")])


@pytest.mark.parametrize("verb", ["push", "smoke", "test"])
def test_a_verb_wants_one_board_and_its_target(verb: str, deploy: Callable[..., Completed]) -> None:
    for arguments in ((), ("--board", "a", "--host", "b")):
        done = deploy(verb, *arguments)
        assert done.status == 2
        assert "give either --board NAME or --host USER@ADDR" in done.stderr
    done = deploy(verb, "--host", "user@192.0.2.10")
    assert done.status == 2
    assert "give --target NAME with --host" in done.stderr
    done = deploy(verb, "--board", "sim:host", "--key", "mine")
    assert done.status == 2
    assert "sim:host has keys of its own, made for each run" in done.stderr
    done = deploy(verb, "--board", "sim:jetson")
    assert done.status == 20
    assert "did you mean 'jetson-orin'?" in done.stderr


def test_boards_are_completed_in_a_shell(
    boards_yaml: Callable[[str], Path], deploy: Callable[..., Completed]
) -> None:
    boards_yaml(GOOD)
    words = {"_COLIBRI_DEPLOY_COMPLETE": "bash_complete"}

    def completed(incomplete: str) -> list[str]:
        line = {"COMP_WORDS": f"colibri-deploy push --board {incomplete}", "COMP_CWORD": "3"}
        lines = deploy("push", **words, **line).stdout.splitlines()
        return [one.partition(",")[2] for one in lines]

    assert completed("de") == ["desk-orin"]
    assert completed("sim:rpi") == ["sim:rpi-cm4", "sim:rpi5"]
