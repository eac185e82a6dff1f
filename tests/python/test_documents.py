# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""What the documents name is there: pages and headings, files, verbs and their options."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import click
import pytest

from colibri_deploy.cli import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
FOLDERS = "bench|colibri_deploy|cross|docs|src|targets|templates|tests"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)


def headings(page: Path) -> set[str]:
    """What links to headings of a page end with."""
    titles = re.findall(r"^#+ +(.*)$", prose(page), flags=re.M)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title.lower()) for title in titles)
    return {re.sub(r"[^\w -]", "", title).strip().replace(" ", "-") for title in plain}


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not link.startswith(("http://", "https://")):
            name, _, heading = link.partition("#")
            there = page.parent / name if name else page
            assert there.exists(), link
            assert not heading or heading in headings(there), link


@every_page
def test_files_that_are_named_are_there(page: Path) -> None:
    for words in re.findall(r"`([^`\n]+)`", prose(page)):
        for name in re.findall(rf"(?<![\w/.])(?:{FOLDERS})/[\w./-]*\w", words):
            is_program = (ROOT / f"{name}.c").exists()  # as Meson names it in a build
            assert is_program or (ROOT / name).exists(), name


@every_page
def test_verbs_and_their_options_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for words in re.findall(r"colibri-deploy((?: +[^\s`|;&#()]+)+)", text):
        command: click.Command = cli
        options = {"-h", "--help"}
        for before, word in itertools.pairwise(["", *words.split()]):
            if isinstance(command, click.Group) and word in command.commands:
                command = command.commands[word]
            elif isinstance(command, click.Group):
                assert "-" in (before[:1], word[:1]), f"colibri-deploy{words}"
            options |= {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
            if word.startswith("-") and word != "-":
                assert word.partition("=")[0].rstrip(".,:") in options, f"colibri-deploy{words}"
