# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""bench/instructions.py counts what QEMU's log says was executed, or refuses the log."""

from __future__ import annotations

import pytest
from instructions import CountError, executed

THREE, TWO = (
    """----------------
IN: main
0x00400580:  d10043ff  sub      sp, sp, #0x10
0x00400584:  52800000  movz     w0, #0
0x00400588:  14000002  b        #0x400590

""",
    """----------------
IN: main
0x00400590:  910043ff  add      sp, sp, #0x10
0x00400594:  d65f03c0  ret

""",
)
RUN_THREE = "Trace 0: 0x7f1c40000100 [00000000/0000000000400580/0000000b/ff000000] main\n"
RUN_TWO = "Trace 0: 0x7f1c40000280 [00000000/0000000000400590/0000000b/ff000000] main\n"


def count(log: str) -> int:
    """The instructions of a log."""
    return executed(log.encode().splitlines(keepends=True))


def test_each_block_counts_as_often_as_it_is_executed() -> None:
    assert count("") == 0
    assert count(THREE + RUN_THREE + TWO + RUN_TWO) == 3 + 2
    assert count(THREE + RUN_THREE * 4 + TWO + RUN_TWO + RUN_THREE) == 5 * 3 + 2
    assert count(THREE + RUN_THREE + THREE + RUN_THREE) == 2 * 3  # translated twice


def test_a_block_that_is_not_listed_is_an_error() -> None:
    with pytest.raises(CountError, match=r"a block is not listed: Trace 0: .*400590"):
        count(THREE + RUN_THREE + RUN_TWO)


def test_a_block_of_two_lengths_is_an_error() -> None:
    longer = THREE.replace("\n\n", "\n0x0040058c:  d503201f  nop\n\n")
    with pytest.raises(CountError, match="the block at 0x400580 has two lengths"):
        count(THREE + RUN_THREE + longer + RUN_THREE)
