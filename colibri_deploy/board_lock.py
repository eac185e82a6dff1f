# SPDX-FileCopyrightText: 2026 The Colibri authors
# SPDX-License-Identifier: Apache-2.0
"""The lock on a board, which one deploy owns at a time.

The owner gives a sign of life every few seconds. A lock without one for some time is that of a dead
owner, and is taken over; board.sh says how. A client that is killed gives its lock up at once,
because the board sees the end of its connection. One that was taken for dead wrongly, because its
network stood still, cannot write any more: every verb that writes looks at the lock first.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator

from colibri_deploy.account import user_name
from colibri_deploy.board_shell import BoardShell
from colibri_deploy.errors import BoardBusyError, ColibriDeployError

BEAT_SECONDS = 2.0
STALE_SECONDS = 10.0  # without a beat: five that failed
_POLL_SECONDS = 1.0
_END_SECONDS = 5.0  # how long the board may take to give the lock up


@contextlib.contextmanager
def board_lock(
    shell: BoardShell,
    root: str,
    on_wait: Callable[[str], None] = lambda owner: None,
    deploy: str = "",
) -> Iterator[str]:
    """Owns the lock below `root`, the directory on the board; gives the nonce for verbs that write.

    `on_wait` is told who has it while it is not known whether he lives. A deploy that may connect
    again gives itself a name, with which its nonces begin: the board may not have seen yet that its
    connection was cut, but that lock is known to be dead. Raises BoardBusyError if somebody else
    has the lock and lives, and the errors of `BoardShell.call`.
    """
    nonce = deploy + secrets.token_hex(8)
    _take(shell, root, nonce, on_wait, deploy)
    done = threading.Event()
    heart = threading.Thread(target=_beat, args=(shell, nonce, done), daemon=True)
    heart.start()
    try:
        yield nonce
    finally:
        done.set()
        heart.join(_END_SECONDS)


def _take(
    shell: BoardShell, root: str, nonce: str, on_wait: Callable[[str], None], deploy: str
) -> None:
    owner = f"{user_name() or os.getuid()}@{socket.gethostname()}, process {os.getpid()}"
    seen, since, looks = "", time.monotonic(), 0

    def is_ours(file: str) -> bool:
        return bool(deploy) and file.startswith(deploy)

    while True:
        # Many looks, too: if this machine stood still meanwhile, so may the owner have.
        is_old = time.monotonic() - since >= STALE_SECONDS
        is_stale = is_ours(seen) or (seen and is_old and looks >= STALE_SECONDS / _POLL_SECONDS)
        ((key, *words),) = shell.call("lock", nonce, owner, seen if is_stale else "")
        if key == "owned":
            return
        file, age, *who = words
        holder = " ".join(who)
        if is_ours(file) and file != seen:
            seen = file
            continue
        if seen and file not in ("-", seen):
            raise BoardBusyError(
                f"{holder} deploys to {shell.connection.board.name}, since {_age(age)}: wait for "
                f"the end; to break the lock, remove {root}/lock on the board"
            )
        if file != seen:
            seen, since, looks = file, time.monotonic(), 0
            on_wait(holder)
        looks += 1
        time.sleep(_POLL_SECONDS)


def _age(seconds: str) -> str:
    if not seconds.isdecimal():  # the board's clock was set back since
        return "an unknown time"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _beat(shell: BoardShell, nonce: str, done: threading.Event) -> None:
    def beats() -> Iterator[bytes]:
        while not done.wait(BEAT_SECONDS):
            yield b"\n"

    # Without a beat the lock is lost in time, and the next verb that writes says so.
    with contextlib.suppress(ColibriDeployError):
        shell.call("hold", nonce, stdin=beats())
