# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""boards.yaml and addresses: what is read, and what a wrong one is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import yaml
from jsonschema import Draft202012Validator

from colibri_deploy.board import (
    Board,
    Limits,
    load_boards,
    parse_address,
    resolve_jump,
    select_board,
    select_boards,
)
from colibri_deploy.cli.board_choice import choices
from colibri_deploy.errors import BoardsFileError, UnknownBoardError
from colibri_deploy.known_hosts import KnownHosts
from colibri_deploy.process import Completed, run
from colibri_deploy.ssh_login import Secrets

GOOD = """\
boards:
  desk-orin:
    target: jetson-orin
    host: 192.0.2.10
    user: nvidia
    port: 2222
    key: ~/.ssh/id_boards
    workdir: /opt/colibri
    jump: gate@gate.example
    tags: [lab, orin]
  shelf-pi:
    target: rpi5
    host: shelf-pi.example
    limits: {threads: 3, push_mb_per_s: 2.5}
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
            jump=(Board(name="gate@gate.example", host="gate.example", user="gate"),),
            tags=("lab", "orin"),
        ),
        "shelf-pi": Board(
            name="shelf-pi",
            host="shelf-pi.example",
            user=None,
            port=None,
            target="rpi5",
            key=None,
            workdir=".local/share/colibri",
            limits=Limits(threads=3, push_mb_per_s=2.5),
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
            "fields are target, host, user, port, key, workdir, jump, tags",
        ),
        ("    target: rpi5\n", "", "line 11, field boards.shelf-pi.target: missing"),
        (
            "192.0.2.10",
            "-oProxyCommand=x",
            "line 4, field boards.desk-orin.host: "
            "'-oProxyCommand=x' is neither a host name nor an IP address",
        ),
        ("shelf-pi:", "shelf pi:", "line 11, field boards.shelf pi.[key]: a name is made of lette"),
        ("shelf-pi:", "desk-orin:", "line 11, field desk-orin: already given in line 2"),
        ("/opt/colibri", '"/opt/\\n"', "line 8, field boards.desk-orin.workdir: expected a text "),
        ("gate@gate", "gate@-x", "line 9, field boards.desk-orin.jump.0: 'gate@-x.example' is no "),
        (
            "gate@gate.example",
            "gate",
            "line 9, field boards.desk-orin.jump: no board 'gate' to go "
            "through; write user@host, or one of shelf-pi",
        ),
        (
            "gate@gate.example",
            "desk-orin",
            "line 9, field boards.desk-orin.jump: desk-orin through desk-orin is a circle",
        ),
        ("gate@gate.example", "[7]", "line 9, field boards.desk-orin.jump.0: input should be a v"),
        ("orin]", "or in]", "line 10, field boards.desk-orin.tags.1: a name is made of letters"),
        ("s: 3", "s: 0", "line 14, field boards.shelf-pi.limits.threads: input should be greater"),
        ("s: 2.5", "s: 0", "line 14, field boards.shelf-pi.limits.push_mb_per_s: input should be"),
        ("threads: 3", "ram: 3", "line 14, field boards.shelf-pi.limits.ram: no such field; "),
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
    assert "sim:host has keys of its own: leave out --key and --accept-host-key" in done.stderr
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
    assert completed("sim:rpi") == ["sim:rpi-cm4", "sim:rpi4", "sim:rpi5"]


CHAINED = """\
boards:
  rack-1: {target: rpi5, host: 10.0.0.1, jump: [switch, admin@10.0.0.254]}
  switch: {target: rpi4, host: switch.example, user: pi, port: 2222, jump: gate@gate.example}
"""


def test_a_hop_that_is_a_board_brings_its_own_hops(boards_yaml: Callable[[str], Path]) -> None:
    boards = load_boards([boards_yaml(CHAINED)])
    assert [hop.address for hop in boards["rack-1"].jump] == [
        "gate@gate.example",
        "pi@switch.example:2222",
        "admin@10.0.0.254",
    ]
    hops = resolve_jump(["rack-1", "me@last"], boards)
    assert [hop.name for hop in hops] == [
        "gate@gate.example", "switch", "admin@10.0.0.254", "rack-1", "me@last",
    ]  # fmt: skip
    with pytest.raises(UnknownBoardError, match="no board 'me' to go through; write user@host, or"):
        resolve_jump(["me"], boards)


def test_a_hop_may_stand_in_the_other_file_and_a_circle_is_told(
    boards_yaml: Callable[[str], Path], tmp_path: Path
) -> None:
    user = tmp_path / "user.yaml"
    user.write_text("boards:\n  gate: {target: rpi4, host: g}\n")
    path = boards_yaml("boards:\n  a: {target: rpi5, host: a, jump: gate}\n")
    assert [hop.host for hop in load_boards([path, user])["a"].jump] == ["g"]
    user.write_text("boards:\n  gate: {target: rpi4, host: g, jump: [a]}\n")
    with pytest.raises(BoardsFileError) as caught:
        load_boards([path, user])
    assert caught.value.message == (
        f"{user}, line 2, field boards.gate.jump: a through gate through a is a circle"
    )


RACK = """\
boards:
  orin-1: {target: jetson-orin, host: a, tags: [lab, fast]}
  orin-2: {target: jetson-orin, host: b, tags: [lab]}
  pi-1: {target: rpi5, host: c, tags: [lab]}
  desk: {target: rpi5, host: d}
"""


@pytest.mark.parametrize(
    ("patterns", "tags", "names"),
    [
        ([], [], ["desk", "orin-1", "orin-2", "pi-1"]),
        (["pi-1"], [], ["pi-1"]),
        (["orin-*"], [], ["orin-1", "orin-2"]),
        (["pi-?", "orin-[12]", "pi-1"], [], ["pi-1", "orin-1", "orin-2"]),
        ([], ["lab"], ["orin-1", "orin-2", "pi-1"]),
        (["*-1"], ["lab"], ["orin-1", "pi-1"]),
        ([], ["lab", "fast"], ["orin-1"]),
    ],
)
def test_several_boards_are_chosen_by_patterns_and_tags(
    patterns: list[str], tags: list[str], names: list[str], boards_yaml: Callable[[str], Path]
) -> None:
    boards = load_boards([boards_yaml(RACK)])
    assert [board.name for board in select_boards(boards, patterns, tags, [])] == names


@pytest.mark.parametrize(
    ("patterns", "tags", "message"),
    [
        (["pi-1", "jetson-*"], [], "no board 'jetson-*': boards are desk, orin-1, orin-2, pi-1"),
        (["orin"], [], "no board 'orin': did you mean 'orin-2'? boards are desk, orin-1, orin-2,"),
        (["orin-*"], ["slow"], "none of orin-1, orin-2 has the tag slow: their tags are fast, lab"),
        (["desk"], ["lab", "x"], "none of desk has the tag lab and x: they have no tags"),
    ],
)
def test_a_choice_that_matches_no_board_is_an_error(
    patterns: list[str], tags: list[str], message: str, boards_yaml: Callable[[str], Path]
) -> None:
    boards = load_boards([boards_yaml(RACK)])
    with pytest.raises(UnknownBoardError) as caught:
        select_boards(boards, patterns, tags, [])
    assert caught.value.message.startswith(message)


def test_the_command_lines_choices(
    boards_yaml: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(boards_yaml(RACK).parent)

    def chosen(
        names: list[str], tags: list[str], host: str | None = None, target: str | None = None
    ) -> list[tuple[str, str, str | None]]:
        known, secrets = KnownHosts(None), Secrets()
        found = choices(names, tags, host, target, Path("k"), known, secrets, Path("build"))
        return [(one.name, one.target.name, str(one.board and one.board.key)) for one in found]

    assert chosen(["orin-*"], []) == [
        ("orin-1", "jetson-orin", "k"),
        ("orin-2", "jetson-orin", "k"),
    ]
    assert chosen([], ["fast"], target="rpi4") == [("orin-1", "rpi4", "k")]
    assert chosen([], [], "u@h", "rpi5") == [("u@h", "rpi5", "k")]
    for names, tags, host in (([], [], None), (["pi-1"], [], "u@h"), ([], ["lab"], "u@h")):
        with pytest.raises(click.UsageError, match="give either --board NAME or --host"):
            chosen(names, tags, host)
    with pytest.raises(click.UsageError, match="sim:rpi5 has no tags"):
        chosen(["sim:rpi5"], ["lab"])
    found = choices(
        ["sim:rpi5", "desk", "sim:rpi5"], [], None, None, None, KnownHosts(None), Secrets(), Path()
    )
    assert [(one.name, one.target.name) for one in found] == [
        ("desk", "rpi5"),
        ("sim:rpi5", "rpi5"),
    ]


def test_the_schema_takes_what_is_read_and_refuses_what_is_not() -> None:
    schema = json.loads(run([sys.executable, "-m", "colibri_deploy", "boards", "schema"]).stdout)
    validator = Draft202012Validator(schema)
    validator.check_schema(schema)
    for good in (GOOD, CHAINED, RACK, "boards: {}"):
        validator.validate(yaml.safe_load(good))
    entry = {"target": "rpi5", "host": "h"}
    assert validator.is_valid({"boards": {"a": entry}})
    for wrong in ({"host": "-v"}, {"port": 0}, {"prot": 22}, {"tags": ["a b"]}, {"jump": 7}):
        assert not validator.is_valid({"boards": {"a": entry | wrong}})
    assert not validator.is_valid({"boards": {"a b": entry}})
    assert not validator.is_valid({"boards": {"a": {"host": "h"}}})
    assert not validator.is_valid({})
